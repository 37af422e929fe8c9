"""Putting the cells of an exercise back, for each thing a learner may have done to them."""

import copy
import json

import pytest

from amp_lab.course.pages.cells import NotANotebook, dump, parse, put_back, text_of, with_checks

STUB = "def {}():\n    raise NotImplementedError"
A, B, C = "stub-0-1-1", "stub-0-2-1", "stub-0-2-2"


def markdown(name):
    return {"id": name, "cell_type": "markdown", "metadata": {}, "source": [f"about {name}"]}


def code(name, source, outputs=()):
    count = 7 if outputs else None
    return {
        "id": name,
        "cell_type": "code",
        "metadata": {},
        "execution_count": count,
        "outputs": list(outputs),
        "source": source.splitlines(keepends=True),
    }


def notebook(*cells):
    return {
        "cells": list(cells),
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


BLANK = notebook(
    markdown("m0"),
    code("demo", "try:\n    raise NotImplementedError\nexcept NotImplementedError:\n    pass"),
    code(A, STUB.format("a")),
    markdown("m1"),
    code("check-0-1", 'check("0.1", a)'),
    markdown("m2"),
    code(B, STUB.format("b")),
    code(C, STUB.format("c")),
    code("check-0-2", 'check("0.2", b, c)'),
    markdown("end"),
)
OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["Genauigkeit: 3,5 × 10⁻⁸ 🎉\n"]}


def worked():
    """The blank after a learner ran and solved everything."""
    cells = [dict(cell) for cell in BLANK["cells"]]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(outputs=[OUTPUT], execution_count=7)
        if cell["id"].startswith("stub"):
            cell["source"] = ["def mine():\n", "    return 1"]
    return notebook(*cells)


def ids(book):
    return [cell["id"] for cell in book["cells"]]


def cell(book, name):
    (found,) = [cell for cell in book["cells"] if cell["id"] == name]
    return found


def without(book, *names):
    return {**book, "cells": [cell for cell in book["cells"] if cell["id"] not in names]}


def test_only_the_cells_of_the_exercise_change():
    before = worked()
    after = put_back(before, BLANK, "0.2")
    assert ids(after) == ids(BLANK)
    for name in ids(BLANK):
        wanted = BLANK if name in (B, C, "check-0-2") else before
        assert cell(after, name) == cell(wanted, name), name
    assert after["metadata"] == before["metadata"]


def test_an_edited_check_cell_is_back():
    before = worked()
    cell(before, "check-0-1").update(source=["print('solved')"], metadata={"tags": ["raises-exception"]})
    assert cell(put_back(before, BLANK, "0.1"), "check-0-1") == cell(BLANK, "check-0-1")


def test_a_stub_that_was_made_a_markdown_cell_is_code_again():
    before = worked()
    cell(before, A)["cell_type"] = "markdown"
    assert cell(put_back(before, BLANK, "0.1"), A) == cell(BLANK, A)


@pytest.mark.parametrize(
    ("deleted", "order"),
    [
        ([A], f"m0 demo m1 {A} check-0-1 m2"),
        (["check-0-1"], f"m0 demo {A} m1 check-0-1 m2"),
        ([A, "check-0-1"], f"m0 demo {A} m1 check-0-1 m2"),
        ([A, "m1", "check-0-1"], f"m0 demo {A} check-0-1 m2"),
        (["m0", "demo", A, "m1", "check-0-1"], f"{A} check-0-1 m2"),
    ],
)
def test_deleted_cells_are_back_where_they_belong(deleted, order):
    after = put_back(without(worked(), *deleted), BLANK, "0.1")
    assert ids(after) == [*order.split(), B, C, "check-0-2", "end"]
    assert cell(after, A) == cell(BLANK, A)


def test_an_exercise_of_two_stubs_is_back_in_order():
    after = put_back(without(worked(), B, C, "check-0-2"), BLANK, "0.2")
    assert ids(after) == ids(BLANK)
    assert ids(put_back(without(worked(), B, C), BLANK, "0.2")) == ids(BLANK)


