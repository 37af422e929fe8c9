"""How a program ends: its exit code, and who prints what."""

import pytest

from amp_lab.train.distributed.errors import LaunchError, exit_code, quiet, speaks_for_its_machine
from amp_lab.train.distributed.failures import RankFailed, RanksDiffer


class Explained(Exception):
    pass


def ends_with(error):
    def program():
        raise error

    return exit_code(program, (Explained,))


@pytest.mark.parametrize("returned", [0, 3, None])
def test_what_the_program_returns(returned):
    assert exit_code(lambda: returned) == (returned or 0)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LaunchError("set RANK"), 2, "set RANK\n"),
        (RankFailed("rank 1 has left"), 1, "rank 1 has left\n"),
        (RanksDiffer("lr is another one"), 1, "lr is another one\n"),
        (Explained("do this"), 1, "do this\n"),
        (
            KeyboardInterrupt(),
            130,
            "broken off by Ctrl+C.\nNo training was under way, so nothing was saved.\n",
        ),
    ],
)
def test_an_error_with_words_is_one_line(capsys, error, code, said):
    assert ends_with(error) == code
    assert capsys.readouterr() == ("", said)
    quiet(error)
    assert ends_with(error) == code
    assert capsys.readouterr() == ("", ""), "another rank tells it"


def test_an_error_that_nobody_knows_comes_with_its_place(capsys):
    assert ends_with(LookupError("no cat")) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert 'test_errors.py", line' in said
    assert said.endswith("LookupError: no cat\n")


def test_what_was_noted_about_an_interrupt_is_told(capsys):
    error = KeyboardInterrupt()
    error.add_note("saved in step-3.pt")
    assert ends_with(error) == 130
    assert capsys.readouterr().err == "broken off by Ctrl+C.\nsaved in step-3.pt\n"


def test_who_speaks_for_a_machine():
    assert speaks_for_its_machine({})
    assert speaks_for_its_machine({"LOCAL_RANK": "0", "RANK": "4"})
    assert not speaks_for_its_machine({"LOCAL_RANK": "1"})
