"""The engine: every outcome, what it says, and what it does to a notebook."""

import inspect
import threading
from typing import Any

import pytest
import torch

from amp_lab.course import catalog
from amp_lab.course.judging import exercise
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import NotHere, grade, judge, tell
from amp_lab.course.judging.expect import whole_number
from amp_lab.course.judging.verdict import (
    CheckFailed,
    Correct,
    NotAttempted,
    NotChecked,
    Raised,
    Stopped,
    Wrong,
)
from tests.course.probe import DOUBLE, MISTAKES, check_double


def _learner(code: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(code, {"torch": torch}, namespace)
    return namespace["learner"]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_answer_is_told_what_was_seen(name: str) -> None:
    code, diagnosis, words = MISTAKES[name]
    verdict = judge(DOUBLE, check_double, _learner(code))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == diagnosis
    assert words in verdict.sentence
    assert "`learner(tensor([1, 3, -0.5], dtype=torch.float16))`" in verdict.sentence


def test_right_answer_is_correct_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = judge(DOUBLE, check_double, doubled)
    assert isinstance(verdict, Correct)
    assert verdict.passed
    tell(verdict)
    assert "✓ Exercise 99.1 · Twice as much: correct" in (printed := capsys.readouterr().out)
    assert DOUBLE.why in printed


def test_stub_is_not_attempted() -> None:
    verdict = judge(DOUBLE, check_double, _learner("def learner(x):\n    raise NotImplementedError"))
    assert isinstance(verdict, NotAttempted)
    assert "Replace `raise NotImplementedError` in `learner`" in verdict.text


def test_an_operation_that_pytorch_lacks_is_no_stub() -> None:
    verdict = judge(
        DOUBLE, check_double, _learner("def learner(x):\n    raise NotImplementedError('no such kernel')")
    )
    assert isinstance(verdict, Raised)
    assert "no such kernel" in verdict.sentence


def test_error_names_the_call() -> None:
    verdict = judge(DOUBLE, check_double, lambda: 3)
    assert isinstance(verdict, Raised)
    assert verdict.fault == "exception"
    assert "takes 0 positional arguments but 1 was given" in verdict.sentence
    assert "It was called as `learner(tensor" in verdict.sentence
    assert "that line" not in verdict.advice  # there is none: the call itself failed


def test_what_a_machine_cannot_judge_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    def check(ask: Ask) -> None:
        raise NotHere("This exercise needs a CUDA device.")

    verdict = judge(DOUBLE, check, doubled)
    assert isinstance(verdict, NotChecked)
    assert not verdict.passed
    tell(verdict)
    assert "NOT CHECKED" in (printed := capsys.readouterr().out)
    assert "needs a CUDA device" in printed


@pytest.mark.parametrize("answer", [None, 24, "tensor_bytes", torch.ones(2)])
def test_a_result_instead_of_a_function_is_sent_back(answer: object) -> None:
    verdict = grade("0.1", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "not-a-function"
    assert 'check("0.1", tensor_bytes)' in verdict.sentence


@pytest.mark.parametrize("name", ["0.7", "0,1", "", "start"])
def test_unknown_exercise_is_named_with_its_neighbours(name: str) -> None:
    with pytest.raises(catalog.UnknownExercise, match=r"0\.1"):
        grade(name, doubled)


@pytest.mark.parametrize("call", [exercise.check, exercise.grade])
def test_an_id_without_quotes_is_told_so(call: Any) -> None:
    with pytest.raises(catalog.UnknownExercise, match=r'in quotes, as in check\("0\.1"') as caught:
        call(0.1, doubled)
    assert caught.value._render_traceback_() == [f"AMP Lab: {caught.value}"]


def test_check_raises_what_a_notebook_shows() -> None:
    with pytest.raises(CheckFailed) as caught:
        exercise.check("0.1", lambda shape, dtype: None)
    shown = caught.value._render_traceback_()
    assert "The bytes of a tensor: not right yet" in shown[0]
    assert "missing one?" in shown[-1]  # the sentence says what to do: no hint helps further
    assert all("Traceback" not in line and "`" not in line for line in shown)
    assert caught.value.__suppress_context__


def test_advice_names_the_hint_that_helps_or_none() -> None:
    helped = grade("0.1", lambda shape, dtype: 0)
    assert helped.advice == 'For a hint, run `hint("0.1", 2)`.'
    assert grade("0.1", lambda shape, dtype: None).advice == ""
    assert grade("0.1", "no function").advice == ""


def test_message_keeps_code_together_and_lines_short() -> None:
    with pytest.raises(CheckFailed) as caught:
        tell(judge(DOUBLE, check_double, _learner(MISTAKES["wrong type"][0])))
    assert max(len(line) for line in caught.value._render_traceback_()) < 150


def test_prints_and_threads_are_reported_beside_the_verdict() -> None:
    stop = threading.Event()

    def learner(x: torch.Tensor) -> torch.Tensor:
        print("x  is", x.dtype)
        threading.Thread(target=stop.wait, name="forgotten").start()
        return x + x

    try:
        verdict = judge(DOUBLE, check_double, learner)
    finally:
        stop.set()
    assert isinstance(verdict, Correct)
    assert ("Your code printed:", "x  is torch.float16") in verdict.notes
    assert any("forgotten" in note.sentence for note in verdict.notes)


def test_all_calls_of_a_check_share_one_time_limit() -> None:
    def check(ask: Ask) -> None:
        for _ in range(1000):
            ask(1)

    def learner(x: int) -> None:
        threading.Event().wait(0.02)

    verdict = judge(DOUBLE, check, learner, limit_s=0.2)
    assert isinstance(verdict, Raised)
    assert verdict.fault == "timeout"


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (torch.tensor([1.0, float("nan")]), lambda x: x.add_(1)),
        (torch.tensor([0.0]), lambda x: x.neg_()),  # -0.0 equals 0.0, and is another number
        (torch.zeros(2, 3), lambda x: x.t_()),
        (torch.ones(2).numpy(), lambda x: x.fill(3)),
        ([1, [2]], lambda x: x[1].append(3)),
        ({"a": torch.ones(1)}, lambda x: x["a"].zero_()),
        ({1, 2}, lambda x: x.clear()),
    ],
)
def test_changing_an_input_is_noticed(value: Any, change: Any) -> None:
    def check(ask: Ask) -> None:
        ask(value)

    before = repr(value)
    verdict = judge(DOUBLE, check, change)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "mutated-input"
    assert repr(value) == before, "the check's own value must stay what it was"
    assert isinstance(judge(DOUBLE, check, lambda x: None), Correct)


