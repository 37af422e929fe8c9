"""`amp-lab check` on real pages: what it says, what cannot fool it, and what it leaves behind."""

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from amp_lab.course import catalog, cells, checking, evidence, nbval_run, progress, source, verdict
from tests.course.small_course import RIGHT, WRONG, SmallCourse, code, function, notebook

REPOSITORY = Path(__file__).parents[2]


def amp_lab_check(course, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "amp_lab", "check", *arguments],
        cwd=REPOSITORY,
        env={**course.environment, "PYTEST_ADDOPTS": "--no-such-option", "PYTEST_PLUGINS": "no_such_plugin"},
        capture_output=True,
        text=True,
        timeout=400,  # many times what it takes, for machines that do much else
    )


def plain_nbval(course, report, *names):
    """Run nbval as its users do, on the copies as they are; returns {(page, cell): outcome}."""
    environment = course.environment
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(REPOSITORY)])
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"]
    command += [
        "-c",
        os.devnull,
        "--rootdir=.",
        "-p",
        "tests.notebooks.nbval_report",
        f"--cell-report={report}",
    ]
    done = subprocess.run(
        [*command, "--nbval-lax", "--nbval-current-env", *names],
        cwd=course.work,
        env={**environment, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    records = map(json.loads, report.read_text().splitlines())
    return {(record["notebook"], record["cell"]): record["outcome"] for record in records}


def told(done):
    """Return {exercise: the line about it}."""
    return {line.split()[1]: line for line in done.stdout.splitlines() if re.match(r"  \S \d", line)}


# --- five ways to fool nbval, and more ----------------------------------------------------------------------


def replaced(source, **metadata):
    return lambda name, pair: [pair[0], code(source.format(name, function(name)), pair[1]["id"], **metadata)]


def as_text(kind):
    return lambda name, pair: [
        pair[0],
        {"cell_type": kind, "id": pair[1]["id"], "metadata": {}, "source": pair[1]["source"]},
    ]


def around(before, after="from amp_lab.course import check"):
    """Return a trick that works until the cell `after` is run, so that the next exercise has its own."""
    return lambda name, pair: [code(before, f"before-{name[3:]}"), *pair, code(after, f"after-{name[3:]}")]


# What to do with the stub and the check of an exercise so that plain nbval sees no failure though the answer is wrong.
FIVE = {
    "the check cell is deleted": lambda name, pair: pair[:1],
    "the check cell is edited": replaced('check("{0}", lambda x: 2 * x)'),
    "the check cell is tagged to be skipped": replaced('check("{0}", {1})', tags=["nbval-skip"]),
    "a comment has the check cell skipped": replaced('# NBVAL_SKIP\ncheck("{0}", {1})'),
    "the check cell is tagged to raise": replaced('check("{0}", {1})', tags=["raises-exception"]),
}
MORE = {
    "a comment allows the check to raise": replaced('#NBVAL_RAISES_EXCEPTION\ncheck("{0}", {1})'),
    "the check cell became Markdown": as_text("markdown"),
    "the check cell became raw text": as_text("raw"),
    "the check cell is commented out": replaced('# check("{0}", {1})'),
    "the check cell swallows the failure": replaced(
        'try:\n    check("{0}", {1})\nexcept Exception:\n    pass'
    ),
    "a cell magic keeps Python from it": replaced('%%script false --no-raise-error\ncheck("{0}", {1})'),
    "check is print": around("check = print"),
    "check is a function that does nothing": around("def check(*answer):\n    pass"),
    "check is imported from a file": around("from mine import check"),
    "check is replaced in its module": around(
        "import amp_lab.course.exercise as engine\nkept, engine.check = engine.check, print\n"
        "from amp_lab.course import check",
        "engine.check = kept\nfrom amp_lab.course import check",
    ),
    "the engine calls everything right": around(
        "import amp_lab.course.exercise as engine\nkept = engine.judge\n"
        "engine.judge = lambda exercise, *rest: engine.Correct(exercise)",
        "engine.judge = kept",
    ),
    # The last one: it works until the page ends.
    "IPython runs nothing any more": lambda name, pair: [
        code("get_ipython().input_transformers_cleanup.append(lambda lines: [])", "nothing"),
        *pair,
    ],
}
TRICKS = FIVE | MORE
NUMBERED = dict(enumerate(TRICKS, start=1))
# With a right answer these two do not make it wrong; but what cannot be trusted is not counted, either.
WITHOUT_PROOF = {"the engine calls everything right", "IPython runs nothing any more"}


def tricked(course, slug, body):
    """Return a copy in which every exercise has this body, and its own trick around the check."""
    names = {f"{slug[:2]}.{number}": trick for number, trick in NUMBERED.items()}
    page = course.page(slug, dict.fromkeys(names, body))
    pairs = [page[index : index + 2] for index in range(1, len(page), 2)]
    tricks = (TRICKS[trick](name, pair) for (name, trick), pair in zip(names.items(), pairs, strict=True))
    return [page[0], *(cell for trick in tricks for cell in trick)]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = SmallCourse(tmp_path_factory.mktemp("course"))
    for slug, count in {
        "97_wrong": len(TRICKS),
        "98_right": len(TRICKS),
        "50_kinds": 7,
        "51_died": 2,
    }.items():
        course.add(slug, count)
    course.add("52_damaged", 1)
    course.add("53_plainly_wrong", 1)
    course.add("54_kills_nbval", 1)
    return course


@pytest.fixture(scope="module")
def copies(course):
    (course.work / "mine.py").write_text("def check(*answer):\n    pass\n")
    (course.work / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (course.work / "conftest.py").write_text("raise SystemExit('a conftest of the learner')\n")
    (course.work / "pytest.py").write_text("raise SystemExit('a module of the learner')\n")
    course.save("97_wrong", tricked(course, "97_wrong", WRONG))
    course.save("98_right", tricked(course, "98_right", RIGHT))
    course.save("50_kinds", kinds(course))
    course.save("51_died", died(course))
    course.save("54_kills_nbval", kills_nbval(course))
    course.save("53_plainly_wrong", course.page("53_plainly_wrong", {"53.1": WRONG}))
    (course.work / "52_damaged.ipynb").write_text("{")
    return {path: path.read_bytes() for path in course.work.iterdir()}


def kinds(course):
    bodies = [
        RIGHT,
        WRONG,
        "return {}[x]",
        "raise NotImplementedError",
        "import amp_lab.course.exercise as e; return e.NotHere",
    ]
    page = course.page(
        "50_kinds",
        {f"50.{number}": body for number, body in enumerate([*bodies, RIGHT, "return later * x"], 1)},
    )
    for cell in page:
        if cell["id"] == "stub-50-1-1":  # skipped by plain nbval, and its check could not find it
            cell["source"] = ["# NBVAL_SKIP\n", *cell["source"]]
            cell["metadata"] = {"tags": ["nbval-skip"]}
        if cell["id"] == "stub-50-6-1":
            cell["cell_type"] = "markdown"
        # As an autosave in the middle of a run leaves it: outputs, and no counts.
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1\n"}]
    page.insert(1, code("later = 1 / 0  # \x1b[31m", "demo"))
    page.append(code('check("50.2", double_50_2)', "pasted"))
    page.append(code("undefined", "another"))
    return page


def died(course):
    page = course.page("51_died", {"51.1": RIGHT, "51.2": RIGHT})
    page.insert(3, code("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "kill"))
    return page


def kills_nbval(course):
    return [
        code("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "kill"),
        *course.page("54_kills_nbval", {}),
    ]


@pytest.fixture(scope="module")
def checked(course, copies):
    return amp_lab_check(course, "50", "51", "52", "54", "97", "98")


@pytest.fixture(scope="module")
def plain(course, copies, tmp_path_factory):
    report = tmp_path_factory.mktemp("plain") / "cells.jsonl"
    return plain_nbval(course, report, "97_wrong.ipynb", "53_plainly_wrong.ipynb")


@pytest.mark.kernel
def test_plain_nbval_does_find_a_wrong_answer(plain):
    assert plain["53_plainly_wrong.ipynb", "check-53-1"] == "failed"


@pytest.mark.kernel
@pytest.mark.parametrize(("number", "trick"), NUMBERED.items(), ids=TRICKS)
def test_what_fools_plain_nbval_does_not_fool_us(plain, checked, number, trick):
    failed = [
        cell for (page, cell), outcome in plain.items() if page == "97_wrong.ipynb" and outcome == "failed"
    ]
    assert failed == [], "this is no trick: plain nbval sees it"
    line = told(checked)[f"97.{number}"]
    if trick in WITHOUT_PROOF:
        assert f"  ! 97.{number} Title 97.{number}: not run (" in line
    else:
        assert line.endswith(f"`double_97_{number}(21)` returned 21; the right answer is 42.")
        assert f"  ✗ 97.{number} Title 97.{number}: not right yet (" in line


@pytest.mark.kernel
@pytest.mark.parametrize(("number", "trick"), NUMBERED.items(), ids=TRICKS)
def test_a_right_answer_is_right_whatever_became_of_its_check_cell(checked, number, trick):
    line = told(checked)[f"98.{number}"]
    if trick in WITHOUT_PROOF:
        assert line.startswith(f"  ! 98.{number} ")
    else:
        assert re.fullmatch(rf"  ✓ 98.{number} Title 98.{number}: correct \(\d\.\d+ s\)", line)


# --- what is said -------------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_each_outcome_has_its_line(checked):
    """Stored outputs without counts, as an autosave in the middle of a run leaves them, are no failure."""
    seconds = re.compile(r" \(\d\.\d\d s\)")
    lines = [line for name, line in told(checked).items() if name.startswith("50.")]
    assert any(map(seconds.search, lines))
    assert [seconds.sub("", line) for line in lines] == [
        "  ✓ 50.1 Title 50.1: correct",
        "  ✗ 50.2 Title 50.2: not right yet: `double_50_2(21)` returned 21; the right answer is 42.",
        "  ✗ 50.3 Title 50.3: your code raised an error: "
        "Your code raised KeyError: 21 (line 2, in double_50_3: `return {}[x]`).",
        "  ○ 50.4 Title 50.4: not attempted yet",
        "  – 50.5 Title 50.5: NOT CHECKED on this machine: It needs a GPU.",
        "  ! 50.6 Title 50.6: not run: there is no `double_50_6` when its check runs: the cell that defines it is "
        "gone, is not a code cell, or raised an error",
        "  ✗ 50.7 Title 50.7: your code raised an error: "
        "Your code raised NameError: name 'later' is not defined (line 2, in double_50_7: `return later * x`).",
    ]


@pytest.mark.kernel
def test_other_cells_that_fail_are_mentioned(checked):
    note = "  Note: the cell `later = 1 / 0 #`, which is no check, raised ZeroDivisionError: division by zero; 1 more "
    assert f"{note}failed after it.\n  1 of 7 exercises right, " in checked.stdout
    assert checked.stdout.count("Note: ") == 1, (
        "the pasted check and the cells that ended a kernel are no news"
    )
    assert "\x1b" not in checked.stdout


@pytest.mark.kernel
def test_a_kernel_that_dies_costs_the_rest_of_its_page_only(checked):
    lines = told(checked)
    assert ": correct (" in lines["51.1"]
    assert lines["51.2"] == (
        "  ! 51.2 Title 51.2: not run: the cell `import os, signal` ended the kernel, or the cell before it did "
        "(it was killed; perhaps the memory was full)"
    )


@pytest.mark.kernel
def test_the_death_of_nbval_itself_costs_one_page_only(checked):
    lines = told(checked)
    assert lines["54.1"].startswith("  ! 54.1 Title 54.1: not run: nbval ended with status -9")
    assert ": not right yet (" in lines["97.1"]


@pytest.mark.kernel
def test_a_copy_that_is_no_notebook_is_said_to_be_none(checked, course):
    path = course.work / "52_damaged.ipynb"
    assert (
        f"\n52 Lesson 52\n  ! not run: {path} cannot be read as a notebook (no valid JSON: " in checked.stdout
    )
    assert "`amp-lab reset 52` starts the lesson over and keeps this file as a backup\n" in checked.stdout


@pytest.mark.kernel
def test_nothing_is_left_and_no_copy_is_changed(checked, copies, course):
    assert checked.returncode == 1
    assert checked.stderr == ""
    files = {path: path.read_bytes() for path in course.work.iterdir() if path.is_file()}
    assert files == copies


@pytest.mark.kernel
def test_what_is_right_is_remembered(checked, course):
    right = [name for name, line in told(checked).items() if ": correct (" in line]
    assert len(right) == 2 + len(TRICKS) - len(WITHOUT_PROOF)
    assert list(progress.done(course.root)) == right


# --- what does not end --------------------------------------------------------------------------------------

SWALLOWS = "while True:\n    try:\n        print(1)\n    except BaseException:\n        pass"


@pytest.mark.kernel
def test_a_cell_that_does_not_end(tmp_path):
    course = SmallCourse(tmp_path)
    for slug, cell in {"60_sleeps": "import time\ntime.sleep(600)", "61_swallows": SWALLOWS}.items():
        course.add(slug, 1)
        rest = code("open('later', 'w')", "later")
        course.save(slug, [code(cell, "endless"), rest, *course.page(slug, {f"{slug[:2]}.1": RIGHT})])
    done = amp_lab_check(course, "--timeout", "1.5", "60", "61")
    assert told(done) == {
        "60.1": "  ! 60.1 Title 60.1: not run: the cell `import time` did not end within 1.5 s",
        "61.1": "  ! 61.1 Title 61.1: not run: the cell `while True:` did not end within 1.5 s",
    }
    assert done.returncode == 1
    assert not (course.work / "later").exists(), "the rest of a page that was interrupted means nothing"


@pytest.fixture
def sleeping(tmp_path):
    """`amp-lab check` on a page that sleeps: the process, those that it started, and the workspace."""
    course = SmallCourse(tmp_path)
    course.add("60_sleeps", 1)
    course.save("60_sleeps", [code("import time\ntime.sleep(600)", "endless")])
    with subprocess.Popen(
        [sys.executable, "-m", "amp_lab", "check", "60"],
        cwd=REPOSITORY,
        env=course.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        family = []
        try:
            while not any("ipykernel_launcher" in " ".join(each.cmdline()) for each in family):
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.1)
                family = psutil.Process(process.pid).children(recursive=True)
            yield process, family, course.work
        finally:
            for each in (process, *family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=lambda each: str(each),
)
def test_ended_from_outside(sleeping, number, status):
    process, family, work = sleeping
    (hidden,) = work.glob(".*.ipynb")
    process.send_signal(number)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == status
    assert "Traceback" not in said
    assert psutil.wait_procs(family, timeout=30)[1] == []
    if number == signal.SIGKILL:
        assert hidden.exists(), "nobody was left to remove it"
        with nbval_run.beside(work, {}):
            pass
    assert [path.name for path in work.iterdir()] == ["60_sleeps.ipynb"]


# --- without a kernel ---------------------------------------------------------------------------------------


def test_every_check_cell_of_the_course_can_be_asked_for_proof():
    found = 0
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        blank = cells.parse(path.read_bytes())
        for cell in blank["cells"]:
            if cell["id"] in source.check_cells(blank):
                text = cells.text_of(cell)
                asked = evidence.asking_for_proof(text)
                assert asked.replace("import amp_lab.course.evidence as _evidence\n_evidence.", "") == text
                assert ast.parse(asked).body[-1].value.func.attr == "check"
                found += 1
    assert found


@pytest.mark.parametrize("text", ["", "grade('0.1', f)", "check('0.1', f)\ncheck('0.2', g)"])
def test_a_cell_without_one_check_cannot(text):
    with pytest.raises(LookupError):
        evidence.asking_for_proof(text)


EXERCISE = catalog.Exercise("0.1", "Title", 1, "double", ("a", "b", "c"), {}, "Why. More.")
LESSON = catalog.Lesson("00_start", "Start", 1, "easy", "nothing", (EXERCISE,))
PROOF = evidence.data_of(verdict.Correct(EXERCISE, "Why. More."))
ENDED = {"outcome": "passed", "seconds": 1.25, "error": "", "stopped": "", "verdicts": [PROOF]}
PAGE_CELLS = (
    checking.PageCell("page-1", "\n  first = 1", None),
    checking.PageCell("check-0-1", "check", EXERCISE),
)


def result_of(first=None, **changed):
    """Return what a page's events say of its exercise, if its check cell ended so."""
    page = checking.Page(LESSON, PAGE_CELLS)
    for cell, event in (
        ("page-1", {**ENDED, "verdicts": [], **(first or {})}),
        ("check-0-1", {**ENDED, **changed}),
    ):
        page.take({"page": "x", "cell": cell, **event})
    (result,) = checking.report(page, 120).results
    return result


def test_a_proof_makes_it_right():
    assert result_of() == checking.Result(EXERCISE, "right", "correct", "", 1.25)


@pytest.mark.parametrize(
    "verdicts",
    [
        [],
        [PROOF, PROOF],
        [PROOF, {**PROOF, "passed": False}],
        [{**PROOF, "exercise": "0.2"}],
        [{"exercise": "0.1", "passed": True}],
        [None],
        ["correct"],
    ],
)
def test_what_is_no_proof_counts_as_not_run(verdicts):
    result = result_of(verdicts=verdicts)
    assert (result.kind, result.seconds) == ("not run", 1.25)
    assert "the check in it was not" in result.why


def test_a_proof_in_a_cell_that_failed_is_not_enough():
    assert result_of(outcome="failed").kind == "wrong"


@pytest.mark.parametrize(
    ("verdict_of", "kind", "outcome"),
    [
        (verdict.NotAttempted(EXERCISE), "open", "not attempted yet"),
        (verdict.NotChecked(EXERCISE, "No GPU."), "not checked", "NOT CHECKED on this machine"),
        (verdict.Stopped(EXERCISE, "It ran on. It did.", fault="timeout"), "wrong", "your code was stopped"),
    ],
)
def test_other_verdicts(verdict_of, kind, outcome):
    result = result_of(verdicts=[evidence.data_of(verdict_of)])
    assert (result.kind, result.outcome) == (kind, outcome)
    assert "It did" not in result.why


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        ("timeout", "the cell `first = 1` did not end within 120 s"),
        (
            "died -11",
            "the cell `first = 1` ended the kernel, or the cell before it did (it crashed: SIGSEGV)",
        ),
        ("died 0", "the cell `first = 1` ended the kernel, or the cell before it did"),
        ("died None", "the cell `first = 1` ended the kernel, or the cell before it did"),
        ("Jupyter could not start a kernel", "Jupyter could not start a kernel"),
    ],
)
def test_why_the_rest_was_not_run(stopped, words):
    page = checking.Page(LESSON, PAGE_CELLS)
    page.take({"page": "x", "cell": "page-1", **ENDED, "outcome": "failed", "stopped": stopped})
    report = checking.report(page, 120.0)
    assert [(each.kind, each.why, each.seconds) for each in report.results] == [("not run", words, None)]
    assert report.remarks == ()


def test_a_check_that_does_not_end_is_not_right():
    result = result_of(stopped="timeout")
    assert (result.kind, result.why) == ("not run", "the check of 0.1 did not end within 120 s")


def test_a_check_cell_that_raised_says_so():
    result = result_of(outcome="failed", verdicts=[], error="ImportError: no\n\x1b[31mmodule\x07")
    assert result.why == "its check cell raised ImportError: no module"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("`f(1. , 2. A)` gave 1.5. Is it right? No.", "`f(1. , 2. A)` gave 1.5."),
        ("Is it? Yes.", "Is it?"),
        ("The 2nd, e.g. this one. `x` is next.", "The 2nd, e.g. this one."),
        ("No dot", "No dot"),
        ("A ` alone. More.", "A ` alone. More."),
        ("", ""),
    ],
)
def test_the_first_sentence(text, first):
    assert checking._first_sentence(text) == first


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a copy with these bytes, None for a folder in its place."""
    blank = tmp_path / "blank.ipynb"
    blank.write_bytes(cells.dump(notebook([code("first", "a"), code('check("0.1", double)', "check-0-1")])))

    def read(data, blank=blank):
        copy = tmp_path / "copy.ipynb"
        copy.mkdir() if data is None else copy.write_bytes(data)
        return checking.read(LESSON, copy, blank)

    return read


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read as a notebook"),
        (b"[1]", "cannot be read as a notebook"),
        (b'{"nbformat": 3, "worksheets": []}', "no list of cells in it): `amp-lab reset 00` starts"),
        (b'{"cells": [1]}', "cannot be read as a notebook"),
        (b"[" * 100_000, "cannot be read as a notebook"),
        (b"\xff\xfe", "cannot be read as a notebook"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_unreadable_copies(read, data, words):
    with pytest.raises(checking.Unreadable, match=re.escape(words)):
        read(data)


def test_a_copy_that_is_too_large(read, monkeypatch):
    monkeypatch.setattr(checking, "LARGEST_BYTES", 10)
    with pytest.raises(checking.Unreadable, match="MB large: in JupyterLab, Edit, Clear Outputs"):
        read(cells.dump(notebook([])))


@pytest.mark.parametrize(
    "blank", [b"", b'{"cells": [{"id": "check-0-1", "cell_type": "code", "source": "x"}]}']
)
def test_a_damaged_blank(read, tmp_path, blank):
    (tmp_path / "damaged.ipynb").write_bytes(blank)
    with pytest.raises(checking.Unreadable, match=r"is not the course's file .* get the checkout again"):
        read(cells.dump(notebook([])), tmp_path / "damaged.ipynb")


def test_only_code_is_run_whatever_the_copy_holds(read):
    """An older format has no ids, and a file from elsewhere may hold anything."""
    strange = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"], "metadata": 7, "outputs": "none"},
        {"cell_type": "code", "source": "  \n"},
        {"cell_type": "code"},
        {"cell_type": "code", "id": ["a"], "source": None},
        {},
    ]
    page = read(json.dumps({"cells": strange, "nbformat": 4, "nbformat_minor": 4}).encode())
    assert [(cell.id, cell.exercise) for cell in page.cells] == [("page-2", None), ("check-0-1", EXERCISE)]
    made = json.loads(checking._notebook(page))
    assert [cell["source"] for cell in made["cells"]][:1] == ["a = 1\nb = 2"]
    assert all(cell["metadata"] == {} and cell["outputs"] == [] for cell in made["cells"])


@pytest.fixture(autouse=True)
def _one_lesson(monkeypatch, request):
    if "course" not in request.fixturenames and "read" in request.fixturenames:
        monkeypatch.setattr(catalog, "lessons", lambda: (LESSON,))


def test_hidden_files_of_a_killed_program_are_removed_and_those_in_use_are_not(tmp_path):
    stale = tmp_path / ".amp-lab-check.12345678.00_start.ipynb"
    stale.touch()
    others = [tmp_path / "00_start.ipynb", tmp_path / ".mine.ipynb"]
    for path in others:
        path.touch()
    with nbval_run.beside(tmp_path, {"00_start": b"first"}) as mine:
        assert not stale.exists()
        with nbval_run.beside(tmp_path, {"00_start": b"second"}) as theirs:
            assert [(tmp_path / name).read_bytes() for name in (*mine, *theirs)] == [b"first", b"second"]
            assert [*mine.values(), *theirs.values()] == ["00_start"] * 2
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(nbval_run.os, "urandom", lambda count: b"same")
    with (
        pytest.raises(FileExistsError),
        nbval_run.beside(tmp_path, {"a": b""}),
        nbval_run.beside(tmp_path, {"a": b""}),
    ):
        pytest.fail("two programs share a file")
    assert list(tmp_path.iterdir()) == []


def test_what_nbval_says_is_read_line_by_line():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe:
        os.write(write, b"one\ntw")
        lines = nbval_run._lines(pipe, 5)
        assert next(lines) == b"one"
        os.write(write, b"o\nthree\n")
        assert [next(lines), next(lines)] == [b"two", b"three"]
        os.close(write)
        assert list(lines) == []


def test_who_says_nothing_for_too_long_is_given_up():
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe, pytest.raises(nbval_run.Ended, match=r"nothing for 0\.05 s"):
        next(nbval_run._lines(pipe, 0.05))
    os.close(write)


@pytest.fixture
def nbval_says(monkeypatch, tmp_path):
    """Return a function that runs pages for the exercises `names`, with scripted processes of nbval in turn.

    Each process is a list of the lessons whose pages it runs to the end; a "-" in front of one breaks it down there.
    """

    def says(names, *processes):
        pages = []
        for name in names:
            lesson = catalog.Lesson(f"{name}_lesson", name, 1, "easy", "nothing", (EXERCISE,))
            pages.append(checking.Page(lesson, PAGE_CELLS))
        scripts = list(processes)

        @contextlib.contextmanager
        def nbval(work, files, cell_timeout_s):
            yield events({file.split(".")[3][:2]: file for file in files}, scripts.pop(0))

        def events(files, script):
            for name in script:
                for cell in PAGE_CELLS:
                    where = {"page": files[name.lstrip("-")], "cell": cell.id}
                    yield where
                    if name.startswith("-"):
                        raise nbval_run.Ended("nbval broke down")
                    yield {**where, **ENDED, "verdicts": [PROOF] if cell.exercise else []}

        monkeypatch.setattr(nbval_run, "nbval", nbval)
        steps = []
        reports = list(checking.run(tmp_path, pages, 120, steps.append))
        assert not scripts, "there was no need for another process"
        assert list(tmp_path.iterdir()) == []
        assert len(reports) == len(names)
        return {each.lesson.number: each.results[0].why or each.results[0].kind for each in reports}, steps

    return says


def test_every_page_has_its_report_whatever_becomes_of_nbval(nbval_says):
    names = ["10", "11", "12"]
    right = dict.fromkeys(names, "right")
    assert nbval_says(names, names)[0] == right
    assert nbval_says(names, ["-10"], ["11", "12"])[0] == {**right, "10": "nbval broke down"}
    assert nbval_says(names, ["10", "-11"], ["12"])[0] == {**right, "11": "nbval broke down"}
    left_out = {**right, "10": "nbval did not run this page"}
    assert nbval_says(names, ["11", "12"])[0] == left_out
    assert nbval_says(names, ["11", "-12"], [])[0] == {**left_out, "12": "nbval broke down"}
    assert nbval_says(names, [])[0] == dict.fromkeys(names, "nbval did not run this page")


def test_steps_count_the_cells_of_all_pages(nbval_says):
    _, steps = nbval_says(["10", "11"], ["10", "11"])
    assert steps[0] == checking.Step(0, 4, "starting")
    assert [step.done for step in steps] == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert {step.doing for step in steps[1:]} == {
        "10 10: cell 1 of 2",
        "10 10: exercise 0.1",
        "11 11: cell 1 of 2",
        "11 11: exercise 0.1",
    }
