"""Read a lesson's source: its cells, its exercises, and what stands between the solution markers.

A lesson is written in one file, `solutions/NN_slug.py`, in jupytext's percent format. An exercise looks so:

    # %%
    def scaled_backward(loss, parameters, scale):
        '''Say what the learner has to write.'''
        ### BEGIN SOLUTION
        ...
        ### END SOLUTION

    # %%
    check("4.1", scaled_backward)

A cell that begins with `# %%writefile scratch/name.py` writes its code to a file; its check names that file instead,
`check("10.1", "scratch/name.py")`.

The block between the markers is what a learner writes. A marker that is misread would give the answer away,
or take the exercise away, and nobody would notice. So whatever only looks like a marker is an error, too.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
STUB = "raise NotImplementedError"

# The only tag a lesson may use, and only with a reason: every other tag that nbval knows switches a test off.
IGNORE_OUTPUT = "nbval-ignore-output"

_HEADER = re.compile(r"# %%(?P<markdown> \[markdown\])?(?P<options>(?: \w+=.*)?)")
_HEADER_LIKE = re.compile(r"\s*#\s*%%+(?:\s|\[|$)")
_MARKER_LIKE = re.compile(
    r"#+[\W_]*((begin|start|end|stop)[\W_]*solution|solution[\W_]*(begin|start|end|stop))", re.IGNORECASE
)
# An absolute error and a format's resolution are no solutions; any other word with these letters might be.
_SOLUTION_LIKE = re.compile(r"(?<!ab)(?<!re)solut", re.IGNORECASE)
_CALL_OF_SOLUTION = re.compile(r'# solution\("[0-9.]+"\)')
_MAGIC = re.compile(r"\A# (?=%{1,2}[A-Za-z]|!)")
_WRITES_FILE = re.compile(r"\A# %%writefile (\S+)$", re.MULTILINE)
_PROSE = re.compile(r"^# ?", re.MULTILINE)
_EXERCISE_ID = re.compile(r"(?:0|[1-9]\d?)\.[1-9]\d?")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class SourceError(Exception):
    """A lesson source is not as it must be; the message reads `path:line: what is wrong; what to do`."""

    def __init__(self, path: str | Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.line = line


@dataclass(frozen=True)
class Cell:
    """One cell of a lesson. `text` is as written in the file, from its line `first` on, counted from 1."""

    kind: Literal["code", "markdown"]
    text: str
    first: int
    tags: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def source(self) -> str:
        """The cell as a notebook holds it: markdown, and a magic in line one, without the comment sign."""
        return _PROSE.sub("", self.text) if self.kind == "markdown" else _MAGIC.sub("", self.text, count=1)

    @property
    def file(self) -> str:
        """The file that the cell writes with `%%writefile`, or "": its code binds no name on the page then."""
        found = _WRITES_FILE.match(self.text) if self.kind == "code" else None
        return found[1] if found else ""


@dataclass(frozen=True)
class Block:
    """A solution block: the lines of its two markers, counted from 1, and the indentation they share."""

    begin: int
    end: int
    indent: str


@dataclass(frozen=True)
class Source:
    """A lesson that was found to be in order.

    `answers` maps each exercise to the cells whose blocks its check cell grades, `checks` the index of each
    check cell among `cells` to its exercise; both in page order.
    """

    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]
    answers: Mapping[str, tuple[Cell, ...]]
    checks: Mapping[int, str]


def read(text: str, path: str | Path) -> Source:
    """Read a whole lesson; raises SourceError at the first thing in it that is not allowed."""
    try:
        with warnings.catch_warnings():
            # What Python says about a string such as "\\d" becomes an error in that line, instead of a warning
            # each time that somebody reads the lesson. Before Python 3.12 it is a DeprecationWarning.
            warnings.simplefilter("error", SyntaxWarning)
            warnings.simplefilter("error", DeprecationWarning)
            return _read(text, Path(path).stem[:2])
    except _Fault as fault:
        raise SourceError(path, fault.line, fault.message) from None


def blank(text: str, path: str | Path) -> str:
    """Return the lesson as a learner gets it: each solution block is one `raise NotImplementedError`."""
    return _blanked(text, read(text, path).blocks)


def solved(text: str, path: str | Path) -> str:
    """Return the lesson with its solutions, less the lines of the markers."""
    markers = {number for block in read(text, path).blocks for number in (block.begin, block.end)}
    return "\n".join(line for number, line in enumerate(text.split("\n"), 1) if number not in markers)


def solution_of(text: str, path: str | Path, exercise_id: str) -> str:
    """Return the code of an exercise's cells, less the markers; an unknown id is a LookupError."""
    answers = read(text, path).answers
    if exercise_id not in answers:
        raise LookupError(f"{path} has no exercise {exercise_id!r}; it has {', '.join(answers) or 'none'}")
    return "\n\n\n".join(_without_markers(cell.source) for cell in answers[exercise_id])


