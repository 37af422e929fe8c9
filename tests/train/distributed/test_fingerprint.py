"""A fingerprint tells other data from the same, whatever the data are, and leaves the random numbers alone."""

import random

import numpy as np
import torch
from PIL import Image

from amp_lab.train.distributed.fingerprint import fingerprint
from tests.train.small_runs import DATA, INPUTS


class Augmented:
    """Noise in each sample, and a part that is an object: other bits and another address in each process."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        noise = torch.rand(1), random.random(), np.random.rand()
        return (
            noise,
            np.arange(5000) + self.add * (index == 4),
            object(),
            Image.new("RGB", (2, 2), (index, 0, 0)),
        )

    add = 0


def test_a_fingerprint_is_that_of_the_data():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first, second = fingerprint(Augmented()), fingerprint(Augmented())
    assert before[0].equal(torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert first == second
    other = Augmented()
    other.add = 1
    assert fingerprint(other) != first
    drawing = torch.Generator().manual_seed(3)
    assert fingerprint([lambda: 0]).startswith("1 samples, checksum ")

    class Own(Augmented):
        def __getitem__(self, index):
            return torch.rand(1, generator=drawing)

    assert fingerprint(Own()) == fingerprint(Own()) == "5 samples, checksum of none, as they change"


def test_a_fingerprint_tells_data_apart():
    mine = fingerprint(DATA)
    assert mine.startswith("23 samples, checksum ")
    assert fingerprint(DATA) == mine
    assert fingerprint([(each,) for each in INPUTS]) != mine
    changed = [{"x": each.clone()} for each in INPUTS]
    before = fingerprint(changed)
    changed[22]["x"][5] += 1
    assert fingerprint(changed) != before
    assert fingerprint([]).startswith("0 samples")
    whole = torch.zeros(2, 3)
    kinds = [
        whole,
        whole.int(),
        whole.reshape(3, 2),
        whole.numpy(),
        whole.int().numpy(),
        [0.0] * 6,
        {"x": whole},
    ]
    assert len({fingerprint([each]) for each in kinds}) == len(kinds), "the same bits, and yet other data"


def test_what_was_drawn_before_does_not_count():
    """Each rank has other random numbers, and yet the same data, if it is drawn at random."""
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        found.add(fingerprint(Augmented()))
    assert len(found) == 1


def test_samples_from_all_parts_are_looked_at():
    many = torch.zeros(1000)
    same = fingerprint(many)
    many[984] = 1.0  # the last of 64 samples
    assert fingerprint(many) != same
