"""Where a call stands in the user's code: what was meant to follow it, where the loop never got there."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from amp_lab.watching.recording.events import Event
from amp_lab.watching.report.source import Code, code_of

E = TypeVar("E", bound=Event)

_LOOPS: Final = ast.For | ast.AsyncFor | ast.While
_IN_PLACE: Final = ("mul_", "div_", "copy_")
# What a test for inf and NaN is written with.
_TESTS: Final = re.compile(r"finite|isnan|isinf|\bnan\b|\binf\b|overflow")
_TURNS: Final = ast.Continue | ast.Break | ast.Return | ast.Raise


def calls(event: E, function: str) -> Iterator[tuple[E, bool, bool]]:
    """Find calls of a function, "scaler.step", that stand alone in the same function as the line of an event.

    Yield the event as if it had happened there; whether that is below its own line; and whether it is deeper, under an
    `if` that its own line is not under. Nothing, where the code cannot be read.
    """
    code = _code(event)
    if code is None or event.where is None:
        return
    own = _statement(code, event.where.line)
    for statement in ast.walk(_function(code, event.where.line)):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == function and own is not None:
            deeper = call.col_offset > own.col_offset
            yield _moved(event, code, call.lineno), call.lineno > own.lineno, deeper


def lone_call(event: E, function: str) -> E | None:
    """Find a call of a function, by the last part of its name, whose result nobody takes, as an event at that place.

    In the same function as the line of the event.
    """
    code = _code(event)
    if code is None or event.where is None:
        return None
    for statement in ast.walk(_function(code, event.where.line)):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == function:
            return _moved(event, code, call.lineno)
    return None


def turn_below(event: E) -> E | None:
    """Find the first `continue` below a line, in the innermost loop around it, as an event at that place."""
    code = _code(event)
    if code is None or event.where is None:
        return None
    line = event.where.line
    loops = [e for e in code.nodes if isinstance(e, _LOOPS) and e.lineno <= line <= (e.end_lineno or 0)]
    turns = (
        [e.lineno for e in ast.walk(loops[-1]) if isinstance(e, ast.Continue) and e.lineno > line]
        if loops
        else []
    )
    return _moved(event, code, min(turns)) if turns else None


def turn_after_test(event: E) -> E | None:
    """Find the `continue` below a line whose `if`, or what stands between, tests for inf and NaN."""
    turn = turn_below(event)
    code = _code(event)
    if turn is None or code is None or turn.where is None or event.where is None:
        return None
    between = "".join(code.lines[event.where.line : turn.where.line])
    return turn if _TESTS.search(between) else None


def goes_on(first: Event, second: Event) -> bool:
    """Whether one line is always followed by another: they stand in one block, and nothing between turns away."""
    code = _code(first)
    if code is None or first.where is None or second.where is None or first.where.file != second.where.file:
        return False
    one, other = _statement(code, first.where.line), _statement(code, second.where.line)
    for block in code.nodes:
        for statements in (getattr(block, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(statements, list) and one in statements and other in statements:
                between = statements[statements.index(one) : statements.index(other)]
                return bool(between) and not any(
                    isinstance(e, _TURNS) for each in between for e in ast.walk(each)
                )
    return False


def changes_gradients(event: Event) -> bool:
    """Whether the function around a line changes gradients itself: `p.grad /= 4`, `p.grad.mul_(0.5)`, `p.grad = …`."""
    code = _code(event)
    if code is None or event.where is None:
        return False
    for node in ast.walk(_function(code, event.where.line)):
        match node:
            case ast.AugAssign(target=ast.Attribute(attr="grad")):
                return True
            case ast.Assign(targets=[ast.Attribute(attr="grad")], value=value):
                if not isinstance(value, ast.Constant):  # None only zeroes them
                    return True
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr="grad"))) if (
                name in _IN_PLACE
            ):
                return True
    return False


def replaces_gradients(event: Event) -> bool:
    """Whether the function around a line gives parameters other gradients: `p.grad = mean`, `p.grad.copy_(mean)`.

    Not those that are made from the old ones: `p.grad = p.grad / 4`.
    """
    code = _code(event)
    if code is None or event.where is None:
        return False
    for node in ast.walk(_function(code, event.where.line)):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr="grad")], value=value):
                pass
            case ast.Call(
                func=ast.Attribute(attr="copy_", value=ast.Attribute(attr="grad")), args=[value, *_]
            ):
                pass
            case _:
                continue
        parts = list(ast.walk(value))
        if not isinstance(value, ast.Constant) and not any(
            isinstance(each, ast.Attribute) and each.attr == "grad" for each in parts
        ):
            return True
    return False


def written_with(
    event: Event, functions: Collection[str], place: int, keyword: str, word: str
) -> bool | None:
    """Whether an argument of a call in an event's line was made from something whose name has a word in it.

    `place` is that of the argument. A variable is followed to where the same function sets it. False for a number that
    is written out; None where the code does not tell.
    """
    code = _code(event)
    if code is None or event.where is None:
        return None
    for node in code.nodes:
        if not isinstance(node, ast.Call) or not node.lineno <= event.where.line <= (node.end_lineno or 0):
            continue
        if ast.unparse(node.func).split(".")[-1] in functions:
            named = [each.value for each in node.keywords if each.arg == keyword]
            given = named or node.args[place : place + 1]
            return _made_with(_function(code, event.where.line), given[0], word) if given else None
    return None


def _made_with(function: ast.AST, value: ast.expr, word: str) -> bool | None:
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    sources = [value]
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id in names for each in node.targets
        ):
            sources.append(node.value)
    if any(word in ast.unparse(each).lower() for each in sources):
        return True
    return False if isinstance(value, ast.Constant) else None


def assigned(event: Event) -> tuple[str, bool] | None:
    """Return the variable that an event's statement sets, and whether it is the only element: `(slope,) = …`."""
    code = _code(event)
    statement = _statement(code, event.where.line) if code and event.where else None
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()):
            return name, False
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name)]) | ast.List(elts=[ast.Name(id=name)])]):
            return name, True
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Call())):
            return name, True
    return None


def whole_call(event: Event, method: str) -> tuple[str, str] | None:
    """Return the call of a method in an event's line, and what it is a method of: "loss.backward()", "loss"."""
    code = _code(event)
    statement = _statement(code, event.where.line) if code and event.where else None
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            return ast.unparse(node), ast.unparse(node.func.value)
    return None


def _code(event: Event) -> Code | None:
    return code_of(event.where) if event.where else None


def _statement(code: Code, line: int) -> ast.stmt | None:
    """Return the innermost statement that this line is in."""
    found = [e for e in code.nodes if isinstance(e, ast.stmt) and e.lineno <= line <= (e.end_lineno or 0)]
    return found[-1] if found else None


def _function(code: Code, line: int) -> ast.AST:
    """Return the innermost function that this line is in, or the module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [e for e in code.nodes if isinstance(e, kinds) and e.lineno <= line <= (e.end_lineno or 0)]
    return found[-1] if found else code.tree


def _moved(event: E, code: Code, line: int) -> E:
    assert event.where is not None
    return replace(event, where=replace(event.where, line=line, text=code.lines[line - 1].strip()))
