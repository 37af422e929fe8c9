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


def test_an_exercise_knows_its_lesson() -> None:
    assert catalog.lesson_of("0.1").number == "00"
    with pytest.raises(catalog.UnknownExercise):
        catalog.lesson_of("0.99")


def test_a_diagnosis_must_show_what_was_seen() -> None:
    with pytest.raises(ValueError, match="'vague' shows no observed value"):
        replace(DOUBLE, diagnoses={"vague": Diagnosis("That is wrong; {want} is right.")})


def test_a_diagnosis_must_not_shadow_a_common_one() -> None:
    with pytest.raises(ValueError, match="wrong-dtype"):
        replace(DOUBLE, diagnoses={"wrong-dtype": Diagnosis("{got}")})


def test_the_catalogue_is_light() -> None:
    code = "import sys; from amp_lab.course import catalog; catalog.exercises(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "nbformat", "IPython"} & set(done.stdout.split())
