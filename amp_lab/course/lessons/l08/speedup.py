"""Exercise 8.4: how much faster an operator can be in 16 bits, by the roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Trial
from amp_lab.train.measure import Gpu

Case = tuple[float, float, Gpu]
_DIGITS = 9  # of a speedup that are compared: the same formula, written otherwise, differs in the sixteenth


def _gpu(name: str, fp16: float, tf32: float, fp32: float, bandwidth: float) -> Gpu:
    return Gpu(name, fp16=fp16, bf16=fp16, tf32=tf32, fp32=fp32, bandwidth=bandwidth, source="made up")


_LARGE = _gpu("large", fp16=900e12, tf32=450e12, fp32=60e12, bandwidth=3e12)
_SMALL = _gpu("small", fp16=60e12, tf32=30e12, fp32=8e12, bandwidth=0.3e12)
_PLAIN = _gpu("plain", fp16=24e12, tf32=12e12, fp32=16e12, bandwidth=0.7e12)  # less than twice as fast
_OLD = _gpu(
    "old", fp16=0.14e12, tf32=9e12, fp32=9e12, bandwidth=0.32e12
)  # slower, as on some GPUs before 2017


def _arithmetic(flops: float, gpu: Gpu) -> tuple[float, float]:
    return flops / gpu.peak("fp32"), flops / gpu.peak("fp16")


def _memory(bytes_fp32: float, gpu: Gpu) -> tuple[float, float]:
    return bytes_fp32 / gpu.bandwidth, bytes_fp32 / 2 / gpu.bandwidth


def bounds(flops: float, bytes_fp32: float, gpu: Gpu) -> tuple[str, str]:
    """Return what the operator waits for in FP32 and in 16 bits: 'memory' or 'arithmetic'."""
    times = zip(_arithmetic(flops, gpu), _memory(bytes_fp32, gpu), strict=True)
    one, other = ("arithmetic" if arithmetic > memory else "memory" for arithmetic, memory in times)
    return one, other


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _near(number: float, want: float) -> float:
    """Return `want` if the number is as near as FP32 comes, and else the number, rounded."""
    return want if math.isclose(number, want, rel_tol=1e-6) else _rounded(number)


def _speedup(combine: Callable[[float, float], float], memory: Callable[..., Any] = _memory) -> Any:
    """Return the ratio of two times, each made of a time for arithmetic and one for memory."""

    def answer(flops: float, bytes_fp32: float, gpu: Gpu) -> float:
        times = zip(_arithmetic(flops, gpu), memory(bytes_fp32, gpu), strict=True)
        fp32, half = (combine(*each) for each in times)
        return fp32 / half

    return answer


_exactly = _speedup(max)


def right(*case: Any) -> float:
    """Return the right answer to nine digits."""
    return _rounded(_exactly(*case))


def _as_read(answer: Callable[..., float]) -> Callable[..., float]:
    return lambda *case: _near(answer(*case), right(*case))


def _ratio(flops: float, bytes_fp32: float, gpu: Gpu) -> float:
    return gpu.peak("fp16") / gpu.peak("fp32")


def _of_one_side(side: int) -> Callable[..., float]:
    """Return what looks at one of the two formats and concludes for both."""
    return lambda *case: 2.0 if bounds(*case)[side] == "memory" else _ratio(*case)


def _times_in_half(flops: float, bytes_fp32: float, gpu: Gpu) -> float:
    return max(_arithmetic(flops, gpu)[1], _memory(bytes_fp32, gpu)[1])


def _from_tf32(flops: float, bytes_fp32: float, gpu: Gpu) -> float:
    tf32 = max(flops / gpu.peak("tf32"), _memory(bytes_fp32, gpu)[0])
    return tf32 / _times_in_half(flops, bytes_fp32, gpu)


def _fewer_flops(flops: float, bytes_fp32: float, gpu: Gpu) -> float:
    half = max(flops / 2 / gpu.peak("fp16"), _memory(bytes_fp32, gpu)[1])
    return max(_arithmetic(flops, gpu)[0], _memory(bytes_fp32, gpu)[0]) / half


_MISCONCEPTIONS: Misconceptions = tuple(
    (name, _as_read(answer))
    for name, answer in (
        ("peaks-only", _ratio),
        ("always-two", lambda *case: 2.0),
        ("bytes-stay", _speedup(max, lambda size, gpu: (size / gpu.bandwidth, size / gpu.bandwidth))),
        (
            "bytes-of-16-bits",
            _speedup(max, lambda size, gpu: (2 * size / gpu.bandwidth, size / gpu.bandwidth)),
        ),
        ("shorter-time", _speedup(min)),
        ("times-added", _speedup(lambda arithmetic, memory: arithmetic + memory)),
        ("smaller-gain", lambda *case: min(_ratio(*case), 2.0)),
        ("larger-gain", lambda *case: max(_ratio(*case), 2.0)),
        ("one-side", _of_one_side(0)),
        ("one-side", _of_one_side(1)),
        ("inverse", lambda *case: 1 / _exactly(*case)),
        ("flops-halved", _fewer_flops),
        ("from-tf32", _from_tf32),
        ("not-a-ratio", _times_in_half),
        ("not-a-ratio", lambda flops, *rest: flops / _times_in_half(flops, *rest)),
    )
)


def _cases() -> tuple[Case, ...]:
    """Return a copy-like, a matmul-like and several operators between them, for each GPU."""
    some: list[Case] = []
    for gpu in (_LARGE, _SMALL, _PLAIN, _OLD):
        ridges = [gpu.peak(kind) / gpu.bandwidth for kind in ("fp32", "fp16")]
        low, high = min(ridges[0], ridges[1] / 2), max(ridges[0], ridges[1] / 2)
        for intensity in (
            low / 40,
            low / 1.5,
            low**0.7 * high**0.3,
            low**0.2 * high**0.8,
            high * 1.5,
            high * 30,
        ):
            size = 3e8 / intensity**0.5
            some.append((round(size * intensity), round(size), gpu))
    return tuple(some)


CASES = _cases()


def _read(call: str, got: Any, want: float) -> float:
    number = expect.number(call, got, want)
    try:
        return _near(number, want)
    except OverflowError:  # a whole number that no float holds
        return math.inf


def _in_part(trials: Sequence[Trial]) -> None:
    """Say where the answer is wrong, if it is right somewhere else."""
    if all(
        any(each.got in (round(each.want, places), int(each.want)) for places in range(5)) for each in trials
    ):
        raise Mistake("rounded", **expect.first_wrong(trials))
    for diagnosis, kinds in (
        ("memory-bound", {("memory", "memory")}),
        ("compute-bound", {("arithmetic", "arithmetic")}),
        ("in-between", {("arithmetic", "memory"), ("memory", "arithmetic")}),
    ):
        wrong = [trial for trial in trials if bounds(*trial.args) in kinds and trial.got != trial.want]
        if wrong:
            raise Mistake(diagnosis, **expect.first_wrong(wrong))


def _in_words(flops: float, bytes_fp32: float, gpu: Gpu) -> str:
    peaks = f"fp32={gpu.fp32:.3g}, fp16={gpu.fp16:.3g}, bandwidth={gpu.bandwidth:.3g}"
    return f"`attainable_speedup({flops:.4g}, {bytes_fp32:.4g}, gpu)` with a gpu of {peaks}"


@checker("8.4")
def attainable_speedup(ask: Ask) -> None:
    """Ask for operators on both sides of the ridges of four GPUs, and between the ridges."""
    ask.in_words = _in_words
    ask.compare(CASES, right, _MISCONCEPTIONS, read=_read, otherwise=_in_part)
