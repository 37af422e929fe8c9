"""The contract of every exercise: what its check must say of the stub, the solution, and every answer in the bank."""

import ast
import contextlib
import importlib
import inspect
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch

from amp_lab.course import catalog
from amp_lab.course.catalog import Exercise
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.verdict import Correct, NotAttempted, Wrong
from amp_lab.course.pages import source
from tests.course.bank import Bank

ROOT = Path(__file__).parents[2]
EXERCISES = catalog.exercises()
BANKS: dict[str, Bank] = {
    bank.exercise_id: bank
    for lesson in catalog.lessons()
    for bank in importlib.import_module(f"tests.course.answers.l{lesson.number}").BANKS
}
WRONG = [(bank.exercise_id, name) for bank in BANKS.values() for name in bank.wrong_answers]
RIGHT = [(bank.exercise_id, name) for bank in BANKS.values() for name in bank.right_answers]
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


def _from_the_page(exercise: Exercise, code: str, folder: Path) -> Any:
    """Run an exercise's cells as they stand in `code`, with the page's own imports, and return what was defined.

    If the cell writes a file, write it into `folder`, and return its path.
    """
    if exercise.file:
        path = folder / Path(exercise.file).name
        path.write_text(code.partition(f"%%writefile {exercise.file}\n")[2], encoding="utf-8")
        return path
    namespace: dict[str, Any] = {}
    exec(_imports(_page(exercise)), namespace)
    exec(compile(code, f"<{exercise.id}>", "exec"), namespace)
    return namespace[exercise.function]


def _page(exercise: Exercise) -> Path:
    return ROOT / "solutions" / f"{catalog.lesson_of(exercise.id).slug}.py"


@cache
def _imports(path: Path) -> CodeType:
    text = path.read_text(encoding="utf-8")
    imports = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return compile(ast.Module(imports, []), str(path), "exec")


@cache
def _answers(path: Path) -> dict[str, str]:
    """Return the solution of each of a page's exercises; to read a page takes as long as many a check."""
    text = path.read_text(encoding="utf-8")
    return {each: source.solution_of(text, path, each) for each in source.exercise_ids(text, path)}


def _solution(exercise: Exercise) -> str:
    return _answers(_page(exercise))[exercise.id]


def _stub(exercise: Exercise) -> str:
    path = _page(exercise)
    answers = source.read(path.read_text(encoding="utf-8"), path).answers[exercise.id]
    cells = "\n\n".join(f"# %%\n{cell.text}" for cell in answers)
    name = f'"{exercise.file}"' if exercise.file else exercise.function
    return source.blank(f'{cells}\n\n# %%\ncheck("{exercise.id}", {name})\n', path).rpartition("# %%")[0]


def test_there_are_exercises() -> None:
    assert EXERCISES
    assert WRONG
    assert RIGHT


def test_sources_texts_and_banks_tell_of_the_same_exercises() -> None:
    for lesson in catalog.lessons():
        path = ROOT / "solutions" / f"{lesson.slug}.py"
        on_the_page = source.exercise_ids(path.read_text(encoding="utf-8"), path)
        assert on_the_page == tuple(exercise.id for exercise in lesson.exercises)
    assert [path.stem for path in sorted((ROOT / "solutions").glob("*.py"))] == [
        each.slug for each in catalog.lessons()
    ]
    assert BANKS.keys() == {exercise.id for exercise in EXERCISES}


@each_exercise
def test_stub_is_not_attempted(exercise: Exercise, tmp_path: Path) -> None:
    stub = _from_the_page(exercise, _stub(exercise), tmp_path)
    assert type(grade(exercise.id, stub)) is NotAttempted


@each_exercise
def test_solution_is_correct(exercise: Exercise, tmp_path: Path) -> None:
    verdict = grade(exercise.id, _from_the_page(exercise, _solution(exercise), tmp_path))
    assert type(verdict) is Correct, verdict.text
    assert verdict.notes == ()


@pytest.mark.long
@pytest.mark.parametrize(("exercise_id", "name"), RIGHT)
def test_right_answer_is_correct(exercise_id: str, name: str) -> None:
    verdict = grade(exercise_id, BANKS[exercise_id].right_answers[name])
    assert type(verdict) is Correct, verdict.text


@pytest.mark.long
@pytest.mark.parametrize(("exercise_id", "name"), WRONG)
def test_wrong_answer_gets_its_diagnosis(exercise_id: str, name: str) -> None:
    answer, diagnosis = BANKS[exercise_id].wrong_answers[name]
    verdict = grade(exercise_id, answer)
    assert type(verdict) is Wrong, verdict.text
    assert verdict.diagnosis == diagnosis, verdict.text
    assert str(verdict.observed["got"]) in verdict.sentence
    assert str(verdict.observed["got"]) != str(verdict.observed.get("want")), "it shows what is right"
    assert verdict.observed["call"] in verdict.sentence
    hint = catalog.exercise(exercise_id).diagnosis(diagnosis).hint
    assert verdict.advice == ("" if hint is None else f'For a hint, run `hint("{exercise_id}", {hint})`.')


