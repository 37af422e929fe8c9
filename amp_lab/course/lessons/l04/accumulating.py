"""Exercise 4.4: several backward passes, one step, and a loss scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l04 import several
from amp_lab.course.lessons.l04.several import Seen, Tensors

_RTOL = 0.01  # the scaled gradients are rounded to FP16 on their way
Batches = list[torch.Tensor]
Answer = Callable[[Batches, torch.nn.Module, torch.optim.Optimizer, float], Any]


class Net(torch.nn.Module):
    """Squared outputs of one neuron, whose products are FP16: as small a network as loses its gradients there."""

    def __init__(self, size: float, *, idle: bool) -> None:
        super().__init__()
        self._size = size
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -0.75, 1.0]))
        self.bias = torch.nn.Parameter(torch.tensor([0.25]))
        if idle:
            self.idle = torch.nn.Parameter(torch.tensor([1.0]))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the examples in `batch`, of shape (examples, 3)."""
        products = batch.half() * self.weight.half()
        output = products.float().sum(dim=1) + self.bias
        return self._size * output.square().mean()


class Story(NamedTuple):
    """One case: how many micro-batches of how many examples, at which scale.

    As a rule the loss is so small that FP16 loses its gradients, and the learning rate so large that weights move.
    """

    micro_batches: int
    examples: int
    scale: float
    loss_size: float = 2.0**-28
    pace: float = 0.25
    calls: int = 1
    groups: bool = False
    idle: bool = False

    @property
    def learning_rate(self) -> float:
        """How far a weight moves for a gradient of 1: as a rule, weights of about 1 move by about 1."""
        return self.pace / self.loss_size

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
        """Return how far the weights move, by the formula of the gradient, in FP64."""
        net = self.net()
        start = torch.cat([net.bias.detach(), net.weight.detach()]).double()
        examples = torch.cat(self.batches()).double()
        x = torch.cat([torch.ones(len(examples), 1), examples], dim=1)
        weights = start.clone()
        for _ in range(self.calls):
            weights -= self.pace * 2 * (x @ weights) @ x / len(x)
        moves = weights - start
        moved: dict[str, torch.Tensor | None] = {"weight": moves[1:], "bias": moves[:1]}
        return moved | ({"idle": None} if self.idle else {})


class _Bench:
    """A fresh network and optimizer, and what became of them."""

    def __init__(self, story: Story) -> None:
        self.net = story.net()
        self.named = dict(self.net.named_parameters())
        self._start = {name: each.detach().clone() for name, each in self.named.items()}
        groups = [{"params": [each]} for each in self.named.values()] if story.groups else self.named.values()
        self.optimizer = torch.optim.SGD(groups, lr=story.learning_rate)
        self.steps = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.steps += 1

    def moved(self) -> Tensors:
        return {name: each.detach().double() - self._start[name] for name, each in self.named.items()}


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


def _variant(
    *,
    share: Callable[[torch.Tensor, Batches], torch.Tensor] = lambda loss, batches: loss / len(batches),
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


def _whole(loss: torch.Tensor, batches: Batches) -> torch.Tensor:
    return loss


def _leaves_hooks(
    batches: Batches, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scale: float
) -> None:
    for each in model.parameters():
        each.register_hook(lambda grad: grad / scale)  # type: ignore[no-untyped-call]
    _variant(before_step=_nothing)(batches, model, optimizer, scale)


def _leaves_hooks_that_divide(
    batches: Batches, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scale: float
) -> None:
    for each in model.parameters():
        each.register_hook(lambda grad: grad / scale / len(batches))  # type: ignore[no-untyped-call]
    _variant(share=_whole, before_step=_nothing)(batches, model, optimizer, scale)


def _nothing(optimizer: torch.optim.Optimizer, scale: float) -> None:
    pass


def _unscaled_loss(loss: torch.Tensor, scale: float) -> torch.Tensor:
    return loss


# At a scale of 4, what is divided by it twice still counts: it tells lost gradients from cleared ones.
_PLAIN = (Story(4, 2, 2.0**16), Story(3, 5, 2.0**15), Story(3, 2, 4.0, loss_size=2.0**-10))
_OTHERS = (Story(1, 4, 2.0**16), Story(5, 1, 50000.0), Story(2, 3, 2.0**17))
_GROUPS = (Story(4, 2, 2.0**16, groups=True), Story(3, 3, 2.0**16, groups=True))
_IDLE = (Story(2, 2, 2.0**16, idle=True), Story(3, 2, 2.0**16, groups=True, idle=True))
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
    ("hooks-left", _leaves_hooks),
    ("hooks-left", _leaves_hooks_that_divide),
    (
        "first-group-only",
        _variant(before_step=lambda optimizer, scale: _divide(optimizer, scale, groups=1)),
    ),
)


class _Trial(NamedTuple):
    seen: Seen
    steps: int
    left: Tensors
    learning_rates: list[float]


@checker("4.4")
def accumulate(ask: Ask) -> None:
    """Ask story by story: how far did the weights move, in how many steps, and which gradients are left?"""
    for stories in (_PLAIN, _OTHERS, _GROUPS, _AGAIN, _IDLE):
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
        ask(story.batches(), bench.net, bench.optimizer, story.scale, may_change=True)
    left = {f"{name}.grad": grad for name, grad in several.gradients(ask.call, bench.named).items()}
    learning_rates = [group["lr"] for group in bench.optimizer.param_groups]
    return _Trial(Seen(ask.call, story, bench.moved(), story.want()), bench.steps, left, learning_rates)


def _judge(trials: Sequence[_Trial]) -> None:
    seen = [each.seen for each in trials]
    _recognise_steps(trials)
    plays = [(diagnosis, partial(_play, answer)) for diagnosis, answer in _MISCONCEPTIONS]
    several.recognise(seen, plays, _RTOL, otherwise=_recognise_factor, unknown="wrong-step")
    for each in trials:
        zeros = dict.fromkeys(each.left)
        if not several.near(each.left, zeros, 0.0):
            left = several.first_far(Seen(each.seen.call, each.seen.story, each.left, zeros), 0.0)
            raise Mistake("not-cleared", **left)
        for rate in each.learning_rates:
            want = each.seen.story.learning_rate
            if rate != want:
                raise Mistake("rate-changed", call=each.seen.call, got=f"{rate:g}", want=f"{want:g}")


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
    ratios = torch.cat([got / want for got, want in pairs if got is not None and want is not None])
    if ratios.max() - ratios.min() <= _RTOL * ratios[0].abs():
        raise Mistake("wrong-factor", **several.first_far(first, _RTOL), factor=f"{ratios[0].item():.3g}")


def _recognise_idle(call: str, story: Story, stopped: Exception) -> None:
    raised = several.known_error(stopped) if isinstance(stopped, Contained) else None
    if raised is not None and story.idle:
        raise Mistake("idle-crashes", call=call, got=f"raised `{raised}`") from None


def _in_words(story: Story) -> str:
    what = "`micro_batches`" if story.micro_batches > 1 else "`micro_batch`"
    call = f"`accumulate(micro_batches, model, optimizer, {story.scale!r})`"
    again = f", called {story.calls} times," if story.calls > 1 else ""
    return f"{call} with {story.micro_batches} {what} of {story.examples} examples{again}"
