"""Exercise 4.4: several backward passes, one step, and a loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l04 import several
from amp_lab.course.lessons.l04.several import Seen, Tensors

_RTOL = 0.01  # the scaled gradients are rounded to FP16 on their way
_HOOKS_OF = "hooks of "
_KINDS_OF_HOOKS = (
    *("_backward_hooks", "_post_accumulate_grad_hooks"),  # of a parameter
    *("_forward_hooks", "_forward_pre_hooks", "_backward_pre_hooks"),  # of a module, besides
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)
Batches = list[torch.Tensor]
Answer = Callable[[Batches, torch.nn.Module, torch.optim.Optimizer, float], Any]


class Net(torch.nn.Module):
    """Squared outputs of one neuron, whose products are FP16: as small a network as loses its gradients there."""

    def __init__(self, size: float, *, idle: bool) -> None:
        super().__init__()
        self._size = size
        self.weight = torch.nn.Parameter(torch.tensor([[0.5, -0.75, 1.0]]))
        if idle:  # between the others, so that a loop meets it on its way
            self.idle = torch.nn.Parameter(torch.tensor([1.0]))
        self.bias = torch.nn.Parameter(torch.tensor(0.25))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the examples in `batch`, of shape (examples, 3)."""
        products = batch.half() * self.weight.half()
        output = products.float().sum(dim=1) + self.bias
        return self._size * output.square().mean()


