"""The scanner of lesson sources: what it makes of a good lesson, what it says about each kind of fault."""

import subprocess
import sys
import warnings
from pathlib import Path

import jupytext
import pytest

from amp_lab.course.pages import source

PATH = "solutions/04_static_loss_scaling.py"

GOOD = '''\
# %% [markdown]
# # Scaling
#
# ### Not a marker, but a heading: `### BEGIN`
#
# Text.

# %%
# %%writefile scratch/hello.py
print("hello")

# %% tags=["nbval-ignore-output"] reason="depends on the device"
# !python scratch/hello.py
# A comment that begins with `# ` and stays one.

# %%
def unscale(grad, scale):
    """Divide."""
    # A hint that learners see.
    ### BEGIN SOLUTION
    inverse = 1 / scale

    return grad * inverse
    ### END SOLUTION


# %%
class Scaler:
    def __init__(self, scale):
        self.scale = scale

    def loss(self, loss):
        ### BEGIN SOLUTION
        def scaled(value):
            return value * self.scale  # a comment inside

        return scaled(loss)
        ### END SOLUTION

    async def grow(self):
        """Double."""
        ### BEGIN SOLUTION
        self.scale *= 2
        ### END SOLUTION

    # a comment of the class, below the block


# %%
check("4.2", Scaler)

# %% [markdown]
# More text.

# %%
given = 2.0
check("4.1", unscale)
'''


def test_a_good_lesson_is_read():
    lesson = source.read(GOOD, PATH)
    assert [cell.kind[0] for cell in lesson.cells] == list("mcccccmc")
    assert lesson.checks == {5: "4.2", 7: "4.1"}
    assert source.exercise_ids(GOOD, PATH) == ("4.2", "4.1")
    assert [(block.begin, block.end, block.indent) for block in lesson.blocks] == [
        (20, 24, "    "),
        (33, 38, "        "),
        (42, 44, "        "),
    ]


def test_blank_replaces_each_block_by_a_stub_and_changes_nothing_else():
    before, after = GOOD.split("\n"), source.blank(GOOD, PATH).split("\n")
    stub = "raise NotImplementedError"
    assert after == [
        *before[:19],
        "    " + stub,
        *before[24:32],
        "        " + stub,
        *before[38:41],
        "        " + stub,
        *before[44:],
    ]


def test_solved_only_loses_the_marker_lines():
    markers = ("### BEGIN SOLUTION", "### END SOLUTION")
    assert source.solved(GOOD, PATH).split("\n") == [
        each for each in GOOD.split("\n") if each.strip() not in markers
    ]


def test_solution_of_returns_the_code_of_one_exercise():
    assert source.solution_of(GOOD, PATH, "4.1") == (
        'def unscale(grad, scale):\n    """Divide."""\n    # A hint that learners see.\n'
        "    inverse = 1 / scale\n\n    return grad * inverse"
    )
    with pytest.raises(LookupError, match=r"has no exercise '4\.3'; it has 4\.2, 4\.1"):
        source.solution_of(GOOD, PATH, "4.3")


def test_an_answer_may_take_several_cells_and_checks_may_follow_their_answers_in_any_order():
    cell = "# %%\nclass {0}:\n    def f(self):\n        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION\n"
    text = "".join(map(cell.format, ("F", "G", "F(F)"))) + '# %%\ncheck("4.1", G)\n# %%\ncheck("4.2", F)\n'
    method = "    def f(self):\n        pass"
    assert source.solution_of(text, PATH, "4.1") == f"class G:\n{method}"
    assert source.solution_of(text, PATH, "4.2") == f"class F:\n{method}\n\n\nclass F(F):\n{method}"


def test_a_block_may_be_the_body_of_an_inner_function():
    text = in_function(
        "    def inner():", "    " + BEGIN, "        return x", "    " + END, "    return inner"
    )
    assert source.blank(text, PATH).split("\n")[1:5] == [
        "def f(x):",
        "    def inner():",
        "        raise NotImplementedError",
        "    return inner",
    ]