def test_nothing_but_own_cells_left():
    after = put_back(notebook(code("mine", "1 + 1")), BLANK, "0.2")
    assert ids(after) == [B, C, "check-0-2", "mine"]


def test_the_halves_of_a_split_stub():
    before = worked()
    at = ids(before).index(A)
    before["cells"].insert(at, code("8f2c01aa", "def mine():"))  # JupyterLab gives the first half a new id
    after = put_back(before, BLANK, "0.1")
    assert ids(after)[at : at + 2] == ["8f2c01aa", A]
    assert cell(after, "8f2c01aa") == code("8f2c01aa", "def mine():")


def test_a_repeated_id_is_not_guessed_at():
    before = worked()
    twins = [code(A, "first"), code(A, "second")]
    at = ids(before).index(A)
    before["cells"][at : at + 1] = twins
    after = put_back(before, BLANK, "0.1")
    assert len(set(ids(after))) == len(after["cells"])
    assert [one["source"] for one in after["cells"][at : at + 2]] == [["first"], ["second"]]
    assert ids(after)[at + 2 : at + 5] == ["m1", A, "check-0-1"]
    assert put_back(after, BLANK, "0.1") == after, "a second reset must find everything in its place"


def test_an_exercise_takes_only_its_own_stubs_whatever_their_order():
    """Also: a demo cell may raise NotImplementedError."""
    first, second = code("stub-0-1-1", STUB.format("f")), code("stub-0-2-1", STUB.format("g"))
    check_second, check_first = code("check-0-2", 'check("0.2", g)'), code("check-0-1", 'check("0.1", f)')
    demo, other = code("demo", STUB.format("demo")), code("stub-0-11-1", STUB.format("h"))
    blank = notebook(first, second, demo, check_second, check_first, other)
    solved = copy.deepcopy(blank)
    for each in solved["cells"]:
        each["source"] = ["solved"]
    for exercise, its in (("0.1", {"stub-0-1-1", "check-0-1"}), ("0.2", {"stub-0-2-1", "check-0-2"})):
        after = put_back(solved, blank, exercise)
        assert ids(after) == ids(blank)
        assert {each["id"] for each in after["cells"] if each["source"] != ["solved"]} == its


@pytest.mark.parametrize("repeated", [False, True])
def test_neither_argument_is_changed(repeated):
    before, blank = worked(), copy.deepcopy(BLANK)
    if repeated:
        before["cells"].insert(0, code(B, "a copy"))
    kept = copy.deepcopy(before)
    assert put_back(before, blank, "0.2") != before
    assert before == kept
    assert blank == BLANK


def test_a_stub_moved_below_its_check_comes_before_it():
    before = worked()
    moved = before["cells"].pop(ids(before).index(A))
    before["cells"].append(moved)
    after = put_back(before, BLANK, "0.1")
    assert ids(after)[:5] == ["m0", "demo", "m1", A, "check-0-1"]
    assert ids(after).count(A) == 1


def test_cells_without_an_id_stay():
    old = {"cell_type": "code", "metadata": {}, "source": "kept", "outputs": [], "execution_count": None}
    before = worked()
    before["cells"].insert(0, old)
    assert put_back(before, BLANK, "0.1")["cells"][0] == old


def test_an_exercise_that_the_blank_does_not_have():
    with pytest.raises(LookupError, match="check-0-9"):
        put_back(worked(), BLANK, "0.9")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"cells": [',
        b"\xff\xfe\x00",
        b"[]",
        b"{}",
        b'{"cells": {}}',
        b'{"cells": [1]}',
        b"null",
        b"[" * 100_000,
    ],
)
def test_what_is_no_notebook(data):
    with pytest.raises(NotANotebook):
        parse(data)


def test_written_as_jupyter_writes_it():
    import nbformat

    book = worked()
    assert parse(dump(book)) == book
    sorted_keys = json.loads(json.dumps(book, sort_keys=True))
    assert dump(sorted_keys).decode() == nbformat.writes(nbformat.from_dict(sorted_keys)) + "\n"
    assert "× 10⁻⁸ 🎉".encode() in dump(book)


