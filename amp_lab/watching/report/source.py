"""The user's code: the text of a file or of a notebook's cell, and which statement stands in which line."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from amp_lab.autocast.records import Source

# A statement of these kinds has others inside; only its head belongs to it alone.
BLOCKS: Final = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If | ast.For | ast.AsyncFor | ast.While
    | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
)  # fmt: skip
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


def code_of(where: Source) -> Code | None:
    """Return the code that a line stands in, as it was when it ran; None if it cannot be had any more.

    Code given to `exec` or typed at a prompt has no file, a file may have been changed since, and a line that is no
    Python (`%run` in a cell) has no statements.
    """
    lines = linecache.getlines(where.file)
    if not 0 < where.line <= len(lines) or (
        where.text and lines[where.line - 1].strip() != where.text.strip()
    ):
        return None
    try:
        return _parsed("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=4)  # many rules and fixes ask for the same file, and to parse a long one takes a while
def _parsed(text: str) -> Code:
    return Code(text)


@dataclass(frozen=True)
class Code:
    """A piece of Python code.

    Raises:
        SyntaxError: if it is none.
    """

    text: str

    def __post_init__(self) -> None:
        _ = self.tree

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, outer ones first."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def lines(self) -> list[str]:
        """The lines, each with its end, counted as Python counts them: at line feeds only."""
        return [line + "\n" for line in self.text.split("\n")[:-1]] + [self.text.split("\n")[-1]]

    def statements(self, line: int) -> list[ast.stmt]:
        """Return the innermost statements that have this line; a block itself, if the line is in its head."""
        statements = [each for each in self.nodes if isinstance(each, ast.stmt)]
        found = [each for each in statements if _begins(each) <= line <= (each.end_lineno or 0)]
        lines = min((_height(each) for each in found), default=0)
        return [each for each in found if _height(each) == lines]

    def nearby(self, line: int) -> list[ast.stmt]:
        """Return the statements of the function that this line is in (or of the module), nearest first."""
        around: ast.AST = self.tree
        for each in self.nodes:  # outer functions come before inner ones
            if isinstance(each, _FUNCTIONS) and each.lineno <= line <= (each.end_lineno or 0):
                around = each
        return sorted(_statements(around), key=lambda each: (abs(each.lineno - line), each.lineno))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return where a node begins and ends in `text`."""
        return self._offset(node.lineno, node.col_offset), self._offset(
            node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        )

    def of(self, node: ast.stmt | ast.expr) -> str:
        """Return a node's own text."""
        start, end = self.span(node)
        return self.text[start:end]

    def alone(self, statement: ast.stmt) -> tuple[int, int] | None:
        """Return the span of the whole lines of a statement, with a comment behind it; None if it shares them."""
        start, end = self.span(statement)
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", end) + 1 or len(self.text)
        behind = self.text[end:last].strip()
        if self.text[first:start].strip() or (behind and not behind.startswith("#")):
            return None
        return first, last

    def comment(self, statement: ast.stmt) -> str:
        """Return the comment behind a statement, in its last line."""
        _, end = self.span(statement)
        behind = self.text[end:].partition("\n")[0].strip()
        return behind if behind.startswith("#") else ""

    def indent(self, statement: ast.stmt) -> str:
        """Return the blanks before a statement that begins its line."""
        start, _ = self.span(statement)
        return self.text[self.text.rfind("\n", 0, start) + 1 : start]

    def _offset(self, line: int, column: int) -> int:
        """Return a place in `text`: the parser counts columns in bytes of UTF-8."""
        before = sum(map(len, self.lines[: line - 1]))
        return before + len(self.lines[line - 1].encode()[:column].decode())


def own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of statements inside it, outermost first."""
    waiting = list(ast.iter_child_nodes(statement))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            waiting += ast.iter_child_nodes(node)


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are the same code, however it is written."""
    return ast.dump(one) == ast.dump(other)


def _begins(statement: ast.stmt) -> int:
    """Return the first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _height(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - _begins(statement)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    return (each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node)
