"""What this machine can do for mixed precision.

    print(describe_device())

Two halves, kept apart on purpose. *Asking* (`asking*.py`) reads facts from PyTorch and the operating system
and judges nothing. *Explaining* (`meaning.py`) is a pure function from those facts to one sentence per number
format, so a V100 or a B200 can be explained, and tested, on a laptop that has neither.

One way through the files: `facts` and `support` are the words; `cpu_kinds` and `gpu_kinds` judge, `meaning`
makes sentences of it; `kernels` and `remarks` add what the table of formats does not say; `layout` and `report`
show it; `asking_torch` and `asking_system` gather the facts, each question through `asking_safely`, and
`asking` starts all this.
"""

from amp_lab.device.asking import describe_device
from amp_lab.device.facts import DeviceFacts
from amp_lab.device.meaning import explain
from amp_lab.device.report import DeviceReport
from amp_lab.device.support import FormatSupport

__all__ = ["DeviceFacts", "DeviceReport", "FormatSupport", "describe_device", "explain"]
