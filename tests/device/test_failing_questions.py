"""A question that fails costs one line of the report, never the report, and never the truth."""

import html
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from amp_lab.device import DeviceReport, asking_system, asking_torch, describe_device

ERRORS = [AttributeError, RuntimeError, AssertionError, NotImplementedError]
CHIP = "Which chip this is could not be found out, and so what it can do is unknown"

# On which machine, which question, what it says, and which facts are null then.
QUESTIONS = [
    ("cpu", "torch.cuda.is_available", "Unknown: whether CUDA can be used", ""),
    ("cpu", "torch.backends.mps.is_available", "Unknown: whether MPS can be used", ""),
    ("cpu", "asking_torch.torch.__version__", "unknown version", "torch.version"),
    ("cpu", "torch.version.cuda", "unknown build", "torch.cuda"),
    ("cpu", "torch.version.hip", "unknown build", "torch.rocm"),
    ("cpu", "torch.backends.mps.is_built", "unknown build", "torch.mps"),
    ("cpu", "torch.distributed.is_available", "Unknown: whether PyTorch is built with NCCL", "torch.nccl"),
    ("cpu", "torch.distributed.is_nccl_available", "Unknown: whether PyTorch is built with", "torch.nccl"),
    ("cpu", "torch.get_num_threads", "unknown number of threads", "torch.threads"),
    ("cpu", "platform.python_version", "Python unknown", "torch.python"),
    ("cpu", "platform.platform", "System unknown", "torch.system"),
    ("cpu", "platform.machine", "unknown architecture", "cpu.architecture"),
    ("bare", "platform.processor", "Device cpu · unknown CPU", "cpu.model"),
    ("cpu", "os.cpu_count", "unknown number of logical cores", "cpu.cores"),
    ("cpu", "os.sysconf", "memory unknown", "cpu.memory_bytes"),
    ("cpu", "asking_system.open", "Unknown: what /proc/cpuinfo says", ""),
    ("cpu", "torch.cpu.get_capabilities", "Unknown: the CPU's capabilities in PyTorch", ""),
    ("bare", "torch.cpu.get_capabilities", "instruction sets unknown", "cpu.features"),
    ("cpu", "torch.backends.cpu.get_cpu_capability", "PyTorch's kernels: unknown", "cpu.vector_level"),
    ("cpu", "torch.backends.mkldnn.is_available", "Unknown: whether oneDNN takes BF16", "cpu.onednn_float16"),
    ("cpu", "torch.ops.mkldnn._is_mkldnn_fp16_supported", "oneDNN takes FP16", "cpu.onednn_float16"),
    ("cpu", "torch.ops.mkldnn._is_mkldnn_bf16_supported", "oneDNN takes BF16", "cpu.onednn_bfloat16"),
    ("cpu", "glob.glob", "Unknown: whether there is a /dev/nvidia*", "nvidia_seen"),
    ("cpu", "shutil.which", "Unknown: whether there is an nvidia-smi", "nvidia_seen"),
    ("cpu", "torch.autocast", "autocast unknown which dtypes it takes on this device", "amp.autocast_dtypes"),
    ("cpu", "torch.is_autocast_enabled", "autocast unknown which dtypes it takes", "amp.autocast_dtypes"),
    ("cpu", "torch.get_autocast_dtype", "Unknown: torch.autocast's default dtype", "amp.default_dtype"),
    (
        "cpu",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
        "GradScaler unknown whether it works on this device",
        "amp.grad_scaler",
    ),
    (
        "cpu",
        "torch.backends.mkldnn.matmul.fp32_precision",
        "whether the CPU shortens FP32",
        "fp32.cpu_matmul",
    ),
    ("a100", "torch.backends.cuda.matmul.fp32_precision", "Now unknown for matrix", "fp32.cuda_matmul"),
    ("a100", "torch.backends.cudnn.conv.fp32_precision", "and unknown for cuDNN", "fp32.cudnn_conv"),
    ("a100", "torch.cuda.is_available", "Unknown: whether CUDA can be used", "gpu"),
    ("a100", "torch.cuda.device_count", "Unknown: whether CUDA can be used", "gpu"),
    ("a100", "torch.cuda.current_device", "Unknown: which GPU is the current one", ""),
    (
        "a100",
        "torch.cuda.get_device_properties",
        "unknown GPU · memory unknown · compute capability",
        "gpu.name",
    ),
    ("a100", "torch.cuda.get_device_properties", "compute capability unknown", "gpu.memory_bytes"),
    ("a100", "torch.cuda.get_device_properties", CHIP, "gpu.capability"),
    ("a100", "torch.cuda.get_arch_list", "Unknown: which GPUs PyTorch has kernels for", "gpu.built_for"),
    ("a100", "torch.cuda.is_bf16_supported", "Unknown: whether PyTorch calls BF16 native", "gpu.bf16_native"),
    ("a100", "torch.cuda.device", "Unknown: whether PyTorch calls BF16 native", "gpu.bf16_native"),
    ("new", "torch.cuda.is_bf16_supported", "BF16 native here is unknown", "gpu.bf16_native"),
    ("amd", "torch.cuda.get_device_properties", CHIP, "gpu.architecture"),
    ("apple", "torch.backends.mps.get_name", "mps · unknown GPU", "gpu.name"),
    ("apple", "torch.mps.recommended_max_memory", "memory unknown", "gpu.memory_bytes"),
    ("apple", "torch.empty", "FP8 unknown Whether FP8 tensors can be kept", "gpu.stores_fp8"),
    ("apple", "torch.autocast", "It is unknown whether torch.autocast takes bfloat16", "amp.autocast_dtypes"),
]
MODULES = {"torch": torch, "asking_torch": asking_torch, "asking_system": asking_system} | {
    name: __import__(name) for name in ("glob", "os", "platform", "shutil")
}
CLAIMS = [
    "does not work",
    "takes no 16-bit dtype",
    "does not take bfloat16",
    "not native",
    "refuses FP8",
    "no kernels",
    "built without",
]


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def become(name: str) -> None:
        request.getfixturevalue("apple_gpu" if name == "apple" else "no_gpu")
        monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True, raising=False)
        if name == "bare":
            monkeypatch.setattr(asking_system, "_cpuinfo", lambda: "")
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {}, raising=False)
        if name in ("a100", "new", "amd"):
            request.getfixturevalue("fake_cuda")(("Some GPU", (99, 0) if name == "new" else (8, 0)))
        if name == "amd":
            chip = SimpleNamespace(name="AMD Instinct", total_memory=2**37, gcnArchName="gfx942")
            monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
            monkeypatch.setattr(torch.version, "cuda", None)
            monkeypatch.setattr(torch.version, "hip", "6.4")

    return become


