"""Where in a piece of code a fix goes: which letters of the text are replaced by which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeGuard

from amp_lab.watching.report.names import Names
from amp_lab.watching.report.source import BLOCKS, Code, own_expressions, same
from amp_lab.watching.rules.rule import Fix

_LINE: Final = "{line}"
_MOVED: Final = "{moved}"
_LOOP: Final = "{loop}"
_INDENT: Final = "    "  # one level, as rules write it
# What stands behind these in the same block is never reached.
_ENDS: Final = ast.Return | ast.Raise | ast.Continue | ast.Break
_LATER: Final = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_OF_A_LOOP: Final = re.compile(
    r"step|update|unscale_|scale|backward|grad|zero_grad|clip_grad_\w+|clip_grads_\w+"
)


class Misfit(Exception):
    """A fix that does not fit into the code."""


class Edit(NamedTuple):
    """`new` in the place of `text[start:end]`."""

    start: int
    end: int
    new: str


class Statement(NamedTuple):
    """A statement of the user's, without its indentation, and the comment behind it ("" for none)."""

    text: str
    comment: str

    def __str__(self) -> str:
        return f"{self.text}  {self.comment}" if self.comment else self.text


def edits_of(
    code: Code, fix: Fix, names: Names, moved: Statement | None
) -> tuple[Statement | None, list[Edit]]:
    """Return the statement that a fix is about, and the edits of one of its parts.

    Args:
        code: what the line of `fix.event` stands in.
        fix: without `fix.also`.
        names: the user's names there.
        moved: what `{moved}` stands for.

    Raises:
        Misfit: if the place of the fix is not certain.
    """
    assert fix.event.where is not None
    place = _Place(code, code.statements(fix.event.where.line), fix.event.where.line)
    line = _movable(code, place.only) if len(place.here) == 1 else None
    insert = _Insert(names.fill("\n".join(fix.insert)).split("\n") if fix.insert else (), line, moved)
    if not fix.remove and fix.place == "before loop":
        return line, [_before_the_loop(place, insert)]
    if not fix.remove:
        return line, [_inserted(place, insert, after=fix.place == "after")]
    remove = [names.fill(each) for each in fix.remove]
    return line, list(_replaced(place, remove, insert))