class Story(NamedTuple):
    """One case: how many micro-batches of how many examples, at which scale.

    As a rule the loss is so small that FP16 loses its gradients, and the learning rate so large that weights move.
    With `groups`, each parameter has a group and a learning rate of its own. `decay` is as large a weight decay as
    gradients would be if the loss were not small.
    """

    micro_batches: int
    examples: int
    scale: float
    loss_size: float = 2.0**-28
    pace: float = 0.25
    calls: int = 1
    groups: bool = False
    idle: bool = False
    decay: float = 0.0
    momentum: float = 0.0

    def learning_rate(self, name: str) -> float:
        """Return how far a weight moves for a gradient of 1: as a rule, weights of about 1 move by about 1."""
        share = 0.5 if self.groups and name == "bias" else 1.0
        return share * self.pace / self.loss_size

    def optimizer(self, named: Tensors) -> torch.optim.SGD:
        """Make the optimizer for the parameters `named`."""
        groups = [{"params": [each], "lr": self.learning_rate(name)} for name, each in named.items()]
        if not self.groups:
            groups = [{"params": list(named.values())}]
        return torch.optim.SGD(
            groups,
            lr=self.learning_rate(""),
            momentum=self.momentum,
            weight_decay=self.decay * self.loss_size,
        )

    def net(self) -> Net:
        """Make the network, the same each time."""
        return Net(self.loss_size, idle=self.idle)

    def batches(self) -> Batches:
        """Make the micro-batches: no two alike, and gradients of one sign, so that none is a small difference."""
        shape = (self.micro_batches, self.examples, 3)
        steps = torch.arange(self.micro_batches * self.examples * 3).reshape(shape)
        signs = torch.tensor([1.0, -1.0, 1.0])
        return list(
            (0.5 + (5 * steps % 17) / 16 + torch.arange(self.micro_batches)[:, None, None] / 4) * signs
        )

    def want(self) -> Tensors:
        """Return how far the weights move."""
        return self._named(self._walk()[0])

    def momenta(self) -> Tensors:
        """Return what the optimizer remembers afterwards: the running sum of the gradients, not scaled."""
        return self._named(self._walk()[1])

    def _walk(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return moves and momenta, bias first, by the formulas of the gradient and of SGD, in FP64."""
        net = self.net()
        start = torch.cat([net.bias.detach().reshape(1), net.weight.detach()[0]]).double()
        rates = torch.tensor(
            [self.learning_rate("bias"), *[self.learning_rate("weight")] * 3], dtype=torch.float64
        )
        examples = torch.cat(self.batches()).double()
        x = torch.cat([torch.ones(len(examples), 1), examples], dim=1)
        weights, pace = start.clone(), torch.zeros(4, dtype=torch.float64)
        for _ in range(self.calls):
            gradient = 2 * (x @ weights) @ x / len(x) + self.decay * weights
            pace = self.momentum * pace + gradient
            weights -= rates * self.loss_size * pace
        return weights - start, self.loss_size * pace

    def _named(self, numbers: torch.Tensor) -> Tensors:
        named: dict[str, torch.Tensor | None] = {"weight": numbers[1:].reshape(1, 3), "bias": numbers[0]}
        return named | ({"idle": None} if self.idle else {})


class _Bench:
    """A fresh network and optimizer, and what became of them."""

    def __init__(self, story: Story) -> None:
        self.net = story.net()
        self.named = dict(self.net.named_parameters())
        self._start = {name: each.detach().clone() for name, each in self.named.items()}
        self.optimizer = story.optimizer(self.named)
        self.steps = 0
        self.optimizer.register_step_post_hook(self._count)
        self._settings = self._read_settings()

    def _count(self, *_: Any) -> None:
        self.steps += 1

    def moved(self) -> Tensors:
        return {name: each.detach().double() - self._start[name] for name, each in self.named.items()}

    def momenta(self) -> Tensors:
        """Return what the optimizer remembers of each parameter, or None."""
        kept = {name: self.optimizer.state.get(each, {}) for name, each in self.named.items()}
        found = {name: each.get("momentum_buffer") for name, each in kept.items()}
        return {
            name: each.detach().clone() if getattr(each, "shape", None) == self.named[name].shape else None
            for name, each in found.items()
        }

    def changes(self) -> list[tuple[str, str, str]]:
        """Return what is not as it was in model and optimizer, but for weights and gradients: place, now, before."""
        now = self._read_settings()
        places = [*self._settings, *(each for each in now if each not in self._settings)]
        pairs = [(place, now.get(place), self._settings.get(place)) for place in places]
        return [(place, describe(got), describe(want)) for place, got, want in pairs if not _alike(got, want)]

    def _read_settings(self) -> dict[str, Any]:
        groups = self.optimizer.param_groups
        names = {id(each): name for name, each in self.named.items()}
        settings: dict[str, Any] = {
            "model.training": self.net.training,
            "len(optimizer.param_groups)": len(groups),
        }
        settings |= {f"{name}.requires_grad": each.requires_grad for name, each in self.named.items()}
        places = {"model": self.net, "optimizer": self.optimizer} | self.named
        settings |= {f"{_HOOKS_OF}{name}": _count_hooks(each) for name, each in places.items()}
        for number, group in enumerate(groups):
            place = f"optimizer.param_groups[{number}]"
            settings |= {f'{place}["{key}"]': value for key, value in group.items() if key != "params"}
            settings[f'{place}["params"]'] = [
                names.get(id(each), "another") for each in group.get("params", ())
            ]
        return settings


def _count_hooks(place: object) -> int:
    return sum(len(getattr(place, kind, None) or ()) for kind in _KINDS_OF_HOOKS)


def _alike(got: object, want: object) -> bool:
    """Compare settings; what was divided and multiplied again may have another last digit."""
    if type(got) is float and type(want) is float:
        return math.isclose(got, want, rel_tol=1e-6)
    return type(got) is type(want) and got == want


def _play(answer: Answer, story: Story) -> Tensors:
    """Return how far the weights move if `answer`, which stands for a misconception, trains them."""
    bench = _Bench(story)
    for _ in range(story.calls):
        answer(story.batches(), bench.net, bench.optimizer, story.scale)
        bench.optimizer.zero_grad()
    return bench.moved()


def _divide(optimizer: torch.optim.Optimizer, divisor: float, *, groups: int | None = None) -> None:
    for group in optimizer.param_groups[:groups]:
        for each in group["params"]:
            if each.grad is not None:
                each.grad /= divisor


def _mean_of_all(loss: torch.Tensor, batches: Batches) -> torch.Tensor:
    return loss / len(batches)


def _variant(
    *,
    share: Callable[[torch.Tensor, Batches], torch.Tensor] = _mean_of_all,
    scale_loss: Callable[[torch.Tensor, float], torch.Tensor] = lambda loss, scale: loss * scale,
    after_each: Callable[[torch.optim.Optimizer, float], None] = lambda optimizer, scale: None,
    before_step: Callable[[torch.optim.Optimizer, float], None] = _divide,
    only: slice = slice(None),
    clear: bool = False,
) -> Answer:
    """Return the right loop, but for what is given."""

    def answer(
        batches: Batches, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scale: float
    ) -> None:
        for batch in batches[only]:
            if clear:
                optimizer.zero_grad()
            scale_loss(share(model(batch), batches), scale).backward()  # type: ignore[no-untyped-call]
            after_each(optimizer, scale)
        before_step(optimizer, scale)
        optimizer.step()

    return answer


def _lower_rate(*, by_scale: bool = True, by_number: bool = False) -> Answer:
    """Return an answer that divides the learning rates in place of gradients, and puts them back."""

    def answer(
        batches: Batches, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scale: float
    ) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] /= (scale if by_scale else 1) * (len(batches) if by_number else 1)
        rest = _variant(
            share=_whole if by_number else _mean_of_all, before_step=_nothing if by_scale else _divide
        )
        rest(batches, model, optimizer, scale)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    return answer


def _whole(loss: torch.Tensor, batches: Batches) -> torch.Tensor:
    return loss


def _forget(optimizer: torch.optim.Optimizer, scale: float) -> None:
    optimizer.state.clear()
    _divide(optimizer, scale)


def _nothing(optimizer: torch.optim.Optimizer, scale: float) -> None:
    pass


def _always(fixed: float) -> Answer:
    """Return what takes a scale of its own in place of the one that it is given."""
    right = _variant()
    return lambda batches, model, optimizer, scale: right(batches, model, optimizer, fixed)


def _unscaled_loss(loss: torch.Tensor, scale: float) -> torch.Tensor:
    return loss


# At a scale of 4, what is divided by it twice still counts: it tells lost gradients from cleared ones.
_PLAIN = (Story(4, 2, 2.0**16), Story(3, 5, 2.0**15), Story(3, 2, 4.0, loss_size=2.0**-10))
# In the last one the loss is so large that the usual scale makes it overflow.
_OTHERS = (
    *(Story(1, 4, 2.0**16), Story(5, 1, 50000.0), Story(2, 3, 2.0**17)),
    Story(2, 3, 4.0, loss_size=4.0),
)
_DECAY = (Story(4, 2, 2.0**16, decay=1.0), Story(3, 2, 2.0**15, decay=1.0, groups=True))
_MOMENTUM = (
    Story(3, 2, 2.0**16, pace=0.004, calls=2, momentum=0.9),
    Story(2, 1, 2.0**16, pace=0.002, calls=3, momentum=0.5, decay=0.5),
)
_GROUPS = (Story(4, 2, 2.0**16, groups=True), Story(3, 3, 2.0**16, groups=True))
_IDLE = (
    Story(2, 2, 2.0**16, idle=True),
    Story(3, 2, 2.0**16, groups=True, idle=True),
    Story(3, 2, 2.0**16, idle=True, decay=1.0),
)
_AGAIN = (
    Story(3, 2, 2.0**16, pace=0.004, calls=2),
    Story(2, 1, 2.0**16, pace=0.002, calls=3),
)
_BY_HALF = (
    _variant(scale_loss=lambda loss, scale: loss.half() * scale),
    _variant(scale_loss=lambda loss, scale: loss * torch.tensor(scale).half()),
    _variant(before_step=lambda optimizer, scale: _divide(optimizer, torch.tensor(scale).half().item())),
)
_MISCONCEPTIONS: tuple[tuple[str, Answer], ...] = (
    ("not-unscaled", _variant(before_step=_nothing)),
    ("not-unscaled", _variant(share=_whole, before_step=_nothing)),
    ("not-divided", _variant(share=_whole)),
    ("not-scaled", _variant(scale_loss=_unscaled_loss, before_step=_nothing)),
    ("not-scaled", _variant(share=_whole, scale_loss=_unscaled_loss, before_step=_nothing)),
    ("only-unscales", _variant(scale_loss=_unscaled_loss)),
    ("only-unscales", _variant(share=_whole, scale_loss=_unscaled_loss)),
    ("unscales-again", _variant(after_each=_divide, before_step=_nothing)),
    ("unscales-again", _variant(share=_whole, after_each=_divide, before_step=_nothing)),
    ("unscales-twice", _variant(before_step=lambda optimizer, scale: _divide(optimizer, scale * scale))),
    ("last-only", _variant(clear=True)),
    ("last-only", _variant(share=_whole, clear=True)),
    ("first-only", _variant(only=slice(1))),
    ("first-only", _variant(share=_whole, only=slice(1))),
    ("divided-twice", _variant(share=lambda loss, batches: loss / len(batches) ** 2)),
    ("divides-by-examples", _variant(share=lambda loss, batches: loss / len(batches[0]))),
    (
        "divides-by-examples",
        _variant(share=lambda loss, batches: loss / (len(batches) * len(batches[0]))),
    ),
    *(("scale-in-half", each) for each in _BY_HALF),
    ("scale-ignored", _always(2.0**16)),
    ("momentum-lost", _variant(before_step=_forget)),
    ("rate-for-scale", _lower_rate()),
    ("rate-for-scale", _lower_rate(by_number=True)),
    ("rate-for-scale", _lower_rate(by_scale=False, by_number=True)),
    (
        "first-group-only",
        _variant(before_step=lambda optimizer, scale: _divide(optimizer, scale, groups=1)),
    ),
)


class _Trial(NamedTuple):
    seen: Seen
    steps: int
    left: Tensors
    momenta: Tensors
    changes: list[tuple[str, str, str]]


@checker("4.4")
def accumulate(ask: Ask) -> None:
    """Ask story by story: how far did the weights move, in how many steps, and which gradients are left?"""
    for stories in (_PLAIN, _OTHERS, _GROUPS, _AGAIN, _DECAY, _MOMENTUM, _IDLE):
        trials: list[_Trial] = []
        try:
            for story in stories:
                trials.append(_see(ask, story))
        except (Mistake, Contained) as stopped:
            _judge(trials)
            _recognise_idle(ask.call, story, stopped)
            raise
        _judge(trials)


def _see(ask: Ask, story: Story) -> _Trial:
    bench = _Bench(story)
    ask.in_words = lambda *args: _in_words(story)
    for _ in range(story.calls):
        batches = story.batches()
        ask(batches, bench.net, bench.optimizer, story.scale, may_change=True)
        _expect_unchanged(ask.call, batches, story.batches())
    left = {f"{name}.grad": grad for name, grad in several.gradients(ask.call, bench.named).items()}
    seen = Seen(ask.call, story, bench.moved(), story.want())
    return _Trial(seen, bench.steps, left, bench.momenta(), bench.changes())


def _expect_unchanged(call: str, batches: Batches, before: Batches) -> None:
    """Look at the micro-batches, which whoever calls may still need."""
    if len(batches) != len(before):
        got, want = (f"a list of {len(each)}" for each in (batches, before))
        raise Mistake("mutated-input", call=call, name="1", got=got, want=want)
    for number, (now, then) in enumerate(zip(batches, before, strict=True)):
        if not expect.alike(now, then):
            shown = {"got": describe(now), "want": describe(then)}
            raise Mistake("mutated-input", call=call, name=f"1 at `[{number}]`", **shown)


def _judge(trials: Sequence[_Trial]) -> None:
    seen = [each.seen for each in trials]
    _recognise_steps(trials)
    if any(each.story.idle for each in seen):
        _recognise_moving(seen)
        several.recognise(seen, (), _RTOL, unknown="idle-stops")  # all was right without such a parameter
    plays = [(diagnosis, partial(_play, answer)) for diagnosis, answer in _MISCONCEPTIONS]
    several.recognise(seen, plays, _RTOL, otherwise=_recognise_factor, unknown="wrong-step")
    for each in trials:
        zeros = dict.fromkeys(each.left)
        if not several.near(each.left, zeros, 0.0):
            left = several.first_far(Seen(each.seen.call, each.seen.story, each.left, zeros), 0.0)
            raise Mistake("not-cleared", **left)
        _recognise_changes(each)


def _recognise_changes(trial: _Trial) -> None:
    """Say what is wrong although the weights are right."""
    call, calls = trial.seen.call, trial.seen.story.calls
    if not trial.steps:
        raise Mistake("own-step", call=call, got="no step", want=f"{calls}")
    if trial.steps != calls:
        raise Mistake("steps-more", call=call, got=f"{trial.steps} steps", want=f"{calls}")
    for place, got, want in trial.changes:
        if place.startswith(_HOOKS_OF):
            place, diagnosis = place.removeprefix(_HOOKS_OF), "hooks-left"
        else:
            diagnosis = "rate-changed" if place.endswith('["lr"]') else "settings-changed"
        raise Mistake(diagnosis, call=call, place=f"`{place}`", got=got, want=want)
    momenta = trial.seen.story.momenta()
    if trial.seen.story.momentum and not several.near(trial.momenta, momenta, _RTOL):
        shown = several.first_far(Seen(call, trial.seen.story, trial.momenta, momenta), _RTOL)
        raise Mistake("momentum-scaled", **shown)


def _recognise_moving(trials: Sequence[Seen]) -> None:
    """Recognise a gradient that was filled in where there is none."""
    for each in trials:
        rest = {name: want if name == "idle" else each.got[name] for name, want in each.want.items()}
        if not several.near(each.got, rest, _RTOL):
            raise Mistake("idle-moves", **several.first_far(each._replace(want=rest), _RTOL))


def _recognise_steps(trials: Sequence[_Trial]) -> None:
    """Name what the number of steps explains, if the weights are not where they should be."""
    wrong = [each for each in trials if not several.near(each.seen.got, each.seen.want, _RTOL)]
    if not wrong:
        return
    first = wrong[0]
    if first.steps > first.seen.story.calls:
        raise Mistake("steps-too-often", call=first.seen.call, got=f"{first.steps} steps")
    if not first.steps and _rests(first):
        raise Mistake("no-step", **several.first_far(first.seen, _RTOL))
    if all(map(_rests, trials)):
        raise Mistake("cleared-too-early", **several.first_far(first.seen, _RTOL))


def _rests(trial: _Trial) -> bool:
    return not any(moved is not None and moved.any() for moved in trial.seen.got.values())


def _recognise_factor(trials: Sequence[Seen]) -> None:
    """Say by which factor a step is wrong, if it is one factor for all weights."""
    wrong = [each for each in trials if not several.near(each.got, each.want, _RTOL)]
    first = wrong[0]
    pairs = [(first.got[name], want) for name, want in first.want.items()]
    ratios = torch.cat(
        [(got / want).flatten() for got, want in pairs if got is not None and want is not None]
    )
    if ratios.max() - ratios.min() <= _RTOL * ratios[0].abs():
        raise Mistake("wrong-factor", **several.first_far(first, _RTOL), factor=f"{ratios[0].item():.3g}")


def _recognise_idle(call: str, story: Story, stopped: Exception) -> None:
    raised = several.known_error(stopped) if isinstance(stopped, Contained) else None
    if raised is not None and story.idle:
        raise Mistake("idle-crashes", call=call, got=f"raised `{raised}`") from None


def _in_words(story: Story) -> str:
    what = "`micro_batches`" if story.micro_batches > 1 else "`micro_batch`"
    call = f"`accumulate(micro_batches, model, optimizer, {story.scale!r})`"
    has = [
        *(["momentum"] if story.momentum else []),
        *(["weight decay"] if story.decay else []),
        *(["several groups"] if story.groups else []),
    ]
    optimizer = f" and an optimizer with {' and '.join(has)}" if has else ""
    again = f", called {story.calls} times," if story.calls > 1 else ""
    return f"{call} with {story.micro_batches} {what} of {story.examples} examples{optimizer}{again}"