def break_question(path: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the function at `path` raise when called, or the value at `path` when read."""

    def fails(*args: object, **named: object) -> None:
        raise error

    first, *middle, last = path.split(".")
    chain: list[Any] = [MODULES[first]]
    for name in middle:
        chain.append(getattr(chain[-1], name))
    if last not in ("__version__", "cuda", "hip", "fp32_precision"):
        monkeypatch.setattr(chain[-1], last, fails, raising=False)
        return

    class Around:
        def __getattribute__(self, name: str) -> object:
            if name == last:
                raise error
            return getattr(chain[-1], name)

    monkeypatch.setattr(chain[-2], middle[-1], Around())


def silent_report() -> DeviceReport:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return describe_device()


def topics(report: DeviceReport) -> set[str]:
    return {text.partition(":")[0] for text in report.not_run_here()}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("name", "question", "said", "null"), QUESTIONS)
def test_a_question_that_fails(
    machine, monkeypatch: pytest.MonkeyPatch, name: str, question: str, said: str, null: str, error: type
) -> None:
    machine(name)
    healthy = silent_report()
    assert "Unknown:" not in str(healthy)
    break_question(question, error("it broke\nand how"), monkeypatch)
    report = silent_report()
    text = " ".join(str(report).split())
    assert said in text
    failure = next(note for note in report.notes() if note.startswith("Unknown: "))
    assert failure.endswith(f"({error.__name__}: it broke).")
    assert failure in html.unescape(report._repr_html_())
    value = report.as_dict()["facts"]
    for key in null.split(".") if null else ():
        value = value[key]
    assert value is None or not null
    if report.device != healthy.device:  # a GPU of which it is not known whether it can be used
        assert report.device == "cpu"
        return
    for before, now in zip(healthy.formats, report.formats, strict=True):
        assert now.kind in (before.kind, "unknown"), now
    assert topics(report) <= topics(healthy)
    for claim in CLAIMS:
        assert claim in str(healthy) or claim not in text + " ".join(report.not_run_here())


@pytest.mark.parametrize("error", ERRORS)
def test_a_cuda_that_does_not_start_or_cannot_be_asked_to(
    machine, monkeypatch: pytest.MonkeyPatch, error: type
) -> None:
    machine("a100")
    break_question("torch.cuda.init", error("it broke"), monkeypatch)
    known = issubclass(error, RuntimeError | AssertionError)
    said = "CUDA could not be started" if known else "Unknown: whether CUDA can be used"
    assert said in str(silent_report())
    with pytest.raises(ValueError, match=rf"no device 'cuda' .* Note: {said}"):
        describe_device("cuda")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("torch._C._dispatch_has_kernel_for_dispatch_key", "GradScaler unknown whether it works"),
        ("torch.backends.cpu.get_cpu_capability", "kernels: unknown"),
        ("torch.distributed.is_nccl_available", "Unknown: whether PyTorch is built with NCCL"),
        ("torch.get_autocast_dtype", "Unknown: torch.autocast's default dtype"),
        ("torch.get_num_threads", "unknown number of threads"),
        ("torch.autocast", "autocast unknown which dtypes it takes"),
    ],
)
def test_a_question_that_another_pytorch_does_not_have(
    machine, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    machine("cpu")
    monkeypatch.delattr(path)
    assert said in " ".join(str(silent_report()).split())


def test_an_operator_under_another_name_says_nothing_of_grad_scaler(
    machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("cpu")
    ask = torch._C._dispatch_has_kernel_for_dispatch_key
    monkeypatch.setattr(
        torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: ask(name + "renamed", key)
    )
    assert silent_report().facts.amp.grad_scaler is None


@pytest.mark.parametrize("question", sorted({question for _, question, *_ in QUESTIONS}))
def test_a_wrong_argument_is_still_an_error(machine, monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    machine("cpu")
    break_question(question, RuntimeError("it broke"), monkeypatch)
    with pytest.raises(ValueError, match=r"no device 'cuda:7' .* Here there is: cpu"):
        describe_device("cuda:7")
    with pytest.raises(TypeError, match="takes a name"):
        describe_device(7)
