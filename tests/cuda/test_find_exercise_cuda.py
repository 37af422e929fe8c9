"""Exercise 7.9 on a GPU: the scale that cures each batch is the one that is expected, which was found on a CPU."""

import pytest
import torch

from amp_lab.course.lessons.l07 import finding
from tests.course.test_checks_07_find import cure, finite_at

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: the batches of 7.9 are not run on one"
    ),
]


@pytest.mark.parametrize("case", finding.CASES, ids=lambda case: f"{case.layers} {case.kinds}")
def test_cuda_breaks_where_the_exercise_expects_it(case):
    cures = [cure(case, number, "cuda") for number in range(len(case.kinds))]
    broken = [number for number, scale in enumerate(cures) if scale is None or scale < 1]
    assert broken[:1] == ([] if case.want is None else [case.want.number])
    if case.want is not None:
        assert cures[case.want.number] == case.want.scale
        finite, _ = finite_at(case.model(), case.batches()[case.want.number], 1.0, "cuda")
        assert case.want.phase == ("backward" if finite else "forward")
