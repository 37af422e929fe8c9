"""What a collective of the simulator takes, and what comes out of it, beside sums made by hand and by PyTorch."""

import math

import pytest
import torch

from amp_lab.train.ddp_simulator import Backward, Forward, Step, Update, simulate
from amp_lab.train.simulating.wire import DTYPES, Wire


def test_each_is_divided_before_all_are_added():
    """0.9 at a scale of 65,536 is 58,982 on each rank: a sum of two is beyond FP16's 65,504, and a mean is not."""
    loop = [Forward(), Backward(gradients=0.9), Step(), Update()]
    timeline = simulate(loop, 2, buckets=1, compress="fp16")
    assert timeline.skipped == ((False,),) * 2
    assert timeline.weights[0][0] == pytest.approx(-0.9, rel=2**-10)


@pytest.mark.parametrize("compress", DTYPES)
@pytest.mark.parametrize(
    "values", [[1.0, 2.0, 6.0], [2.0**-24, 0.0], [0.1, 0.2, 0.4], [65504.0] * 4, [1e38, 1e38]]
)
def test_the_mean_is_rounded_as_in_its_dtype(values, compress):
    sent = [torch.tensor(value).to(DTYPES[compress]) / len(values) for value in values]
    assert (
        Wire(compress=compress).average(values) == sum(sent, torch.zeros((), dtype=DTYPES[compress])).item()
    )


def test_infinities_cross_the_wire_with_their_sign():
    wire = Wire(compress="bf16")
    assert wire.average([1.0, -math.inf]) == -math.inf
    assert math.isnan(wire.average([math.inf, -math.inf]))


@pytest.mark.parametrize(("compress", "width"), [("none", 4), ("fp16", 2), ("bf16", 2)])
def test_bytes_of_a_bucket(compress, width):
    """Megabytes are written with a rounding error of their own; 0.57 · 10^6 and the like must not lose a byte."""
    for numbers in [1, 7, 142_500, *range(1_000_000, 1_000_400, 7)]:
        assert Wire(compress=compress).bytes(4 * numbers / 1e6) == width * numbers


def test_milliseconds_of_the_ring():
    wire = Wire(latency_ms=0.25, gb_per_s=2.0)
    assert wire.ms(10**6, 1) == 0  # alone: nothing is sent
    assert wire.ms(10**6, 2) == pytest.approx(0.25 + 0.5)
    assert wire.ms(3 * 10**6, 3) == pytest.approx(0.25 + 2.0)
    assert wire.ms(0, 8) == 0.25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latency_ms": -0.1}, "latency_ms=-0.1: give milliseconds, 0 or more"),
        ({"latency_ms": math.inf}, "latency_ms=inf"),
        ({"latency_ms": True}, "latency_ms=True"),
        ({"latency_ms": "1"}, "latency_ms='1'"),
        ({"gb_per_s": 0}, "gb_per_s=0: give a bandwidth above 0"),
        ({"compress": "FP16"}, "compress='FP16': give one of 'none', 'fp16', 'bf16'"),
    ],
)
def test_what_is_no_network(settings, message):
    with pytest.raises(ValueError, match=message):
        Wire(**settings)
    Wire(latency_ms=0, gb_per_s=1)
