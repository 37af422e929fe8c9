"""Regions in real loops: each mistake in other clothes than its docstring's, and loops that only look like one.

A loop is a function of `Bench`: what it calls is watched. The docstring loops are run by test_docs.py.
"""

import contextlib
import threading
import warnings
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import amp_lab
from amp_lab.watching.recording.islands import islands
from amp_lab.watching.rules import RULES, Severity
from amp_lab.watching.rules.regions.without_grad import FIXED_IN, cached_without_grad, version_of_torch
from tests.watching.autocast_state import reset_autocast

FP16, BF16 = torch.float16, torch.bfloat16
STEPS = 4


@pytest.fixture(autouse=True)
def autocast_as_it_was():
    yield
    reset_autocast()


def network():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


@dataclass
class Bench:
    """What loops train with."""

    model: nn.Module = field(default_factory=network)
    kind: type = torch.optim.SGD
    settings: dict = field(default_factory=lambda: {"lr": 0.1})
    scale: float | None = 1024.0

    def __post_init__(self):
        dice = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.randn(16, 8, generator=dice), torch.randn(16, 1, generator=dice)) for _ in range(STEPS)
        ]
        self.optimizer = self.kind([p for p in self.model.parameters() if p.requires_grad], **self.settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale) if self.scale else None

    def update(self, loss):
        """Go back, step, and begin anew."""
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad()


def report_of(loop, bench=None, models=(), optimizers=()):
    torch.manual_seed(0)
    bench = bench or Bench()
    seen = amp_lab.watch([bench.model, *models], [bench.optimizer, *optimizers], bench.scaler)
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError, ValueError):
        warnings.simplefilter("ignore")
        with seen:
            loop(bench)
    report = seen.report()
    assert not report.failed
    assert not report.run.notes
    return report


def ids(report):
    return [each.id for each in report.diagnoses]


