"""After a break, a loader gives exactly the batches that were left, and the random states stand where they would."""

import random
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

from amp_lab.train.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from amp_lab.train.saving import random_states
from amp_lab.train.saving.positions import Batches, own_states, put_back


class Plain(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index


class Noisy(Plain):
    """Draws from every global generator."""

    def __getitem__(self, index):
        return index, torch.rand(()), np.random.rand(), random.random()


class OwnNoise(Plain):
    """Draws from generators of its own."""

    def __init__(self):
        self.torch = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(1)
        self.python = random.Random(1)

    def __getitem__(self, index):
        return index, torch.rand((), generator=self.torch), self.numpy.random(), self.python.gauss(0, 1)


class Transform:
    """Draws from generators that are found only by looking into it; and from one that nobody can put back."""

    def __init__(self):
        self.state = np.random.RandomState(2)
        self.other = {"generators": [random.Random(2)]}
        self.system = random.SystemRandom()

    def __call__(self, index):
        return index, torch.rand(()), self.state.rand(), self.other["generators"][0].random()


class Transformed(Plain):
    def __init__(self):
        self.transforms = [Transform()]

    def __getitem__(self, index):
        return self.transforms[0](index)


class Stream(IterableDataset):
    """No length, and a buffer that is shuffled."""

    def __iter__(self):
        buffer = []
        for item in range(23):
            buffer.append(item)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer


class Telling:
    """A loader that knows its place, with the two methods of a StatefulDataLoader; reading it again is an error."""

    def __init__(self):
        self._order, self._at, self._begun = [], 0, 0

    def __iter__(self):
        if self._at == 0:
            self._begun += 1
            assert self._begun <= 3, "an epoch was read again"
            self._order = torch.randperm(7).tolist()
        while self._at < len(self._order):
            self._at += 1
            yield self._order[self._at - 1]
        self._at = 0

    def state_dict(self):
        return {"order": self._order, "at": self._at, "begun": self._begun}

    def load_state_dict(self, state):
        self._order, self._at, self._begun = state["order"], state["at"], state["begun"]


def generator():
    return torch.Generator().manual_seed(3)


def distributed():
    data = Plain()
    return DataLoader(data, 2, sampler=DistributedSampler(data, 2, 1, shuffle=True))


LOADERS = {
    "list": lambda: [1, 2, 3, 4, 5],
    "in order": lambda: DataLoader(Plain(), 4),
    "shuffled": lambda: DataLoader(Plain(), 4, shuffle=True),
    "with its generator": lambda: DataLoader(Plain(), 4, shuffle=True, generator=generator()),
    "sampler's generator": lambda: DataLoader(
        Plain(), 4, sampler=RandomSampler(Plain(), generator=generator())
    ),
    "with replacement": lambda: DataLoader(Plain(), 4, sampler=RandomSampler(Plain(), True, 50)),
    "weighted": lambda: DataLoader(
        Plain(), 4, sampler=WeightedRandomSampler([1.0] * 23, 23, generator=generator())
    ),
    "batch sampler": lambda: DataLoader(
        Plain(), batch_sampler=BatchSampler(RandomSampler(Plain(), generator=generator()), 4, True)
    ),
    "augmented": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "augmented by its own": lambda: DataLoader(OwnNoise(), 4, shuffle=True),
    "augmented by parts of parts": lambda: DataLoader(
        Subset(ConcatDataset([Transformed(), OwnNoise()]), range(9, 40)), 8
    ),
    "stream": lambda: DataLoader(Stream(), 4),
    "distributed": distributed,
    "telling": Telling,
}


def shown(batch):
    return (
        [part.tolist() for part in batch]
        if isinstance(batch, list | tuple)
        else torch.as_tensor(batch).tolist()
    )


def begin(name) -> Batches:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return Batches(LOADERS[name]())


def read(batches: Batches, epochs: int, stop: tuple[int, int] | None = None) -> Iterable:
    """Yield each batch and a number of dropout's, until so many batches of an epoch were taken."""
    while batches.epoch < epochs:
        if (batches.epoch, batches.taken) == stop:
            return
        for batch in batches:
            yield shown(batch), torch.rand(3).tolist()
            if (batches.epoch, batches.taken) == stop:
                return
        batches.end_epoch()


@pytest.mark.parametrize("place", [(0, 1), (1, 0), (1, 3), (2, 2)])
@pytest.mark.parametrize("name", LOADERS)
def test_the_same_batches(tmp_path, name, place):
    whole = list(read(begin(name), 3))
    batches = begin(name)
    first = list(read(batches, 3, place))
    state = {"batches": batches.state_dict(), "random": random_states.capture()}
    path = save_checkpoint(tmp_path / "a.pt", state)

    resumed = begin(name)
    torch.rand(5)  # what a script draws before it resumes
    state = load_checkpoint(path)
    resumed.load_state_dict(state["batches"])
    random_states.restore(state["random"])
    assert (resumed.epoch, resumed.taken) == place
    rest = list(read(resumed, 3))
    assert first + rest == whole
    assert len(rest) > 0


def test_the_epochs_differ_when_shuffled():
    """Otherwise the test above could not tell one epoch from another."""
    for name in set(LOADERS) - {"list", "in order"}:
        batches = begin(name)
        first, second = ([shown(batch) for batch in batches] for _ in range(2))
        assert first != second, name


def test_broken_off_twice(tmp_path):
    whole = list(read(begin("augmented"), 2))
    batches, seen = begin("augmented"), []
    for place in ((0, 2), (0, 4), (1, 1), (1, 1), None):
        seen += read(batches, 2, place)
        state = {"batches": batches.state_dict(), "random": random_states.capture()}
        state = load_checkpoint(save_checkpoint(tmp_path / "a.pt", state))
        batches = begin("augmented")
        batches.load_state_dict(state["batches"])
        random_states.restore(state["random"])
    assert seen == whole


def test_saved_again_before_it_was_read():
    batches = begin("shuffled")
    list(read(batches, 2, (1, 2)))
    state = batches.state_dict()
    again = begin("shuffled")
    again.load_state_dict(state)
    other = begin("shuffled")
    other.load_state_dict(again.state_dict())
    assert [shown(batch) for batch in other] == [shown(batch) for batch in batches]


def test_saved_when_all_is_read_and_the_epoch_is_not_over():
    """The dev set is still to be read: going on gives no batch, and the epoch is the same."""
    batches = begin("shuffled")
    assert len(list(batches)) == 6
    again = begin("shuffled")
    again.load_state_dict(batches.state_dict())
    assert (list(again), again.epoch, again.taken) == ([], 0, 6)
    again.end_epoch()
    assert (len(list(again)), again.epoch) == (6, 1)


def test_an_epoch_that_was_left_goes_on():
    batches = begin("in order")
    for _ in zip(range(2), batches, strict=False):
        pass
    assert batches.taken == 2
    assert [shown(batch)[0] for batch in batches] == [8, 12, 16, 20]


def test_batches_that_were_read_ahead_come_again():
    batches = begin("augmented")
    reading = iter(batches)
    all_of_them = [shown(next(reading)) for _ in range(4)]
    again = begin("augmented")
    again.load_state_dict(batches.state_dict(taken=2))
    torch.manual_seed(0)
    assert shown(next(iter(again)))[0] == all_of_them[2][0]
    assert again.taken == 3


def test_a_loader_that_has_read_ahead_is_not_asked_for_its_place():
    batches = begin("telling")
    reading = iter(batches)
    next(reading), next(reading)
    assert batches.state_dict()["loader"]["at"] == 2
    assert batches.state_dict(taken=1)["loader"] is None


def test_workers_read_the_same(tmp_path):
    """They get their seeds from the state at the epoch's start."""
    make = lambda: Batches(DataLoader(Noisy(), 6, shuffle=True, num_workers=1))  # noqa: E731
    torch.manual_seed(0)
    batches = make()
    reading = iter(batches)
    next(reading)
    state = {"batches": batches.state_dict(), "random": random_states.capture()}
    rest = [shown(batch)[:2] for batch in reading]
    resumed = make()
    torch.manual_seed(99)
    resumed.load_state_dict(state["batches"])
    random_states.restore(state["random"])
    assert [shown(batch)[:2] for batch in resumed] == rest


@pytest.mark.parametrize("size", [3, 8])
def test_other_batches_in_mid_epoch(size):
    batches = begin("in order")
    list(read(batches, 1, (0, 2)))
    with pytest.raises(
        CheckpointError, match="in the middle of an epoch of 6 batches, and this loader has"
    ) as caught:
        Batches(DataLoader(Plain(), size)).load_state_dict(batches.state_dict())
    assert caught.value.kind == "mismatch"
    list(read(batches, 1))
    Batches(DataLoader(Plain(), size)).load_state_dict(batches.state_dict())  # at an epoch's end all is well


def test_a_stream_that_has_become_short():
    batches = Batches(iter_only := DataLoader(Stream(), 4))
    list(read(batches, 1, (0, 5)))
    state = batches.state_dict()
    assert state["length"] is None
    short = Batches(DataLoader(Stream(), 10))
    short.load_state_dict(state)
    with pytest.raises(CheckpointError, match="saved after 5 batches of an epoch, and this loader has 3"):
        list(short)
    assert iter_only is batches.loader


def test_the_generators_of_a_loader():
    loader = LOADERS["augmented by its own"]()
    before = own_states(loader)
    assert set(before) == {"loader.dataset.torch", "loader.dataset.numpy", "loader.dataset.python"}
    first = [shown(batch)[1:] for batch in loader]
    put_back(loader, before)
    assert [shown(batch)[1:] for batch in loader] == first
    assert own_states([1, 2]) == {}


def test_generators_in_parts_of_parts():
    loader = LOADERS["augmented by parts of parts"]()
    first, second = "loader.dataset.dataset.datasets[0]", "loader.dataset.dataset.datasets[1]"
    assert set(own_states(loader)) == {
        f"{first}.transforms[0].state",
        f"{first}.transforms[0].other['generators'][0]",
        *(f"{second}.{name}" for name in ("torch", "numpy", "python")),
    }


def test_a_search_that_goes_in_circles_or_through_many_samples():
    data = Plain()
    data.itself, data.samples = data, [random.Random(index) for index in range(1000)]
    assert own_states(DataLoader(data)) == {}


# The global generators


def draw():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random(), random.gauss(0, 1)]


def test_global_states_come_back(tmp_path):
    random.gauss(0, 1)  # keeps a second number for later
    np.random.standard_normal(1)
    path = save_checkpoint(tmp_path / "a.pt", random_states.capture())
    first = draw()
    draw()
    random_states.restore(load_checkpoint(path))
    assert draw() == first


def test_states_of_gpus_that_are_not_here():
    states = random_states.capture() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 9}
    with pytest.warns(UserWarning, match=r"random states of 9 GPU\(s\) were saved, and \d are here"):
        random_states.restore(states)
