"""scaler.last, scaler.last_for and scaler.history: what they say, and that asking costs nothing before it is done."""

import contextlib
import gc
import weakref

import pytest
import torch

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler, simulate
from amp_lab.scaling.marks import Marks
from tests.scaling.loops import BOTH, backward, every, iterate, named, parameters
from tests.scaling.optimizers import FusedSGD

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("make", BOTH)
def test_a_step(make):
    scaler, optimizer = make(), torch.optim.SGD(parameters(), lr=0.1)
    assert scaler.last is None
    assert scaler.last_for(optimizer) is None
    iterate(scaler, optimizer)
    assert (scaler.last.stepped, scaler.last.skipped, scaler.last.scale) == (True, False, 1024.0)
    assert scaler.last.overflowed == ()
    assert str(scaler.last) == "stepped at loss scale 1,024"


@pytest.mark.parametrize("make", BOTH)
def test_a_skip_with_names(make):
    scaler, optimizer = make(), torch.optim.SGD(named((3,), (2, 2), (4,)), lr=0.1)
    before = [p.detach().clone() for p in every(optimizer)]
    iterate(scaler, optimizer, INF, 1.0, NAN)
    assert (scaler.last.stepped, scaler.last.skipped, scaler.last.scale) == (False, True, 1024.0)
    assert [tuple(one) for one in scaler.last.overflowed] == [
        ("layer0.weight", 3, 0, 3),
        ("layer2.weight", 0, 4, 4),
    ]
    assert str(scaler.last) == (
        "skipped at loss scale 1,024: infinity or NaN in the gradients of 2 parameters: "
        "layer0.weight (3 infinite, of 3); layer2.weight (4 NaN, of 4)"
    )
    for p, old in zip(every(optimizer), before, strict=True):
        assert torch.equal(p, old)


def test_a_skip_without_names():
    scaler = DynamicLossScaler()
    optimizer = torch.optim.SGD(
        [{"params": parameters((3,))}, {"params": parameters((1,), (128, 64))}], lr=0.1
    )
    iterate(scaler, optimizer, 1.0, None, -INF)
    assert [one.name for one in scaler.last.overflowed] == ["group 1, parameter 1, shape (128, 64)"]


def test_what_was_infinite_before_clipping():
    """clip_grad_norm_ makes NaN of every gradient if there was one."""
    scaler, optimizer = DynamicLossScaler(), torch.optim.SGD(named((3,), (2,)), lr=0.1)
    backward(scaler, optimizer, NAN, 1.0)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(every(optimizer), 1.0)
    assert every(optimizer)[1].grad.isnan().all()
    scaler.step(optimizer)
    assert [one.name for one in scaler.last.overflowed] == ["layer0.weight"]


def test_sparse_gradients():
    scaler = DynamicLossScaler()
    table = torch.ones(10, 2, requires_grad=True)
    optimizer = torch.optim.SparseAdam([("table", table)])
    numbers = torch.tensor([[1.0, INF], [2.0, 3.0], [INF, NAN]])
    used = torch.nn.functional.embedding(torch.tensor([3, 3, 5]), table, sparse=True)
    scaler.scale((used * numbers).sum()).backward()
    scaler.step(optimizer)
    assert [tuple(one) for one in scaler.last.overflowed] == [("table", 2, 1, 6)]


def test_many_names_are_cut_short():
    scaler, optimizer = DynamicLossScaler(), torch.optim.SGD(named(*[(1,)] * 9), lr=0.1)
    iterate(scaler, optimizer, *[INF] * 9)
    assert len(scaler.last.overflowed) == 9
    assert str(scaler.last).endswith("layer4.weight (1 infinite, of 1); and 4 more")


@pytest.mark.parametrize("kinds", [(torch.optim.SGD,) * 2, (FusedSGD,) * 2, (FusedSGD, torch.optim.SGD)])
@pytest.mark.parametrize("bad", [0, 1])
def test_several_optimizers(kinds, bad):
    scaler = DynamicLossScaler()
    first, second = (kind(named((3,)), lr=0.1) for kind in kinds)
    backward(scaler, first, INF if bad == 0 else 1.0)
    backward(scaler, second, INF if bad == 1 else 1.0)
    scaler.step(first)
    scaler.step(second)
    assert scaler.last is scaler.last_for(second)
    assert (scaler.last_for(first).skipped, scaler.last_for(second).skipped) == (bad == 0, bad == 1)
    scaler.update()
    assert scaler.get_scale() == 2.0**15, "backs off once for all"
    assert scaler.history.skipped == [True]


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", [FusedSGD, lambda params, lr: torch.optim.Adam(params, lr, fused=True)])
def test_fused_optimizers(kind, unscale):
    scaler, optimizer = DynamicLossScaler(1024.0), kind(named((3,), (2,)), lr=0.1)
    for numbers in ((1.0, 1.0), (NAN, 1.0)):
        backward(scaler, optimizer, *numbers)
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        report = scaler.last
    assert (report.stepped, report.skipped, report.scale) == (False, True, 1024.0)
    assert [tuple(one) for one in report.overflowed] == [("layer0.weight", 0, 3, 3)]
    assert scaler.history.skipped == [False, True]
    assert scaler.get_scale() == 512.0


