"""The loops in the docstrings of rules, as programs that run: under "Wrong:" and "Right:", watched, with real lines.

    python -m tests.watching.docs clip-before-unscale     what the watcher says about the loops of one rule

Loops of rules about several processes run in two: `python -m tests.watching.documented_ranks ID`.

A loop is the body of `for x, y in batches:`, or a whole program if it mentions a DataLoader, or a name that begins
with `batches`. A program's setting, which runs before anybody watches, is what stands at top level before its first
loop; the comment `# watched from here` says otherwise. What a program may use is made only where it mentions it: see
`Names`.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import math
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FOLDER = Path(__file__).parent / "documented"  # which is not there: linecache holds its files
HEADING = re.compile(r"^(Wrong|Right)(?:, .*)?:$")
BORDER = "# watched from here"


@dataclass(frozen=True)
class Loop:
    """One loop of a docstring: `which` is "Wrong" or "Right", `heading` the line above it."""

    rule: str
    which: str
    heading: str
    code: str

    @property
    def name(self) -> str:
        """Such as "clip-before-unscale Wrong, by value"."""
        return f"{self.rule} {self.heading.removesuffix(':')}"

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run it: "Wrong, on a GPU:" needs CUDA."""
        return "on a GPU" not in self.heading or torch.cuda.is_available()

    @property
    def is_of_ranks(self) -> bool:
        """Whether it takes several processes: `documented_ranks.py` runs those."""
        from amp_lab.watching.rules.rule import RULES

        return self.rule in RULES and ".rules.ranks." in RULES[self.rule].look.__module__

    @property
    def file(self) -> str:
        """Where its lines seem to stand."""
        return str(FOLDER / f"{self.name}.py")

    @property
    def program(self) -> str:
        """The code as a program of its own."""
        if re.search(r"\bbatches|\bDataLoader\b", self.code):
            return self.code
        return "for x, y in batches:\n" + textwrap.indent(self.code, "    ")


@dataclass(frozen=True)
class Seen:
    """What came of a loop: the watcher's report, and the exception with which the loop ended."""

    report: Any
    error: Exception | None


def loops_of(rule: str, docstring: str | None) -> list[Loop]:
    """Return the loops of a docstring, in order: the blocks that are indented deeper than the headings above them."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    found = []
    for number, line in enumerate(lines):
        if match := HEADING.match(line):
            block = []
            for each in lines[number + 1 :]:
                if each and not each.startswith(" "):
                    break
                block.append(each)
            found.append(Loop(rule, match[1], line, textwrap.dedent("\n".join(block)).strip("\n") + "\n"))
    return found


def watched(loop: Loop, rank: int | None = None) -> Seen:
    """Run a loop under `amp_lab.watch` and return the report, also if the loop raises.

    Args:
        rank: of this process, where several run the loop together; their numbers are others on each.
    """
    from amp_lab.watching.watch import watch

    linecache.cache[loop.file] = (len(loop.program), None, loop.program.splitlines(True), loop.file)
    setting, rest = _halves(loop)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(rank or 0)
        names = (Names if rank is None else NamesOfRank)(loop.program, Path(folder), rank or 0).made()
        names["__name__"] = "__main__"
        exec(setting, names)
        replay = names.get("replay") if _mentions(loop.program, "replay") else None
        seen = watch(*_given(loop.program, names), replay=replay, min_scale=None)
        error = None
        try:
            with seen:
                exec(rest, names)
        except Exception as raised:
            error = raised
        finally:
            autocast_off()
        return Seen(seen.report(), error)


def autocast_off() -> None:
    """Leave no region behind: some wrong loops forget to leave theirs, or leave autocast switched on."""
    depth = torch.autocast_increment_nesting()  # which tells how deep, and makes it at least 1
    while depth > 0:
        depth = torch.autocast_decrement_nesting()
    for device_type in ("cpu", "cuda"):
        torch.set_autocast_enabled(device_type, False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_cache_enabled(True)
    torch.clear_autocast_cache()


def _given(program: str, names: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return what watch is given: the objects of these names, those which the program mentions."""

    def those(*wanted: str) -> list[Any]:
        return [names[each] for each in wanted if each in names and _mentions(program, each)]

    models, optimizers = those("model", "model_b"), those("optimizer", "optimizer_b")
    return models or names["model"], optimizers or names["optimizer"], next(iter(those("scaler")), None)


def _halves(loop: Loop) -> tuple[CodeType, CodeType]:
    """Return what runs before the watch begins, and what runs under it, compiled with their real lines."""
    statements = ast.parse(loop.program, loop.file).body
    border = _border(loop.program, statements)
    return tuple(  # type: ignore[return-value]
        compile(ast.Module(half, []), loop.file, "exec")
        for half in (statements[:border], statements[border:])
    )


