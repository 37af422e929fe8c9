"""Equal as numbers of a format are: zeros by their sign, NaN to NaN, never nearly."""

import torch


def assert_alike(got: torch.Tensor, want: torch.Tensor) -> None:
    """Fail unless both are FP64 tensors of one shape with the same numbers; names the first place that differs."""
    assert got.dtype == want.dtype == torch.float64
    assert got.shape == want.shape
    same = (got.isnan() & want.isnan()) | (got.view(torch.int64) == want.view(torch.int64))
    if not same.all():
        place = int((~same).flatten().long().argmax())
        first = f"{got.flatten()[place].item()!r}, not {want.flatten()[place].item()!r}"
        raise AssertionError(f"{int((~same).sum())} of {same.numel()} differ, first at {place}: {first}")