class _Place(NamedTuple):
    code: Code
    here: Sequence[ast.stmt]
    line: int

    @property
    def only(self) -> ast.stmt:
        if len(self.here) != 1:
            raise Misfit("no statement, or several, in the line")
        return self.here[0]

    def lines(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the span of a statement that has its lines for itself."""
        span = self.code.alone(statement)
        if span is None:
            raise Misfit("shares its line")
        return span


class _Insert(NamedTuple):
    """The lines that are put in. `line` and `moved` are what their marks stand for, without indentation."""

    lines: Sequence[str]
    line: Statement | None
    moved: Statement | None

    def text(self, indent: str) -> str:
        """Return the lines, indented as the code around them, each with its end."""
        unit = "\t" if "\t" in indent else _INDENT
        return "".join(f"{indent}{line}\n" for each in self.lines for line in self._filled(each, unit))

    def _filled(self, line: str, unit: str) -> Iterator[str]:
        bare = line.lstrip(" ")
        before = (len(line) - len(bare)) // len(_INDENT) * unit
        for mark, stands_for in ((_LINE, self.line), (_MOVED, self.moved)):
            if mark in bare:
                yield from (f"{before}{each}" for each in _put(bare, mark, stands_for))
                return
        yield f"{before}{bare}"


def _put(line: str, mark: str, statement: Statement | None) -> list[str]:
    """Return the lines that become of one in which a mark stands for a statement."""
    if statement is None:
        raise Misfit("no line to move")
    if line == mark:
        return str(statement).split("\n")
    if "\n" in statement.text:
        raise Misfit("several lines within one")
    return [line.replace(mark, statement.text)]


def _movable(code: Code, statement: ast.stmt) -> Statement | None:
    """Return a statement for another place; None if its indentation is fixed, as that of a text of many lines."""
    if any(
        isinstance(each, ast.Constant | ast.JoinedStr) and _many_lines(each) for each in ast.walk(statement)
    ):
        return None
    indent = code.indent(statement)
    first, *others = code.of(statement).split("\n")
    text = "\n".join([first, *(each.removeprefix(indent) for each in others)])
    return Statement(text, code.comment(statement))


def _many_lines(node: ast.expr) -> bool:
    return node.end_lineno != node.lineno


def _inserted(place: _Place, insert: _Insert, after: bool) -> Edit:
    statement = place.only
    first, last = place.lines(statement)
    if _runs_later(statement) or isinstance(statement, ast.While) or getattr(statement, "decorator_list", []):
        raise Misfit("the call is not made where it is written")
    if (
        after
        and isinstance(statement, BLOCKS | _ENDS)
        and not isinstance(statement, ast.With | ast.AsyncWith)
    ):
        raise Misfit("nothing can stand behind it")
    text = insert.text(place.code.indent(statement))
    if not after:
        return Edit(first, first, text)
    ended = place.code.text[:last].endswith("\n")
    return Edit(last, last, text if ended else "\n" + text.removesuffix("\n"))


def _before_the_loop(place: _Place, insert: _Insert) -> Edit:
    """Return the edit that puts lines before a statement, or before the loop that gives it its variable."""
    loops = [each for each in place.code.nodes if _runs_over(each, place.only)]
    if not loops:
        return _inserted(place, insert, after=False)
    first, _ = place.lines(loops[0])  # outer loops come before inner ones
    return Edit(first, first, insert.text(place.code.indent(loops[0])))


def _runs_over(loop: ast.AST, statement: ast.stmt) -> TypeGuard[ast.For]:
    """Whether something is a loop around a statement that uses its variable: over parameters, not over batches."""
    if not isinstance(loop, ast.For) or not loop.lineno <= statement.lineno <= (loop.end_lineno or 0):
        return False
    if any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(loop)):
        return False
    used = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    return bool(used & {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)})


def _replaced(place: _Place, remove: Sequence[str], insert: _Insert) -> Iterator[Edit]:
    """Yield an edit for each piece of code that is taken out; the first one gets what is put in."""
    for number, code in enumerate(remove):
        new = insert if number == 0 else _Insert((), None, None)
        if code == _LOOP:
            yield _loop_for(place, new)
            continue
        wanted = place.only if code == _LINE else _parsed(code)
        found = _find(place, wanted)
        yield _expression_for(place, wanted, new) if found is None else _statement_for(place, found, new)


def _parsed(code: str) -> ast.stmt:
    try:
        (statement,) = ast.parse(code).body
    except (SyntaxError, ValueError) as error:
        raise Misfit("no single statement") from error
    return statement


def _find(place: _Place, wanted: ast.stmt) -> ast.stmt | None:
    """Return the nearest statement that is this code, the one in the line itself first."""
    candidates = (*place.here, *place.code.nearby(place.line))
    return next((each for each in candidates if same(each, wanted)), None)


def _statement_for(place: _Place, statement: ast.stmt, new: _Insert) -> Edit:
    first, last = place.lines(statement)
    if isinstance(statement, BLOCKS) or _runs_later(statement):
        raise Misfit("more than a line")
    text = new.text(place.code.indent(statement))
    comment = place.code.comment(statement)
    if text and comment and _LINE not in "".join(new.lines):
        text = text.removesuffix("\n") + f"  {comment}\n"
    return Edit(first, last, text if place.code.text[:last].endswith("\n") else text.removesuffix("\n"))


def _loop_for(place: _Place, new: _Insert) -> Edit:
    """Return the edit of the line, with the `for` or `if` around it in which nothing else stands."""
    statement: ast.stmt = place.only
    while (outer := _only_for(place.code, statement)) is not None:
        statement = outer
    if _runs_often(place, statement):
        raise Misfit("it stands in a loop with other things")
    first, last = place.lines(statement)
    return Edit(first, last, new.text(place.code.indent(statement)))


def _runs_often(place: _Place, statement: ast.stmt) -> bool:
    """Whether a loop is left around a statement whose variable the line needs: over parameters, say."""
    inside = {id(each) for each in ast.walk(statement)}
    return any(id(loop) not in inside and _runs_over(loop, place.only) for loop in place.code.nodes)


def _only_for(code: Code, statement: ast.stmt) -> ast.stmt | None:
    """Return the `for` or `if` whose body is this statement alone."""
    return next(
        (
            each
            for each in code.nodes
            if isinstance(each, ast.For | ast.If) and not each.orelse and each.body == [statement]
        ),
        None,
    )


def _expression_for(place: _Place, wanted: ast.stmt, new: _Insert) -> Edit:
    """Return the edit of an expression inside the statements of the line."""
    if not isinstance(wanted, ast.Expr) or len(new.lines) != 1 or _LINE in new.lines[0]:
        raise Misfit("no expression for an expression")
    for statement in place.here:
        for each in own_expressions(statement):
            if same(each, wanted.value):
                return Edit(*place.code.span(each), new.lines[0])
    raise Misfit("not in the line")


def _runs_later(statement: ast.stmt) -> bool:
    """Whether a call of the loop stands inside a lambda or a comprehension: what is put beside it runs otherwise."""
    inside = (
        node for each in own_expressions(statement) if isinstance(each, _LATER) for node in ast.walk(each)
    )
    calls = (node.func for node in inside if isinstance(node, ast.Call))
    names = (str(getattr(func, "attr", getattr(func, "id", ""))) for func in calls)
    return any(_OF_A_LOOP.fullmatch(name) for name in names)


def applied(text: str, edits: Sequence[Edit]) -> str:
    """Return the text after all edits.

    Raises:
        Misfit: if two of them overlap.
    """
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):
        if edit.start < at:
            raise Misfit("two changes of one place")
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*parts, text[at:]])


def parses(code: str) -> bool:
    """Whether this is Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
