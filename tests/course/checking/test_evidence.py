"""Whether every check cell of the course can be asked for proof."""

import ast
from pathlib import Path

import pytest

from amp_lab.course.checking import evidence
from amp_lab.course.pages import cells, source

REPOSITORY = Path(__file__).parents[3]


def test_every_check_cell_of_the_course_can_be_asked_for_proof():
    found = 0
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        blank = cells.parse(path.read_bytes())
        for cell in blank["cells"]:
            if cell["id"] in source.check_cells(blank):
                text = cells.text_of(cell)
                asked = evidence.asking_for_proof(text)
                assert (
                    asked.replace("import amp_lab.course.checking.evidence as _evidence\n_evidence.", "")
                    == text
                )
                assert ast.parse(asked).body[-1].value.func.attr == "check"
                found += 1
    assert found


@pytest.mark.parametrize("text", ["", "grade('0.1', f)", "check('0.1', f)\ncheck('0.2', g)"])
def test_a_cell_without_one_check_cannot(text):
    with pytest.raises(LookupError):
        evidence.asking_for_proof(text)