def test_a_contract_may_allow_changes() -> None:
    total = torch.zeros(1)

    def check(ask: Ask) -> None:
        ask(total, may_change=True)

    assert isinstance(judge(DOUBLE, check, lambda x: x.add_(1)), Correct)
    assert total.item() == 1


def test_keyword_arguments_are_shown_and_copied() -> None:
    def check(ask: Ask) -> None:
        ask(1, scale=[2.0])

    verdict = judge(DOUBLE, check, lambda x, scale: scale.append(1))
    assert isinstance(verdict, Wrong)
    assert "`learner(1, scale=[2.0])` changed its input: argument `scale`" in verdict.sentence


def test_hints_go_on_and_solution_shows_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exercise, "_HINTS_SHOWN", {})
    shown = []
    for _ in range(4):
        exercise.hint("0.1")
        shown.append(capsys.readouterr().out)
    hints = catalog.exercise("0.1").hints
    assert [hint in text for hint, text in zip([*hints, hints[-1]], shown, strict=True)] == [True] * 4
    assert 'solution("0.1")' in shown[-1]
    exercise.hint("0.1", 1)
    assert hints[0] in capsys.readouterr().out
    exercise.solution("0.1")
    assert "def tensor_bytes" in (text := capsys.readouterr().out)
    assert "SOLUTION" not in text


@pytest.mark.parametrize("number", [0, 4, -1, "2", 1.0, True])
def test_hint_that_does_not_exist(number: Any) -> None:
    with pytest.raises(catalog.UnknownExercise, match="hints 1 to 3"):
        exercise.hint("0.1", number)


def test_an_exercise_has_one_check() -> None:
    exercise.check_of("0.1")
    with pytest.raises(ValueError, match=r"0\.1 has a check already"):
        exercise.checker("0.1")(check_double)


@pytest.mark.parametrize("exercise_id", [0.1, ["0.1"], {}, None, doubled])
@pytest.mark.parametrize(
    "call", [grade, lambda name, _: exercise.hint(name), lambda name, _: exercise.solution(name)]
)
def test_whatever_is_no_id_gets_one_sentence(call: Any, exercise_id: Any) -> None:
    with pytest.raises(catalog.UnknownExercise, match="comes first and in quotes"):
        call(exercise_id, "0.1")


def test_printed_text_is_shown_as_it_is_and_not_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    def learner(x: torch.Tensor) -> torch.Tensor:
        print("# no heading\n```\n*plain*")
        return x + x

    tell(judge(DOUBLE, check_double, learner))
    assert "````text\n# no heading\n```\n*plain*\n````" in capsys.readouterr().out


