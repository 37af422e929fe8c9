"""Merging the course's new text into a learner's copy: what must come out for each thing either side may have done."""

import copy as copying
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_lab.course.pages import cells
from amp_lab.course.pages.merging import cells_from, merge, same_text, without_note
from tests.course.pages.sample_pages import (
    ANSWER,
    NEW,
    OLD,
    SOLVED,
    built,
    cell,
    check,
    code,
    edited,
    ids,
    page,
    source,
    sources,
    stub,
    text,
)

OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["2⁻²⁴\n"]}


def merged(copy, old=OLD, new=NEW):
    """Merge, and hold what must be true of every merge."""
    before = copying.deepcopy((copy, old, new))
    result = merge(copy, old, new)
    assert (copy, old, new) == before, "an argument was changed"
    holds(copy, old or BUILT_OLD, new, result.notebook)
    return result


def holds(copy, old, new, result):
    names = ids(result)
    assert len(set(names)) == len(names)
    assert all(isinstance(name, str) and 1 <= len(name) <= 64 for name in names)
    course = [name for name in names if name in ids(new)]
    assert course == ids(new), "the course's cells are all there, in its order"
    for one in new["cells"]:
        if one["id"].startswith("check-"):
            assert cell(result, one["id"]) == one
            number = one["id"].removeprefix("check-")
            assert names.index(f"stub-{number}-1") < names.index(one["id"])
    of_the_course = {*sources(new), *sources(old)}
    for one in copy["cells"]:
        if source(one).strip() and source(one) not in of_the_course and not one["id"].startswith("new-stub-"):
            assert source(one) in sources(result), "something the learner wrote is gone"
    assert merge(result, new, new).notebook == result, "a second merge must change nothing"
    unsure = merge(result, None, new).notebook
    assert merge(unsure, None, new).notebook == unsure, "nor if the record is lost"
    assert cells.parse(cells.dump(result)) == result


def test_an_untouched_copy_becomes_the_new_blank():
    result = merged(OLD)
    assert result.notebook == NEW
    assert result[1:] == ((), (), (), 0, 0)


def test_an_answer_is_in_its_place_on_the_new_page():
    result = merged(SOLVED)
    assert result.notebook == edited(NEW, "stub-1-1-1", ANSWER)
    assert result.carried == ("1.1",)
    assert result.changed == ()


def test_a_change_of_the_learners_alone_stays_where_it_is():
    copy = edited(edited(SOLVED, "demo", "x = 1000\nx + 1"), "t3", "I do not get this")
    result = merged(copy)
    assert ids(result.notebook) == ids(NEW)
    assert source(cell(result.notebook, "demo")) == "x = 1000\nx + 1"
    assert source(cell(result.notebook, "t3")) == "I do not get this"


@pytest.mark.parametrize("new_id", ["t2b", "t2"])
def test_what_both_changed_is_there_twice_side_by_side(new_id):
    new = page(*({**each, "id": new_id} if each["id"] == "t2b" else each for each in NEW["cells"]))
    mine = "Write a function that doubles. (See page 3 of my notes.)"
    result = merged(edited(SOLVED, "t2", mine), new=new)
    at = ids(result.notebook).index(new_id)
    assert sources(result.notebook)[at : at + 3] == [
        "Write a function that doubles its argument.",
        mine,
        ANSWER,
    ]
    assert result.kept == 1


def test_own_cells_stay_beside_what_they_stood_beside():
    at = {"t1": "own-1", "demo": "own-2", "t2": "own-3", "check-1-1": "own-4", "end": "own-5"}
    copy = page()
    for each in SOLVED["cells"]:
        copy["cells"] += [each, *([code(at[each["id"]], at[each["id"]])] if each["id"] in at else [])]
    copy["cells"].insert(0, code("own-0", "import mine"))
    result = merged(copy)
    assert " ".join(ids(result.notebook)) == (
        "own-0 t1 own-1 demo own-2 t2b own-3 stub-1-1-1 check-1-1 own-4 t3 t4 stub-1-2-1 check-1-2 end own-5"
    )
    assert result.kept == 6


def test_a_cell_below_a_demo_that_is_rewritten_stays_below_it():
    new = edited(NEW, "demo", "x = 1\nx + 2\n")
    cell(new, "demo")["id"] = "demo-2"
    copy = page()
    for each in OLD["cells"]:
        copy["cells"] += [each, *([code("own", "x ** 2")] if each["id"] == "demo" else [])]
    assert ids(merged(copy, new=new).notebook)[:3] == ["t1", "demo-2", "own"]