class Island(nn.Module):
    """A model with a part that is FP32 in any region."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return self.last(hidden.float())


# Backward inside


def inside(bench, dtype=FP16):
    for x, y in bench.batches:
        with torch.autocast("cpu", dtype):
            loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)


def inside_a_decorated_step(bench):
    @torch.autocast("cpu", dtype=FP16)
    def train_step(x, y):
        bench.update(F.mse_loss(bench.model(x), y))

    for x, y in bench.batches:
        train_step(x, y)


@pytest.mark.parametrize("loop", [inside, inside_a_decorated_step])
def test_backward_inside_with_an_island_in_the_model(loop):
    report = report_of(loop, Bench(Island()))
    assert ids(report) == ["backward-in-region"]
    diagnosis = report["backward-in-region"]
    assert diagnosis.severity is Severity.WRONG
    assert diagnosis.steps == (1, 2, 3, 4)
    assert "test_rules_regions.py" in diagnosis.sentence


def test_backward_inside_without_an_island():
    """It changes no gradient: see below."""
    assert not report_of(inside).all
    assert not report_of(inside_a_decorated_step, Bench(scale=1.0)).all


def test_an_island_without_gradients_protects_nothing():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                out = bench.model(x)
                with torch.no_grad(), torch.autocast("cpu", enabled=False):
                    weight = y.square().mean().sqrt()
                bench.update(F.mse_loss(out, y) * weight)

    assert not report_of(loop).all


def test_the_fix_moves_all_that_follows_out_of_the_region():
    report = report_of(inside_and_written_out, Bench(Island()))
    diff = report["backward-in-region"].fix.diff
    taken = ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    assert [line[1:].strip() for line in diff.splitlines() if line.startswith("-    ")] == taken
    assert [line[1:] for line in diff.splitlines() if line.startswith("+    ")] == [
        " " * 8 + line for line in taken
    ]


def inside_and_written_out(bench):
    scaler, optimizer = bench.scaler, bench.optimizer
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            loss = F.mse_loss(bench.model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()


def test_a_compiled_model_with_an_island(monkeypatch):
    """The docstring's loop compiles; here are the settings that decide. A compiled part's regions are not seen."""
    run = report_of(usual, Bench(Island())).run
    (facts,) = run.models
    assert facts.islands == ("",)

    def found(**changed):
        changed_run = replace(run, models=[replace(facts, **changed)])
        return list(RULES["compiled-backward-in-region"].look(changed_run))

    assert found(compiled=True)
    assert not found(compiled=False)
    assert not found(compiled=True, islands=())
    monkeypatch.setattr(torch._functorch.config, "backward_pass_autocast", "off")
    assert not found(compiled=True)


def test_which_code_switches_autocast_off():
    class Frozen(Island):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)

    class Wide(Island):
        def forward(self, x):
            with torch.autocast("cpu", dtype=BF16):
                return self.last(self.first(x))

    around = nn.Sequential(Island(), nn.ReLU(), Wide(), Frozen())
    assert list(islands(around)) == ["0"]


def test_what_the_rule_says_about_layers():
    """An island and nn.Bilinear differ, what people mostly use does not."""
    x, image = torch.randn(4, 8), torch.randn(2, 3, 8, 8)

    def convolution():
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        )

    def transformer():
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    assert gradients_differ(Island, x)
    assert gradients_differ(lambda: Pairs(), x)
    for plain, given in ((network, x), (convolution, image), (transformer, x[None])):
        assert not gradients_differ(plain, given)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs = nn.Bilinear(8, 8, 3)

    def forward(self, x):
        return self.pairs(x, x)


def gradients_differ(make, x):
    found = []
    for inside_the_region in (False, True):
        torch.manual_seed(0)
        model = make()
        with torch.autocast("cpu", BF16):
            loss = model(x).float().square().mean()
            if inside_the_region:
                loss.backward()
        if not inside_the_region:
            loss.backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    return not torch.equal(*found)


# One region over several steps


def decorated_training(bench):
    @torch.autocast("cpu", FP16)
    def train():
        for x, y in bench.batches:
            bench.update(F.mse_loss(bench.model(x), y))

    train()


def inside_one_that_is_switched_off(bench):
    with torch.autocast("cpu", enabled=False):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)


def switched_by_hand(bench, clear=False):
    torch.set_autocast_dtype("cpu", FP16)
    for x, y in bench.batches:
        torch.set_autocast_enabled("cpu", True)
        loss = F.mse_loss(bench.model(x), y)
        torch.set_autocast_enabled("cpu", False)
        if clear:
            torch.clear_autocast_cache()
        bench.update(loss)


def a_kept_region_in_one_without_cache(bench):
    amp = torch.autocast("cpu", FP16)  # with cache
    with torch.autocast("cpu", FP16, cache_enabled=False):
        for x, y in bench.batches:
            with amp:
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)


def entered_before_the_loop(bench):
    torch.autocast("cpu", FP16).__enter__()
    for x, y in bench.batches:
        bench.update(F.mse_loss(bench.model(x), y))


def two_batches_in_a_region(bench):
    pairs = zip(bench.batches[::2], bench.batches[1::2], strict=True)
    for pair in pairs:
        with torch.autocast("cpu", FP16):
            for x, y in pair:
                bench.update(F.mse_loss(bench.model(x), y))


def sharpness_aware(bench):
    """The weights are moved uphill by hand between two forward passes of one region."""
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            loss = F.mse_loss(bench.model(x), y)
        bench.scaler.scale(loss).backward()
        bench.scaler.update(bench.scaler.get_scale())
        bench.optimizer.zero_grad()
        with torch.autocast("cpu", FP16):
            F.mse_loss(bench.model(x), y)
            with torch.no_grad():
                for each in bench.model.parameters():
                    each.add_(0.01)
            F.mse_loss(bench.model(x), y)
        return


def weights_loaded_in_the_region(bench):
    state = {name: value.clone() + 1 for name, value in bench.model.state_dict().items()}
    x, y = bench.batches[0]
    with torch.autocast("cpu", FP16):
        bench.model(x)
        bench.model.load_state_dict(state)
        loss = F.mse_loss(bench.model(x), y)
    bench.update(loss)


@pytest.mark.parametrize(
    "loop",
    [
        decorated_training,
        inside_one_that_is_switched_off,
        switched_by_hand,
        a_kept_region_in_one_without_cache,
        entered_before_the_loop,
        two_batches_in_a_region,
        weights_loaded_in_the_region,
    ],
)
def test_one_region_over_several_steps(loop):
    assert ids(report_of(loop)) == ["region-over-steps"]


def test_weights_moved_by_hand_in_the_region():
    assert "region-over-steps" in report_of(sharpness_aware)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}])
def test_with_optimizers_that_do_not_tell_of_their_writing(kind, how):
    """A fused optimizer writes to the weights without counting up their version."""
    report = report_of(decorated_training, Bench(kind=kind, settings={"lr": 0.01, **how}))
    assert ids(report) == ["region-over-steps"]


def test_a_closure_in_the_region():
    def loop(bench):
        for x, y in bench.batches:

            def closure(x=x, y=y):
                bench.optimizer.zero_grad()
                loss = F.mse_loss(bench.model(x), y)
                loss.backward()
                return loss

            with torch.autocast("cpu", BF16):
                bench.optimizer.step(closure)

    bench = Bench(kind=torch.optim.LBFGS, settings={"max_iter": 4}, scale=None)
    assert "region-over-steps" in ids(report_of(loop, bench))


def test_the_watch_begins_inside_the_region():
    bench = Bench()
    with torch.autocast("cpu", FP16):
        assert ids(report_of(plain, bench)) == ["region-over-steps"]


def test_old_weights_are_really_used():
    """What the rule says: the loss of the same batch stays, bit for bit, though the optimizer steps."""

    def losses(**cache):
        torch.manual_seed(0)
        bench, found = Bench(), []
        x, y = bench.batches[0]
        with torch.autocast("cpu", FP16, **cache):
            for _ in range(3):
                loss = F.mse_loss(bench.model(x), y)
                found.append(loss.item())
                bench.update(loss)
        return found

    assert len(set(losses())) == 1
    assert len(set(losses(cache_enabled=False))) == 3


def test_a_second_network_whose_optimizer_did_not_step():
    """One region around both: the discriminator's step does not touch what the generator copied; its own does."""
    other = nn.Linear(8, 8)
    fused = {"lr": 0.1, "fused": True}  # does not count up the versions of weights
    second = torch.optim.SGD(other.parameters(), **fused)

    def loop(bench, again):
        for x, y in bench.batches:
            with torch.autocast("cpu", BF16):
                fake = other(x)
                loss = F.mse_loss(bench.model(fake.detach()), y)
                loss.backward()
                bench.optimizer.step()
                bench.optimizer.zero_grad()
                loss = (bench.model(fake) if again else other(x)).square().mean()
            loss.backward()
            second.step()
            second.zero_grad()
            bench.optimizer.zero_grad()

    for again in (True, False):
        report = report_of(
            lambda bench, again=again: loop(bench, again),
            Bench(settings=fused, scale=None),
            [other],
            [second],
        )
        assert ("region-over-steps" in report) is again