def _code(answer: Any) -> str:
    """Return the code of an answer, less the name of a function."""
    if isinstance(answer, Path):
        return answer.read_text(encoding="utf-8")
    return inspect.getsource(answer).partition("\n")[2].partition("\n")[2]


@each_exercise
def test_bank_is_large_enough(exercise: Exercise) -> None:
    bank = BANKS[exercise.id]
    assert len(bank.wrong_answers) >= 3
    assert len(bank.right_answers) >= 2
    named = {diagnosis for _, diagnosis in bank.wrong_answers.values()}
    assert exercise.diagnoses.keys() <= named, "a diagnosis that no wrong answer in the bank gets"
    code = [_code(answer) for answer in bank.right_answers.values()]
    assert len(set(code)) == len(code), "right answers must differ in how they are written"


def test_no_two_misconceptions_share_a_sentence() -> None:
    sentences = [each.sentence for exercise in EXERCISES for each in exercise.diagnoses.values()]
    sentences += [each.sentence for each in catalog.COMMON_DIAGNOSES.values()]
    assert [sentence for sentence, count in Counter(sentences).items() if count > 1] == []


@pytest.mark.parametrize("name", catalog.COMMON_DIAGNOSES)
def test_every_common_sentence_shows_what_was_seen(name: str) -> None:
    sentence = catalog.COMMON_DIAGNOSES[name].sentence
    assert "got" in {field for _, field, _, _ in string.Formatter().parse(sentence)}


@each_exercise
def test_words_are_complete(exercise: Exercise) -> None:
    assert len(exercise.hints) == 3
    assert len(set(exercise.hints)) == 3
    assert 1 <= exercise.minutes <= 60
    for words in (exercise.title, exercise.why, *exercise.hints):
        assert words.strip() == words
        assert words
    for diagnosis in (*exercise.diagnoses.values(), *catalog.COMMON_DIAGNOSES.values()):
        assert diagnosis.hint in (1, 2, None)


@pytest.mark.parametrize("each", [*catalog.lessons(), *EXERCISES], ids=lambda each: each.title)
def test_titles_end_without_punctuation(each: Exercise | catalog.Lesson) -> None:
    assert each.title[-1].isalnum()


@contextlib.contextmanager
def _other_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _other_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "default dtype": _other_dtype,
    "default device": _other_device,
    "device region": lambda: torch.device("meta"),
    "flushed subnormals": _flushed,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "NumPy raises": lambda: np.errstate(all="raise"),
}


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
@each_exercise
def test_solution_is_right_whatever_the_page_has_set(
    exercise: Exercise, setting: str, tmp_path: Path
) -> None:
    solution = _from_the_page(exercise, _solution(exercise), tmp_path)
    with SETTINGS[setting]():
        verdict = grade(exercise.id, solution)
    assert verdict.passed, verdict.text


@pytest.mark.long
@each_exercise
def test_right_answers_are_right_if_the_page_has_set_everything(exercise: Exercise) -> None:
    with contextlib.ExitStack() as stack:
        for setting in SETTINGS.values():
            stack.enter_context(setting())
        some = [*BANKS[exercise.id].right_answers.items()][:4]  # loops take long in so many modes
        verdicts = {name: grade(exercise.id, each) for name, each in some}
    assert {name: each.text for name, each in verdicts.items() if not each.passed} == {}


def test_a_check_that_is_first_run_under_other_settings_makes_no_other_constants() -> None:
    code = (
        "import torch; from amp_lab.course import catalog, grade; from tests.course.answers import l01\n"
        "torch.set_default_dtype(torch.float64), torch.set_default_device('meta')\n"
        "assert all(grade(bank.exercise_id, answer).passed for bank in l01.BANKS "
        "for answer in list(bank.right_answers.values())[:2])\n"
        "assert torch.get_default_dtype() == torch.float64 and torch.ones(1).is_meta"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@each_exercise
def test_hints_stop_short_of_the_solution(exercise: Exercise) -> None:
    written = [
        line.strip()
        for line in _solution(exercise).splitlines()
        if not line.strip().startswith(("def ", '"""'))
    ]
    for line in written:
        if not any(map(str.isalnum, line)):  # a bracket on a line of its own gives nothing away
            continue
        assert all(line not in hint for hint in exercise.hints), f"a hint gives away {line!r}"


@each_exercise
def test_page_says_what_the_catalogue_says(exercise: Exercise) -> None:
    lesson = catalog.lesson_of(exercise.id)
    page = (ROOT / "solutions" / f"{lesson.slug}.py").read_text(encoding="utf-8")
    assert f"# ### Exercise {exercise.id} · {exercise.title}\n" in page
    assert f"# # {lesson.number} · {lesson.title}\n" in page
    assert f"| **Time** | {lesson.minutes} minutes |" in page
    assert f"| **Difficulty** | {lesson.difficulty} |" in page