def test_outputs_stay_while_their_code_does():
    copy = page(
        *({**each, **({"outputs": [OUTPUT], "execution_count": 9} if "outputs" in each else {})}
          for each in SOLVED["cells"])
    )  # fmt: skip
    new = edited(NEW, "stub-1-2-1", source(stub("1-2", "g", "Halve it.")))
    result = merged(copy, new=new)
    assert cell(result.notebook, "demo")["outputs"] == [OUTPUT]
    assert cell(result.notebook, "demo")["execution_count"] == 9
    assert cell(result.notebook, "stub-1-1-1")["outputs"] == [OUTPUT]
    assert cell(result.notebook, "stub-1-2-1")["outputs"] == []
    assert cell(result.notebook, "check-1-1")["outputs"] == [], "a check may judge otherwise now"


def test_a_copy_saved_in_mid_run_has_outputs_but_no_counts():
    copy = page(*({**each, "outputs": [OUTPUT]} if "outputs" in each else each for each in SOLVED["cells"]))
    result = merged(copy)
    assert cell(result.notebook, "demo")["outputs"] == [OUTPUT]
    assert cell(result.notebook, "demo")["execution_count"] is None
    assert result.carried == ("1.1",)


def test_tags_are_merged():
    old = page(code("demo", "1", tags=["nbval-ignore-output"], reason="random"))
    new = page(code("demo", "1", tags=["new"]))
    copy = page(code("demo", "1", tags=["nbval-ignore-output"], reason="random", collapsed=True))
    result = merged(copy, old, new).notebook
    assert result["cells"][0]["metadata"] == {"tags": ["new"], "collapsed": True}


def test_the_notebooks_own_metadata_stay():
    old = {**OLD, "metadata": {"kernelspec": "old", "course": 1, "gone": 1}}
    copy = {**SOLVED, "metadata": {**old["metadata"], "kernelspec": "mine", "own": 1}}
    new = {**NEW, "metadata": {"kernelspec": "new", "course": 2, "more": 1}}
    result = merged(copy, old, new).notebook
    assert result["metadata"] == {"kernelspec": "mine", "course": 2, "more": 1, "own": 1}


# --- exercises ----------------------------------------------------------------------------------------------


def test_an_exercise_that_says_something_else_is_shown_above_the_answer():
    new = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="Do it twice.", arguments="x, times")))
    result = merged(SOLVED, new=new)
    at = ids(result.notebook).index("stub-1-1-1")
    note = result.notebook["cells"][at - 1]
    assert source(cell(result.notebook, "stub-1-1-1")) == ANSWER
    assert note["id"] == "new-stub-1-1-1"
    assert note["cell_type"] == "markdown", (
        "a cell that runs would take the name away from the answer, or hide it"
    )
    assert source(note).startswith("**Exercise 1.1 has changed.**")
    assert source(cell(new, "stub-1-1-1")) in source(note)
    assert result.changed == result.carried == ("1.1",)
    assert merge(result.notebook, new, new).changed == (), "this is told once"


def test_a_note_goes_when_it_is_no_longer_true():
    second = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="Second.")))
    third = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="Third.")))
    with_note = merged(SOLVED, new=second).notebook
    renewed = merged(with_note, second, third)
    assert ids(renewed.notebook).count("new-stub-1-1-1") == 1
    assert "Third." in source(cell(renewed.notebook, "new-stub-1-1-1"))
    assert renewed.changed == ("1.1",)
    reverted = merged(with_note, second, NEW).notebook
    assert "Do it." in source(cell(reverted, "new-stub-1-1-1"))
    adapted = edited(with_note, "stub-1-1-1", 'def f(x):\n    """Second."""\n    return x + x')
    assert "new-stub-1-1-1" not in ids(merged(adapted, second, second).notebook)
    blank_again = edited(with_note, "stub-1-1-1", source(cell(second, "stub-1-1-1")))
    assert merged(blank_again, second, second).notebook == second


@pytest.mark.parametrize(("before", "after"), [("", "\n\nAsk about this."), ("Ask about this.\n", "")])
def test_a_note_that_was_written_into_is_the_learners(before, after):
    second = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="Second.")))
    with_note = merged(SOLVED, new=second).notebook
    words = before + source(cell(with_note, "new-stub-1-1-1")) + after
    changed = edited(with_note, "new-stub-1-1-1", words)
    assert words in sources(merge(changed, second, second).notebook)
    assert words in sources(without_note(changed, "1.1"))


