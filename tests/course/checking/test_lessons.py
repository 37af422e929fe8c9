"""`amp-lab check` on real pages: what it says, what cannot fool it, and what it leaves behind."""

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

from amp_lab.course import catalog
from amp_lab.course.checking import evidence
from amp_lab.course.checking import lessons as checking
from amp_lab.course.checking import page as page_
from amp_lab.course.checking import report as report_
from amp_lab.course.checking.run import Ended, beside
from amp_lab.course.judging import verdict
from amp_lab.course.learner import progress
from amp_lab.course.pages import cells
from tests.course.checking.small_course import RIGHT, WRONG, SmallCourse, code, function, notebook

REPOSITORY = Path(__file__).parents[3]


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
        "import amp_lab.course.judging.exercise as engine\nkept, engine.check = engine.check, print\n"
        "from amp_lab.course import check",
        "engine.check = kept\nfrom amp_lab.course import check",
    ),
    "the engine calls everything right": around(
        "import amp_lab.course.judging.exercise as engine\nkept = engine.judge\n"
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
        "55_exits": 2,
        "56_os_exit": 2,
        "57_below": 7,
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
    course.save("55_exits", exits(course))
    course.save("56_os_exit", os_exit(course))
    course.save("57_below", answered_below(course))
    course.save("53_plainly_wrong", course.page("53_plainly_wrong", {"53.1": WRONG}))
    (course.work / "52_damaged.ipynb").write_text("{")
    return {path: path.read_bytes() for path in course.work.iterdir()}


def kinds(course):
    bodies = [
        RIGHT,
        WRONG,
        "return {}[x]",
        "raise NotImplementedError",
        "import amp_lab.course.judging.exercise as e; return e.NotHere",
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


def exits(course):
    """A page that calls `exit()`: IPython's own goes on for a moment, in which innocent cells can be run."""
    page = course.page("55_exits", {"55.1": RIGHT, "55.2": RIGHT})
    harmless = [code("import sys\nsys.exit()", "raises"), code("raise SystemExit(3)", "raises-too")]
    cell = code("print('bye')\nexit()", "exit")
    innocent = [code(f"import time\ntime.sleep(0.{number})", f"innocent-{number}") for number in range(1, 4)]
    return [*page[:1], *harmless, *page[1:3], cell, *innocent, *page[3:]]


def os_exit(course):
    page = course.page("56_os_exit", {"56.1": RIGHT, "56.2": RIGHT})
    page[3:3] = [
        code("innocent = 1", "innocent"),
        code("os_exit = __import__('os')._exit; os_exit(3)", "exit"),
    ]
    return page


def answered_below(course):
    """A page whose answers stand in new cells below the checks, as of learners who leave the stubs alone."""
    bodies = {"57.3": RIGHT, "57.4": "return factor * x", "57.6": RIGHT, "57.7": RIGHT}
    wrong = f"def double_57_6(x):\n    {WRONG}"
    return [
        *course.page("57_below", bodies),
        code(f"def double_57_1(x):\n    {RIGHT}", "answer-1"),
        code('check("57.1", double_57_1)', "pasted-1"),
        code("double_57_2 = lambda x: 2 * x", "answer-2"),
        code("# double_57_3 = 1\nprint(double_57_3 == 1, 'def double_57_3(x)')", "no-answer-3"),
        code("factor = 2", "helper-4"),
        code("check('57.4', double_57_4)", "pasted-4"),
        # The edited check again, below.
        code(f"def double_57_5(x):\n    {WRONG}", "answer-5"),
        code('check("57.5", lambda x: 2 * x)', "pasted-5"),
        code(wrong, "answer-6"),
        code("double_57_7 = double_57_7", "answer-7"),
        code("exit()", "exit"),
        code('check("57.7", double_57_7)', "pasted-7"),
    ]


def kills_nbval(course):
    return [
        code("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "kill"),
        *course.page("54_kills_nbval", {}),
    ]


@pytest.fixture(scope="module")
def checked(course, copies):
    return amp_lab_check(course, "50", "51", "52", "54", "55", "56", "57", "97", "98")


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
    seconds = re.compile(r" \(\d+\.\d+ s\)")
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
        "gone, is not a code cell, raised an error or gives it another name",
        "  ✗ 50.7 Title 50.7: your code raised an error: "
        "Your code raised NameError: name 'later' is not defined (line 2, in double_50_7: `return later * x`).",
    ]


@pytest.mark.kernel
def test_other_cells_that_fail_are_mentioned(checked):
    note = "  Note: the cell `later = 1 / 0 #`, which is no check, raised ZeroDivisionError: division by zero; 1 more "
    assert f"{note}failed after it.\n  1 of 7 exercises right, " in checked.stdout
    assert checked.stdout.count("Note: ") == 2, (
        "here and on page 55: the pasted check and the cells that ended a kernel are no news"
    )
    assert "\x1b" not in checked.stdout


@pytest.mark.kernel
def test_a_kernel_that_dies_costs_the_rest_of_its_page_only(checked):
    lines = told(checked)
    assert ": correct (" in lines["51.1"]
    assert lines["51.2"] == (
        "  ! 51.2 Title 51.2: not run: the kernel ended while the cell `import os, signal` ran "
        "(it was killed; perhaps the memory was full)"
    )


@pytest.mark.kernel
def test_the_cell_that_ended_the_kernel_is_named_and_no_other(checked):
    lines = told(checked)
    assert ": correct (" in lines["55.1"], "sys.exit() and SystemExit end no kernel"
    assert lines["55.2"] == (
        "  ! 55.2 Title 55.2: not run: the cell `print('bye')` called `exit()` or `quit()`, which ends the kernel: "
        "delete that call"
    )
    assert (
        "the cell `import sys`, which is no check, raised SystemExit; 1 more failed after it."
        in checked.stdout
    )
    assert ": correct (" in lines["56.1"]
    assert lines["56.2"] == (
        "  ! 56.2 Title 56.2: not run: the kernel ended while the cell `os_exit = __import__('os')._exit; os_ex…` ran "
        "(as `os._exit(3)` ends it)"
    )


@pytest.mark.kernel
def test_what_is_answered_below_its_check_counts_there(checked):
    lines = {name: line for name, line in told(checked).items() if name.startswith("57.")}
    assert len(lines) == 7, "each has one line, checked twice or not"
    for name in ("57.1", "57.2", "57.3", "57.4"):
        assert ": correct (" in lines[name], lines[name]
    assert "not right yet" in lines["57.5"]
    assert lines["57.6"].endswith("returned 21; the right answer is 42. (At its check above it was right.)")
    assert ": correct (" in lines["57.7"], "what was right stays so if there is no second result"


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
    assert len(right) == 2 + 2 + 5 + len(TRICKS) - len(WITHOUT_PROOF)
    assert list(progress.done(course.root)) == right


@pytest.mark.kernel
def test_only_what_this_machine_cannot_check_is_left(tmp_path):
    course = SmallCourse(tmp_path)
    course.add("58_gpu", 2)
    not_here = "import amp_lab.course.judging.exercise as e; return e.NotHere"
    course.save("58_gpu", course.page("58_gpu", {"58.1": RIGHT, "58.2": not_here}))
    done = amp_lab_check(course, "58")
    assert "  – 58.2 Title 58.2: NOT CHECKED on this machine" in done.stdout
    assert "1 of 2 exercises right" in done.stdout
    assert done.returncode == 3
    assert list(progress.done(course.root)) == ["58.1"]


# --- kernels that do not start, and modules that are not what they seem --------------------------------------

DIES = """
import os, sys
if "ipykernel_launcher" in sys.orig_argv:
    print("a clash of ports", file=sys.stderr)
    with open("starts", "a") as file:
        file.write("x")
    if os.path.getsize("starts") <= {times}:
        os._exit(1)
"""


@pytest.fixture
def one_page(tmp_path):
    course = SmallCourse(tmp_path)
    course.add("59_start", 1)
    course.save("59_start", course.page("59_start", {"59.1": RIGHT}))
    return course


@pytest.mark.kernel
@pytest.mark.parametrize("times", [1, 9])
def test_a_kernel_that_does_not_start_has_a_second_try(one_page, times):
    site = one_page.root / "python" / "sitecustomize.py"
    site.write_text(site.read_text() + DIES.format(times=times))
    done = amp_lab_check(one_page, "59")
    assert (one_page.work / "starts").read_text() == "xx"
    if times == 1:
        assert ": correct (" in told(done)["59.1"]
    else:
        assert told(done)["59.1"] == (
            "  ! 59.1 Title 59.1: not run: Jupyter could not start a kernel "
            "(Kernel died before replying to kernel_info: a clash of ports)"
        )
    assert "hides a module" not in done.stdout


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ipykernel_launcher.py", "could not start a kernel (Kernel died before replying to kernel_info)"),
        ("torch.py", "Error: "),
    ],
)
def test_a_file_that_hides_a_module_is_named(one_page, file, words):
    (one_page.work / "mine.py").write_text("pass\n")
    (one_page.work / file).write_text("x = 1\n")
    done = amp_lab_check(one_page, "59")
    assert words in told(done)["59.1"]
    note = f"\n  Note: {file} beside the page hides a module of that name, which Python, the kernel or the page may "
    assert note in done.stdout
    assert done.stdout.count("hides") == 1
    assert done.returncode == 1


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
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=lambda each: str(each),
)
def test_ended_from_outside(sleeping, number, status):
    process, family, work = sleeping
    (hidden,) = work.glob(".*.ipynb")
    process.send_signal(number)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == status
    assert re.sub(r"Checking .*seconds\.\n", "", said) == ("Stopped.\n" if number == signal.SIGINT else "")
    assert psutil.wait_procs(family, timeout=30)[1] == []
    if number == signal.SIGKILL:
        assert hidden.exists(), "nobody was left to remove it"
        with beside(work, {}):
            pass
    assert [path.name for path in work.iterdir()] == ["60_sleeps.ipynb"]


