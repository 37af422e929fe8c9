"""An answer's surroundings in this lesson: a region with CUDA's policy, and an eye on what happens in it.

Everything runs on CPU tensors, on every machine: `emulate` lets `torch.autocast("cpu", ...)` cast as CUDA's does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from amp_lab.autocast import emulate
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l06 import settings
from amp_lab.course.lessons.l06.elsewhere import Elsewhere, claimed, region_for
from amp_lab.course.lessons.l06.seeing import Above, Below, Region, Seen

NAMES: dict[torch.dtype, str] = {
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


def as_on_cuda(check: Callable[[Ask], None]) -> Callable[[Ask], None]:
    """Decorate a check: while it runs, regions on CPU tensors follow CUDA's policy, with Tensor Cores' sums."""

    @functools.wraps(check)
    def run(ask: Ask) -> None:
        with emulate.cuda_autocast(), emulate.tensor_cores():
            check(ask)

    return run


@contextlib.contextmanager
def watched(region: Region, *, cuda: Region = None) -> Iterator[Seen]:
    """Open a region, and note what happens in it.

    With `cuda`, CUDA's own autocast is on as well, in that dtype, which does nothing to CPU tensors.
    """
    seen = Seen()
    with contextlib.ExitStack() as stack:
        if cuda is not None:
            stack.enter_context(region_for("cuda", cuda))
        if region is not None:
            stack.enter_context(torch.autocast("cpu", region))
        stack.enter_context(Above(seen))
        stack.enter_context(Below(seen))
        yield seen


class Scene(contextlib.AbstractContextManager[None]):
    """A region to run code of the learner in, and what was `seen` there, even if it ended in an error.

    With `claims`, tensors say that they are on a device of that type, and the region is one for it. With `recorded`
    False, it runs under `torch.no_grad()`.
    """

    def __init__(
        self, region: Region, *, cuda: Region = None, claims: str | None = None, recorded: bool = True
    ) -> None:
        self._region, self._cuda, self._claims, self._recorded = region, cuda, claims, recorded
        self.seen = Seen()
        self.device: Elsewhere | None = None

    def run(self, ask: Ask, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns; raise `Mistake` if it leaves PyTorch's settings changed."""
        changed = None

        def run_and_compare() -> Any:
            nonlocal changed
            # Inside, for at its end gradient mode is put back.
            with torch.set_grad_enabled(self._recorded):
                before = settings.now()
                got = function(*args)
                changed = settings.change(before)
            return got

        ask.around = self
        try:
            got = ask.run(run_and_compare)
        finally:
            ask.around = contextlib.nullcontext()
        if changed is not None:
            setting, before, after = changed
            raise Mistake("left-changed", call=ask.call, setting=setting, got=after, want=before)
        return got

    def __enter__(self) -> None:
        torch.clear_autocast_cache()  # that of a region that the page may be in: parameters changed since
        with contextlib.ExitStack() as stack:
            region = None if self._claims else self._region
            self.seen = stack.enter_context(watched(region, cuda=self._cuda))
            if self._claims:
                self.device = stack.enter_context(claimed(self._claims, self._region))
            self._open = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def where(region: Region) -> str:
    """Say it in words, for a sentence: "in an FP16 region"."""
    if region is None:
        return "outside of any region"
    return f"in {'an' if region is torch.float16 else 'a'} {NAMES[region]} region"


def named(dtypes: Iterable[torch.dtype]) -> str:
    """Return dtypes in words: "FP16", "FP16 and FP32"."""
    return " and ".join(sorted(NAMES.get(dtype, str(dtype)) for dtype in set(dtypes)))


def given(leaf: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
    """Return what a layer before would hand on: the values of `leaf`, with a way back to it.

    With `transposed`, its last two dimensions lie in memory the other way round, as after an `x.mT`.
    """
    with torch.enable_grad():
        return leaf.mT.clone(memory_format=torch.contiguous_format).mT if transposed else leaf.clone()


def must_be_unchanged(call: str, value: torch.Tensor, leaf: torch.Tensor, name: str = "1") -> None:
    """Raise `Mistake` if the answer changed what it was given."""
    before, after = leaf.detach(), value.detach()
    alike = before.dtype == after.dtype and before.shape == after.shape
    if not (alike and torch.equal(before.reshape(-1).view(torch.uint8), after.reshape(-1).view(torch.uint8))):
        raise Mistake("mutated-input", call=call, name=name, want=describe(before), got=describe(after))
    if value.requires_grad != leaf.requires_grad:
        flags = [f"a tensor with `requires_grad={each.requires_grad}`" for each in (leaf, value)]
        raise Mistake("mutated-input", call=call, name=name, want=flags[0], got=flags[1])


def without_products_rounding(got: torch.Tensor, want: torch.Tensor, size: torch.Tensor) -> bool:
    """Return whether values are as exact as if no 16-bit product had made them.

    `want` is right in FP64, `size` the sum of the sizes of what is added up. The rounding of the result itself, to the
    dtype of `got`, is allowed for.
    """
    near = 2.0**-18 * size + torch.finfo(got.dtype).eps / 2 * want.abs()
    return bool(((got.detach().double() - want).abs() <= near).all())


def first_line(error: BaseException | None) -> str:
    """Return an error's type and the first line of its message, without a full stop."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")


def number(value: torch.Tensor) -> str:
    """Return the one number in a tensor in six digits."""
    return f"{float(value):.6g}"