def test_of_long_output_the_first_lines_are_shown() -> None:
    def learner(x: torch.Tensor) -> torch.Tensor:
        for number in range(1000):
            print(number)
        return x + x

    (note,) = judge(DOUBLE, check_double, learner).notes
    assert note.printed == "\n".join(map(str, range(10))) + "\n(and 3,870 more characters)"


def _square_check(ask: Ask) -> None:
    cases = [(2,), (3,), (4,)]
    ask.compare(cases, lambda n: n * n, (("squares", lambda n: 2 * n),), read=whole_number)


def test_a_wrong_answer_is_told_before_a_later_failure() -> None:
    def learner(n: int) -> int | None:
        return 2 * n if n < 4 else None

    verdict = judge(DOUBLE, _square_check, learner)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "squares"
    assert "`learner(3)` returned 6" in verdict.sentence


def test_a_failure_is_told_when_all_before_it_was_right() -> None:
    verdict = judge(DOUBLE, _square_check, lambda n: n * n if n < 4 else None)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "returned-none"
    verdict = judge(DOUBLE, _square_check, lambda n: n * n if n < 4 else n / 0)
    assert isinstance(verdict, Raised)


def test_a_stub_that_some_calls_reach_was_attempted() -> None:
    def learner(n: int) -> int:
        if n < 4:
            return n * n
        raise NotImplementedError

    assert isinstance(judge(DOUBLE, _square_check, learner), Raised)


class Endless:
    def __repr__(self) -> str:
        while True:
            pass

    __eq__ = __int__ = __index__ = __len__ = __repr__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    __class__ = property(__repr__)  # type: ignore[assignment]


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": x}])
def test_no_code_of_a_learners_object_runs_outside_the_guard(wrap: Any) -> None:
    verdict = grade("0.1", lambda shape, dtype: wrap(Endless()))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "wrong-type"
    assert "Endless" in verdict.sentence or "list" in verdict.sentence or "dict" in verdict.sentence


def test_stop_button_asks_for_no_correction() -> None:
    def learner(x: torch.Tensor) -> None:
        raise KeyboardInterrupt

    verdict = judge(DOUBLE, check_double, learner)
    assert isinstance(verdict, Stopped)
    assert verdict.advice == ""


def test_every_dtype_of_exercise_01_is_asked_for() -> None:
    seen = set()

    def learner(shape: tuple[int, ...], dtype: torch.dtype) -> int:
        assert type(shape) is tuple
        seen.add(dtype)
        return torch.empty(shape, dtype=dtype, device="meta").nbytes

    assert isinstance(grade("0.1", learner), Correct)
    assert len({dtype.itemsize for dtype in seen}) == 5
    assert {
        torch.complex64,
        torch.complex128,
        torch.bool,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int16,
    } <= seen


def test_whatever_else_a_check_runs_is_guarded() -> None:
    def numbers() -> Any:
        yield 1
        raise ValueError("half-way")

    def check(ask: Ask) -> None:
        assert ask.run(lambda: torch.ones(1).requires_grad_().sum()).requires_grad
        ask.run(list, ask())

    verdict = judge(DOUBLE, check, numbers)
    assert isinstance(verdict, Raised)
    assert "ValueError: half-way" in verdict.sentence


def test_a_check_lasts_20_seconds_at_most() -> None:
    assert inspect.signature(judge).parameters["limit_s"].default == 20
    assert "limit_s" not in inspect.signature(grade).parameters


def test_what_was_printed_is_told_whatever_the_outcome() -> None:
    def learner(x: torch.Tensor) -> None:
        print("seen  so far")
        raise ValueError

    verdict = judge(DOUBLE, check_double, learner)
    assert isinstance(verdict, Raised)
    assert "Your code printed:\nseen  so far\n" in verdict.text
    assert "seen  so far" in CheckFailed(verdict)._render_traceback_()


def test_a_check_outside_the_main_thread_says_that_it_has_no_limit() -> None:
    verdicts: list[Any] = []
    thread = threading.Thread(target=lambda: verdicts.append(judge(DOUBLE, check_double, doubled)))
    thread.start()
    thread.join()
    (verdict,) = verdicts
    assert isinstance(verdict, Correct)
    assert "without a time limit" in verdict.text


def test_code_in_a_sentence_is_never_torn_apart() -> None:
    sentence = "word " * 17 + "`weight - step rounds back to weight` and more"
    shown = CheckFailed(NotAttempted(DOUBLE, sentence))._render_traceback_()
    assert any("weight - step rounds back to weight" in line for line in shown)
    assert not any("`" in line for line in shown)
