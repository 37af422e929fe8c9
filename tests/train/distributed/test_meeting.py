"""Where ranks meet: what is wrong with an address or a port is said in a line, by who can know."""

import socket
import threading

import pytest

from amp_lab.train.distributed import meeting
from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.launching import Launch
from tests.train.distributed.launches import free_port, held_port

ELSEWHERE = "192.0.2.1"  # of nobody: it is for examples
NAMELESS = "no-such-host.invalid"


def launch(rank, port, address="127.0.0.1", hosted=False):
    return Launch(rank, 2, rank, 2, address, port, hosted)


def said(which, seconds=0.3):
    with pytest.raises(LaunchError) as caught:
        meeting.opened(which, seconds)
    return str(caught.value)


def test_ranks_meet():
    port = free_port()
    first = meeting.opened(launch(0, port), 20.0)
    second = meeting.opened(launch(1, port), 20.0)
    first.set("a", "b")
    assert second.get("a") == b"b"
    # With torchrun's store, rank 0 is a client, too: it would find the port taken.
    assert meeting.opened(launch(0, port, hosted=True), 20.0).get("a") == b"b"


def test_an_address_that_is_not_that_of_rank_0(monkeypatch, capfd):
    def unreachable(address, timeout):
        assert address[0] == ELSEWHERE
        raise OSError(101, "Network is unreachable")

    assert f"by MASTER_ADDR={NAMELESS} (the name is unknown): give the name" in said(
        launch(0, free_port(), NAMELESS)
    )
    monkeypatch.setattr(socket, "create_connection", unreachable)
    words = said(launch(0, free_port(), ELSEWHERE))
    assert words.startswith(
        f"rank 0 runs on {socket.gethostname()}, which is not reached by MASTER_ADDR={ELSEWHERE} (Net"
    )
    assert "is taken" not in words
    assert capfd.readouterr().err == "", "C++ says the same in pages"


def test_a_port_that_rank_0_cannot_open(monkeypatch):
    with held_port() as port:
        assert said(launch(0, port)).startswith(f"MASTER_PORT={port} is taken on {socket.gethostname()}")

    def denied(*args, **more):
        raise RuntimeError("The server socket has failed to bind (errno: 13 - Permission denied).\nframe #0")

    monkeypatch.setattr(meeting, "TCPStore", denied)
    assert said(launch(0, 80)) == (
        "rank 0 cannot open MASTER_PORT=80: take a free port from 1024 on. (The server socket has failed to bind "
        "(errno: 13 - Permission denied).)"
    )


def test_nobody_is_there():
    port = free_port()
    assert said(launch(1, port)).startswith(
        f"rank 1: for 0.3 s, nobody was at MASTER_ADDR=127.0.0.1, MASTER_PORT={port} (Connection refused). Is rank 0"
    )
    assert "(the name is unknown). Is rank 0" in said(launch(1, port, NAMELESS))


def test_who_comes_late_is_waited_for():
    port, opened = free_port(), []
    server = threading.Timer(0.5, lambda: opened.append(meeting.opened(launch(0, port), 20.0)))
    server.start()
    store = meeting.opened(launch(1, port), 20.0)
    server.join()
    opened[0].set("late", "yes")
    assert store.get("late") == b"yes"


def test_something_else_answers(monkeypatch):
    """One that never says a word, and one with which PyTorch cannot talk: of that, its own words are told, too."""
    told = threading.Event()

    def is_mute(*args, **more):
        told.wait(60)

    def is_no_store(*args, **more):
        raise RuntimeError("Ping failed, invalid value returned.\nframe #0")

    with held_port() as port:
        monkeypatch.setattr(meeting, "TCPStore", is_mute)
        assert said(launch(1, port)) == (
            f"rank 1: at 127.0.0.1:{port}, something answers that is not PyTorch's store. Set another MASTER_PORT for "
            "all ranks"
        )
        told.set()
        monkeypatch.setattr(meeting, "TCPStore", is_no_store)
        assert "PyTorch's store (Ping failed, invalid value returned.). Set another" in said(launch(1, port))
