"""The committed notebooks: blanks give nothing away, and all of them are what their sources make today."""

import json
import keyword
import re
from pathlib import Path

import jupytext
import pytest

from amp_lab.course import catalog
from amp_lab.course.pages import source
from tools import build, execute

ROOT = Path(__file__).parents[2]
LESSONS = sorted(path.stem for path in (ROOT / "solutions").glob("*.py"))


def load(folder, slug):
    return json.loads((ROOT / folder / f"{slug}.ipynb").read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def solution_lines(text):
    """Return the lines between the markers that could give an answer away.

    A line with fewer than three names gives nothing away: `else:`, `return loss`, `scaler.update()`.
    """
    found, inside = [], False
    for line in map(str.strip, text.split("\n")):
        if line in (source.BEGIN, source.END):
            inside = line == source.BEGIN
        elif inside:
            names = [word for word in re.findall(r"[^\W\d]\w*", line) if not keyword.iskeyword(word)]
            found += [line] if len(names) >= 3 else []
    return found


def leaks(text, notebook):
    """Return the solution lines of a lesson's source that stand anywhere in a notebook."""
    page = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    return [line for line in solution_lines(text) if line in page]


def test_there_are_lessons():
    assert LESSONS


def test_notebooks_and_sources_match_one_to_one():
    for folder in ("notebooks", "solutions"):
        assert sorted(path.stem for path in (ROOT / folder).glob("*.ipynb")) == LESSONS


def test_every_notebook_is_what_its_source_makes():
    assert build.drift(ROOT) == [], "run `make build`"


def test_every_exercise_of_the_course_has_one_check_cell():
    cells = [each for slug in LESSONS for each in source.check_cells(load("notebooks", slug)).values()]
    assert cells == [exercise.id for exercise in catalog.exercises()]


@pytest.mark.parametrize("slug", LESSONS)
def test_no_solution_line_stands_in_a_blank(slug):
    text = (ROOT / "solutions" / f"{slug}.py").read_text(encoding="utf-8")
    assert leaks(text, load("notebooks", slug)) == [], "word the demo or the task otherwise than the solution"


@pytest.mark.parametrize("slug", LESSONS)
def test_the_leak_test_finds_every_line_in_the_solved_notebook(slug):
    """So that it cannot pass because it compares with nothing."""
    text = (ROOT / "solutions" / f"{slug}.py").read_text(encoding="utf-8")
    assert leaks(text, load("solutions", slug)) == solution_lines(text)
    assert bool(solution_lines(text)) == bool(source.exercise_ids(text, slug))


@pytest.mark.parametrize("slug", LESSONS)
def test_a_blank_carries_no_outputs_and_no_counts(slug):
    cells = code_cells(load("notebooks", slug))
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize("slug", LESSONS)
def test_code_fits_beside_jupyterlabs_file_browser(slug):
    wide = [
        line
        for cell in code_cells(load("notebooks", slug))
        for line in "".join(cell["source"]).splitlines()
        if len(line) > 88
    ]
    assert wide == []


@pytest.mark.parametrize("slug", LESSONS)
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(slug):
    """A `|` in code ends a cell, too: what follows it is not shown."""
    cells = load("notebooks", slug)["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    tables = re.findall(r"^(?:\|.*\n?)+", text, re.MULTILINE)
    assert tables
    for table in tables:
        rows = [re.sub(r"\\\|", "", row) for row in table.splitlines()]
        assert [row for row in rows if row.count("|") != rows[0].count("|")] == []


@pytest.mark.parametrize("slug", LESSONS)
def test_an_executed_notebook_ran_from_top_to_bottom_and_shows_nothing_of_its_machine(slug):
    cells = code_cells(load("solutions", slug))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert execute.faults(outputs, ROOT) == []
    assert not any(output["output_type"] == "error" for output in outputs)


@pytest.mark.parametrize("slug", LESSONS)
def test_cells_have_ids_of_their_own_that_both_notebooks_share(slug):
    ids = [cell["id"] for cell in load("notebooks", slug)["cells"]]
    assert len(set(ids)) == len(ids)
    assert ids == [cell["id"] for cell in load("solutions", slug)["cells"]]


@pytest.mark.parametrize("slug", LESSONS)
def test_jupytext_reads_the_same_cells_from_a_source(slug):
    """An editor that opens the source through jupytext shows the page that a learner gets."""
    text = (ROOT / "solutions" / f"{slug}.py").read_text(encoding="utf-8")
    ours = [(cell.kind, cell.source) for cell in source.cells(text)]
    assert [(cell.cell_type, cell.source) for cell in jupytext.reads(text, fmt="py:percent").cells] == ours
