"""A report as lines of text and as HTML."""

import html
import textwrap
from collections.abc import Iterator

from amp_lab.device.facts import AmpFacts, CpuFacts, DeviceFacts, GpuFacts, TorchFacts
from amp_lab.device.support import FormatSupport


def as_text(facts: DeviceFacts, formats: tuple[FormatSupport, ...], notes: tuple[str, ...]) -> str:
    """Lines of at most 100 characters."""
    about = [_wrapped(11, label, text) for label, text in _fact_rows(facts)]
    head = _wrapped(23, "Format  Support", "What it means here")
    table = [_wrapped(23, f"{row.format:<8}{row.kind}", row.meaning) for row in formats]
    below = [_wrapped(11, "Note", note) for note in notes]
    return "\n".join([*about, "", head, *table, *([""] if below else []), *below])


def as_html(facts: DeviceFacts, formats: tuple[FormatSupport, ...], notes: tuple[str, ...]) -> str:
    """Plain tables without colours of their own, so that light and dark themes stay readable."""
    about = "".join(_html_row("td", *row) for row in _fact_rows(facts))
    head = _html_row("th", "Format", "Support", "What it means here")
    table = "".join(_html_row("td", row.format, row.kind, row.meaning) for row in formats)
    below = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"<table>{about}</table><table>{head}{table}</table><ul>{below}</ul>"


def _wrapped(column: int, label: str, text: str) -> str:
    """`label`, then `text` from `column` on, in lines of 100 characters that break at spaces only."""
    lines = textwrap.wrap(text, 100 - column, break_on_hyphens=False, break_long_words=False)
    return f"{label:<{column}}" + ("\n" + " " * column).join(lines)


def _html_row(tag: str, *cells: str) -> str:
    body = "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{body}</tr>"


def _fact_rows(facts: DeviceFacts) -> tuple[tuple[str, str], ...]:
    built = facts.torch
    scaler = {True: "works", False: "does not work", None: "unknown whether it works"}[facts.amp.grad_scaler]
    return (
        ("Device", " · ".join([facts.device, facts.name, *_gpu_details(facts.gpu)])),
        ("PyTorch", _torch_details(built)),
        ("System", built.system or "unknown"),
        ("CPU", _cpu_details(facts.cpu)),
        ("CPU has", _cpu_features(facts.cpu)),
        ("autocast", _autocast_line(facts.amp)),
        ("GradScaler", f"{scaler} on this device"),
    )


def _gpu_details(gpu: GpuFacts | None) -> Iterator[str]:
    if gpu is None:
        return
    yield _gib(gpu.memory_bytes) + (" shared with the CPU" if gpu.vendor == "apple" else "")
    if gpu.vendor == "nvidia":
        yield f"compute capability {gpu.capability_text}"
    if gpu.vendor == "amd":
        yield f"AMD chip {gpu.chip}"


def _torch_details(built: TorchFacts) -> str:
    version, python = built.version or "unknown version", built.python or "unknown"
    threads = f"{built.threads or 'unknown number of'} threads"
    return " · ".join([f"{version}, {_build(built)}", f"Python {python}", threads])


def _build(built: TorchFacts) -> str:
    if built.cuda:
        return f"built for CUDA {built.cuda}"
    if built.rocm:
        return f"built for ROCm {built.rocm}"
    if built.mps:
        return "built with MPS"
    return "unknown build" if None in (built.cuda, built.rocm, built.mps) else "CPU build"


def _cpu_details(cpu: CpuFacts) -> str:
    cores = f"{cpu.cores or 'unknown number of'} logical cores"
    model, architecture = cpu.model or "unknown CPU", cpu.architecture or "unknown architecture"
    return " · ".join([model, architecture, cores, _gib(cpu.memory_bytes)])


def _cpu_features(cpu: CpuFacts) -> str:
    kernels = f"PyTorch's kernels: {cpu.vector_level or 'unknown'}"
    if cpu.features is None:
        return f"instruction sets unknown · {kernels}"
    return f"{' '.join(cpu.features) or 'no low-precision instruction set'} · {kernels}"


def _autocast_line(amp: AmpFacts) -> str:
    if amp.autocast_dtypes is None:
        return "unknown which dtypes it takes on this device"
    if not amp.autocast_dtypes:
        return "takes no 16-bit dtype on this device"
    return f"takes {' and '.join(amp.autocast_dtypes)}, by default {amp.default_dtype or 'unknown'}"


def _gib(size: int | None) -> str:
    return "memory unknown" if size is None else f"{size / 2**30:.1f} GiB"