CHANGES = {
    "cleared": lambda scaler, optimizer: optimizer.zero_grad(),
    "zeroed": lambda scaler, optimizer: optimizer.zero_grad(set_to_none=False),
    "of the next loss": lambda scaler, optimizer: backward(scaler, optimizer, 1.0, NAN),
    "of a loss that is not scaled": lambda scaler, optimizer: backward_unscaled(optimizer),
    "partly cleared": lambda scaler, optimizer: setattr(every(optimizer)[0], "grad", None),
    "written to": lambda scaler, optimizer: every(optimizer)[1].grad.fill_(NAN),
    "put in their place": lambda scaler, optimizer: setattr(every(optimizer)[1], "grad", torch.ones(2) * NAN),
    "zeroed, and one of them written to": lambda scaler, optimizer: (
        optimizer.zero_grad(set_to_none=False),
        every(optimizer)[1].grad.fill_(NAN),
    ),
}


def backward_unscaled(optimizer):
    optimizer.zero_grad()
    (every(optimizer)[0].sum() + every(optimizer)[1].sum() * NAN).backward()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_too_late_for_names(change):
    """A fused optimizer's report never names parameters whose gradients are of another step, nor only some."""
    scaler, optimizer = DynamicLossScaler(1024.0), FusedSGD(named((3,), (2,)), lr=0.1)
    iterate(scaler, optimizer, NAN, NAN)
    change(scaler, optimizer)
    assert scaler.last.skipped
    assert scaler.last.overflowed == ()
    assert "was not asked while the gradients were there" in str(scaler.last)


def test_names_as_long_as_the_gradients_are_there():
    """Nobody has touched them yet, though the next loss is scaled."""
    scaler, optimizer = DynamicLossScaler(1024.0), FusedSGD(named((3,), (2,)), lr=0.1)
    iterate(scaler, optimizer, NAN, 1.0)
    scaler.scale(every(optimizer)[0].sum())
    assert [one.name for one in scaler.last.overflowed] == ["layer0.weight"]


