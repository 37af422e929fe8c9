"""What a report on an overflow says, as text, in a notebook, with Rich, as JSON; and when its parts are unusual."""

import copy
import dataclasses
import gc
import io
import json
import pickle
import re
import weakref
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.records import Source
from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying.causes.words import names_in_words, power
from amp_lab.watching.replaying.ids import CAUSES
from amp_lab.watching.replaying.records import Range, Replay
from amp_lab.watching.replaying.told import range_in_words, replay_in_words


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.ff = nn.Linear(4, 3)

    def forward(self, x):
        return self.ff(x) * 1


LINE = Model.forward.__code__.co_firstlineno + 1


@pytest.fixture(scope="module")
def overflow():
    """A layer with weights of 256 and inputs of 80: 4 * 256 * 80 = 81,920."""
    model = Model()
    nn.init.constant_(model.ff.weight, 256.0)
    nn.init.zeros_(model.ff.bias)
    batch = torch.full((8, 4), 80.0), torch.zeros(8, dtype=torch.long)
    return find_overflow(model, F.cross_entropy, batch, device_type="cuda")


@pytest.fixture(scope="module")
def healthy():
    batch = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    return find_overflow(Model(), F.cross_entropy, batch, device_type="cuda")


@pytest.fixture(scope="module")
def scale():
    batch = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    return find_overflow(Model(), lambda o, y: F.cross_entropy(o, y) * 50, batch, device_type="cuda")


def plain(text):
    return " ".join(text.split())


