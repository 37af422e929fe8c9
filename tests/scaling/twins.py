"""Two runs that are the same but for the scaler: torch.amp.GradScaler in one, DynamicLossScaler in the other.

A run is drawn from a seed: parameters, optimizers, settings, and then, step by step, what a training loop may do. Both
runs do it, and after each step everything must be the same in every bit: scales, trackers, gradients, weights, what
step() returned and who was skipped. Scales and trackers are looked at where they are, on the device, so that nothing
that waits there is hurried by the comparison.
"""

import json
import random
from collections import Counter

import torch

from amp_lab.scaling import DynamicLossScaler
from tests.scaling.optimizers import FusedSGD

STEPS_PER_RUN = 100


class Run:
    """Parameters, optimizers and a scaler."""

    def __init__(self, parameters, kinds, scaler):
        self.parameters = [p.clone().requires_grad_() for p in parameters]
        self.scaler = scaler
        self.optimizers = []
        for kind, settings, places in kinds:
            named = [(f"p{place}", self.parameters[place]) for place in places]
            self.optimizers.append(kind(named, **settings))


# Kind, settings, and whether it takes (sparse, FP16) gradients.
KINDS = [
    (torch.optim.SGD, {"lr": 0.1}, "dense sparse"),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}, "dense"),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}, "dense"),
    (torch.optim.SGD, {"lr": 0.1, "fused": True}, "dense"),
    (torch.optim.Adam, {"lr": 0.01}, "dense"),
    (torch.optim.Adam, {"lr": 0.01, "fused": True}, "dense"),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": True}, "dense"),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}, "dense"),
    (torch.optim.SparseAdam, {"lr": 0.01}, "sparse"),
    (FusedSGD, {"lr": 0.1}, "dense sparse half"),
]