# Regions that are not left, autocast that stays


def test_entered_in_a_helper_and_never_left():
    def begin():
        torch.autocast("cpu", FP16).__enter__()

    def loop(bench):
        for x, y in bench.batches:
            begin()
            bench.update(F.mse_loss(bench.model(x), y))

    report = report_of(loop)
    assert ids(report) == ["region-not-left"]
    assert "4 regions were open at once in step 4" in report["region-not-left"].sentence
    assert {each.id for each in report["region-not-left"].consequences} >= {"region-over-steps"}


def test_one_autocast_object_for_a_model_and_its_part():
    amp = torch.autocast("cpu", FP16)

    class Part(nn.Linear):
        def forward(self, x):
            with amp:
                return super().forward(x)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.last = Part(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            with amp:
                return self.last(self.part(x))

    def loop(bench):
        for x, y in bench.batches:
            loss = F.mse_loss(bench.model(x).float(), y)
            bench.update(loss)

    assert ids(report_of(loop, Bench(Whole()))) == ["autocast-left-on"]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this version of torch has no Muon")
@pytest.mark.parametrize(("dtype", "wrong"), [(FP16, True), (BF16, False)])
def test_muon_steps_in_the_region(dtype, wrong):
    """It multiplies in BF16 by itself: only an FP16 region changes that."""
    results = []
    for within in (True, False):
        torch.manual_seed(0)
        bench = Bench(nn.Linear(8, 1, bias=False), kind=torch.optim.Muon, settings={}, scale=None)

        def loop(bench, within=within):
            for x, y in bench.batches:
                with torch.autocast("cpu", BF16):
                    loss = F.mse_loss(bench.model(x), y)
                loss.backward()
                with torch.autocast("cpu", dtype, enabled=within):
                    bench.optimizer.step()
                bench.optimizer.zero_grad()

        report = report_of(loop, bench)
        assert ("step-in-region" in report) is (within and wrong)
        results.append(bench.model.weight.detach().clone())
    assert torch.equal(*results) is not wrong


def test_optimizers_that_step_in_the_region_and_do_not_care():
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):

        def loop(bench):
            for x, y in bench.batches:
                with torch.autocast("cpu", FP16):
                    loss = F.mse_loss(bench.model(x), y)
                bench.scaler.scale(loss).backward()
                with torch.autocast("cpu", FP16):
                    bench.scaler.unscale_(bench.optimizer)
                    nn.utils.clip_grad_norm_(bench.model.parameters(), 1.0)
                    bench.scaler.step(bench.optimizer)
                bench.scaler.update()
                bench.optimizer.zero_grad()

        assert not report_of(loop, Bench(kind=kind, settings={"lr": 0.01})).all


