"""Reads what a learner wrote: a program is a list of tokens, or a function of the rank that returns or yields them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from amp_lab.train.arguments import as_size, kind_of
from amp_lab.train.simulating.tokens import Token

Program = Callable[[int], Iterable[Token]] | Iterable[Token]
Running = Generator[Token, Any, object]  # it is sent what each token gives

_EXAMPLE = "[Forward(), Backward(), Step(), Update()], or a function of the rank that yields such tokens"


class ProgramError(Exception):
    """A program makes calls that PyTorch refuses too, or hands over what is no token."""


def read(programs: Program | Iterable[Program], ranks: int | None) -> list[Running]:
    """Return one running program for each rank.

    Args:
        programs: one for all ranks, or a list with one for each.
        ranks: how many; None: as many as there are programs, or 2 if all have the same one.

    Raises:
        TypeError: for what is no program.
        ValueError: if the number of programs is not that of the ranks, or a program could not be begun twice.
    """
    size = None if ranks is None else as_size("simulate", "ranks", ranks)
    if callable(programs):
        return [_started(programs, rank) for rank in range(size or 2)]
    if isinstance(programs, str | bytes) or not isinstance(programs, Iterable):
        raise TypeError(f"simulate takes a program, {_EXAMPLE}; this is {kind_of(programs)}")
    if isinstance(programs, Iterator):
        raise ValueError(
            f"simulate was given {kind_of(programs)}, which only one rank could follow: give the function itself, "
            "without (), or a list"
        )
    given: list[Any] = list(programs)
    if any(isinstance(each, Token) for each in given):
        return [_started(_all_tokens(given), rank) for rank in range(size or 2)]
    if not given:
        raise ValueError(f"simulate was given an empty list: write {_EXAMPLE}")
    if size not in (None, len(given)):
        raise ValueError(
            f"simulate(ranks={size}) was given programs for {len(given)}: give one for each, or leave `ranks` out"
        )
    running = [_started(program, rank) for rank, program in enumerate(given)]
    if len(set(map(id, running))) < len(running):
        raise ValueError("two ranks were given the same generator: call its function once for each of them")
    return running


def next_token(program: Running, given: Any) -> Any:
    """Send a program what its last token gave; return its next token.

    Raises:
        StopIteration: at its end.
    """
    # `yield from [Forward(), Backward()]` in a program: a list's iterator takes nothing.
    inner: Any = program
    while inspect.isgenerator(inner):
        inner = inner.gi_yieldfrom
    return program.send(given if inner is None else None)


def _called(program: Callable[[int], Any], rank: int) -> Any:
    try:
        inspect.signature(program).bind(rank)
    except (TypeError, ValueError):
        name = getattr(program, "__qualname__", program)
        raise TypeError(
            f"simulate calls {name} with the number of a rank: write `def program(rank)`"
        ) from None
    return program(rank)


def _all_tokens(given: list[Any]) -> list[Token]:
    if strangers := [each for each in given if not isinstance(each, Token)]:
        raise TypeError(
            f"simulate: {kind_of(strangers[0])} stands among tokens: write Forward() with its (), and *micro_batch for "
            "what is in a list of its own"
        )
    return given


def _started(program: Any, rank: int) -> Running:
    tokens = _called(program, rank) if callable(program) else program
    if isinstance(tokens, Generator):
        if inspect.getgeneratorstate(tokens) != inspect.GEN_CREATED:
            raise ValueError(f"the program of rank {rank} has been followed before: call its function again")
        return tokens
    if isinstance(tokens, Token | str | bytes) or not isinstance(tokens, Iterable):
        raise TypeError(f"the program of rank {rank} is {kind_of(tokens)}: write {_EXAMPLE}")
    return (token for token in tokens)  # a list itself cannot be sent what a token gives