def test_a_note_is_taken_out_again():
    second = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="A `fence`: ```.")))
    with_note = merged(SOLVED, new=second).notebook
    assert ids(without_note(with_note, "1.1")) == ids(second)
    assert without_note(with_note, "1.2") == with_note
    mine = edited(with_note, "new-stub-1-1-1", "my words")
    assert without_note(mine, "1.1") == mine


def test_an_answer_to_another_function_stands_before_the_new_exercise():
    new = page(*(stub("1-1", "h") if each["id"] == "stub-1-1-1" else each for each in NEW["cells"]))
    new = page(*(check("1-1", "h") if each["id"] == "check-1-1" else each for each in new["cells"]))
    result = merged(SOLVED, new=new)
    at = ids(result.notebook).index("stub-1-1-1")
    assert sources(result.notebook)[at - 1] == ANSWER
    assert cell(result.notebook, "stub-1-1-1") == stub("1-1", "h")
    assert result.changed == ("1.1",)
    assert result.carried == ()


def test_an_exercise_with_another_number_takes_its_answer_along():
    new = page(
        *NEW["cells"][:3],
        stub("1-1", "fresh"),
        check("1-1", "fresh"),
        stub("1-2"),
        check("1-2"),
        stub("1-3", "g"),
        check("1-3", "g"),
    )
    both = edited(SOLVED, "stub-1-2-1", "def g(y):\n    return y / 2")
    result = merged(both, new=new).notebook
    assert source(cell(result, "stub-1-2-1")) == ANSWER
    assert source(cell(result, "stub-1-3-1")) == "def g(y):\n    return y / 2"
    assert cell(result, "stub-1-1-1") == stub("1-1", "fresh")


@pytest.mark.parametrize("second", [None, "def f(x):\n    return x + x"])
def test_two_exercises_that_become_one(second):
    old = page(stub("1-1"), check("1-1"), stub("1-2"), check("1-2"))
    new = page(stub("1-3"), check("1-3"))
    copy = edited(old, "stub-1-1-1", ANSWER)
    result = merged(edited(copy, "stub-1-2-1", second) if second else copy, old, new).notebook
    assert sources(result) == [ANSWER, *([second] if second else []), source(check("1-3"))]


def test_an_exercise_that_is_gone_leaves_its_answer():
    new = page(*(each for each in NEW["cells"] if each["id"] not in ("stub-1-1-1", "check-1-1")))
    result = merged(SOLVED, new=new).notebook
    at = sources(result).index(ANSWER)
    assert result["cells"][at - 1]["id"] == "t2b"
    assert not result["cells"][at]["id"].startswith(("stub-", "check-"))


def test_an_edited_check_is_pristine_and_the_edit_is_kept():
    copy = edited(SOLVED, "check-1-1", "print(f(2))\ncheck('1.1', f)")
    result = merged(copy).notebook
    at = ids(result).index("check-1-1")
    assert sources(result)[at + 1] == "print(f(2))\ncheck('1.1', f)"


def test_a_deleted_check_is_back():
    copy = page(*(each for each in SOLVED["cells"] if each["id"] not in ("check-1-1", "demo")))
    result = merged(copy)
    assert result.notebook == edited(NEW, "stub-1-1-1", ANSWER)
    assert result.back == 2


def test_a_deleted_or_emptied_stub_is_back():
    for copy in (
        edited(SOLVED, "stub-1-1-1", ""),
        page(*(each for each in OLD["cells"] if each["id"] != "stub-1-1-1")),
    ):
        assert merged(copy).notebook == NEW


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_an_answer_that_was_made_text_is_kept_as_text(kind):
    result = merged(edited(SOLVED, "stub-1-1-1", ANSWER, cell_type=kind)).notebook
    at = ids(result).index("stub-1-1-1")
    assert result["cells"][at]["cell_type"] == "code"
    assert source(result["cells"][at - 1]) == ANSWER
    assert result["cells"][at - 1]["cell_type"] == kind


# --- what JupyterLab, other programs and hands do to cells --------------------------------------------------


def test_all_ids_are_new():
    """As after a program that reads and writes a notebook without keeping ids; also without any (nbformat 4.4)."""
    for rename in (lambda number, each: {**each, "id": f"{number:08x}"},
                   lambda number, each: {key: value for key, value in each.items() if key != "id"}):  # fmt: skip
        copy = page(*(rename(number, each) for number, each in enumerate(SOLVED["cells"])))
        result = merge(copy, OLD, NEW)
        assert result.notebook == edited(NEW, "stub-1-1-1", ANSWER)
        assert result.carried == ("1.1",)