def test_an_answer_may_be_a_file_that_a_cell_writes():
    cell = [
        "# %%writefile scratch/one.py",
        "def f(x):",
        f"    {source.BEGIN}",
        "    return x",
        f"    {source.END}",
    ]
    text = "\n".join(["# %%", "f = 1", "# %%", *cell, "# %%", 'check("4.1", "scratch/one.py")', ""])
    found = source.read(text, PATH)
    assert found.answers["4.1"][0].file == "scratch/one.py"
    assert source.solution_of(text, PATH, "4.1") == "%%writefile scratch/one.py\ndef f(x):\n    return x"
    for name in ('"scratch/two.py"', "f", '"f"'):
        with pytest.raises(source.SourceError):
            source.read(text.replace('"scratch/one.py")', f"{name})"), PATH)


def test_a_lesson_without_exercises_is_allowed():
    text = "# %% [markdown]\n# Text.\n\n# %%\nx = 1\n"
    assert source.exercise_ids(text, PATH) == ()
    assert source.blank(text, PATH) == text


@pytest.mark.parametrize(
    "line",
    [
        '# solution("4.1")',
        "# the absolute error, at the resolution of FP16",
        "x = [f for f in range(3)], lambda f: f",
        "def other():\n    f = 1",
        "x.f = f(1)",
        "#!no magic, no command",
        "# 5 % of it",
    ],
)
def test_what_only_resembles_a_fault_is_none(line):
    text = in_function(BEGIN, "    return x", END, "", "# %%", "y = 1", line)
    assert source.cells(source.blank(text, PATH))[1].source == f"y = 1\n{line}"


def test_only_the_first_line_of_a_cell_is_a_magic():
    (cell,) = source.cells("# %%\n\n# !ls\n# a comment\n")
    assert cell.source == "!ls\n# a comment"


