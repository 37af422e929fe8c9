"""A run that is killed anywhere goes on and ends in the same bits as one that was left alone."""

import random

import pytest

from amp_lab.train.checkpoint import Checkpoints, load_checkpoint
from tests.train.killed import POINTS, Forks


@pytest.fixture(scope="module")
def forks():
    return Forks()


@pytest.fixture(scope="module")
def undisturbed(forks, tmp_path_factory):
    ended = forks(tmp_path_factory.mktemp("undisturbed"))
    assert ended["steps"] == 18
    assert ended["skipped"] >= 3, "the loss scale moved too little to show that it was restored"
    return ended


def same_bits(one, other):
    return {key: one[key] == other[key] for key in one if key != "seconds"}


def resumes(forks, folder, undisturbed):
    """Every checkpoint that the killed run has left can be read; the next run ends as if nothing had happened."""
    for path in Checkpoints(folder).paths:
        load_checkpoint(path)
    ended = forks(folder)
    assert ended is not None
    assert all(same_bits(ended, undisturbed).values()), same_bits(ended, undisturbed)
    left = sorted(path.name for path in folder.iterdir() if path.name != ".amp-lab-lock")
    assert 2 <= len(left) <= 3, left
    assert all(name.endswith(".pt") for name in left), left


# The first save leaves nothing behind to go on from; the fifth is in the middle of the second epoch.
@pytest.mark.parametrize(("point", "save"), [("before the rename", 1), *((point, 5) for point in POINTS)])
def test_killed_while_saving(forks, undisturbed, tmp_path, point, save):
    assert forks(tmp_path, kill=(point, save)) is None, "it was not killed"
    resumes(forks, tmp_path, undisturbed)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_moment(forks, undisturbed, tmp_path, seed):
    forks(tmp_path, after=random.Random(seed).uniform(0, undisturbed["seconds"]))
    resumes(forks, tmp_path, undisturbed)


def test_the_bits_would_tell(forks, undisturbed, tmp_path):
    """A run that begins again with other random states ends elsewhere: the digest can tell."""
    forks(tmp_path, kill=("after the folder was synced", 4))
    newest = Checkpoints(tmp_path).newest
    state = load_checkpoint(newest)
    state["scaler"]["scale"] *= 2
    checkpoints = Checkpoints(tmp_path)
    checkpoints.load()
    checkpoints.save(state, step=state["step"])
    assert not all(same_bits(forks(tmp_path), undisturbed).values())
