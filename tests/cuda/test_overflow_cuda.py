"""find_overflow, watch(replay=...), ScaleCollapsed and underflow on a CUDA device: as on emulated CUDA, or as told."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import amp_lab
from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying.copies import Copies
from amp_lab.watching.watch import ScaleCollapsed
from tests.watching.faults.collection import cases

DEVICE = "cuda"

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: overflows are not looked for on a GPU",
    ),
]
# Cases for the CPU's own policy do not exist on a GPU.
CASES = [each for each in cases() if each.device_type == "cuda"]
FIRST_OF_EACH_CAUSE = list({each.cause: each for each in reversed(CASES)}.values())


def there(value):
    return tree_map_only(torch.Tensor, lambda each: each.to(DEVICE), value)


def placed(part):
    """Move tensors that are plain attributes of modules, too, as `nn.Module.to` does not."""
    part.to(DEVICE)
    for each in part.modules():
        for name, value in list(vars(each).items()):
            if isinstance(value, torch.Tensor):
                setattr(each, name, value.to(DEVICE))
    return part


def ask(fault, on_device):
    case = fault.case()
    model, loss_fn, batch = case.model, case.loss_fn, case.batch
    if on_device:
        model, batch = placed(model), there(batch)
        loss_fn = placed(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    with torch.random.fork_rng(), torch.device(DEVICE if on_device else "cpu"):
        torch.manual_seed(1)
        return find_overflow(model, loss_fn, batch, device_type="cuda")


@pytest.mark.parametrize("fault", FIRST_OF_EACH_CAUSE, ids=lambda each: f"{each.cause}:{each.name}")
def test_each_cause(fault):
    report = ask(fault, on_device=True)
    assert report.cause in (fault.cause, fault.or_cause), str(report)
    if fault.cause != "none":
        assert (report.phase, report.cures) == (fault.phase, fault.cures), str(report)
        assert not fault.ops or report.op in fault.ops, str(report)


@pytest.mark.parametrize("fault", CASES, ids=lambda each: each.name)
def test_a_gpu_answers_as_an_emulated_one(fault):
    """But for the scale: where a sum is near FP16's end, its order may decide between two neighbours."""
    real, emulated = ask(fault, on_device=True), ask(fault, on_device=False)
    answers = [(each.cause, each.phase, each.module, each.cures) for each in (real, emulated)]
    assert answers[0] == answers[1], f"{real}\n\n{emulated}"
    assert (real.scale is None) == (emulated.scale is None)
    if real.scale is not None:
        assert 0.5 <= real.scale / emulated.scale <= 2.0


class Net(nn.Module):
    """All that a run may change: weights, averages, random numbers of the GPU and of a generator."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16, max_norm=0.5)
        self.norm, self.drop, self.last = nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4)
        self.dice = torch.Generator(DEVICE).manual_seed(3)

    def forward(self, words, factor):
        x = self.drop(self.norm(self.words(words)))
        noise = torch.rand(x.shape, generator=self.dice, device=x.device)
        return self.last(checkpoint(self.inner, x + noise, use_reentrant=False)) * factor

    def inner(self, x):
        """In a backward pass, this runs in a thread of autograd's engine."""
        with torch.autocast(DEVICE, torch.float16):
            return F.relu(self.last.weight.t() @ (self.last.weight @ x.t())).t()


def states(net, optimizer):
    """Return all that must be as before, bit by bit."""
    generators = [torch.get_rng_state(), net.dice.get_state()]
    if torch.cuda.is_available():
        generators += torch.cuda.get_rng_state_all()
    gradients = [each.grad for each in net.parameters()]
    state = tree_map_only(torch.Tensor, torch.Tensor.clone, optimizer.state_dict())
    numbers = [each.detach().clone().cpu() for each in (*net.state_dict().values(), *generators)]
    return numbers, gradients, [each.clone() for each in gradients], state["state"]


@pytest.mark.parametrize("factor", [1.0, 1e6], ids=["healthy", "overflow"])
def test_all_is_put_back(factor):
    torch.manual_seed(0)
    net = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    words, y = torch.arange(20, device=DEVICE), torch.zeros(20, 4, device=DEVICE)
    with torch.autocast(DEVICE, torch.float16):
        F.mse_loss(net(words, 1.0).float(), y).backward()
    optimizer.step()
    numbers, gradients, copied, state = states(net, optimizer)
    report = find_overflow(
        net, lambda out, y: F.mse_loss(out.float(), y), (words, torch.tensor(factor, device=DEVICE), y)
    )
    assert report.ok == (factor == 1.0), str(report)
    assert not [note for note in report.notes if "without autocast" in note], report.notes
    after = states(net, optimizer)
    assert all(map(torch.equal, after[0], numbers))
    assert all(map(lambda a, b: a is b, after[1], gradients))
    assert all(map(torch.equal, after[2], copied))
    torch.testing.assert_close(after[3], state, rtol=0, atol=0)