def test_reading_a_lesson_leaves_the_warnings_of_its_caller_alone(recwarn):
    source.read(GOOD, PATH)
    warnings.warn("still shown", SyntaxWarning, stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["still shown"]


def test_ids_of_stubs_are_told_from_those_of_another_exercise():
    assert source.stub_cell_ids("4.1", 2) == ["stub-4-1-1", "stub-4-1-2"]
    (of_another,) = source.stub_cell_ids("4.11", 1)
    assert not source.is_stub_cell_id(of_another, "4.1")
    assert not source.is_stub_cell_id(source.check_cell_id("4.1"), "4.1")
    assert all(source.is_stub_cell_id(each, "4.1") for each in source.stub_cell_ids("4.1", 12))


def test_jupytext_reads_the_same_cells():
    ours = [(cell.kind, cell.source, list(cell.tags), cell.reason) for cell in source.cells(GOOD)]
    theirs = [
        (cell.cell_type, cell.source, cell.metadata.get("tags", []), cell.metadata.get("reason"))
        for cell in jupytext.reads(GOOD, fmt="py:percent").cells
    ]
    assert ours == theirs


def test_check_cells_are_found_in_a_notebook_by_their_ids():
    cells = [{"id": "51d842ae-1"}, {"id": "check-4-1"}, {"id": "0bd1d845-1"}, {"id": "check-10-12"}]
    assert source.check_cells({"cells": cells}) == {"check-4-1": "4.1", "check-10-12": "10.12"}
    assert all(
        source.check_cell_id(exercise) == cell
        for cell, exercise in source.check_cells({"cells": cells}).items()
    )


def test_importing_the_scanner_imports_nothing_but_the_standard_library():
    code = (
        "import sys, amp_lab.course.pages.source\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    clean = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(Path(source.__file__).parents[3])!r})\n{code}",
    ]
    done = subprocess.run(clean, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__main__', 'amp_lab']"


def exercise(*body: str, check: str = 'check("4.1", f)') -> str:
    """An exercise with the given lines from line 2 on; its check cell comes last."""
    return "\n".join(["# %%", *body, "", "# %%", check, ""])


def in_function(*lines: str) -> str:
    """An exercise whose function `f` begins in line 2, so that the given lines begin in line 3."""
    return exercise("def f(x):", *lines)


BEGIN, END = "    ### BEGIN SOLUTION", "    ### END SOLUTION"

# name -> (line, sentence, source)
FAULTS = {
    "mis-cased": (
        3,
        "unknown marker `### Begin Solution`",
        in_function("    ### Begin Solution", "    return x", END),
    ),
    "lower case": (
        5,
        "unknown marker `### end solution`",
        in_function(BEGIN, "    return x", "    ### end solution"),
    ),
    "double-spaced": (
        3,
        "unknown marker `###  BEGIN SOLUTION`",
        in_function("    ###  BEGIN SOLUTION", "    return x", END),
    ),
    "spaced inside": (
        3,
        "unknown marker `### BEGIN  SOLUTION`",
        in_function("    ### BEGIN  SOLUTION", "    return x", END),
    ),
    "no space": (
        3,
        "unknown marker `###BEGIN SOLUTION`",
        in_function("    ###BEGIN SOLUTION", "    return x", END),
    ),
    "one sign": (
        3,
        "unknown marker `# BEGIN SOLUTION`",
        in_function("    # BEGIN SOLUTION", "    return x", END),
    ),
    "two signs": (
        3,
        "unknown marker `## BEGIN SOLUTION`",
        in_function("    ## BEGIN SOLUTION", "    return x", END),
    ),
    "four signs": (
        3,
        "unknown marker `#### BEGIN SOLUTION`",
        in_function("    #### BEGIN SOLUTION", "    return x", END),
    ),
    "plural": (
        3,
        "unknown marker `### BEGIN SOLUTIONS`",
        in_function("    ### BEGIN SOLUTIONS", "    return x", END),
    ),
    "punctuated": (
        3,
        "unknown marker `### BEGIN SOLUTION:`",
        in_function("    ### BEGIN SOLUTION:", "    return x", END),
    ),
    "underscore": (
        3,
        "unknown marker `### BEGIN_SOLUTION`",
        in_function("    ### BEGIN_SOLUTION", "    return x", END),
    ),
    "misspelt": (
        3,
        "unknown marker `### BEGN SOLUTION`",
        in_function("    ### BEGN SOLUTION", "    return x", END),
    ),
    "turned": (3, "unknown marker `# solution start`", in_function("    # solution start", "    return x")),
    "other kind": (
        3,
        "unknown marker `### BEGIN HIDDEN TESTS`",
        in_function("    ### BEGIN HIDDEN TESTS", "    return x"),
    ),
    "trailing space": (
        3,
        "unknown marker `### BEGIN SOLUTION `",
        in_function(BEGIN + " ", "    return x", END),
    ),
    "beside code": (
        4,
        "`### END SOLUTION` stands beside code",
        in_function(BEGIN, "    return x  ### END SOLUTION"),
    ),
    "nested": (
        5,
        "a block inside the one of line 3",
        in_function(BEGIN, "    x += 1", BEGIN, "    return x", END, END),
    ),
    "word in a comment": (
        3,
        "unknown marker `# SOLUTION below`",
        in_function("    # SOLUTION below", BEGIN, "    return x", END),
    ),
    "word beside code": (
        2,
        "unknown marker `# my resolving solute`",
        "# %%\nx = 1  # my resolving solute\n",
    ),
    "unclosed": (3, "this solution block is not closed in its cell", in_function(BEGIN, "    return x")),
    "closed in another cell": (
        3,
        "this solution block is not closed in its cell",
        in_function(BEGIN, "    return x", "", "# %%", "def g(x):", "    x", END),
    ),
    "stray end": (4, "`### END SOLUTION` ends nothing", in_function("    return x", END)),
    "second end": (6, "`### END SOLUTION` ends nothing", in_function(BEGIN, "    return x", END, END)),
    "at the top": (
        3,
        "a solution block outside a function or method",
        exercise("x = 1", BEGIN[4:], "f = abs", END[4:]),
    ),
    "around a function": (
        2,
        "a solution block outside a function or method",
        exercise(BEGIN[4:], "def f(x):", "    return x", END[4:]),
    ),
    "in a class body": (
        3,
        "a solution block outside a function or method",
        exercise("class f:", BEGIN, "    x = 1", END),
    ),
    "dedented end": (
        5,
        "`### END SOLUTION` is not indented as `### BEGIN",
        in_function(BEGIN, "    return x", END[4:]),
    ),
    "indented end": (
        6,
        "`### END SOLUTION` is not indented as",
        in_function(BEGIN, "    if x:", "        x", "    " + END),
    ),
    "both dedented": (
        3,
        "`### BEGIN SOLUTION` is not indented as the body of `f`",
        in_function(BEGIN[4:], "    return x", END[4:]),
    ),
    "in an if": (
        4,
        "`### BEGIN SOLUTION` is not indented as the body of `f`",
        in_function("    if x:", "    " + BEGIN, "        return x", "    " + END),
    ),
    "between if and else": (
        5,
        "a marker inside the statement of line 3",
        in_function("    if x:", "        x", BEGIN, "    else:", "        x", "    return x", END),
    ),
    "end inside a statement": (
        5,
        "a marker inside the statement of line 4",
        in_function(BEGIN, "    x = (", END, "        1)"),
    ),
    "in a signature": (
        3,
        "without its solution `f` is not valid Python",
        exercise("def f(", BEGIN, "    x=1):", "    return x", END),
    ),
    "in a string": (
        4,
        "a solution marker inside a string",
        in_function('    """', BEGIN, "    ...", END, '    """', "    return x"),
    ),
    "in a string of one line": (
        2,
        "a solution marker inside a string",
        '# %%\nprint("### BEGIN SOLUTION")\n',
    ),
    "in markdown": (
        3,
        "a solution marker in a markdown cell",
        "# %% [markdown]\n# Text.\n# ### BEGIN SOLUTION\n# x\n",
    ),
    "code below markdown": (
        4,
        "a solution marker in a markdown cell",
        "# %% [markdown]\n# Text.\n\n### BEGIN SOLUTION\n",
    ),
    "empty": (4, "this solution block is empty", in_function('    """Doc."""', BEGIN, END)),
    "empty without docstring": (3, "this solution block is empty", in_function(BEGIN, "", END)),
    "only a comment": (
        3,
        "this solution block is empty",
        in_function(BEGIN, "    # to do", END, "    return x"),
    ),
    "dead code below": (
        5,
        "the body of `f` goes on below its solution",
        in_function(BEGIN, "    x += 1", END, "    return x"),
    ),
    "return above": (
        4,
        "`f` ends here, above its solution",
        in_function("    x += 1", "    return x", BEGIN, "    return x", END),
    ),
    "raise above": (
        3,
        "`f` ends here, above its solution",
        in_function("    raise ValueError", BEGIN, "    return x", END),
    ),
    "return above an inner function": (
        3,
        "`f` ends here, above its solution",
        in_function("    return x", "    def g():", "    " + BEGIN, "        return x", "    " + END),
    ),
    "leaking comment below": (
        5,
        "the body of `f` goes on below its solution",
        in_function(BEGIN, "    return x", END, "", "    # because x is x"),
    ),
    "second block": (
        5,
        "the body of `f` goes on below its solution",
        in_function(BEGIN, "    x += 1", END, BEGIN, "    return x", END),
    ),
    "no check": (3, "no later cell checks `f`", "# %%\ndef f(x):\n" + f"{BEGIN}\n    return x\n{END}\n"),
    "function out of reach": (
        4,
        "no later cell checks the function of this block",
        exercise("if True:", "    def f(x):", "    " + BEGIN, "        return x", "    " + END).rpartition(
            "# %%"
        )[0],
    ),
    "check of another function": (
        8,
        "no solution block for `g` above",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", g)'),
    ),
    "check of the unmarked of two functions in a cell": (
        11,
        "no solution block for `g` above; mark it",
        exercise(
            "def f(x):", BEGIN, "    return x", END, "", "def g(x):", "    return x", check='check("4.1", g)'
        ),
    ),
    "two exercises in a cell": (
        15,
        "the cell of `g` was taken by check 4.1; give each exercise its own cell",
        exercise("def f(x):", BEGIN, "    return x", END, "def g(x):", BEGIN, "    return x", END)
        + '\n# %%\ncheck("4.2", g)\n',
    ),
    "function checked twice": (
        11,
        "the cell of `f` was taken by check 4.1; give each exercise its own cell",
        in_function(BEGIN, "    return x", END) + '\n# %%\ncheck("4.2", f)\n',
    ),
    "defined again": (
        8,
        "`f` is an answer and is defined again before its check",
        in_function(BEGIN, "    return x", END, "", "# %%", "def f(x): return 2 * x"),
    ),
    "defined again as an exercise": (
        8,
        "`f` is an answer and is defined again before its check",
        in_function(BEGIN, "    return x", END, "", "# %%", "def f(x):", BEGIN, "    return x", END),
    ),
    "extended without a block": (
        9,
        "`f` is an answer and is defined again before its check",
        exercise(
            "class f:", "    def g():", "    " + BEGIN, "        x", "    " + END, "# %%", "class f(f): pass"
        ).replace("# %%\nclass f(f)", "# %%\n\nclass f(f)"),
    ),
    "assigned in its own cell": (
        6,
        "`f` is an answer and is defined again before its check",
        in_function(BEGIN, "    return x", END, "f = jit(f)"),
    ),
    "assigned beside its check": (
        8,
        "`f` is an answer and is defined again before its check",
        exercise("def f(x):", BEGIN, "    return x", END, check='f = jit(f)\ncheck("4.1", f)'),
    ),
    "imported, deleted or a loop's": (
        9,
        "`f` is an answer and is defined again before its check",
        in_function(BEGIN, "    return x", END, "", "# %%", "if True:\n    from m import g as f"),
    ),
    "one of two without a check": (
        3,
        "no later cell checks `f`",
        in_function(BEGIN, "    return x", END, "", "# %%", "def g(x):", BEGIN, "    return x", END).replace(
            ", f)", ", g)"
        ),
    ),
    "check before its block": (
        2,
        "no solution block for `f` above",
        '# %%\ncheck("4.1", f)\n\n' + in_function(BEGIN, "    x", END),
    ),
    "check without block": (6, "no solution block for `f` above", in_function("    return x")),
    "checked twice": (
        11,
        "exercise 4.1 is checked twice",
        in_function(BEGIN, "    return x", END) + '\n# %%\ncheck("4.1", f)\n',
    ),
    "check not last": (
        8,
        "`check(...)` is not a cell's last statement",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", f); x = 1'),
    ),
    "check not alone": (
        8,
        "`check(...)` is not a cell's last statement",
        exercise("def f(x):", BEGIN, "    return x", END, check='ok = check("4.1", f)'),
    ),
    "two checks in a cell": (
        8,
        "`check(...)` is not a cell's last statement",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", f)\ncheck("4.2", f)'),
    ),
    "check in the cell of its answer": (
        6,
        "a check in the cell of its answer",
        exercise("def f(x):", BEGIN, "    return x", END, 'check("4.1", f)'),
    ),
    "malformed id": (
        8,
        'malformed exercise id; write `check("4.1", name)`',
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.01", f)'),
    ),
    "id that is a number": (
        8,
        "malformed exercise id",
        exercise("def f(x):", BEGIN, "    return x", END, check="check(4.1, f)"),
    ),
    "id of another lesson": (
        8,
        "exercise 5.1 is not of lesson 04; number it from 4.1",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("5.1", f)'),
    ),
    "no answer": (
        8,
        '`check` takes one answer, a function or class; pass it by its name: `check("4.1", name)`',
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", f(1))'),
    ),
    "two answers": (
        8,
        "`check` takes one answer",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", f, g)'),
    ),
    "answer with an option": (
        8,
        "`check` takes one answer",
        exercise("def f(x):", BEGIN, "    return x", END, check='check("4.1", f, quiet=True)'),
    ),
    "syntax": (3, "Python objects to this line (invalid syntax)", "# %%\nx = 1\ny = = 2\n"),
    "open bracket": (2, "Python objects to this line", "# %%\nx = (1,\n\n# %%\ny = 1)\n"),
    "return at the top": (3, "Python objects to this line", "# %%\nx = 1\nreturn x\n"),
    "literal compared by identity": (3, '"is" with', "# %%\nx = 1\nx is 1\n"),
    "unknown escape": (3, "invalid escape sequence", '# %%\nx = 1\nx = "\\d"\n'),
    "number beside a word": (3, "invalid decimal literal", "# %%\nx = 1\nx = 1if x else 2\n"),
    "bare magic": (2, "if it is a magic, begin the cell with it: `# !command`", "# %%\n!ls\n"),
    "command below code": (
        3,
        "would become a command or magic",
        "# %%\nx = 1\n# !important: never do this\n",
    ),
    "command in a block": (
        4,
        "would become a command or magic",
        in_function(BEGIN, "    # !important", "    return x", END),
    ),
    "magic beside code": (3, "would become a command or magic", "# %%\nx = 1\ny = 2  # %time is short\n"),
    "command in a string": (3, "would become a command or magic", '# %%\nx = """\n# !rm\n"""\n'),
    "unknown tag": (1, "unknown tags ['nbval-skip']", '# %% tags=["nbval-skip"] reason="slow"\nx = 1\n'),
    "tag without reason": (1, "tags and reason go together", '# %% tags=["nbval-ignore-output"]\nx = 1\n'),
    "tag with empty reason": (
        1,
        "tags and reason go together",
        '# %% tags=["nbval-ignore-output"] reason=" "\nx = 1\n',
    ),
    "reason without tag": (1, "tags and reason go together", '# %% reason="why"\nx = 1\n'),
    "unreadable option": (1, "cannot read `tags=[nbval]`", "# %% tags=[nbval]\nx = 1\n"),
    "tag by comment": (2, "`# NBVAL_IGNORE_OUTPUT` gives no reason", "# %%\n# NBVAL_IGNORE_OUTPUT\nx = 1\n"),
    "tags on markdown": (
        1,
        "tags on a markdown cell",
        '# %% [markdown] tags=["nbval-ignore-output"] reason="why"\n# Text.\n',
    ),
    "misspelt header": (3, "cannot read the header `#%%`", "# %%\nx = 1\n#%%\ny = 1\n"),
    "unknown kind of cell": (1, "cannot read the header `# %% [md]`", "# %% [md]\n# Text.\n"),
    "indented header": (3, "cannot read the header `    # %%`", "# %%\nif True:\n    # %%\n    x = 1\n"),
    "bare text in markdown": (3, "does not begin with `# `", "# %% [markdown]\n# Text.\nx = 1\n"),
    "empty cell": (3, "this cell is empty", "# %%\nx = 1\n# %%\n\n# %%\ny = 1\n"),
    "text before the first cell": (1, "does not begin with a cell", "import torch\n\n# %%\nx = 1\n"),
    "no cell": (1, "does not begin with a cell", ""),
}


@pytest.mark.parametrize(("line", "sentence", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_file_and_line(line, sentence, text):
    with pytest.raises(source.SourceError) as raised:
        source.blank(text, PATH)
    message = str(raised.value)
    assert message.startswith(f"{PATH}:{line}: ")
    assert sentence in message
    assert "; " in message, "a message says what is wrong; and what to do"