def test_of_two_attempts_the_last_before_the_check_is_the_answer():
    copy = page()
    for each in SOLVED["cells"]:
        if each["id"] == "stub-1-1-1":
            copy["cells"] += [code("a1", "def f(x):\n    return x"), code("a2", ANSWER)]
        else:
            copy["cells"].append(each)
    copy["cells"].append(code("a3", "def f(x):\n    return 'after the check'"))
    result = merged(copy).notebook
    at = ids(result).index("stub-1-1-1")
    assert sources(result)[at - 1 : at + 1] == ["def f(x):\n    return x", ANSWER]
    assert ids(result)[-1] == "a3"


def test_a_helper_is_not_taken_for_the_answer_to_an_exercise_that_is_new():
    new = page(*NEW["cells"], stub("1-3", "helper"), check("1-3", "helper"))
    helper = code("own", "def helper(x):\n    return x + 1")
    result = merged(page(helper, *SOLVED["cells"]), new=new).notebook
    assert ids(result)[0] == "own"
    assert cell(result, "stub-1-3-1") == stub("1-3", "helper")


def test_a_duplicate_below_the_exercise_stays_between_it_and_its_check():
    copy = page()
    for each in SOLVED["cells"]:
        copy["cells"] += [each, *([code("dup", ANSWER + " + 0")] if each["id"] == "stub-1-1-1" else [])]
    result = merged(copy).notebook
    at = ids(result).index("stub-1-1-1")
    assert ids(result)[at : at + 3] == ["stub-1-1-1", "dup", "check-1-1"]


def test_the_halves_of_a_split_answer_stay_together():
    """JupyterLab gives the first half a new id; it stands before its other half whatever the course puts above."""
    copy = page()
    for each in SOLVED["cells"]:
        if each["id"] == "stub-1-1-1":
            copy["cells"].append(code("half", "def helper(x):\n    return 2 * x"))
        copy["cells"].append(each)
    new = page(*NEW["cells"][:3], text("more", "Much more text."), *NEW["cells"][3:])
    result = merged(edited(copy, "stub-1-1-1", "def f(x):\n    return helper(x)"), new=new).notebook
    at = ids(result).index("stub-1-1-1")
    assert ids(result)[at - 2 : at + 1] == ["more", "half", "stub-1-1-1"]


def test_half_an_answer_stays_in_its_place_when_the_words_change():
    new = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="More.")))
    result = merged(edited(SOLVED, "stub-1-1-1", "    return 2 * x"), new=new).notebook
    assert source(cell(result, "stub-1-1-1")) == "    return 2 * x"


def test_an_attempt_below_an_exercise_without_its_check():
    """It stays above the check that comes back, though the next cell that is left is another exercise."""
    old = page(stub("1-1"), check("1-1"), stub("1-2", "g"), check("1-2", "g"))
    copy = page(old["cells"][0], code("own", ANSWER), *old["cells"][2:])
    result = merged(copy, old, page(*old["cells"], text("end", "The end"))).notebook
    assert ids(result)[:3] == ["stub-1-1-1", "own", "check-1-1"]


def test_an_exercise_merged_into_the_demo_above_it():
    copy = edited(
        page(*(each for each in OLD["cells"] if each["id"] not in ("t2", "stub-1-1-1"))),
        "demo",
        "x = 1\n\n" + ANSWER,
    )
    result = merged(copy).notebook
    assert source(cell(result, "stub-1-1-1")) == "x = 1\n\n" + ANSWER
    assert cell(result, "demo") == cell(NEW, "demo")


def test_cells_that_share_an_id():
    twins = page(*OLD["cells"][:4], code("stub-1-1-1", ANSWER), *OLD["cells"][4:])
    result = merged(twins).notebook
    assert source(cell(result, "stub-1-1-1")) == ANSWER


def test_moved_cells_go_back_and_own_cells_keep_their_order():
    mine = [code(f"own-{number}", str(number)) for number in range(3)]
    moved = [
        SOLVED["cells"][4],
        mine[0],
        SOLVED["cells"][3],
        mine[1],
        *reversed(SOLVED["cells"][:3]),
        mine[2],
    ]
    result = merged(page(*moved, *SOLVED["cells"][5:])).notebook
    assert [name for name in ids(result) if name in ids(NEW)] == ids(NEW)
    assert [name for name in ids(result) if name.startswith("own")] == ["own-2", "own-0", "own-1"]