# --- without a kernel ---------------------------------------------------------------------------------------


EXERCISE = catalog.Exercise("0.1", "Title", 1, "double", ("a", "b", "c"), {}, "Why. More.")
LESSON = catalog.Lesson("00_start", "Start", 1, "easy", "nothing", (EXERCISE,))
PROOF = evidence.data_of(verdict.Correct(EXERCISE, "Why. More."))
ENDED = {"outcome": "passed", "seconds": 1.25, "error": "", "stopped": "", "verdicts": [PROOF]}
PAGE_CELLS = (
    page_.PageCell("page-1", "\n  first = 1", None),
    page_.PageCell("check-0-1", "check", EXERCISE),
)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({}, False),
        ({"outcome": "failed", "error": "CheckFailed: Exercise 0.1"}, False),
        ({"outcome": "failed", "error": "AttributeError: 'list' object has no attribute 'size'"}, False),
        ({"outcome": "failed", "error": "ModuleNotFoundError: No module named 'x'"}, True),
        ({"outcome": "failed", "error": "AttributeError: module 'torch' has no attribute 'tensor'"}, True),
        (
            {"outcome": "failed", "error": "CheckFailed: x", "verdicts": [{"sentence": "ImportError: no"}]},
            True,
        ),
        ({"outcome": "failed", "error": "Kernel died", "stopped": "Jupyter could not start a kernel"}, True),
    ],
)
def test_hidden_modules_are_mentioned_where_they_may_matter(event, said):
    page = page_.Page(LESSON, PAGE_CELLS, ["random.py", "\x1b[3mtypes/"])
    page.take({"page": "x", "cell": "check-0-1", **ENDED, **event})
    remarks = [each for each in report_.report_of(page, 120).remarks if "hides a module" in each]
    assert [each.split()[0] for each in remarks] == (["random.py", "types/"] if said else [])


