"""FP16 results that are infinite although nothing that went in was."""

from __future__ import annotations

import math
from typing import Final

import torch

from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.calls import Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import late, may_be, peak
from amp_lab.watching.recording.looks.plain_numbers import INFINITE_FROM, MASKS
from amp_lab.watching.recording.looks.tags import Tags

# Poles, which are infinite in every format; memory that nobody has written yet; what changes no number; questions.
_NOT_ASKED: Final = frozenset(
    "div rdiv reciprocal rsqrt log log2 log10 log1p tan empty empty_like new_empty empty_strided resize "
    "detach view reshape flatten permute transpose contiguous clone squeeze unsqueeze expand __getitem__ chunk split "
    "unbind data.get grad.get T.get mT.get requires_grad cpu cuda register_hook retain_grad "
    "normalize cosine_similarity softmax log_softmax".split()
)
_HALFWAY: Final = 65504 / 2
# Operators that autocast gives FP16 copies of what they are given.
_CAST_BY_AUTOCAST: Final = frozenset(
    "linear bilinear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d scaled_dot_product_attention".split()
)
_WIDE: Final = (torch.float32, torch.float64)
_PRODUCTS: Final = frozenset("matmul bmm mm baddbmm einsum".split())


class Overflows(Judge):
    """Notes "overflow" for each FP16 result, with the largest size of what went in and of what came out.

    And "scores": a product of matrices that is divided afterwards; "softmax": whether rows of it are NaN.
    """

    _before: tuple[Call | None, list[torch.Tensor]] = (None, [])

    def before(self, call: Call) -> None:
        if call.target is not None and call.target.dtype == torch.float16 and not call.backward:
            self._before = call, self._sizes_of_inputs(call)  # which are written over

    def after(self, call: Call) -> None:
        if call.backward or call.dtype is None:
            return
        if call.name in ("div", "mul"):
            self._divided(call)
        if call.name == "softmax":
            self._softmax(call)
        if call.dtype == torch.float16 and call.name not in _NOT_ASKED and is_plain(call.result):
            self._overflow(call, call.result)

    def _overflow(self, call: Call, result: torch.Tensor) -> None:
        if call.name in MASKS and any(abs(number) >= INFINITE_FROM for number in call.numbers()):
            return  # a mask, which is looked at elsewhere
        known, sizes = self._before
        went_in = sizes if known is call else self._sizes_of_inputs(call)
        came_out = self._size(result)
        if came_out is None or (not went_in and not any(True for _ in call.tensors())):
            return
        if call.name in _PRODUCTS:
            self.tags.put(result, "product", tuple(went_in))
        if call.name in _CAST_BY_AUTOCAST and self._too_large(call, late(came_out)):
            return
        if not may_be(late(came_out), math.isinf):
            return
        facts = {
            "call": call.name,
            "squared": _squares(call),
            "inplace": call.target is not None,
            "module": type(call.module).__name__ if call.module is not None else "",
            "scalar": result.dim() == 0,
            "of_gradients": any(_is_of_gradients(self.tags, each) for each in call.tensors()),
        }
        self.notes.add(
            "overflow",
            (call.line, call.name, id(call.module)),
            facts,
            came_out=late(came_out),
            went_in=tuple(map(late, went_in)),
        )

    def _too_large(self, call: Call, came_out: Later[float]) -> bool:
        """Note finite FP32 numbers that autocast's cast to FP16 has made infinite; return whether it may be so."""
        if not may_be(came_out, lambda size: not math.isfinite(size)):
            return False
        wide = [each for each in call.tensors() if each.dtype in _WIDE and is_plain(each)]
        sizes = [late(size) for each in wide if (size := self._size(each)) is not None]
        if not any(may_be(size, lambda number: INFINITE_FROM <= number < math.inf) for size in sizes):
            return False
        self.notes.add(
            "too large to cast",
            (call.line, call.name, id(call.module)),
            {"call": call.name, "module": type(call.module).__name__ if call.module is not None else ""},
            came_out=came_out,
            went_in=tuple(sizes),
        )
        return all(size.known for size in sizes)

    def _sizes_of_inputs(self, call: Call) -> list[torch.Tensor]:
        sizes = (self._size(each) for each in call.tensors() if is_plain(each))
        return [size for size in sizes if size is not None]

    def _size(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the largest size in a tensor: computed once, unless it was written to, or nobody counts writes."""
        if tensor.is_inference():
            return peak(tensor)
        known = self.tags.of(tensor, "size")
        version = tensor._version
        if known is None or known[0] != version or isinstance(tensor, torch.nn.Parameter):
            if (size := peak(tensor)) is None:
                return None
            known = version, size
            self.tags.put(tensor, "size", known)
        found: torch.Tensor = known[1]
        return found

    def _divided(self, call: Call) -> None:
        """Note a product in FP16 that is made smaller only now."""
        product = call.args[0]
        by = call.argument(1, "other")
        smaller = isinstance(by, int | float) and (abs(by) > 1 if call.name == "div" else 0 < abs(by) < 1)
        if smaller and self.tags.of(product, "product") is not None and product.dtype == torch.float16:
            size = self._size(product)
            if size is not None and may_be(late(size), lambda size: not size < _HALFWAY):
                went_in = self.tags.of(product, "product")
                self.notes.add(
                    "scores",
                    call.line,
                    {"by": by, "how": call.name},
                    came_out=late(size),
                    went_in=tuple(map(late, went_in)),
                )

    def _softmax(self, call: Call) -> None:
        scores = call.args[0] if call.args else call.kwargs.get("input")
        if isinstance(scores, torch.Tensor) and is_plain(scores) and is_plain(call.result):
            before, after = self._size(scores), self._size(call.result)
            if before is not None and after is not None and may_be(late(after), math.isnan):
                self.notes.add("softmax", call.line, {}, went_in=(late(before),), came_out=late(after))


def _is_of_gradients(tags: Tags, tensor: torch.Tensor) -> bool:
    return tags.of(tensor, "gradient") is not None or tags.of(tensor, "sizes of gradients") is not None


def _squares(call: Call) -> bool:
    """Return whether a call squares its numbers."""
    if call.name in ("square", "var", "std", "var_mean"):
        return True
    if call.name == "pow":
        return bool(call.argument(1, "exponent") == 2)
    return call.name in ("mul", "dot") and len(call.args) > 1 and call.args[0] is call.args[1]