def test_another_gradient_at_the_place_of_one_that_is_gone():
    """Python gives its id away again."""
    (weight,) = parameters((2,))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(2)
    marks, seen = Marks(optimizer), id(weight.grad)
    assert marks.hold(optimizer)
    for _ in range(100):
        weight.grad = None
        weight.grad = torch.ones(2)
        if id(weight.grad) == seen:
            break
    assert not marks.hold(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_gradients_are_not_kept_alive(kind):
    scaler, optimizer = DynamicLossScaler(1024.0), kind(named((3,), (2,)), lr=0.1)
    iterate(scaler, optimizer, NAN, 1.0)
    gone = weakref.ref(every(optimizer)[0].grad)
    optimizer.zero_grad()
    assert gone() is None
    assert scaler.last.skipped


def test_no_names_of_clipped_gradients():
    scaler, optimizer = DynamicLossScaler(1024.0), FusedSGD(named((3,), (2,)), lr=0.1)
    backward(scaler, optimizer, NAN, 1.0)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(every(optimizer), 1.0)
    scaler.step(optimizer)
    assert scaler.last.skipped
    assert scaler.last.overflowed == ()


def test_reports_do_not_keep_an_optimizer_alive():
    scaler = DynamicLossScaler()
    for kind in (torch.optim.SGD, FusedSGD):
        optimizer = kind(named((3,)), lr=0.1)
        iterate(scaler, optimizer)
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
    assert scaler.last.stepped


def test_history():
    scaler, optimizer = DynamicLossScaler(8.0, growth_interval=2), torch.optim.SGD(named((1,)), lr=0.1)
    assert repr(scaler.history) == "History: no step yet"
    for number in (1.0, 1.0, INF, 1.0, 1.0):
        iterate(scaler, optimizer, number)
    backward(scaler, optimizer)
    scaler.update(3.0)
    backward(scaler, optimizer)
    scaler.step(optimizer)
    scaler.update()
    history = scaler.history
    assert history.scales == [8.0, 8.0, 16.0, 8.0, 8.0, 16.0, 3.0]
    assert history.skipped == [False, False, True, False, False, False, False]
    assert len(history) == 7
    assert repr(history) == "History: 7 steps, 1 of them skipped, loss scale from 3 to 16"
    assert history.scales[0] is history.scales[1], "equal neighbours share one number"
    history.clear()
    iterate(scaler, optimizer)
    assert scaler.history.scales == [3.0]


def test_a_scale_that_stays_takes_no_memory():
    static, held = StaticLossScaler(3.0), DynamicLossScaler(3.0, growth_factor=1e38, growth_interval=1)
    optimizer = torch.optim.SGD(named((1,)), lr=0.1)
    for number in (1.0, INF, 1.0):
        iterate(static, optimizer, number)
    for _ in range(4):
        iterate(held, optimizer)
    by_hand = DynamicLossScaler(3.0)
    for _ in range(3):
        backward(by_hand, optimizer)
        by_hand.update(torch.tensor(3.0))
    simulated = simulate([1.0] * 5, init_scale=3.0, growth_factor=1.0, backoff_factor=1.0, growth_interval=1)
    for history in (static.history, by_hand.history, simulated):
        assert len({id(scale) for scale in history.scales}) == 1
    assert len({id(scale) for scale in held.history.scales}) == 2


def test_a_step_that_failed_is_in_the_history_and_leaves_no_report():
    scaler, optimizer = DynamicLossScaler(), torch.optim.SGD(named((1,)), lr=0.1)
    good, optimizer.step = optimizer.step, lambda: 1 / 0
    for number in (1.0, INF):
        backward(scaler, optimizer, number)
        with contextlib.suppress(ZeroDivisionError):
            scaler.step(optimizer)
        scaler.update()
    assert scaler.history.skipped == [False, True]
    report = scaler.last
    assert report.skipped, "the first call left no report"
    backward(scaler, optimizer)
    with pytest.raises(ZeroDivisionError):
        scaler.step(optimizer)
    assert scaler.last is scaler.last_for(optimizer) is report
    optimizer.step = good
    scaler.step(optimizer)
    assert scaler.last.stepped


def test_a_history_that_waits():
    """After fused optimizers the host learns what happened when it is asked, or after 1,000 updates."""
    scaler, optimizer = DynamicLossScaler(8.0, growth_interval=2), FusedSGD(named((1,)), lr=0.1)
    numbers = [1.0, INF, 1.0, 1.0, 1.0]
    for number in numbers:
        iterate(scaler, optimizer, number)
    scaler.set_growth_interval(1)
    backward(scaler, optimizer)
    scaler.step(optimizer)
    scaler.update(5.0)
    iterate(scaler, optimizer)
    assert len(scaler._scale._waiting) == 7
    assert scaler.history.scales == [8.0, 8.0, 4.0, 4.0, 8.0, 8.0, 5.0]
    assert scaler.history.skipped == [False, True, False, False, False, False, False]
    assert scaler.get_scale() == 5.0, "one clean step was counted before the interval became 1"


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr("amp_lab.scaling.loss_scale.MOST_WAITING", 5)
    scaler, optimizer = DynamicLossScaler(8.0, growth_interval=2), FusedSGD(named((1,)), lr=0.1)
    longest = 0
    for _ in range(23):
        iterate(scaler, optimizer)
        longest = max(longest, len(scaler._scale._waiting))
    assert longest == 4
    assert scaler.get_scale() == 8.0 * 2**11


def test_static_scale_stays():
    for kind in (torch.optim.SGD, FusedSGD):
        scaler, optimizer = StaticLossScaler(3.0), kind(named((1,)), lr=0.1)
        for number in (1.0, INF, 1.0, NAN):
            iterate(scaler, optimizer, number)
        assert scaler.history.scales == [3.0] * 4
        assert scaler.history.skipped == [False, True, False, True]
        scaler_state = scaler.state_dict()
        assert scaler_state["scale"] == 3.0
        iterate_with_new_scale(scaler, optimizer)
        assert scaler.get_scale() == 7.0
        theirs = torch.amp.GradScaler("cpu")
        theirs.load_state_dict(scaler_state)
        iterate(theirs, torch.optim.SGD(named((1,)), lr=0.1), INF)
        iterate(theirs, torch.optim.SGD(named((1,)), lr=0.1), 1.0)
        assert theirs.get_scale() == 3.0, "PyTorch's scaler is static, too, with this state"


def iterate_with_new_scale(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    scaler.update(7.0)