class Twins:
    """Draws a run from a seed and lets both scalers do it. `seen` counts what happened, to show that it did."""

    def __init__(self, seed, device="cpu"):
        self.seed = seed
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device
        self.seen = Counter()
        self.expected_history = []
        self.checkpoints = []
        draw = self.draw
        self.kinds, parameters, self.layouts = self._draw_parameters()
        self.settings = {
            "init_scale": draw.choice([1.0, 2.0**4, 2.0**16, 2.0**30, 2.0**120, 1e-3, 65537.3, 2.0**-140]),
            "growth_factor": draw.choice([2.0, 2.0, 1.7, 1.001, 1000.0]),
            "backoff_factor": draw.choice([0.5, 0.5, 0.3, 0.999, 1e-4]),
            "growth_interval": draw.choice([1, 2, 3, 5, 17, 2000]),
        }
        # On a CPU PyTorch cannot add sparse FP16 gradients to others.
        self.cannot_accumulate = any(
            layout == "sparse" and values.dtype is torch.float16
            for layout, values in zip(self.layouts, parameters, strict=True)
        )
        self.overflow_rate = draw.choice([0.0, 0.0, 0.02, 0.2, 0.9])
        self.habit = draw.random()  # how often a loop reaches for what most loops never do
        self.theirs = Run(parameters, self.kinds, torch.amp.GradScaler(device, **self.settings))
        self.ours = Run(parameters, self.kinds, DynamicLossScaler(**self.settings))
        self.runs = (self.theirs, self.ours)

    def _draw_parameters(self):
        kinds, parameters, layouts = [], [], []
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            kind, settings, takes = self.draw.choice(KINDS)
            places = range(len(parameters), len(parameters) + self.draw.randint(1, 4))
            for _ in places:
                layout = self.draw.choice(takes.split())
                dtype = torch.float16 if layout == "half" else torch.float32
                if layout == "half" and self.draw.random() < 0.5:
                    layout = "sparse"
                shape = (5, 3) if layout == "sparse" else self.draw.choice([(), (1,), (7,), (4, 6)])
                values = torch.randn(shape, generator=self.generator).to(self.device, dtype)
                parameters.append(values)
                layouts.append(layout)
            kinds.append((kind, settings, places))
        return kinds, parameters, layouts

    def steps(self, count=STEPS_PER_RUN):
        """Do so many steps, and compare after each."""
        for step in range(count):
            self._step()
            self.compare(f"seed {self.seed}, step {step}")
        self.finish()

    def chance(self, probability):
        return self.draw.random() < probability

    def _step(self):
        mode, backwards = self.draw.choice([True, True, False, None]), self.draw.choice([1, 1, 1, 2])
        if self.cannot_accumulate:
            mode, backwards = True, 1
        for _ in range(backwards):
            if mode is not None:
                for run in self.runs:
                    for optimizer in run.optimizers:
                        optimizer.zero_grad(set_to_none=mode)
            self._backward()
            mode = None  # the second one accumulates
        called = self._call_optimizers()
        self._ask_early()
        self._update(called)
        self._meddle()

    def _backward(self):
        """Compute a loss whose gradients are drawn: some missing, some infinite or NaN, some through FP16."""
        plan = [self._draw_gradient(place) for place in range(len(self.layouts))]
        if all(part is None for part in plan):
            plan[0] = self._draw_gradient(0, always=True)
        nested = self.chance(0.2)
        for run in self.runs:
            parts = [self._part(run.parameters[i], part) for i, part in enumerate(plan) if part is not None]
            if nested:
                scaled = run.scaler.scale([parts[0], (part for part in ()), tuple(parts[1:])])
                torch.autograd.backward([scaled[0], *scaled[2]])
            else:
                run.scaler.scale(sum(parts)).backward()

    def _draw_gradient(self, place, always=False):
        if not always and self.chance(0.1):
            self.seen["no gradient"] += 1
            return None
        layout, shape = self.layouts[place], self.ours.parameters[place].shape
        indices = None
        if layout == "sparse":
            indices = torch.randint(0, 5, (4,), generator=self.generator)
            if (
                self.device != "cpu"
            ):  # where the order in which values for one row are added is nobody's promise
                indices = torch.randperm(5, generator=self.generator)[:4]
            indices = indices.to(self.device)
            shape = (4, 3)
        size = 10.0 ** self.draw.uniform(-6, 2)
        numbers = size * torch.randn(shape, generator=self.generator)
        if self.chance(self.overflow_rate):
            bad = self.draw.choice([torch.inf, -torch.inf, torch.nan])
            numbers.view(-1)[self.draw.randrange(numbers.numel())] = bad
        return numbers.to(self.device), indices, self.chance(0.5)

    @staticmethod
    def _part(parameter, part):
        numbers, indices, through_fp16 = part
        used = parameter
        if indices is not None:
            used = torch.nn.functional.embedding(indices, parameter, sparse=True)
        if through_fp16 and parameter.dtype is torch.float32:
            return (used.half() * numbers.half()).float().sum()
        return (used.float() * numbers).sum()

    def _call_optimizers(self):
        """Unscale and step the optimizers, or some of them. Return whether any was called at all."""
        any_called = False
        for place, (_, _, places) in enumerate(self.kinds):
            without = all(self.ours.parameters[i].grad is None for i in places)
            half = any(self.ours.parameters[i].dtype is torch.float16 for i in places)
            if without or self.chance(0.05 * self.habit):
                continue
            any_called = True
            unscale = not half and self.chance(0.4)
            clip = unscale and self.chance(0.5) and "sparse" not in [self.layouts[i] for i in places]
            leave = unscale and self.chance(0.1 * self.habit)
            self._call(place, unscale, clip, leave)
        return any_called

    def _call(self, place, unscale, clip, leave):
        results = []
        for run in self.runs:
            optimizer = run.optimizers[place]
            if unscale:
                run.scaler.unscale_(optimizer)
                if clip:
                    some = [p for group in optimizer.param_groups for p in group["params"]]
                    torch.nn.utils.clip_grad_norm_(some, 1.0)
            if not leave:
                results.append(run.scaler.step(optimizer))
        if leave:
            return
        assert results[0] == results[1]
        if self.chance(0.3):
            found = self.theirs.scaler._found_inf_per_device(self.theirs.optimizers[place]).values()
            skipped = any(answer.item() for answer in found)
            report = self.ours.scaler.last
            assert report is self.ours.scaler.last_for(self.ours.optimizers[place])
            assert report.skipped == skipped
            assert report.scale == self.theirs.scaler.get_scale()
            if not (skipped and report.overflowed):
                return
            self.seen["names"] += 1

    def _ask_early(self):
        if self.chance(0.05):
            assert self.ours.scaler.get_scale() == self.theirs.scaler.get_scale()

    def _update(self, called):
        their = self.theirs.scaler
        states = their._per_optimizer_states.values()
        found = any(f.item() for state in states for f in state["found_inf_per_device"].values())
        scale = their.get_scale()
        if not called or self.chance(0.05 * self.habit):
            new = self.draw.choice([2.0**10, 0.1, 3e38, 2.0**-149, 1.0])
            new = torch.tensor(new, device=self.device) if self.chance(0.5) else new
            self.seen["update(new_scale)"] += 1
            for run in self.runs:
                run.scaler.update(new)
        else:
            for run in self.runs:
                run.scaler.update()
        self.expected_history.append((scale, found))
        self.seen["steps"] += 1
        self.seen["overflow"] += found
        self.seen["growth"] += their.get_scale() > scale
        self.seen["on the device"] += bool(self.ours.scaler._scale._waiting)

    def _meddle(self):
        """Change settings, save and load, in a few steps."""
        if self.chance(0.03 * self.habit):
            self.seen["setters"] += 1
            setter, value = self.draw.choice(
                [
                    ("set_growth_interval", self.draw.choice([1, 2, 4, 7])),
                    ("set_growth_factor", self.draw.choice([1.001, 1.5, 2.0])),
                    ("set_backoff_factor", self.draw.choice([0.25, 0.5, 0.999])),
                ]
            )
            for run in self.runs:
                getattr(run.scaler, setter)(value)
        if self.chance(0.05):
            self._save_and_load()

    def _save_and_load(self):
        self.seen["save and load"] += 1
        saved = [json.loads(json.dumps(run.scaler.state_dict())) for run in self.runs]
        assert saved[0] == saved[1]
        assert [type(v) for v in saved[0].values()] == [type(v) for v in saved[1].values()]
        self._compare_history()
        if self.chance(0.5):  # into a new process
            self.expected_history = []
            self.theirs.scaler = torch.amp.GradScaler(self.device)
            self.ours.scaler = DynamicLossScaler()
        self.checkpoints.append(saved[0])
        state = self.draw.choice(self.checkpoints)  # the last one, or one from long ago
        for run in self.runs:
            run.scaler.load_state_dict(state)

    def compare(self, when):
        """Compare all that the two runs hold."""
        their, our = self.theirs.scaler, self.ours.scaler
        if their._scale is not None:
            assert our._scale._tensor is not None, when
            assert_same_bits(our._scale._tensor, their._scale, f"{when}: scale")
            assert clean_steps(our) == their._growth_tracker.item(), f"{when}: tracker"
        for i, (a, b) in enumerate(zip(self.ours.parameters, self.theirs.parameters, strict=True)):
            assert_same_bits(a, b, f"{when}: weights {i}")
            assert (a.grad is None) == (b.grad is None), f"{when}: gradient {i}"
            if a.grad is not None:
                assert a.grad.is_sparse == b.grad.is_sparse
                assert_same_bits(plain(a.grad), plain(b.grad), f"{when}: gradient {i}")

    def _compare_history(self):
        history = self.ours.scaler.history
        assert list(zip(history.scales, history.skipped, strict=True)) == self.expected_history

    def finish(self):
        """Compare what is asked for at the end: here the host catches up, if it has to."""
        self._compare_history()
        assert self.ours.scaler.state_dict() == self.theirs.scaler.state_dict()


def clean_steps(scaler):
    scale = scaler._scale
    return scale._clean_steps.item() if scale._waiting else scale._state.clean_steps


def plain(gradient):
    """Return what a gradient stores as one dense tensor."""
    if not gradient.is_sparse:
        return gradient
    stored = gradient._indices().to(gradient._values().dtype)
    return torch.cat([stored.flatten(), gradient._values().flatten()])


def assert_same_bits(ours, theirs, what):
    assert ours.dtype == theirs.dtype, what
    assert ours.shape == theirs.shape, what
    bits = {2: torch.int16, 4: torch.int32}[ours.dtype.itemsize]
    a, b = ours.detach().contiguous().view(bits), theirs.detach().contiguous().view(bits)
    assert torch.equal(a, b), f"{what}: {ours} is not {theirs}"