# Gradients


def without_and_with_gradients(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", BF16):
            with torch.no_grad():
                target = bench.model(x).float()
            loss = F.mse_loss(bench.model(x), target + y)
        bench.update(loss)


def test_copies_without_gradients():
    """The fault is gone since 2.11; the rule sees the loop all the same, and is registered where it matters."""
    report = report_of(without_and_with_gradients, Bench(scale=None))
    old = version_of_torch() < FIXED_IN
    assert ids(report) == (["cached-without-grad"] if old else [])
    (finding,) = cached_without_grad(report.run)
    assert finding.events[0].grad is False
    assert not list(cached_without_grad(report_of(two_batches_in_a_region).run))


def test_no_grad_around_the_forward_pass():
    def loop(bench):
        for x, y in bench.batches:
            with torch.no_grad(), torch.autocast("cpu", FP16):
                out = bench.model(x)
            bench.update(F.mse_loss(out.float(), y))

    assert ids(report_of(loop)) == ["forward-without-grad"]


# What a region does not reach


class ForTheGpu(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast("cuda", dtype=BF16):
            return self.last(x)


def plain(bench):
    for x, y in bench.batches:
        bench.update(F.mse_loss(bench.model(x), y))


def test_a_model_that_brings_a_region_for_another_device():
    report = report_of(plain, Bench(ForTheGpu(), scale=None))
    assert ids(report) == ["wrong-device-type"]
    assert (
        'autocast("cuda") does nothing for a model that is on "cpu"' in report["wrong-device-type"].sentence
    )


def test_threads():
    def loop(bench):
        for x, y in bench.batches:
            results = []
            with torch.autocast("cpu", BF16):
                thread = threading.Thread(target=lambda x=x, to=results: to.append(bench.model(x)))
                thread.start()
                thread.join()
                loss = F.mse_loss(results[0], y)
            bench.update(loss)

    assert ids(report_of(loop, Bench(scale=None))) == ["forward-in-thread"]


def test_a_thread_as_those_of_data_parallel():
    """They enter autocast with `enabled` alone, and so get the dtype that is the default."""

    def loop(bench):
        def work(x, results):
            with torch.autocast("cpu", enabled=True):
                results.append(bench.model(x))

        for x, y in bench.batches:
            results = []
            with torch.autocast("cpu", FP16):
                thread = threading.Thread(target=work, args=(x, results))
                thread.start()
                thread.join()
                loss = F.mse_loss(results[0], y)
            bench.update(loss)

    assert ids(report_of(loop)) == ["thread-loses-dtype"]


def test_the_region_behind_the_forward_pass_of_a_function():
    def loop(bench):
        def loss_of(out, y):
            with torch.autocast("cpu", FP16):
                return F.mse_loss(out, y)

        for x, y in bench.batches:
            out = bench.model(x)
            bench.update(loss_of(out, y))

    assert ids(report_of(loop)) == ["forward-outside-region"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e5m2])
def test_a_dtype_that_autocast_does_not_know(dtype):
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", dtype):
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)

    assert ids(report_of(loop, Bench(scale=None))) == ["region-disabled-itself"]


# Errors


def test_an_output_that_a_second_network_gets_behind_the_region():
    head = nn.Linear(1, 1)

    def loop(bench):
        def finish(hidden):
            return head(hidden)

        for x, y in bench.batches:
            with torch.autocast("cpu", BF16):
                hidden = bench.model(x)
            bench.update(F.mse_loss(finish(hidden), y))

    for models in ((), (head,)):
        report = report_of(loop, Bench(scale=None), models)
        assert ids(report) == ["output-outside-region"]
        assert "test_rules_regions.py" in report["output-outside-region"].sentence


def test_an_island_in_the_model_that_forgets_to_cast():
    class Forgets(Island):
        def forward(self, x):
            hidden = self.first(x)
            with torch.autocast("cpu", enabled=False):
                return self.last(hidden)

    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)

    assert ids(report_of(loop, Bench(Forgets()))) == ["island-without-cast"]