def test_an_id_of_the_learners_that_the_course_uses_now():
    copy = page(*SOLVED["cells"], text("t4", "mine, by chance"))
    result = merged(copy).notebook
    assert source(cell(result, "t4")) == "Careful with odd numbers."
    assert "mine, by chance" in sources(result)


def test_cells_as_no_program_writes_them():
    strange = [
        {"cell_type": "code", "source": "kept"},
        {"id": ["no", "text"], "cell_type": "raw", "source": ["also ", "kept"], "metadata": None},
        {"id": "", "cell_type": "code", "metadata": {}},
    ]
    result = merge(page(*SOLVED["cells"], *strange), OLD, NEW)
    assert sources(result.notebook)[-3:] == ["kept", "also kept", ""]
    assert len(set(ids(result.notebook))) == len(result.notebook["cells"])


# --- when nobody knows the old blank ------------------------------------------------------------------------

BUILT_OLD = page(
    *(each if each["id"].startswith(("stub", "check")) else built(each) for each in OLD["cells"])
)
BUILT_NEW = page(
    *(each if each["id"].startswith(("stub", "check")) else built(each) for each in NEW["cells"])
)


def test_without_the_old_blank_ids_tell_what_is_the_courses():
    result = merged(edited(BUILT_OLD, "stub-1-1-1", ANSWER), None, BUILT_NEW).notebook
    at = ids(result).index(
        "new-stub-1-1-1"
    )  # the docstring is missing: this may be the answer to something else
    without = page(*result["cells"][:at], *result["cells"][at + 1 :])
    assert without == edited(BUILT_NEW, "stub-1-1-1", ANSWER)


def test_without_the_old_blank_an_answer_below_the_same_words_needs_no_note():
    answer = source(stub("1-1")).replace("raise NotImplementedError", "return 2 * x")
    result = merged(edited(BUILT_OLD, "stub-1-1-1", answer), None, BUILT_NEW)
    assert result.notebook == edited(BUILT_NEW, "stub-1-1-1", answer)
    assert result.changed == ()


def test_without_the_old_blank_everything_doubtful_is_kept():
    copy = edited(BUILT_OLD, BUILT_OLD["cells"][2]["id"], "my own words")
    copy["cells"].insert(1, code("own", "1 + 1"))
    result = merged(copy, None, BUILT_NEW).notebook
    assert "my own words" in sources(result)
    assert "own" in ids(result)
    assert "Write a function that doubles its argument." in sources(result)


def test_without_the_old_blank_a_cell_that_the_course_did_not_change_stays_the_learners():
    demo = BUILT_OLD["cells"][1]["id"]
    assert demo in ids(BUILT_NEW)
    result = merged(edited(BUILT_OLD, demo, "x = 1000"), None, BUILT_NEW).notebook
    assert result == edited(BUILT_NEW, demo, "x = 1000")


def test_without_the_old_blank_a_check_of_another_name_is_the_courses():
    copy = edited(BUILT_OLD, "check-1-1", 'check("1.1", old_name)')
    assert 'check("1.1", old_name)' not in sources(merge(copy, None, BUILT_NEW).notebook)
    copy = edited(BUILT_OLD, "check-1-1", 'print(1)\ncheck("1.1", old_name)')
    assert 'print(1)\ncheck("1.1", old_name)' in sources(merge(copy, None, BUILT_NEW).notebook)


def test_which_blank_a_page_comes_from():
    assert cells_from(SOLVED, OLD) == len(OLD["cells"]) - 1 > cells_from(SOLVED, NEW)
    assert same_text(OLD, page(*({**each, "id": "x"} for each in OLD["cells"])))
    assert not same_text(OLD, SOLVED)


def test_the_blanks_that_the_course_ships_prove_their_own_cells():
    """The build names cells after their text; `merge` without an old blank depends on it."""
    from pathlib import Path

    paths = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
    assert paths
    for path in paths:
        blank = json.loads(path.read_bytes())
        with_work = page(*blank["cells"], code("own", "1 + 1"))
        new = page(*(each for each in blank["cells"] if each["id"].startswith(("stub-", "check-"))))
        result = merge(with_work, None, new).notebook
        assert ids(result) == [*ids(new), "own"], path


# --- anything at all ----------------------------------------------------------------------------------------

WORDS = st.sampled_from("one two three four five".split())
NAMES = st.sampled_from("f g h".split())


