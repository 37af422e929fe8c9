"""How a rank learns why another one does not go on: by a note, or by nothing but the error of the connection."""

import pickle
from types import SimpleNamespace

import torch
from torch.distributed import HashStore

from amp_lab.train.distributed.failures import (
    RankFailed,
    RanksDiffer,
    first_line,
    is_about_others,
    leave_note,
    line,
    remove_note,
    who_left,
)


def test_whose_error_it_is():
    gloo = (
        "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28576"
    )
    assert is_about_others(RuntimeError(gloo))
    assert is_about_others(RuntimeError(f"[enforce fail at /src/gloo/transport/tcp/pair.cc:446] {gloo}"))
    assert is_about_others(torch.distributed.DistBackendError("NCCL error"))
    for own in (
        "the backend gloo does not add such numbers",
        "my ProcessGroup",
        "NCCL",
        "[gloo] no",
        f"it said {gloo}",
    ):
        assert not is_about_others(RuntimeError(own))
    assert not is_about_others(OSError(gloo))
    for known in (RankFailed(gloo), RanksDiffer(gloo)):
        assert not is_about_others(known), "it is told already"


def test_who_has_left_says_why():
    store = HashStore()
    group = SimpleNamespace(get_group_store=lambda: store)
    unknown = who_left(group, 0, 3)
    assert (type(unknown), unknown.known) == (RankFailed, False)
    assert str(unknown).startswith("another rank does not answer: it has been killed, or")
    leave_note(group, 0, "ValueError: my own")
    assert not who_left(group, 0, 3).known, "of itself, a rank knows"
    leave_note(group, 2, "LookupError: no cat")
    told = who_left(group, 0, 3)
    assert (str(told), told.known) == ("rank 2 has left, so this one ends, too: LookupError: no cat", True)
    remove_note(group, 2)
    assert not who_left(group, 0, 3).known
    assert pickle.loads(pickle.dumps(told)).args == told.args


def test_where_no_notes_can_be_left():
    """In old versions of PyTorch, or with a store that is gone."""
    leave_note(object(), 0, "ValueError")
    remove_note(object(), 0)
    assert not who_left(object(), 1, 2).known


def test_an_error_in_a_line():
    assert line(ValueError("\n no cat\nat C++")) == "ValueError: no cat"
    assert line(ValueError()) == "ValueError"
    assert first_line(ValueError()) == ""