def test_copies_of_weights_take_no_memory_of_the_gpu():
    weights = [torch.full((32, 2**20), 0.5, device=DEVICE), torch.ones(7, dtype=torch.float16, device=DEVICE)]
    before = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    kept = Copies(weights=weights)
    if DEVICE == "cuda":
        assert torch.cuda.memory_allocated() - before < 2**20, "a copy takes 128 MiB"
    weights[0][3, 5] = 0.25
    weights[1].zero_()
    kept.put_back()
    assert weights[0].eq(0.5).all()
    assert weights[1].eq(1.0).all()


class Loop:
    """A loop on the GPU, whose batches are given a factor, so that some overflow."""

    def __init__(self, fused, scale=2.0**10):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused, foreach=not fused)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=scale)
        self.x, self.y = torch.randn(16, 8).to(DEVICE), torch.randn(16, 1).to(DEVICE)
        self.huge, self.one = torch.tensor(1e6, device=DEVICE), torch.tensor(1.0, device=DEVICE)
        self.factor = self.one

    def loss(self):
        with torch.autocast(DEVICE, torch.float16):
            return F.mse_loss(self.model(self.x * self.factor), self.y)

    def step(self, bad=False):
        self.factor = self.huge if bad else self.one
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def watch(self, replay=True, **settings):
        given = {"replay": self.loss} if replay else {}
        return amp_lab.watch(self.model, self.optimizer, self.scaler, **given, **settings)


@contextlib.contextmanager
def waits():
    """Yield a list, which gets a warning for each time that the host waits for the GPU."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            said = []
            yield said
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
            said += [each for each in found if "synchronizing CUDA operation" in str(each.message)]


def waits_of(loop, steps):
    with waits() as found:
        for _ in range(steps):
            loop.step()
    return len(found)


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_two_overflows_in_200_steps(fused):
    """A fused optimizer's skips are known to the GPU alone: with `replay` it is asked, once in each step."""
    plain = Loop(fused)
    for _ in range(2):
        plain.step()
    alone = waits_of(plain, 40)
    loop = Loop(fused)
    for _ in range(2):
        loop.step()
    with loop.watch() as seen:
        watched = waits_of(loop, 40)
        assert not seen.overflows
        for step in range(160):
            loop.step(bad=step in (30, 100))
    assert [each.cause for each in seen.overflows] == ["cast-overflow"] * 2, str(seen.report())
    assert [each.module for each in seen.overflows] == ["0", "0"]
    assert seen.run.notes == ()
    assert watched - alone <= (40 if fused else 0)
    assert len(list(seen.run.skips)) == 2


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_the_loop_goes_on_as_if_nothing_had_been_run_again(fused):
    """Its dropout, too: the GPU's random numbers are put back."""
    loops = [Loop(fused), Loop(fused)]
    for loop, watched in zip(loops, (False, True), strict=True):
        torch.manual_seed(5)
        with loop.watch() if watched else contextlib.nullcontext():
            for step in range(20):
                loop.step(bad=step in (4, 9))
    one, other = (loop.model.parameters() for loop in loops)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("replay", [False, True], ids=["alone", "replay"])
def test_a_scale_that_collapses(fused, replay):
    loop = Loop(fused, scale=2.0**4)
    before = [each.detach().clone() for each in loop.model.parameters()]

    def overflow_always():
        for _ in range(100):
            loop.step(bad=True)

    with pytest.raises(ScaleCollapsed, match="steps were all skipped"), loop.watch(replay):
        overflow_always()
    assert all(map(torch.equal, loop.model.parameters(), before))


def test_underflow_is_counted_without_waiting():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)), nn.Linear(64, 1))
    on_cpu = copy.deepcopy(model)
    x = torch.randn(32, 64)
    found = []
    for device, net in (("cpu", on_cpu), (DEVICE, model.to(DEVICE))):
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        here = x.to(device)
        with amp_lab.watch(net, optimizer) as seen, waits() as waited:
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast(device, torch.float16):
                    loss = net(here).float().square().mean() * 1e-5
                loss.backward()
                optimizer.step()
        assert not waited, [str(each.message) for each in waited]
        found.append(seen.underflow())
    real, wanted = found[1], found[0]
    assert real.modules == wanted.modules
    assert real.began.keys() == wanted.began.keys()
    assert real.began
    for one, other in zip(real.rows, wanted.rows, strict=True):
        assert one.share_lost == pytest.approx(other.share_lost, abs=0.1), one.module
