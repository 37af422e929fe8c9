"""Measure what mixed precision costs and buys: time, memory, operations.

    print(compare({"FP32": step, "AMP": amp_step}, baseline="FP32"))
    print(memory_account(model, loss_fn, batch, optimizer=optimizer, dtype=torch.float16))
    print(count_flops(model, loss_fn, batch, dtype=torch.float16))
    print(ladder())

Time: `timing` and `clocks`. Memory: `accounting` runs a batch, `ledger` follows each of the `storages` from birth to
death, `states` asks the optimizer, `account` shows it. Operations: `counting`, `traffic`, `counts`; `module_names` says
whose they are; `gpus` and `rooflines` say what they mean on a GPU. `ladders` and `rungs` measure one training step in
each precision.
"""

from amp_lab.train.measuring.account import MemoryAccount, plot_accounts
from amp_lab.train.measuring.accounting import memory_account
from amp_lab.train.measuring.clocks import one_thread
from amp_lab.train.measuring.counting import count_flops
from amp_lab.train.measuring.counts import Counts
from amp_lab.train.measuring.gpus import GPUS, Gpu, attainable, gpu_named
from amp_lab.train.measuring.ladders import Ladder, Rung, ladder
from amp_lab.train.measuring.rooflines import roofline_figure
from amp_lab.train.measuring.timing import AGAIN, Timings, compare

__all__ = [
    "AGAIN",
    "GPUS",
    "Counts",
    "Gpu",
    "Ladder",
    "MemoryAccount",
    "Rung",
    "Timings",
    "attainable",
    "compare",
    "count_flops",
    "gpu_named",
    "ladder",
    "memory_account",
    "one_thread",
    "plot_accounts",
    "roofline_figure",
]
