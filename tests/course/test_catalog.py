"""The catalogue: names that people mistype, and exercises that are not written as they must be."""

import subprocess
import sys
from dataclasses import replace

import pytest

from amp_lab.course import catalog
from amp_lab.course.catalog import Diagnosis
from tests.course.probe import DOUBLE


@pytest.mark.parametrize("name", ["0", "00", "00_start_here"])
def test_a_lesson_goes_by_its_number_and_its_name(name: str) -> None:
    assert catalog.lesson(name).slug == "00_start_here"


@pytest.mark.parametrize("name", ["", " ", "000", "-0", "start", "00_start", "99"])
def test_nothing_else_is_taken_for_a_lesson(name: str) -> None:
    with pytest.raises(catalog.UnknownExercise, match="00_start_here"):
        catalog.lesson(name)


@pytest.mark.parametrize("name", ["01", "1", "01_number_formats"])
def test_a_lesson_is_no_exercise_and_tells_its_own(name: str) -> None:
    with pytest.raises(catalog.UnknownExercise) as caught:
        catalog.exercise(name)
    assert str(caught.value) == f"{name} is a lesson; its exercises are 1.1, 1.2, 1.3, 1.4"
    with pytest.raises(catalog.UnknownExercise, match=r"00 is a lesson; its exercise is 0\.1"):
        catalog.exercise("00")


def test_an_exercise_is_no_lesson_and_tells_its_own() -> None:
    with pytest.raises(catalog.UnknownExercise) as caught:
        catalog.lesson("1.2")
    assert str(caught.value) == "1.2 is an exercise; its lesson is 01_number_formats"


def test_an_exercise_knows_its_lesson() -> None:
    assert catalog.lesson_of("0.1").number == "00"
    with pytest.raises(catalog.UnknownExercise):
        catalog.lesson_of("0.99")


def test_a_diagnosis_must_show_what_was_seen() -> None:
    with pytest.raises(ValueError, match="'vague' shows no observed value"):
        replace(DOUBLE, diagnoses={"vague": Diagnosis("That is wrong; {want} is right.")})


@pytest.mark.parametrize("number", [0, 3])
def test_a_diagnosis_points_to_no_hint_that_is_nearly_the_code(number: int) -> None:
    with pytest.raises(ValueError, match=f"points to hint {number}; choose 1, 2 or None"):
        replace(DOUBLE, diagnoses={"far": Diagnosis("{got}", hint=number)})


def test_a_diagnosis_must_not_shadow_a_common_one() -> None:
    with pytest.raises(ValueError, match="wrong-dtype"):
        replace(DOUBLE, diagnoses={"wrong-dtype": Diagnosis("{got}")})


def test_the_catalogue_is_light() -> None:
    code = "import sys; from amp_lab.course import catalog; catalog.exercises(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "nbformat", "IPython"} & set(done.stdout.split())