def exercise_ids(text: str, path: str | Path) -> tuple[str, ...]:
    """Return the ids of the lesson's exercises, such as `("4.1", "4.2")`, in page order."""
    return tuple(read(text, path).answers)


def check_cell_id(exercise_id: str) -> str:
    """Return the id of an exercise's check cell: `"check-4-1"`, as nbformat allows no dots."""
    return "check-" + exercise_id.replace(".", "-")


def stub_cell_ids(exercise_id: str, count: int) -> list[str]:
    """Return the ids of the cells of an exercise that a learner completes: `["stub-4-1-1"]` if it is one."""
    return [f"{_stub_prefix(exercise_id)}{number}" for number in range(1, count + 1)]


def is_stub_cell_id(cell_id: str, exercise_id: str) -> bool:
    """Tell whether a cell of the blank with this id is one that the exercise asks to complete."""
    return cell_id.startswith(_stub_prefix(exercise_id))


def _stub_prefix(exercise_id: str) -> str:
    return f"stub-{exercise_id.replace('.', '-')}-"


def content_digest(kind: str, text: str) -> str:
    """Return the eight digits that the id of a cell outside exercises begins with: kind and text decide them.

    So a cell that still has the id that the build gave it tells by itself whether its text was changed.
    """
    return hashlib.sha256(f"{kind}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:8]


def check_cells(notebook: Mapping[str, Any]) -> dict[str, str]:
    """Map each check cell of a course notebook to its exercise, in page order: `{"check-4-1": "4.1"}`.

    `notebook` is the parsed JSON of a blank as the course ships it: a learner's copy may have lost cells.
    """
    ids = [cell["id"] for cell in notebook["cells"] if cell["id"].startswith("check-")]
    return {each: each.removeprefix("check-").replace("-", ".") for each in ids}


def cells(text: str) -> tuple[Cell, ...]:
    """Split a text that `read`, `blank` or `solved` was content with into its cells."""
    lines = text.split("\n")
    headers = [number for number, line in enumerate(lines, 1) if _HEADER_LIKE.match(line)]
    if not headers or any(line.strip() for line in lines[: headers[0] - 1]):
        raise _Fault(1, "the lesson does not begin with a cell; put `# %% [markdown]` above its first line")
    ends = [*headers[1:], len(lines) + 1]
    return tuple(_cell(lines, start, end) for start, end in zip(headers, ends, strict=True))


class _Fault(Exception):
    """What is wrong in a line, before anybody has said of which file."""

    def __init__(self, line: int, message: str) -> None:
        self.line, self.message = line, message


class _Check(NamedTuple):
    exercise_id: str
    line: int
    name: str


class _Comment(NamedTuple):
    text: str
    column: int
    alone: bool


class _Waiting(NamedTuple):
    """A cell with a solution block that no check has taken yet."""

    cell: Cell
    block: Block
    names: frozenset[str]


def _read(text: str, lesson: str) -> Source:
    blocks: list[Block] = []
    answers: dict[str, tuple[Cell, ...]] = {}
    checks: dict[int, str] = {}
    waiting: list[_Waiting] = []
    taken: dict[str, str] = {}
    all_cells = cells(text)
    for index, cell in enumerate(all_cells):
        if cell.kind == "markdown":
            continue
        found = _blocks(cell)
        tree = _tree(cell)
        for block in found:
            _check_place(block, cell, tree)
        if cell.file:
            marked = frozenset([cell.file] if found else [])
        else:
            marked = _names_with_blocks(tree, found)
            _check_bindings(tree, marked, waiting)
        check = _check(tree, lesson)
        if check:
            if found:
                raise _Fault(
                    check.line, "a check in the cell of its answer; put `check(...)` into a later cell"
                )
            if check.exercise_id in answers:
                raise _Fault(
                    check.line, f"exercise {check.exercise_id} is checked twice; give each its own id"
                )
            answers[check.exercise_id] = _take(waiting, check, taken)
            checks[index] = check.exercise_id
        elif found:
            waiting.append(_Waiting(cell, found[0], marked))
            blocks += found
    if waiting:
        first, wanted = waiting[0].block.begin, _listed(waiting[0].names) or "the function of this block"
        raise _Fault(first, f'no later cell checks {wanted}; add one with `check("N.M", name)`')
    return Source(all_cells, tuple(blocks), answers, checks)


def _take(waiting: list[_Waiting], check: _Check, taken: dict[str, str]) -> tuple[Cell, ...]:
    """Take the cells that define what is checked out of those that wait; `taken` says which check took a name."""
    mine = [each for each in waiting if check.name in each.names]
    if not mine and check.name in taken:
        advice = "give each exercise its own cell"
        raise _Fault(
            check.line, f"the cell of `{check.name}` was taken by check {taken[check.name]}; {advice}"
        )
    if not mine:
        raise _Fault(check.line, f"no solution block for `{check.name}` above; mark it with `{BEGIN}`")
    waiting[:] = [each for each in waiting if each not in mine]
    taken |= {name: check.exercise_id for each in mine for name in each.names}
    return tuple(each.cell for each in mine)


def _listed(names: frozenset[str]) -> str:
    return " or ".join(f"`{name}`" for name in sorted(names))


def _blanked(text: str, blocks: tuple[Block, ...]) -> str:
    lines = text.split("\n")
    for block in reversed(blocks):
        lines[block.begin - 1 : block.end] = [block.indent + STUB]
    return "\n".join(lines)


def _without_markers(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.strip() not in (BEGIN, END))


# --- Cells ---


def _cell(lines: list[str], start: int, end: int) -> Cell:
    header = _HEADER.fullmatch(lines[start - 1])
    if not header:
        raise _Fault(start, f"cannot read the header `{lines[start - 1]}`; write `# %%` or `# %% [markdown]`")
    body = [number for number in range(start + 1, end) if lines[number - 1].strip()]
    if not body:
        raise _Fault(start, "this cell is empty; delete its header")
    text = "\n".join(lines[body[0] - 1 : body[-1]])
    if header["markdown"]:
        if header["options"]:
            raise _Fault(start, "tags on a markdown cell mean nothing; delete them")
        _check_markdown(text, body[0])
        return Cell("markdown", text, body[0])
    return Cell("code", text, body[0], *_options(header["options"], start))


def _options(text: str, line: int) -> tuple[tuple[str, ...], str | None]:
    """Read ` tags=["nbval-ignore-output"] reason="why"`, or nothing: one without the other is an error."""
    found: dict[str, Any] = {}
    rest = text.strip()
    while rest:
        key, _, value = rest.partition("=")
        try:
            found[key], length = json.JSONDecoder().raw_decode(value)
        except json.JSONDecodeError:
            raise _Fault(line, f"cannot read `{rest}`; write the value of `{key}` as JSON") from None
        rest = value[length:].strip()
    if not found:
        return (), None
    if "tags" in found and found["tags"] != [IGNORE_OUTPUT]:
        raise _Fault(line, f'unknown tags {found["tags"]}; the only one allowed is "{IGNORE_OUTPUT}"')
    if (
        found.keys() != {"tags", "reason"}
        or not isinstance(found["reason"], str)
        or not found["reason"].strip()
    ):
        raise _Fault(line, f'tags and reason go together; write `# %% tags=["{IGNORE_OUTPUT}"] reason="why"`')
    return (IGNORE_OUTPUT,), found["reason"]


def _check_markdown(text: str, first: int) -> None:
    for number, line in enumerate(text.split("\n"), first):
        if _MARKER_LIKE.search(line.removeprefix("# ")):
            raise _Fault(
                number, "a solution marker in a markdown cell; begin a code cell above it with `# %%`"
            )
        if line.strip() and line != "#" and not line.startswith("# "):
            raise _Fault(number, "a markdown line that does not begin with `# `; add it, or a header `# %%`")


# --- Check cells ---


def _numbered(cell: Cell) -> str:
    """Return the cell below as many empty lines as stand above it, so that parsers count as the file does."""
    return "\n" * (cell.first - 1) + cell.text


def _tree(cell: Cell) -> ast.Module:
    try:
        # Compiled, because parsing alone lets a `return` outside a function pass.
        compile(_numbered(cell), "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        advice = "correct it, or, if it is a magic, begin the cell with it: `# !command`"
        message = f"Python objects to this line ({error.msg}); {advice}"
        raise _Fault(error.lineno or cell.first, message) from None
    return ast.parse(_numbered(cell))


def _check(tree: ast.Module, lesson: str) -> _Check | None:
    """Return what a cell checks, or None if nothing in it calls `check`."""
    last = tree.body[-1] if tree.body else None
    found = None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check":
            if not isinstance(last, ast.Expr) or call is not last.value:
                raise _Fault(call.lineno, "`check(...)` is not a cell's last statement; end a cell with it")
            found = _read_check(call, lesson)
    return found


def _read_check(call: ast.Call, lesson: str) -> _Check:
    number = str(int(lesson)) if lesson.isdigit() else "4"
    exercise_id = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if not isinstance(exercise_id, str) or not _EXERCISE_ID.fullmatch(exercise_id):
        raise _Fault(call.lineno, f'malformed exercise id; write `check("{number}.1", name)`')
    if lesson.isdigit() and exercise_id.split(".")[0] != number:
        raise _Fault(
            call.lineno, f"exercise {exercise_id} is not of lesson {lesson}; number it from {number}.1"
        )
    match call:
        case ast.Call(args=[_, ast.Name(id=name)], keywords=[]):
            return _Check(exercise_id, call.lineno, name)
        case ast.Call(args=[_, ast.Constant(value=str(name))], keywords=[]) if not name.isidentifier():
            return _Check(exercise_id, call.lineno, name)
    advice = f'pass it by its name: `check("{exercise_id}", name)`'
    raise _Fault(call.lineno, f"`check` takes one answer, a function or class; {advice}")


def _names_with_blocks(tree: ast.Module, blocks: list[Block]) -> frozenset[str]:
    """Return the functions and classes of a cell that hold a solution block."""
    defined = [node for node in tree.body if isinstance(node, (*_FUNCTIONS, ast.ClassDef))]
    return frozenset(node.name for node in defined if any(_holds(node, block) for block in blocks))


def _check_bindings(tree: ast.Module, marked: frozenset[str], waiting: list[_Waiting]) -> None:
    """Between an answer and its check nothing else may take its name: the check would grade that instead."""
    pending = frozenset().union(*(each.names for each in waiting))
    seen: set[str] = set()
    for name, line, extends in _bindings(tree):
        if name in seen or (name in pending and not (extends and name in marked)):
            raise _Fault(
                line, f"`{name}` is an answer and is defined again before its check; rename this one"
            )
        if name in marked:
            seen.add(name)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield each name that a cell binds, its line, and whether a class of that name is being extended.

    A long class may go on in a later cell as `class Scaler(Scaler)`. What functions bind inside is their own.
    """
    nodes: list[ast.AST] = list(tree.body)
    while nodes:
        match nodes.pop(0):
            case ast.ClassDef(name=name, bases=bases, lineno=line):
                yield name, line, any(isinstance(base, ast.Name) and base.id == name for base in bases)
            case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
                yield name, line, False
            case ast.Name(id=name, ctx=ast.Store() | ast.Del(), lineno=line):
                yield name, line, False
            case ast.alias(name=name, asname=asname, lineno=line):
                yield asname or name.split(".")[0], line, False
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass
            case node:
                nodes[:0] = ast.iter_child_nodes(node)


# --- Solution blocks ---


def _comments(cell: Cell) -> dict[int, _Comment]:
    """Return the comments of a cell by line; Python's tokenizer tells them from what stands in strings."""
    found = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(_numbered(cell)).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                found[line] = _Comment(token.string, column, not token.line[:column].strip())
    except (tokenize.TokenError, SyntaxError):
        _tree(cell)  # Names the line at fault, which the tokenizer's error often does not.
        raise
    return found


def _markers(cell: Cell) -> Iterator[tuple[int, _Comment]]:
    """Yield the markers of a cell with their lines; what only looks like one is an error."""
    comments = _comments(cell)
    for number, line in enumerate(cell.text.split("\n"), cell.first):
        comment = comments.get(number)
        if _MARKER_LIKE.search(line[: comment.column] if comment else line):
            raise _Fault(
                number, "a solution marker inside a string; end the string above, or word it otherwise"
            )
        if number > cell.first and _MAGIC.match(comment.text if comment else line):
            raise _Fault(
                number,
                "this line would become a command or magic; begin a cell with it, or word it otherwise",
            )
        if comment is None:
            continue
        if comment.text in (BEGIN, END):
            if not comment.alone:
                raise _Fault(number, f"`{comment.text}` stands beside code; give it a line of its own")
            yield number, comment
        elif _looks_like_a_marker(comment.text):
            raise _Fault(
                number, f"unknown marker `{comment.text}`; write `{BEGIN}` or `{END}`, or another comment"
            )
        elif "NBVAL_" in comment.text:
            raise _Fault(number, f"`{comment.text}` gives no reason; use the cell's tags instead")


def _looks_like_a_marker(comment: str) -> bool:
    if _CALL_OF_SOLUTION.fullmatch(comment):  # This is how a page offers it.
        return False
    return comment.startswith("###") or bool(_SOLUTION_LIKE.search(comment))


def _blocks(cell: Cell) -> list[Block]:
    """Pair the markers of a cell."""
    found: list[Block] = []
    lines = _numbered(cell).split("\n")
    opened: tuple[int, int] | None = None
    for number, marker in _markers(cell):
        if marker.text == BEGIN:
            if opened:
                raise _Fault(number, f"a block inside the one of line {opened[0]}; put `{END}` before it")
            opened = number, marker.column
            continue
        if not opened:
            raise _Fault(number, f"`{END}` ends nothing; put `{BEGIN}` above the solution")
        begin, column = opened
        if marker.column != column:
            raise _Fault(number, f"`{END}` is not indented as `{BEGIN}` in line {begin}; align the two")
        if all(not line.strip() or line.lstrip().startswith("#") for line in lines[begin : number - 1]):
            raise _Fault(begin, "this solution block is empty; write the solution between its markers")
        found.append(Block(begin, number, lines[begin - 1][:column]))
        opened = None
    if opened:
        raise _Fault(opened[0], f"this solution block is not closed in its cell; put `{END}` below it")
    return found


def _holds(node: ast.stmt, block: Block) -> bool:
    """Tell whether a block begins in a function or class; END, a comment, may stand below what it ends."""
    return node.lineno < block.begin < (node.end_lineno or node.lineno)


def _check_place(block: Block, cell: Cell, tree: ast.Module) -> None:
    """A block is the whole rest of a function's body: what followed it would be dead code in the stub."""
    around = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _holds(node, block)]
    if not around:
        raise _Fault(
            block.begin, "a solution block outside a function or method; move it into the body of one"
        )
    function = max(around, key=lambda node: node.lineno)
    if len(block.indent) != function.body[0].col_offset:
        raise _Fault(
            block.begin, f"`{BEGIN}` is not indented as the body of `{function.name}`; align the two"
        )
    for each in around:
        for statement in each.body:
            if statement.lineno < block.begin and isinstance(statement, (ast.Return, ast.Raise)):
                raise _Fault(
                    statement.lineno, f"`{each.name}` ends here, above its solution; move this line into it"
                )
    for statement in function.body:
        for marker in (block.begin, block.end):
            if statement.lineno < marker < (statement.end_lineno or statement.lineno):
                raise _Fault(marker, f"a marker inside the statement of line {statement.lineno}; move it out")
    after = [line for line in cell.text.split("\n")[block.end - cell.first + 1 :] if line.strip()]
    if function.body[-1].lineno > block.end or (after and after[0].startswith(block.indent)):
        raise _Fault(
            block.end, f"the body of `{function.name}` goes on below its solution; end it with `{END}`"
        )
    try:
        ast.parse(_blanked(_numbered(cell), (block,)))
    except SyntaxError:
        message = f"without its solution `{function.name}` is not valid Python; begin the block in its body"
        raise _Fault(block.begin, message) from None
