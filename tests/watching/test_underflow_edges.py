"""Each threshold of the estimate from both sides; modules of zeros alone; and models of unusual kinds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.underflow import embeddings, module_names
from amp_lab.watching.rules.scale.underflow import _losing
from amp_lab.watching.underflow.judging import judge
from amp_lab.watching.underflow.pile import from_pile
from amp_lab.watching.underflow.sample import EDGE, NORMAL, take
from amp_lab.watching.underflow.shown import cure
from amp_lab.watching.underflow.table import Underflow
from amp_lab.watching.watch import watch


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def _numbers(zeros, ones, large=1000.0, entries=400):
    """Return that many zeros and numbers of 2^-24; the rest are `large` · 2^-24."""
    return torch.cat(
        [torch.zeros(zeros), torch.full((ones,), EDGE), torch.full((entries - zeros - ones,), large * EDGE)]
    )


def _sample(step, scale=None, **modules):
    return take(step, {name: [some] for name, some in modules.items()}, scale and Later(float, scale))


def _lost(*samples):
    return [(row.step, row.module) for row in judge(samples) if row.share_lost]


ZEROS = torch.zeros(100)
FAR = _numbers(0, 0, 1e6)  # far above the edge
NEAR = _numbers(200, 100, 4.0)  # at the edge


@pytest.mark.parametrize(("ones", "told"), [(7, False), (8, True)])
def test_a_pile_of_eight(ones, told):
    (counts,) = _sample(1, a=_numbers(100, ones)).read()
    assert (from_pile(counts) > 0) is told


@pytest.mark.parametrize(("largest", "all_of_them"), [(32, True), (33, False)])
def test_the_bulk_is_at_the_edge(largest, all_of_them):
    (counts,) = _sample(1, a=_numbers(300, 0, largest)).read()
    assert from_pile(counts) == (300 if all_of_them else 0)


@pytest.mark.parametrize(("zeros", "begins"), [(19, False), (20, True)])
def test_five_percent_are_worth_a_word(zeros, begins):
    table = Underflow([_sample(1, a=_numbers(zeros, 8, 16.0))])
    assert bool(table.began) is begins
    assert table.scale == (table.scale if begins else 1.0)


@pytest.mark.parametrize(("zeros", "continued"), [(39, False), (40, True)])
def test_zeros_go_on_from_a_neighbour_that_loses_a_tenth(zeros, continued):
    near = _numbers(zeros, 360 - zeros, 16.0)
    near[-1] = NORMAL  # not all of them are subnormal
    near = torch.where(near == 16 * EDGE, torch.tensor(EDGE), near)
    near[:zeros] = 0
    row = judge([_sample(1, first=ZEROS, next=near)])
    # The pile's estimate is limited by the zeros; here it is all of them.
    assert row[1].share_lost == pytest.approx(zeros / 400)
    assert (row[0].share_lost == 1) is continued
    assert row[0].untold is not continued


@pytest.mark.parametrize(("largest", "continued"), [(NORMAL, False), (NORMAL - EDGE, True)])
def test_zeros_go_on_from_a_neighbour_that_is_subnormal_alone(largest, continued):
    (first, _) = judge([_sample(1, first=ZEROS, next=_numbers(0, 0, largest / EDGE))])
    assert (first.share_lost == 1) is continued


@pytest.mark.parametrize(
    ("shares", "entries", "losing"),
    [
        ((0.25, 0.25), 32, 2),
        ((0.24, 0.25), 32, 0),
        ((0.25, 0.25), 31, 0),
        ((0.9,), 32, 1),
        ((0.9, 0.0), 32, 0),
    ],
)
def test_what_the_rule_takes_for_many(shares, entries, losing):
    rows = [
        SimpleNamespace(module="a", step=step, share_lost=share, entries=entries, overflowed=False)
        for step, share in enumerate(shares, 1)
    ]
    assert len(_losing(rows)) == losing


def test_only_zeros_from_the_first_sample_on_are_told_calmly():
    table = Underflow([_sample(step, 4.0, first=ZEROS, last=FAR) for step in (1, 2, 3)])
    assert not table.began
    assert table.untold == {"first": 1}
    said = table.summary()
    assert "`first` is exactly 0, from the first sample on" in said
    assert "not used" in said
    assert "2^18" in said  # 2^16 times the present one; there is room up to 2^21
    assert table.scale == 4.0
    line = next(line for line in str(table).splitlines() if line.startswith("first"))
    assert "?" in line
    assert table.to_json()["untold"] == {"first": 1}
    assert "all 0, cause unknown" in {text.get_text() for text in table.plot().legends[0].get_texts()}


def test_a_whole_model_of_zeros():
    table = Underflow([_sample(step, 2.0, a=ZEROS, b=ZEROS) for step in (1, 2)])
    assert table.scale_to_try == 2.0**17
    assert "Every gradient that was looked at is exactly 0" in table.summary()
    assert "2^17" in table.summary()


def test_zeros_that_a_later_scale_explains():
    """At 2^16 they have numbers of 4 units: at 1 they must have been zeros."""
    samples = [_sample(1, 1.0, a=ZEROS, b=FAR), _sample(2, 2.0**16, a=_numbers(0, 0, 4.0), b=FAR)]
    assert _lost(*samples) == [(1, "a")]
    assert not Underflow(samples).untold
    # With 2^20 units there they would have been 16 at a scale of 1: that explains nothing.
    samples[1] = _sample(2, 2.0**16, a=_numbers(0, 0, 2.0**20), b=FAR)
    assert _lost(*samples) == []
    assert Underflow(samples).untold == {"a": 1}


def test_zeros_that_the_sample_before_explains():
    before, after = _sample(1, a=NEAR, b=FAR), _sample(2, a=ZEROS, b=FAR)
    assert (2, "a") in _lost(before, after)
    assert _lost(_sample(1, a=FAR, b=FAR), after) == []


def test_a_frozen_part_that_thaws_accuses_nobody():
    table = Underflow([_sample(1, b=FAR), _sample(2, a=FAR, b=FAR)])
    assert not table.began
    assert not table.untold


def test_how_sure_the_cure_is():
    sure = Underflow([_sample(1, a=_numbers(30, 60), b=FAR)])
    assert sure.sure
    assert "keeps them" in cure(sure)
    unsure = Underflow([_sample(1, a=NEAR, b=FAR), _sample(2, a=ZEROS, b=FAR)])
    assert not unsure.sure
    assert "keeps them" not in cure(unsure)
    assert "nobody can see" in cure(unsure)
    assert "look again" in cure(unsure)


def test_a_scale_that_overflowed_is_not_advised():
    inf = torch.full((100,), math.inf)
    lost = [
        _sample(2, 1.0, a=ZEROS, b=_numbers(0, 0, 100.0)),
        _sample(3, 1.0, a=ZEROS, b=_numbers(0, 0, 100.0)),
    ]
    assert Underflow(lost).scale == 2.0**16
    table = Underflow([_sample(1, 2.0**14, a=inf, b=inf), *lost])
    assert table.scale == 2.0**13
    # An overflow at the present scale is a batch's, or a NaN's.
    assert Underflow([_sample(1, 1.0, a=inf, b=inf), *lost]).scale == 2.0**16


def test_words_that_are_not_in_the_batch_are_no_loss():
    """Also where the others are at the edge, and all zeros would be taken for lost."""
    rows = torch.zeros(100, 16)
    rows[:10] = _numbers(16, 64, 4.0, entries=160).view(16, 10).t()
    told = judge([take(1, {"words": [rows]}, None, {"words"})])[0]
    assert told.share_zero == pytest.approx(0.91)
    assert told.share_lost == pytest.approx(0.1)
    assert judge([take(1, {"words": [rows]}, None)])[0].share_lost == pytest.approx(0.91)
    many = torch.zeros(3000, 48)
    many[::7] = NORMAL
    (counts,) = take(1, {"words": [many]}, None, {"words"}).read()
    assert counts.unused == counts.zeros
    assert counts.entries - counts.zeros == pytest.approx(counts.entries / 7, rel=0.2)


def _train(net, inputs, optimizers, steps=4, size=1.0, change=None, parts=1, clip=True):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(net, optimizers, scaler) as seen:
        for step in range(1, steps + 1):
            for each in optimizers:
                each.zero_grad()
            for _ in range(parts):
                with torch.autocast("cpu", torch.float16):
                    loss = net(inputs).float().square().mean() * size / parts
                scaler.scale(loss).backward()
            for each in optimizers:
                scaler.unscale_(each)
                if clip:
                    nn.utils.clip_grad_norm_([p for g in each.param_groups for p in g["params"]], 1.0)
                scaler.step(each)
            scaler.update()
            if change is not None:
                change(step)
    return seen.underflow()


class _Words(nn.Module):
    def __init__(self, sparse=False, tied=False):
        super().__init__()
        self.words = nn.Embedding(200, 16, sparse=sparse)
        self.head = nn.Linear(16, 200 if tied else 4)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x).mean(1))


@pytest.mark.parametrize(("sparse", "tied"), [(False, False), (True, False), (False, True)])
def test_embeddings_dense_sparse_and_tied(sparse, tied):
    net = _Words(sparse, tied)
    table = _train(
        net, torch.randint(0, 50, (8, 4)), [torch.optim.SGD(net.parameters(), lr=0.01)], clip=not sparse
    )
    assert table.modules == ["words", "head"]
    words = table.at(1)[0]
    assert words.share_zero == 0 if sparse or tied else words.share_zero > 0.7
    assert not table.began
    assert not table.untold


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_embedding_gets_a_gradient_in_each_row(tied):
    """So that a row of zeros is no word that the batch does not have."""
    net = _Words(tied=tied)
    assert embeddings([net], module_names([net])) == (frozenset() if tied else {"words"})


def test_several_optimizers_accumulation_and_a_model_that_changes():
    net = nn.Sequential(nn.Linear(16, 16), nn.PReLU(16), nn.Linear(16, 4))
    net[0].requires_grad_(False)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (net[:2], net[2])]

    def change(step):
        if step == 1:
            net[0].requires_grad_(True)  # thaws
        if step == 2:
            net[2] = nn.Linear(16, 4)
            optimizers[1].add_param_group({"params": list(net[2].parameters())})

    table = _train(net, torch.randn(8, 16), optimizers, change=change, parts=2)
    assert [row.module for row in table.at(1)] == ["1", "2"]
    assert [row.module for row in table.at(3)] == ["0", "1", "2"]
    assert not table.began
    assert not table.untold


def test_a_thousand_modules_stay_readable():
    modules = {f"layers.{at}": [FAR if at % 100 else NEAR] for at in range(1200)}
    table = Underflow([take(step, modules, None) for step in (1, 2, 3)])
    assert len(table.modules) == 1200
    lines = str(table).splitlines()
    assert len(lines) < 40
    assert sum(line.startswith("layers.") for line in lines) == 20
    axes = table.plot().axes[0]
    labels = [each.get_text() for each in axes.get_yticklabels()]
    assert len(labels) == 40
    assert set(table.began) <= set(labels)
    assert "40 of 1,200" in axes.get_ylabel()


def test_a_dead_hinge_loss_is_a_question_and_no_verdict():
    net = nn.Linear(40, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(net, optimizer, scaler) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.relu(net(torch.randn(8, 40)).float() - 100.0).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = seen.report()
    assert report.ids == ("gradients-underflow",)
    assert "a loss that is 0" in str(report)
    assert "65,536" not in str(report.diagnoses[0].sentence)


@pytest.mark.parametrize(("modules", "steps"), [(128, [1, 2, 3, 32, 64]), (129, [1, 2, 3, 64])])
def test_a_model_of_many_modules_is_sampled_less_often(modules, steps):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(modules)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer) as seen:
        for _ in range(64):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
    assert seen.underflow().steps == steps