@st.composite
def courses(draw):
    """Draw a blank, and what the course made of it."""
    old = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from([text, code]))
            old.append(kind(f"c{len(old)}", f"{draw(WORDS)} {draw(WORDS)} {len(old)}"))
        name = "fgh"[number - 1]
        old += [stub(f"1-{number}", name), check(f"1-{number}", name)]
    new = [dict(each) for each in old]
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(new)))
        action = draw(
            st.sampled_from(["add", "drop", "reword", "rename", "move", "restub", "other function"])
        )
        here = new[at] if at < len(new) else None
        plain = here and not here["id"].startswith(("stub", "check"))
        if action == "add":
            new.insert(at, text(f"n{draw(st.integers(0, 999))}", draw(WORDS) + " new"))
        elif action == "drop" and plain:
            del new[at]
        elif action == "reword" and plain:
            new[at] = {**here, "source": [draw(WORDS) + " reworded"]}
        elif action == "rename" and plain:
            new[at] = {**here, "id": f"r{draw(st.integers(0, 999))}", "source": [*here["source"], " renamed"]}
        elif action == "move" and plain:
            new.insert(draw(st.integers(0, len(new) - 1)), new.pop(at))
        elif action == "restub" and here and here["id"].startswith("stub"):
            new[at] = {**here, "source": [source(here).replace("Do it.", draw(WORDS))]}
        elif action == "other function" and here and here["id"].startswith("stub"):
            new[at] = stub(here["id"][5:8], "other")
    unique = {each["id"]: each for each in new}
    return page(*old), page(*(each for each in new if unique[each["id"]] is each))


EDITS = [
    "insert",
    "delete",
    "edit",
    "answer",
    "duplicate",
    "split",
    "move",
    "retag",
    "renew id",
    "share id",
    "retype",
]


@st.composite
def work(draw, old):
    """Draw a copy that somebody worked in."""
    mine = [dict(each) for each in old["cells"]]
    for step in range(draw(st.integers(0, 8))):
        if not mine:
            break
        at = draw(st.integers(0, len(mine) - 1))
        here, action = mine[at], draw(st.sampled_from(EDITS))
        other = draw(st.integers(0, len(mine) - 1))
        if action == "insert":
            mine.insert(at, code(f"own{step}", f"mine {step}"))
        elif action == "delete":
            del mine[at]
        elif action == "edit":
            mine[at] = {**here, "source": [*here["source"], f"\nedited {step}"]}
        elif action == "answer":
            mine[at] = {**here, "source": [f"def {draw(NAMES)}(x):\n    return {step}"]}
        elif action == "duplicate":
            mine.insert(at + 1, {**here, "id": f"dup{step}"})
        elif action == "split":
            lines = source(here).splitlines(keepends=True)
            mine[at : at + 1] = [
                {**here, "id": f"half{step}", "source": lines[:1]},
                {**here, "source": lines[1:]},
            ]
        elif action == "move":
            mine.insert(other, mine.pop(at))
        elif action == "retag":
            mine[at] = {**here, "metadata": {"tags": [f"tag{step}"]}}
        elif action == "renew id":
            mine[at] = {**here, "id": f"renewed{step}"}
        elif action == "share id":
            mine[at] = {**here, "id": mine[other]["id"]}
        elif action == "retype":
            mine[at] = {**here, "cell_type": draw(st.sampled_from(["code", "markdown", "raw"]))}
    return page(*mine)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_whatever_both_sides_did_nothing_of_the_learners_is_lost(data):
    old, new = data.draw(courses())
    copy = data.draw(work(old))
    merged(copy, old, new)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nor_if_nobody_knows_the_old_blank(data):
    old, new = data.draw(courses())
    old, new = (
        page(*(each if each["id"].startswith(("stub", "check")) else built(each) for each in book["cells"]))
        for book in (old, new)
    )
    new = page(*{each["id"]: each for each in new["cells"]}.values())
    copy = data.draw(work(old))
    result = merge(copy, None, new).notebook
    holds(copy, old, new, result)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nor_over_two_updates(data):
    old, new = data.draw(courses())
    copy = data.draw(work(old))
    between = merge(copy, old, new).notebook
    worked_on = page(*between["cells"], code("later", "mine, later"))
    again = page(*new["cells"][:1], text("newest", "newest text"), *new["cells"][1:])
    result = merged(worked_on, new, again).notebook
    of_the_course = {*sources(old), *sources(new), *sources(again)}
    for one in copy["cells"]:
        if source(one).strip() and source(one) not in of_the_course:
            assert source(one) in sources(result)