class Balanced(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_text(report):
    parser = Balanced()
    parser.feed(report._repr_html_())
    assert not parser.open
    return plain(" ".join(parser.words))


def rich_text(report):
    out = io.StringIO()
    Console(file=out, width=100).print(report)
    return plain(out.getvalue())


def test_the_sentence_has_the_numbers(overflow):
    sentence = overflow.sentence
    assert re.match(
        rf"In the forward pass, linear in ff \(.*test_overflow_report\.py:{LINE}\) gave 81,920, ", sentence
    )
    assert "FP16 ends at 65,504; what went in was no larger than 256. No loss scale changes" in sentence
    assert (overflow.limit, overflow.true_size, overflow.scale) == (65504.0, 81920.0, None)


def test_every_form_tells_the_same(overflow):
    for shown in (str(overflow), repr(overflow), page_text(overflow), rich_text(overflow)):
        text = plain(shown)
        assert "forward-overflow" in text
        assert CAUSES["forward-overflow"] in text
        assert "gave 81,920, and FP16 ends at 65,504" in text
        assert "ff.weight: (3, 4) FP32, 256 to 256" in text
        assert "infinity in 24 of 24" in text
        assert "no loss scale makes this batch finite" in text
        assert "FP32: loss" in text
        assert "Compute this part in FP32" in text
    assert max(len(line) for line in str(overflow).splitlines()) <= 100


def test_a_scale_that_cures_is_told(scale):
    assert f"the batch is finite from {power(scale.scale)} down" in plain(str(scale))
    assert f"init_scale={scale.scale:g}" in scale.advice
    assert "scale 2^16: loss" in str(scale)


def test_a_healthy_batch_is_told_in_few_words(healthy):
    text = str(healthy)
    assert text.startswith("none: nothing overflows")
    assert len(text.splitlines()) < 8
    assert "scale  " not in text
    assert "65,536" in healthy.sentence
    assert "nothing overflows" in page_text(healthy)


def test_json(overflow, healthy):
    told = json.loads(overflow.to_json())
    assert (told["cause"], told["phase"], told["op"], told["module"], told["ok"]) == (
        "forward-overflow",
        "forward",
        "linear",
        "ff",
        False,
    )
    assert told["first"]["truth"]["largest"] == 81920.0
    assert told["first"]["inputs"][1]["name"] == "ff.weight"
    assert told["replays"][0] == {
        "scale": 65536.0,
        "fp32": False,
        "loss": "NaN",
        "finite": False,
        "bad": ["ff.weight", "ff.bias"],
        "parameters": 2,
    }
    assert told["source"]["line"] == LINE
    told = json.loads(healthy.to_json(indent=None))
    assert (told["ok"], told["first"], told["scale"], told["cures"]) == (True, None, 65536.0, False)


def test_infinity_is_a_word_in_json(overflow):
    changed = dataclasses.replace(overflow, true_size=float("inf"))
    assert json.loads(changed.to_json())["true_size"] == "infinite"


def test_somebody_elses_text_is_escaped(overflow):
    where = Source("<b>.py", 3, "f", "x = '<script>\x1b[31m'")
    changed = dataclasses.replace(overflow, source=where, sentence="a <b> c", notes=("<i>\x1b</i>",))
    page = changed._repr_html_()
    assert "<script>" not in page
    assert "<i>" not in page
    assert "a &lt;b&gt; c" in page
    assert "\x1b" not in page + str(changed)


def test_many_others_are_counted(overflow):
    changed = dataclasses.replace(overflow, others=(overflow.first,) * 7)
    assert "3 more" in str(changed)
    assert str(changed).count("linear in ff") == 1 + 4


def test_a_frozen_report(overflow):
    with pytest.raises(dataclasses.FrozenInstanceError):
        overflow.cause = "none"


def test_a_report_keeps_neither_model_nor_batch():
    model, batch = Model(), (torch.full((8, 4), 7e4), torch.zeros(8, dtype=torch.long))
    report = find_overflow(model, F.cross_entropy, batch, device_type="cuda")
    kept = [weakref.ref(each) for each in (model, *model.modules(), *model.parameters(), *batch)]
    del model, batch
    gc.collect()
    assert report.first is not None
    assert [each() for each in kept if each() is not None] == []


def test_a_report_is_copied_and_pickled(overflow):
    for twin in (pickle.loads(pickle.dumps(overflow)), copy.deepcopy(overflow)):
        assert twin.to_json() == overflow.to_json()
        assert str(twin) == str(overflow)


def test_names_of_the_model_are_escaped():
    model = Model()
    model.add_module("<b>&", model.ff)
    del model.ff
    model.ff = lambda x: model._modules["<b>&"](x)
    nn.init.constant_(model._modules["<b>&"].weight, 1e4)
    report = find_overflow(
        model, F.cross_entropy, (torch.full((8, 4), 80.0), torch.zeros(8).long()), device_type="cuda"
    )
    assert report.module == "<b>&"
    assert "<b>&" not in report._repr_html_()
    assert "linear in &lt;b&gt;&amp;" in report._repr_html_()


@pytest.mark.parametrize(
    ("scale", "words"), [(2.0**16, "2^16"), (1.0, "1"), (256.0, "256"), (2.0**-8, "2^-8"), (3.0, "3")]
)
def test_powers(scale, words):
    assert power(scale) == words


@pytest.mark.parametrize(
    ("names", "words"),
    [(["a"], "a"), (["a", "b"], "a and b"), (list("abcd"), "a, b, c and 1 more")],
)
def test_names(names, words):
    assert names_in_words(names) == words


def test_ranges():
    def written(**changes):
        base = Range((4,), torch.float16, -1.0, 260.0, 0, 0, 0, 1, 4)
        return range_in_words(dataclasses.replace(base, **changes))

    assert written() == "(4,) FP16, -1 to 260"
    assert written(positive=1, nan=1, name="w") == "w: (4,) FP16, -1 to 260, infinity and NaN in 2 of 4"
    assert written(nan=4) == "(4,) FP16, no finite number, NaN in 4 of 4"
    assert written(of=0, shape=(0,)) == "(0,) FP16, no numbers"


def test_replays():
    assert replay_in_words(Replay(256.0, 0.5, (), 2)) == "scale 256: loss 0.5, gradients finite"
    assert replay_in_words(Replay(1.0, 0.5, ("a",), 1)) == (
        "scale 1: loss 0.5, gradients of 1 of 1 parameter not finite"
    )
    assert replay_in_words(Replay(1.0, float("nan"), (), 0, True)) == "FP32: loss NaN, no gradients"