@pytest.mark.parametrize(
    "text",
    [
        "def double(x):\n    return 2 * x",
        "%time\nasync  def double(x): pass",
        "class double: pass",
        "x = 1\ndouble = 2",
        "double: object = 2",
        "double, half = both",
        "from mine import twice as double",
        "check('0.1', 1)",
        '  check( "0.1", 1)',
    ],
)
def test_a_cell_that_answers_again(read, text):
    assert cells_of(read, text) == ["page-1", "check-0-1", "page-3", "check-0-1-again"]


@pytest.mark.parametrize(
    "text",
    [
        "double(1) == 2",
        "double == 1",
        "# def double(x)",
        "doubled = 1",
        "def double_it(): 0",
        "check('0.10', 1)",
    ],
)
def test_a_cell_that_answers_nothing(read, text):
    assert cells_of(read, text) == ["page-1", "check-0-1", "page-3"]


def cells_of(read, *below):
    """Return the ids of the cells that are run for a copy of the blank with these cells at its end."""
    copy = [
        code("double = 1", "a"),
        code('check("0.1", double)', "check-0-1"),
        *(code(each, "b") for each in below),
    ]
    return [cell.id for cell in read(cells.dump(notebook(copy))).cells]


def test_it_is_checked_once_more_only_and_that_in_its_own_words(read):
    assert cells_of(read, "double = 1", "double = 2", "check('0.1', print)", "x = 1")[2:] == [
        "page-3",
        "page-4",
        "page-5",
        "check-0-1-again",
        "page-6",
    ]
    page = read(cells.dump(notebook([code("check('0.1', print)", "b")])))
    assert "print" not in page.cells[-1].text


@pytest.mark.parametrize("lesson", catalog.lessons(), ids=lambda lesson: lesson.slug)
@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_no_cell_of_the_course_itself_answers_again(lesson, folder):
    name = f"{lesson.slug}.ipynb"
    page = page_.read(lesson, REPOSITORY / folder / name, REPOSITORY / "notebooks" / name)
    assert [cell.exercise for cell in page.cells if cell.exercise] == list(lesson.exercises)