def _border(program: str, statements: list[ast.stmt]) -> int:
    """Return which of the statements is the first that is watched."""
    for number, line in enumerate(program.splitlines(), start=1):
        if line.strip() == BORDER:
            return sum(each.lineno < number for each in statements)
    functions = {each.name for each in statements if isinstance(each, ast.FunctionDef)}
    for index, each in enumerate(statements):
        if isinstance(each, ast.For | ast.While | ast.With | ast.Try) or _calls(each, functions):
            return index
    raise AssertionError(f"there is no loop in\n{program}")


def _calls(statement: ast.stmt, functions: set[str]) -> bool:
    return isinstance(statement, ast.Expr | ast.Assign) and any(
        isinstance(each, ast.Name) and each.id in functions for each in ast.walk(statement)
    )


def _mentions(program: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", program) is not None


ALWAYS = {
    "torch": torch,
    "nn": nn,
    "F": F,
    "math": math,
    "copy": copy,
    "autocast": torch.amp.autocast,
    "GradScaler": torch.amp.GradScaler,
    "AveragedModel": AveragedModel,
    "get_ema_multi_avg_fn": get_ema_multi_avg_fn,
    "checkpoint": checkpoint,
    "clip_grad_norm_": clip_grad_norm_,
    "clip_grad_value_": clip_grad_value_,
    "device_type": "cpu",
    "loss_fn": F.mse_loss,
    "epochs": 2,
}


OF_RANKS = {
    "dist": dist,
    "DistributedDataParallel": DistributedDataParallel,
    "DistributedSampler": DistributedSampler,
    "DataLoader": DataLoader,
    "TensorDataset": TensorDataset,
}


class Names:
    """What a program finds at hand. Each method makes the object of its name, if the program mentions it.

    The methods are in the order in which objects are made; one that needs another makes that, too.
    """

    # A target whose gradient, 2 × 3000 / 16 = 375, is over 65504 times 256, and is not times 128.
    OVERFLOWS = 3000.0

    def __init__(self, program: str, folder: Path, rank: int = 0) -> None:
        self._program, self._folder, self._rank = program, folder, rank
        self._names: dict[str, Any] = dict(ALWAYS)

    def made(self) -> dict[str, Any]:
        """Return the names with their objects."""
        for name, make in vars(Names).items():
            if name.startswith("_") or name == "made" or not inspect.isfunction(make):
                continue
            if _mentions(self._program, name) or name in ("model", "optimizer"):
                self._names[name] = getattr(self, name)()
        return self._names

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self._names["model"].parameters(), lr=0.1)

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=1024.0)

    def model_b(self) -> nn.Module:
        return nn.Linear(8, 1)

    def optimizer_b(self) -> torch.optim.Optimizer:
        other = self._names.setdefault("model_b", nn.Linear(8, 1))
        return torch.optim.SGD(other.parameters(), lr=0.1)

    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(self._names["optimizer"], step_size=2, gamma=0.5)

    def ema(self) -> AveragedModel:
        return AveragedModel(self._names["model"], multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return _pairs(8, seed=1 + self._rank)

    def batches_many(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return _pairs(48)

    def batches_overflow(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = _pairs(8)
        pairs[2][1][0] = self.OVERFLOWS
        return pairs

    def batches_nan(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = _pairs(8)
        pairs[2][0][0, 0] = math.nan
        return pairs

    def validation(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return _pairs(2)

    def path(self) -> Path:
        return self._folder / "checkpoint.pt"


class NamesOfRank(Names):
    """What a program of several ranks finds at hand beside that: the model is in DDP."""

    def made(self) -> dict[str, Any]:
        self._names |= OF_RANKS | {"rank": self._rank}
        return super().made()

    def model(self) -> nn.Module:
        return DistributedDataParallel(super().model())


def _pairs(number: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    dice = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 8, generator=dice), torch.randn(16, 1, generator=dice)) for _ in range(number)]


def all_loops() -> Iterator[Loop]:
    """Yield the loops of every rule."""
    import amp_lab.watching.rules
    from amp_lab.watching.rules.rule import RULES

    assert amp_lab.watching.rules
    for each in RULES.values():
        yield from loops_of(each.id, each.look.__doc__)


def _main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    for loop in all_loops():
        if loop.runs_here and not loop.is_of_ranks and (not wanted or loop.rule in wanted):
            seen = watched(loop)
            print(f"\n--- {loop.name}\n{loop.program}")
            print("raised:", repr(seen.error)[:300] if seen.error else "nothing")
            print(seen.report)


if __name__ == "__main__":
    _main()
