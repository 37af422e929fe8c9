"""Every planted fault is found with its operator, direction and cure; nothing is found in healthy batches.

What is expected is compared with plain PyTorch, too, so that the table itself is not wrong.
"""

import pytest
import torch
from torch import nn

from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.watch import watch
from tests.watching.faults.collection import Case, faults, healthy_cases
from tests.watching.faults.families.language import model_with_a_rare_word, of_tokens, rare_batches
from tests.watching.faults.judging import ask
from tests.watching.faults.measuring import first_not_finite, is_finite, largest_scale, loss_of, region

FAULTS, HEALTHY = faults(), healthy_cases()
IN_FP32_TOO = {
    "nan-in-data",
    "nan-in-targets",
    "nan-in-weights",
    "nan-derivative",
    "no-labels",
    "pole",
    "fp32-overflow",
}
FROM_THE_START = {"nan-in-data", "nan-in-targets", "nan-in-weights", "mask-overflow"}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _name(case):
    return case.name


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_a_planted_fault_is_answered_rightly(fault):
    answer = ask(fault)
    assert not answer.wrong, f"{answer}\n{answer.report}"
    assert answer.report.sentence
    assert answer.report.advice


@pytest.mark.parametrize("case", HEALTHY, ids=_name)
def test_nothing_is_found_in_a_healthy_batch(case):
    answer = ask(case)
    assert not answer.wrong, str(answer.report)


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_plain_pytorch_shows_the_fault(fault):
    scale = largest_scale(fault)
    if fault.cause == "hidden-overflow":
        assert scale == 2.0**16
    elif fault.cures:
        assert (1 <= scale < 2.0**16) if fault.cause == "scale-too-large" else (scale < 1)
    else:
        assert scale is None
    if fault.cause in IN_FP32_TOO:
        assert not is_finite(fault.case(), fault.device_type, enabled=False)
    loss = loss_of(fault.case(), fault.device_type)
    assert bool(torch.isfinite(loss)) == (fault.phase == "backward" or fault.cause == "hidden-overflow")


MADE = [
    each
    for each in FAULTS
    if each.phase == "forward"
    and each.ops
    and not each.given
    and (each.cause not in FROM_THE_START or each.or_cause)
]


@pytest.mark.parametrize("fault", MADE, ids=_name)
def test_plain_pytorch_names_the_same_operator(fault):
    assert first_not_finite(fault).op.split(".")[-1] in fault.ops


@pytest.mark.parametrize("case", HEALTHY, ids=_name)
def test_plain_pytorch_shows_that_a_healthy_batch_is_finite(case):
    assert is_finite(case.case(), case.device_type, scale=2.0**16)


def test_one_batch_of_200_and_no_other_overflows():
    model = model_with_a_rare_word()
    bad = [
        number
        for number, batch in enumerate(rare_batches(200))
        if not torch.isfinite(loss_of(Case(model, of_tokens, batch), "cuda"))
    ]
    assert bad == [137]


def test_there_are_enough_of_all_families():
    for found, least in ((FAULTS, 30), (HEALTHY, 20)):
        assert len(found) >= least
        assert len({each.family for each in found}) == 11


def test_underflow_in_the_first_layers_is_shown_where_it_is_and_is_no_overflow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    with torch.no_grad():
        model[1].weight.mul_(3e-7)  # hardly anything comes through to the first layer
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # or the second layer would grow
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with watch(model, optimizer, scaler) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            with region("cuda"):
                loss = nn.functional.cross_entropy(model(x), y)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    shares = {row.module: row.share_zero + row.share_lost for row in seen.underflow().rows}
    first, last = (torch.count_nonzero(model[at].weight.grad) / model[at].weight.numel() for at in (0, 2))
    assert first < 0.1 < 0.5 < last  # of the gradients, in plain PyTorch
    assert shares.get("0", 0.0) > 0.5 > shares.get("2", 0.0), str(seen.underflow())
    assert find_overflow(model, nn.functional.cross_entropy, (x, y), device_type="cuda").ok