def result_of(first=None, **changed):
    """Return what a page's events say of its exercise, if its check cell ended so."""
    page = page_.Page(LESSON, PAGE_CELLS)
    for cell, event in (
        ("page-1", {**ENDED, "verdicts": [], **(first or {})}),
        ("check-0-1", {**ENDED, **changed}),
    ):
        page.take({"page": "x", "cell": cell, **event})
    (result,) = report_.report_of(page, 120).results
    return result


def test_a_proof_makes_it_right():
    assert result_of() == report_.Result(EXERCISE, "right", "correct", "", 1.25)


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
        ("exit", "the cell `first = 1` called `exit()` or `quit()`, which ends the kernel: delete that call"),
        ("died -11", "the kernel ended while the cell `first = 1` ran (it crashed: SIGSEGV)"),
        ("died -15", "the kernel ended while the cell `first = 1` ran (SIGTERM ended it)"),
        ("died 0", "the kernel ended while the cell `first = 1` ran (as `os._exit(0)` ends it)"),
        ("died None", "the kernel ended while the cell `first = 1` ran"),
        ("gone 3", "the kernel ended before the cell `first = 1` ran (as `os._exit(3)` ends it)"),
        ("Jupyter could not start a kernel", "Jupyter could not start a kernel"),
    ],
)
def test_why_the_rest_was_not_run(stopped, words):
    page = page_.Page(LESSON, PAGE_CELLS)
    page.take({"page": "x", "cell": "page-1", **ENDED, "outcome": "failed", "stopped": stopped})
    report = report_.report_of(page, 120.0)
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
    assert report_._first_sentence(text) == first


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a copy with these bytes, None for a folder in its place."""
    blank = tmp_path / "blank.ipynb"
    blank.write_bytes(cells.dump(notebook([code("first", "a"), code('check("0.1", double)', "check-0-1")])))

    def read(data, blank=blank):
        copy = tmp_path / "copy.ipynb"
        copy.mkdir() if data is None else copy.write_bytes(data)
        return page_.read(LESSON, copy, blank)

    return read


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read as a notebook"),
        (b"[1]", "cannot be read as a notebook"),
        (b'{"worksheets": []}', "no list of cells in it): `amp-lab reset 00` starts"),
        (
            b'{"nbformat": 3, "worksheets": []}',
            "is in an old format of notebooks: open it in JupyterLab and save it",
        ),
        (b'{"cells": [1]}', "cannot be read as a notebook"),
        (b"[" * 100_000, "cannot be read as a notebook"),
        (b"\xff\xfe", "cannot be read as a notebook"),
        (None, "cannot read "),
    ],
)
def test_unreadable_copies(read, data, words):
    with pytest.raises(page_.Unreadable, match=re.escape(words)):
        read(data)


def test_a_copy_that_is_too_large(read, monkeypatch):
    monkeypatch.setattr(page_, "LARGEST_BYTES", 10)
    with pytest.raises(page_.Unreadable, match="MB large: in JupyterLab, Edit, Clear Outputs"):
        read(cells.dump(notebook([])))


@pytest.mark.parametrize(
    "blank", [b"", b'{"cells": [{"id": "check-0-1", "cell_type": "code", "source": "x"}]}']
)
def test_a_damaged_blank(read, tmp_path, blank):
    (tmp_path / "damaged.ipynb").write_bytes(blank)
    with pytest.raises(page_.Unreadable, match=r"is not the course's file .* get the checkout again"):
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
    made = json.loads(page_.notebook_of(page))
    assert [cell["source"] for cell in made["cells"]][:1] == ["a = 1\nb = 2"]
    assert all(cell["metadata"] == {} and cell["outputs"] == [] for cell in made["cells"])


@pytest.fixture(autouse=True)
def _one_lesson(monkeypatch, request):
    if "course" not in request.fixturenames and "read" in request.fixturenames:
        monkeypatch.setattr(catalog, "lessons", lambda: (LESSON,))


@pytest.fixture
def nbval_says(monkeypatch, tmp_path):
    """Return a function that runs pages for the exercises `names`, with scripted processes of nbval in turn.

    Each process is a list of the lessons whose pages it runs to the end; a "-" in front of one breaks it down there.
    """

    def says(names, *processes):
        pages = []
        for name in names:
            lesson = catalog.Lesson(f"{name}_lesson", name, 1, "easy", "nothing", (EXERCISE,))
            pages.append(page_.Page(lesson, PAGE_CELLS))
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
                        raise Ended("nbval broke down")
                    yield {**where, **ENDED, "verdicts": [PROOF] if cell.exercise else []}

        monkeypatch.setattr(checking, "nbval", nbval)
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