def test_half_a_surrogate_pair_survives():
    book = notebook(code("a", "1", [{"output_type": "stream", "name": "stdout", "text": ["\ud83c"]}]))
    assert parse(dump(book)) == book


# --- check cells put back -----------------------------------------------------------------------------------


def ids_with_checks(*cells):
    """Return the ids of a copy's cells with the check cells back; a pristine check cell is marked by an `=`."""
    pristine = {id(cell) for cell in BLANK["cells"]}
    page = notebook(*cells)
    before = copy.deepcopy(page)
    found = with_checks(page, BLANK)
    assert page == before, "the copy was changed"
    checks = [cell["id"] for cell in found if id(cell) in pristine]
    assert sorted(checks) == ["check-0-1", "check-0-2"]
    return [f"={cell['id']}" if id(cell) in pristine else cell.get("id") for cell in found]


def copied(*names):
    """Return cells as a learner has them: those of the blank with these ids, and new ones of other names."""
    blank = {cell["id"]: dict(cell) for cell in BLANK["cells"]}
    return [blank.get(name, code(name, "mine = 1")) for name in names]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        # As it was: text, stubs and demos stay the learner's.
        ("m0 demo", "m0 demo =check-0-1 =check-0-2"),
        (
            f"m0 demo {A} m1 check-0-1 m2 {B} {C} check-0-2 end",
            f"m0 demo {A} m1 =check-0-1 m2 {B} {C} =check-0-2 end",
        ),
        # Gone: above the next cell of the blank that is left, below what the learner added.
        (f"{A} m1 mine m2 {B} {C} own end", f"{A} m1 mine =check-0-1 m2 {B} {C} own =check-0-2 end"),
        (f"{A} mine {B} {C}", f"{A} mine =check-0-1 {B} {C} =check-0-2"),
        # Moved: where the learner has it, but below every stub.
        (f"{A} m1 m2 {B} {C} check-0-2 end check-0-1", f"{A} m1 m2 {B} {C} =check-0-2 end =check-0-1"),
        (f"check-0-1 m0 {A} m1 {C} check-0-2 {B} end", f"m0 {A} =check-0-1 m1 {C} {B} =check-0-2 end"),
        (f"m2 {A} check-0-2", f"m2 {A} =check-0-1 =check-0-2"),
        # Twice: once, where the last one stands.
        (f"check-0-1 {A} check-0-1 mine check-0-1 m2", f"{A} mine =check-0-1 m2 =check-0-2"),
        ("", "=check-0-1 =check-0-2"),
    ],
)
def test_check_cells_are_put_back(page, expected):
    assert ids_with_checks(*copied(*page.split())) == expected.split()


def test_edited_retagged_and_retyped_check_cells_are_put_back():
    first = {**code("check-0-1", "print('fine')"), "metadata": {"tags": ["nbval-skip"]}}
    second = {"id": "check-0-2", "cell_type": "raw", "source": 'check("0.2", b, c)'}
    assert ids_with_checks(first, second) == ["=check-0-1", "=check-0-2"]


def test_without_ids_a_check_cell_is_found_by_what_it_says():
    """nbformat 4.4 has no ids. A pasted copy has another one, which does not matter beside the real cell."""
    page = [{key: value for key, value in cell.items() if key != "id"} for cell in BLANK["cells"]]
    expected = [f"={cell['id']}" if cell["id"].startswith("check") else None for cell in BLANK["cells"]]
    assert ids_with_checks(*page) == expected
    pasted = code("pasted", 'check("0.1", a)\n')
    assert ids_with_checks(*copied("check-0-1"), pasted)[:2] == ["=check-0-1", "pasted"]
    assert ids_with_checks(pasted, *copied("mine"))[:2] == ["=check-0-1", "mine"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ({"source": "a\nb"}, "a\nb"),
        ({"source": ["a\n", "b"]}, "a\nb"),
        ({"source": [1, "b"]}, "b"),
        ({"source": None}, ""),
        ({"source": {"a": 1}}, ""),
        ({}, ""),
    ],
)
def test_the_text_of_any_cell(cell, text):
    assert text_of(cell) == text
