"""Exercise 8.1: what a forward pass adds and keeps for backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Trial
from amp_lab.course.lessons.l08 import scenes
from amp_lab.course.lessons.l08.counting import ANYWHERE, IN_16_BITS, IN_A_MODE, right

REGIONS = (
    (scenes.PLAIN, ANYWHERE),
    (scenes.LOWER, IN_16_BITS),
    (scenes.SHARED, IN_16_BITS),
    (scenes.STANDING, IN_A_MODE),
)


class _Keeping:
    """While it lasts, what goes into modules and comes out of them lives on: no address is given out twice."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __enter__(self) -> None:
        self._hook = register_module_forward_hook(
            lambda module, given, output: self._kept.append((given, output))
        )

    def __exit__(self, *error: object) -> None:
        self._hook.remove()


class _Asking:
    """Asks for one region, and looks at each model after the call."""

    def __init__(self, ask: Ask, misconceptions: Misconceptions) -> None:
        self._ask, self._misconceptions = ask, misconceptions

    def compare(self, cases: Sequence[scenes.Case]) -> None:
        self._ask.compare(cases, self._right, self._misconceptions, read=self._read, otherwise=self._again)

    def _right(self, *case: Any) -> int:
        self._model: nn.Module = case[0]
        self._before = scenes.standing(self._model)
        self._dtype = str(case[2])
        want = right(*case)
        self._model.calls.clear()
        return want

    def _read(self, call: str, got: Any, want: int) -> int:
        after = scenes.standing(self._model)
        for place, value in self._before.items():
            if after[place] != value:
                raise Mistake("model-changed", call=call, place=place, got=after[place], want=value)
        number = expect.whole_number(call, got, want)
        if number == want:
            self._expect_one_call(call)
        return number

    def _expect_one_call(self, call: str) -> None:
        """Raise `Mistake` if the model was called again, or with another dtype that takes as many bytes."""
        calls: list[str] = self._model.calls  # type: ignore[assignment]
        if len(calls) > 1:
            raise Mistake("called-again", call=call, got=len(calls), want=1)
        if any(dtype != self._dtype for dtype in calls):
            raise Mistake("other-dtype", call=call, got=f"`{calls[0]}`", want=f"`{self._dtype}`")

    def _again(self, trials: Sequence[Trial]) -> None:
        """Recognise an answer that is right, or wrong in a known way, as soon as no memory is given back."""
        self._ask.around = _Keeping()
        again = [
            Trial(
                each.call,
                each.args,
                expect.whole_number(each.call, self._ask(*each.args), each.want),
                each.want,
            )
            for each in trials
        ]
        if all(trial.got == trial.want for trial in again):
            raise Mistake("address-reused", **expect.first_wrong(trials))
        expect.recognise(again, self._misconceptions)


@checker("8.1")
def activation_bytes(ask: Ask) -> None:
    """Ask in FP32 first, then in 16 bits, then for storages that are shared, then for modes and buffers."""
    ask.in_words = scenes.in_words
    for some, misconceptions in REGIONS:
        _Asking(ask, misconceptions).compare(scenes.cases(some))