class Again(torch.autograd.Function):
    """Checkpointing by hand, without autocast's state."""

    @staticmethod
    def forward(ctx, model, x, *weights):
        ctx.model = model
        ctx.save_for_backward(x)
        return model(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            out = ctx.model(ctx.saved_tensors[0])
        return None, None, *torch.autograd.grad(out, list(ctx.model.parameters()), grad.to(out.dtype))


def test_recomputed_by_hand():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", BF16):
                loss = F.mse_loss(Again.apply(bench.model, x, *bench.model.parameters()), y)
            bench.update(loss)

    assert ids(report_of(loop, Bench(scale=None))) == ["recomputed-differently"]


# Right loops


def usual(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


def one_region_for_a_window(bench):
    for begin in range(0, STEPS, 2):
        with torch.autocast("cpu", FP16):
            losses = [F.mse_loss(bench.model(x), y) / 2 for x, y in bench.batches[begin : begin + 2]]
        bench.update(sum(losses))


def by_hand_and_cleared(bench):
    switched_by_hand(bench, clear=True)


def island_and_backward_behind(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            hidden = bench.model[:2](x)
            with torch.autocast("cpu", enabled=False):
                loss = F.mse_loss(bench.model[2](hidden.float()), y)
        bench.update(loss)


def decorated_forward(bench):
    forward = torch.autocast("cpu", FP16)(bench.model)
    for x, y in bench.batches:
        bench.update(F.mse_loss(forward(x).float(), y))


def kept_autocast_object(bench):
    amp = torch.autocast("cpu", FP16)
    for x, y in bench.batches:
        with amp:
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)
        with torch.no_grad(), amp:
            bench.model(x)


def validation_outside(bench):
    usual(bench)
    bench.model.eval()
    with torch.inference_mode():
        for x, _ in bench.batches:
            bench.model(x)
    bench.model.train()
    usual(bench)


def validation_in_one_region(bench):
    usual(bench)
    bench.model.eval()
    with torch.no_grad(), torch.autocast("cpu", FP16):
        for x, _ in bench.batches:
            bench.model(x)
    bench.model.train()
    usual(bench)


def validation_in_a_thread(bench):
    def work(x):
        with torch.no_grad():
            bench.model(x)

    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            thread = threading.Thread(target=work, args=(x,))
            thread.start()
            thread.join()
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


def region_in_the_thread(bench):
    def work(x, results):
        with torch.autocast("cpu", FP16):
            results.append(bench.model(x))

    for x, y in bench.batches:
        results = []
        thread = threading.Thread(target=work, args=(x, results))
        thread.start()
        thread.join()
        bench.update(F.mse_loss(results[0].float(), y))


def checkpointed(bench):
    for number, (x, y) in enumerate(bench.batches):
        with torch.autocast("cpu", FP16):
            out = checkpoint(bench.model, x.requires_grad_(), use_reentrant=number % 2 == 0)
            loss = F.mse_loss(out, y)
        bench.update(loss)


def an_error_that_is_caught(bench):
    for x, y in bench.batches:
        try:
            with torch.autocast("cpu", FP16):
                bench.model(x[:, :3])
        except RuntimeError:
            pass
        with torch.autocast("cpu", FP16):
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


def penalty_in_the_region(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            x = x.requires_grad_()
            out = bench.model(x)
            (slope,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
            loss = F.mse_loss(out, y) + slope.square().sum(1).mean()
        bench.update(loss)


@pytest.mark.parametrize(
    "loop",
    [
        usual,
        inside,
        one_region_for_a_window,
        by_hand_and_cleared,
        island_and_backward_behind,
        decorated_forward,
        kept_autocast_object,
        validation_outside,
        validation_in_one_region,
        validation_in_a_thread,
        region_in_the_thread,
        checkpointed,
        an_error_that_is_caught,
        penalty_in_the_region,
    ],
)
def test_nothing_is_said_about_right_loops(loop):
    report = report_of(loop)
    assert report.run.steps >= 2
    assert [(each.id, each.sentence) for each in report.all] == []


def fp32_in_a_region(bench, **settings):
    for x, y in bench.batches:
        with torch.autocast("cpu", **settings):
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


def teacher_in_the_region(bench):
    """A teacher that is not watched runs in 16 bits; the student is FP32 on purpose, and needs no scaler."""
    teacher = network().requires_grad_(False)
    for x, _ in bench.batches:
        out = bench.model(x)
        with torch.no_grad(), torch.autocast("cpu", BF16):
            target = teacher(x)
        bench.update(F.mse_loss(out, target.float()))


@pytest.mark.parametrize(
    "loop",
    [
        plain,
        lambda bench: fp32_in_a_region(bench, enabled=False),
        lambda bench: fp32_in_a_region(bench, dtype=torch.float32),
        teacher_in_the_region,
    ],
    ids=["plain", "switched off", "FP32", "teacher"],
)
def test_nothing_is_said_about_right_loops_in_fp32(loop):
    assert not report_of(loop, Bench(scale=None)).all
