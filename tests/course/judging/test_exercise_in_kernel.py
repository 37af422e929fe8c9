"""The sentence a learner sees for every contained fault, in a real kernel, which must be alive and well after it.

With AMP_LAB_SHOW=1 the sentences are printed: `AMP_LAB_SHOW=1 pytest -s` and this file.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.kernelspec import KernelSpec

from tests.course.judging.faults import FAULTS
from tests.course.probe import MISTAKES

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[3]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LIMIT_S = 2
# What is no fault, but must be told or survived all the same: source, words of what is shown.
REPORTED = {
    "print flood": (
        "def learner(x):\n    for _ in range(100_000):\n        print('x' * 500)\n    return 2 * x",
        "more characters",
    ),
    "thread left behind": (
        "import threading, time\n\ndef learner(x):\n"
        "    threading.Thread(target=time.sleep, args=(2,), name='mine').start()\n    return 2 * x",
        "left a thread running (mine)",
    ),
    "stub": ("def learner(x):\n    raise NotImplementedError", "not attempted yet"),
    "right": ("def learner(x):\n    return 2 * x", "correct"),
}


class Kernel:
    """One kernel; `run` executes a cell and returns the text of what it shows."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str) -> str:
        shown: list[str] = []

        def keep(message: dict) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] in ("display_data", "execute_result"):
                shown.append((content["data"].get("text/markdown") or content["data"]["text/plain"]) + "\n")
            elif message["msg_type"] == "error":
                shown.append("\n".join(content["traceback"]) + "\n")

        self._client.execute_interactive(code, timeout=60, output_hook=keep, allow_stdin=False)
        return _COLOUR.sub("", "".join(shown))


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager = KernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="test", language="python")
    manager.start_kernel(cwd=str(ROOT), env={**os.environ, "PYTHONPATH": str(ROOT)})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = Kernel(client)
        said = kernel.run(
            "import os, torch\n"
            "from amp_lab.course.judging.exercise import judge, tell\n"
            "from tests.course.probe import DOUBLE, check_double\n"
        )
        assert said == ""
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


ANSWERS = (
    {name: (fault.source, *fault.words) for name, fault in FAULTS.items()}
    | {name: (code, words) for name, (code, _, words) in MISTAKES.items()}
    | REPORTED
)


@pytest.mark.parametrize("name", ANSWERS)
def test_learner_is_told_and_the_kernel_lives(kernel: Kernel, name: str) -> None:
    code, *words = ANSWERS[name]
    process = kernel.run("torch.manual_seed(7); print(os.getpid())")
    assert kernel.run(code) == ""
    shown = kernel.run(f"tell(judge(DOUBLE, check_double, learner, limit_s={LIMIT_S}))")
    if os.environ.get("AMP_LAB_SHOW"):
        print(f"\n--- {name}\n{shown}")
    flat = " ".join(shown.replace("`", "").split())
    assert "Traceback" not in flat
    for part in words:
        assert part.replace("`", "") in flat
    assert len(shown) < 4000
    assert kernel.run("print(os.getpid())") == process, "the kernel died and was started anew"
    assert kernel.run("print('heard', torch.initial_seed(), torch.is_grad_enabled())") == "heard 7 True\n"
