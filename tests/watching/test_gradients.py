"""The report: where it finds gradients, which scale it recommends and why, what it says in a table, what it refuses."""

import io
import math
import re
import subprocess
import sys
import weakref
from fractions import Fraction
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn

from amp_lab.watching.counting import bits
from amp_lab.watching.gradients import gradient_report

REPOSITORY = Path(__file__).parents[2]
FP16_LARGEST = 65504


def plain(text):
    """Return a text in one line, with plain spaces."""
    return " ".join(text.split())


def trained():
    """Return a model after backward, with a frozen parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[2].bias.requires_grad_(False)
    model(torch.randn(8, 4)).square().mean().backward()
    return model


NAMES = ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize(
    ("take", "names", "without"),
    [
        (lambda m: m, NAMES, ("2.bias",)),
        (lambda m: m.named_parameters(), NAMES, ("2.bias",)),
        (lambda m: dict(m.named_parameters()), NAMES, ("2.bias",)),
        (lambda m: {name: p.grad for name, p in m.named_parameters()}, NAMES, ("2.bias",)),
        (lambda m: torch.optim.SGD(m.named_parameters(), lr=1), NAMES, ("2.bias",)),
        (
            lambda m: torch.optim.SGD(m.parameters(), lr=1),
            [f"group 0[{i}]" for i in range(3)],
            ("group 0[3]",),
        ),
        (lambda m: m.parameters(), ["[0]", "[1]", "[2]"], ("[3]",)),
        (lambda m: [p.grad for p in m.parameters()], ["[0]", "[1]", "[2]"], ("[3]",)),
    ],
    ids="model named dict grads optimizer unnamed parameters list".split(),
)
def test_what_gradients_come_in(take, names, without):
    model = trained()
    report = gradient_report(take(model))
    assert list(report.parameters) == names
    assert report.without_gradient == without
    every = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert report.counts == gradient_report(every).counts
    assert report.total.largest == every.abs().max().item()


def test_gradients_that_require_gradients_are_taken_themselves():
    x = torch.tensor([3.0], requires_grad=True)
    grads = torch.autograd.grad(x**3, x, create_graph=True)
    assert grads[0].requires_grad
    assert gradient_report(grads).total.largest == gradient_report(grads[0]).total.largest == 27.0


def test_a_generator_is_read_one_gradient_at_a_time():
    alive = weakref.WeakSet()

    def make():
        for number in range(20):
            gradient = torch.full((10,), float(number))
            alive.add(gradient)
            most.append(len(alive))
            yield gradient
            del gradient

    most = []
    assert gradient_report(make()).total.entries == 200
    assert max(most) <= 2


def test_the_sum_of_the_parameters_is_the_total():
    report = gradient_report(
        {"a": torch.tensor([1e-9, 0.0, math.inf]), "b": torch.tensor([1.0, math.nan, 1e30])}
    )
    assert (report.total.entries, report.total.zeros, report.total.infinite, report.total.nan) == (6, 1, 1, 1)
    for scale in (2.0**-30, 1.0, 2.0**30):
        parts = [each.at(scale) for each in report.parameters.values()]
        for fate in ("zero", "subnormal", "normal", "overflow", "below_smallest", "nonzero"):
            assert getattr(report.at(scale), fate) == sum(getattr(part, fate) for part in parts)


def test_the_two_shares_and_their_denominator():
    """Up to 2^-25 is zero; under 2^-24 is what the paper speaks of. Zeros that are there already count for neither."""
    fates = gradient_report(torch.tensor([0.0] * 96 + [2.0**-25, 1.5 * 2.0**-25, 2.0**-24, 1.0])).at(1.0)
    assert (fates.nonzero, fates.share("zero"), fates.share("below_smallest")) == (4, 0.25, 0.5)
    assert (fates.share("subnormal"), fates.share("normal"), fates.share("overflow")) == (0.5, 0.25, 0.0)
    assert gradient_report(torch.zeros(3)).at(1.0).share("zero") == 0.0
    with pytest.raises(ValueError, match=re.escape("fate='lost': it is one of 'zero', 'subnormal'")):
        fates.share("lost")


def test_the_scale_of_the_report_is_what_it_shows():
    report = gradient_report(torch.tensor([2.0**-26, 1.0]), scale=4)
    assert (report.scale, report.at().zero, report.at(1).zero) == (4.0, 0, 1)
    assert "at scale 2^2 = 4" in repr(report)
    assert "at scale 1," in report.table(scale=1)
    assert gradient_report(torch.ones(1), scale=torch.tensor(8.0)).scale == 8.0


def test_it_does_not_change_with_the_gradients():
    gradient = torch.ones(5)
    report = gradient_report(gradient)
    gradient.zero_()
    assert report.total.zeros == 0


@pytest.mark.parametrize("headroom", [1, 1.5, 4.0, 1000])
def test_the_largest_power_of_two_that_fits(headroom):
    dice = torch.Generator().manual_seed(0)
    edge = FP16_LARGEST / headroom
    sizes = [
        *(torch.randn(40, generator=dice) * 15).exp2().tolist(),
        edge,
        edge / 2**9,
        edge * 2**7,
        2.0**-10,
    ]
    sizes += [math.nextafter(edge, 0), math.nextafter(edge, 1e9)]
    for size in sizes:
        gradient = torch.tensor([size, -size / 3], dtype=torch.float64)
        scale, reason = gradient_report(gradient).recommend(headroom)
        fits = [
            k
            for k in range(-24, 127)
            if Fraction(headroom) * Fraction(size) * Fraction(2) ** k <= FP16_LARGEST
        ]
        assert scale == 2.0 ** max(fits)
        that = "that" if headroom == 1 else f"{headroom:g} times that"
        assert f", and {that} is at most FP16's largest number, 65,504." in reason


@pytest.mark.parametrize(
    ("values", "scale", "reason"),
    [
        ([0.0, -0.0], 2.0**16, "all gradients are exactly zero"),
        ([], 2.0**16, "because there are no gradients, only empty tensors, so that any scale would do"),
        ([1.0, math.inf], None, "1 of 2 gradients are infinite or NaN as they are, which no scale mends"),
        ([1.0, math.nan, -math.inf], None, "2 of 3 gradients are infinite or NaN"),
        (
            [2.0**-133],
            2.0**126,
            "A larger one would fit, too. But with 2^127 a loss of 2 is infinite in FP32.",
        ),
        (
            [1e11],
            2.0**-23,
            "because the largest gradient, 1e+11, times this scale is about 11,921, and 4 times",
        ),
        (
            [3e38, 1.0, 1e-3],
            None,
            "Recommended scale: none, because 4 times the largest gradient, 3e+38, would fit into FP16 only at a scale "
            "under 2^-24, with which a loss of 1 is zero in FP16.",
        ),
        ([FP16_LARGEST * 2.0**22], 2.0**-24, "is at most FP16's largest number, 65,504."),
        ([FP16_LARGEST * 2.0**22 + 2.0**15], None, "would fit into FP16 only at a scale under 2^-24"),
        (
            [2047.0],
            8.0,
            "the largest gradient, 2,047, times this scale is about 16,376, and 4 times that is at most",
        ),
        (
            [2.0**-40, 1.0],
            2.0**13,
            "No scale fits both ends: 2^16 = 65,536 would save the smallest, and 50.0 % would overflow.",
        ),
        ([2.0**-38, 1.0], 2.0**13, "2^14 = 16,384 would save all of this step, with less room"),
        (
            [2.0**-30, 1.0],
            2.0**13,
            "At this scale none of the nonzero gradients becomes zero (without one, 50.0 %).",
        ),
        ([2.0**-20, 1.0], 2.0**13, "At this scale none of the nonzero gradients becomes zero."),
        (
            [2.0**-24, 1e6],
            2.0**-6,
            "At this scale 50.0 % of the nonzero gradients become zero (without one, 0 %).",
        ),
        ([2.0**-20, 10_000.0], 1.0, "Without a scale none of the nonzero gradients becomes zero."),
        ([2.0**-149, 1.0], 2.0**13, "No scale fits both ends: 2^125 would save the smallest, and 50.0 %"),
    ],
)
def test_recommendations_and_their_reasons(values, scale, reason):
    report = gradient_report(torch.tensor(values))
    assert (report.recommended_scale, report.recommend().scale) == (scale, scale)
    assert reason.rpartition("because ")[2] in plain(report.recommend().reason)
    assert reason in plain(repr(report))


def test_no_scale_reaches_what_fp64_alone_holds():
    lost = gradient_report(torch.tensor([1e-300, 0.0], dtype=torch.float64))
    assert lost.recommend() == (
        None,
        "FP16 makes every gradient zero even at 2^126. But with 2^127 a loss of 2 is infinite in FP32.",
    )
    some = gradient_report(torch.tensor([2.0**-150, 2.0**-151], dtype=torch.float64)).recommend()
    assert some.scale == 2.0**126
    assert some.reason.endswith("No scale up to 2^126 saves them all."), (
        "2^127, which would, is none for a loss"
    )


def test_no_larger_scale_is_spoken_of_where_none_fits():
    just = gradient_report(torch.tensor([2.0**-113])).recommend()
    assert just.scale == 2.0**126
    assert "A larger one" not in just.reason


def test_too_much_headroom():
    report = gradient_report(torch.tensor([1.0, 1e-3]))
    assert report.recommend(1e30).scale is None
    assert report.recommend(1e30).reason.startswith("1e+30 times the largest gradient, 1, would fit")
    tiny = gradient_report(torch.tensor([2.0**-26])).recommend(2.0**45)
    assert tiny.scale is None
    assert "with a headroom of 3.51844e+13 no scale above 2^-4 fits" in tiny.reason


BF16_UP = "BF16 reaches as far up as FP32"


@pytest.mark.parametrize(
    ("values", "scale", "reason"),
    [
        (
            [2.0**-100, 1e30],
            1.0,
            f"{BF16_UP}. Without a scale none of the nonzero gradients becomes zero.",
        ),
        ([3.3e38], 0.25, "the largest gradient, 3.3e+38, times this scale is about 8.25e+37, and 4 times"),
        # BF16's smallest number is 2^-133, and what is larger than half of it is rounded up to it.
        (
            [2.0**-140, 1.0],
            2.0**7,
            f"{BF16_UP}, but down only to 9.18e-41: this is the smallest scale that saves",
        ),
        (
            [2.0**-140, 1.0],
            2.0**7,
            "At this scale none of the nonzero gradients becomes zero (without one, 50.0 %).",
        ),
        ([1e-50], 2.0**33, "(without one, 100 %)."),
        (
            [1e-300, 1.0],
            1.0,
            "Without a scale 50.0 % of the nonzero gradients become zero. No scale up to 2^126",
        ),
        (
            [1e-300, 1e-45, 1.0],
            2.0**16,
            "At this scale 33.3 % of the nonzero gradients become zero (without one, 66.7",
        ),
        (
            [2.0**-140, 5e37],
            1.0,
            "No scale fits both ends: 2^7 = 128 would save the smallest, and 50.0 % would",
        ),
        ([1e-300], None, "BF16 makes every gradient zero even at 2^126."),
    ],
)
def test_bf16_needs_a_scale_only_for_what_is_at_the_ends(values, scale, reason):
    report = gradient_report(torch.tensor(values, dtype=torch.float64), dtype=torch.bfloat16)
    assert report.recommended_scale == scale
    assert reason in plain(report.recommend().reason)


@pytest.mark.parametrize(
    ("headroom", "error"),
    [
        (0.5, ValueError),
        (math.inf, ValueError),
        (math.nan, ValueError),
        (10**400, ValueError),
        (-(10**400), ValueError),
        ("4", TypeError),
        (b"4", TypeError),
        (True, TypeError),
        (np.True_, TypeError),
        (torch.tensor([4.0, 4.0]), TypeError),
    ],
)
def test_headroom_is_a_factor(headroom, error):
    with pytest.raises(error, match=r"headroom=.* headroom is (a|the) factor"):
        gradient_report(torch.ones(1)).recommend(headroom)


@pytest.mark.parametrize(
    "kind", [np.float32, np.int64, torch.tensor, Fraction], ids=lambda kind: kind.__name__
)
def test_factors_may_be_numbers_of_all_kinds(kind):
    report = gradient_report(torch.ones(1), scale=kind(8))
    assert (report.scale, report.at(kind(2)).scale) == (8.0, 2.0)
    assert report.recommend(kind(16)).scale == 2.0**11


def table(report, **options):
    """Return the rows of the text table as lists of cells."""
    text = report.table(**options).replace("\N{NO-BREAK SPACE}", " ").split("\n\n")[1]
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_the_table():
    report = gradient_report(
        {
            "small": torch.tensor([0.0, 2.0**-30, 2.0**-20, 3.0]),
            "large": torch.tensor([70000.0, 1.0]),
            "nothing": torch.zeros(10),
        }
    )
    assert table(report) == [
        "parameter,gradients,exactly 0,largest,become 0,subnormal,overflow".split(","),
        ["all", "16", "68.8 %", "70,000", "20.0 %", "20.0 %", "20.0 %"],
        ["small", "4", "25.0 %", "3", "33.3 %", "33.3 %", "0 %"],
        ["large", "2", "0 %", "70,000", "0 %", "0 %", "50.0 %"],
        ["nothing", "10", "100 %", "–", "–", "–", "–"],
    ]
    assert "Smaller than FP16's smallest number, 5.96e-08: 20.0 %." in plain(str(report))
    lines = str(report).splitlines()
    assert len({len(line) for line in lines[2:6]}) == 1, "columns are aligned"
    assert max(map(len, lines)) <= 110, "a long sentence is wrapped"


def test_of_many_parameters_those_that_lose_most():
    many = {f"p{i}": torch.tensor([2.0**-30] * i + [1.0]) for i in range(30)}
    report = gradient_report(many)
    assert [row[0] for row in table(report, rows=3)] == ["parameter", "all", "p29", "p28", "p27"]
    assert [row[0] for row in table(report, rows=None)[2:]] == list(many)
    for rows, said in (
        (0, "30 parameters are not listed"),
        (3, "27 more parameters lose no more than any of these"),
        (28, "2 more parameters lose no more than any of these"),
        (29, "1 more parameter loses nothing"),
    ):
        assert f"{said}; table(rows=None) lists all." in report.table(rows=rows)
    for rows in (30, None):
        assert "lists all" not in report.table(rows=rows)
    assert "1 more parameter loses no more than" in gradient_report(
        {"a": torch.tensor([2.0**-30]), "b": torch.tensor([math.nan])}
    ).table(rows=1)
    assert "2 parameters lose nothing;" in gradient_report([torch.ones(1)] * 2).table(rows=0)


@pytest.mark.parametrize(
    ("rows", "error"), [(-1, ValueError), ("a", TypeError), (True, TypeError), (2.0, TypeError)]
)
def test_how_many_rows(rows, error):
    message = f"rows={rows!r}: it is how many parameters to list"
    with pytest.raises(error, match=re.escape(message)):
        gradient_report(torch.ones(1)).table(rows=rows)


def test_names_do_not_break_a_line():
    names = [
        "two\nlines",
        "red \x1b[31m",
        "層",
        "e\N{COMBINING ACUTE ACCENT}",
        "right\N{RIGHT-TO-LEFT OVERRIDE}",
    ]
    text = repr(gradient_report({name: torch.ones(1) for name in names} | {"no\tgrad": None}))
    lines = text.split("\n\n")[1].splitlines()
    shown = [line.split("  ")[0] for line in lines[2:]]
    assert shown == [r"two\nlines", r"red \x1b[31m", "層", names[3], r"right\u202e"]
    starts = {sum(map(terminal_columns, line[: line.rindex("  1  ")])) for line in lines[2:]}
    assert len(starts) == 1, "the numbers stand below each other"
    assert r"Without a gradient: no\tgrad." in text


def terminal_columns(character):
    return {"層": 2, "\N{COMBINING ACUTE ACCENT}": 0}.get(character, 1)


def test_no_line_ends_between_a_number_and_its_unit():
    report = gradient_report(torch.tensor([2.0**-40, 1.0]))
    assert " %" not in report.table()
    assert " %" not in report.recommend().reason
    assert report.recommend().reason.count("\N{NO-BREAK SPACE}%") == 3


def test_reports_are_equal_to_themselves_only():
    report, other = gradient_report(torch.ones(2)), gradient_report(torch.ones(2))
    assert report == report
    assert report != other
    assert other in [report, other]
    assert len({report, other, report.total, other.total}) == 4
    assert report.total != other.total
    assert report.at(1.0) == other.at(1.0), "counts are equal where they are"


def test_a_share_is_never_rounded_to_none_or_all():
    values = torch.ones(100_000)
    values[0] = 2.0**-30
    assert table(gradient_report(values))[1][4] == "<0.01 %"
    values = values * 2.0**-30
    values[1] = 1.0
    assert table(gradient_report(values))[1][4] == ">99.99 %"


def test_a_notebook_gets_a_table_with_names_escaped():
    html = gradient_report({"<b>": torch.ones(2), "c": None})._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<tr>") == 3
    assert "Without a gradient: c." in html
    assert html.count("overflow-wrap: anywhere") == 2, "a long name is broken, not the table"


def test_rich_gets_a_table():
    from rich.console import Console

    report = gradient_report({"[red]w": torch.tensor([2.0**-30, 1.0])})
    text = printed(report, Console(width=100, file=io.StringIO()))
    assert "[red]w" in text, "a name is no markup"
    assert "50.0 %" in text
    assert "…" not in printed(report, Console(width=60, file=io.StringIO()))


def printed(report, console):
    console.print(report)
    return console.file.getvalue().replace("\N{NO-BREAK SPACE}", " ")


def test_the_plot():
    figure = gradient_report(torch.tensor([2.0**-30, 1.0])).plot(scale=2.0**10, title="mine")
    assert figure.get_suptitle() == "mine"
    plt.close(figure)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (nn.Linear(2, 2), ValueError, "no parameter has a gradient: call loss.backward() first"),
        ([None, None], ValueError, "no parameter has a gradient"),
        (
            nn.Linear(2, 2).requires_grad_(False),
            ValueError,
            "a parameter with requires_grad=False never gets one",
        ),
        (
            iter([]),
            ValueError,
            "to report on (what a generator, such as named_parameters(), yields can be read only",
        ),
        (nn.ReLU(), ValueError, "there is no parameter and no gradient to report on"),
        ({}, ValueError, "there is no parameter and no gradient"),
        ("fc1.weight", TypeError, "a model, an optimizer, a mapping from names to gradients"),
        (1.0, TypeError, "this is a float: 1.0"),
        ([1.0], TypeError, "'[0]' is a float: 1.0"),
        ([["w", torch.ones(1)]], TypeError, "parameters or (name, gradient) tuples; '[0]' is a list"),
        (
            nn.Linear(2, 2).state_dict(),
            TypeError,
            "this is a state dict, which holds weights and no gradients",
        ),
        (torch.ones(2, requires_grad=True).sum(), TypeError, "the result of a computation, as a loss is"),
        ({"w": "x"}, TypeError, "'w' is a str: 'x'"),
        (
            {"w": torch.ones(2, dtype=torch.int64)},
            TypeError,
            "'w' is a tensor of torch.int64, and gradients are",
        ),
        (
            torch.ones(2, dtype=torch.complex64),
            TypeError,
            "torch.complex64, and gradients are floating-point: give its",
        ),
        (torch.ones(2, dtype=torch.bool), TypeError, "torch.bool"),
        (torch.ones(2, device="meta"), TypeError, "meta device, where tensors have no numbers"),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], ValueError, "two gradients are called 'a'"),
    ],
)
def test_what_holds_no_gradients(source, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gradient_report(source)


def test_a_generator_that_was_used():
    parameters = trained().parameters()
    gradient_report(parameters)
    with pytest.raises(ValueError, match="can be read only once"):
        gradient_report(parameters)
    with pytest.raises(ValueError, match=r"to report on$"):
        gradient_report([])


def test_a_gradient_that_looks_like_a_loss():
    x = torch.tensor(3.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(x**3, x, create_graph=True)
    with pytest.raises(TypeError, match=re.escape("if it is a gradient, detach() it")):
        gradient_report(gradient)
    assert gradient_report(gradient.detach()).total.largest == 27.0


def test_two_models_in_one_optimizer():
    groups = [{"params": trained().named_parameters()} for _ in range(2)]
    report = gradient_report(torch.optim.SGD(groups, lr=1))
    assert list(report.parameters) == [f"group {number}: {name}" for number in (0, 1) for name in NAMES]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_other_sparse_layouts_are_refused():
    with pytest.raises(TypeError, match="give dense gradients, or sparse ones in COO layout"):
        gradient_report(torch.eye(2).to_sparse_csr())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"dtype": torch.float32},
            ValueError,
            "dtype=torch.float32: what a gradient becomes can be said of torch.float16",
        ),
        ({"dtype": torch.int8}, ValueError, "dtype=torch.int8"),
        ({"dtype": "float16"}, TypeError, "dtype is the torch.dtype to look at, one of torch.float16"),
        (
            {"scale": 1000},
            ValueError,
            "scale=1000: a scale here is a power of two from 2**-149 to 2**127, such as 512 or 1024",
        ),
        ({"scale": 0}, ValueError, "scale=0: a scale here is a power of two"),
        ({"scale": -2.0}, ValueError, "scale=-2: "),
        ({"scale": math.inf}, ValueError, "scale=inf: "),
        ({"scale": 2.0**128}, ValueError, "scale=3.402823669209385e+38: too large, a scale here is a power"),
        ({"scale": 10**400}, ValueError, "scale=inf: too large"),
        ({"scale": 2.0**-150}, ValueError, "scale=7.006492321624085e-46: too small, a scale here is a power"),
        ({"scale": 1 + 2.0**-40}, ValueError, "scale=1.0000000000009095: a scale here is a power of two"),
        ({"scale": b"8"}, TypeError, "scale=b'8': a scale is a number"),
        ({"scale": np.True_}, TypeError, "True"),
        ({"scale": torch.tensor(True)}, TypeError, "scale=tensor(True): a scale is a number"),
        ({"scale": math.nan}, TypeError, "scale=nan: a scale is a number"),
        ({"scale": "2"}, TypeError, "scale='2': a scale is a number"),
        ({"scale": True}, TypeError, "scale=True"),
        ({"scale": None}, TypeError, "scale=None"),
    ],
)
def test_what_is_no_dtype_and_no_scale(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gradient_report(torch.ones(1), **options)
    if "scale" in options and options["scale"] is not None:
        with pytest.raises(error, match=re.escape(message)):
            gradient_report(torch.ones(1)).at(options["scale"])


def test_the_example_of_the_module():
    report = gradient_report({"weight": torch.tensor([0.0, 2.0**-26, 2.0**-20, 1.0])})
    assert (report.at(1.0).zero, report.at(2.0**10).zero) == (1, 0)


MEMORY = """
import torch
from amp_lab.watching.gradients import gradient_report
def kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
torch.set_num_threads(1)
base = torch.full((2000, 5000), 0.75)
base[::7, 3] = float("nan")
base[::5, 5] = 1e-42
orders = [base, base.t(), base[:, ::2], base.view(100, 100, 1000).permute(1, 2, 0), base.view(torch.float16),
          base.view(torch.float64)]
gradient_report([each[:2].flatten()[:50] for each in orders])
open("/proc/self/clear_refs", "w").write("5")  # forgets how large it once was
before = kib()
gradient_report(orders)
print((kib() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how large a process became")
def test_extra_memory_does_not_grow_with_the_gradients():
    """Of 10 million gradients, 40 MB, in six views with NaN and subnormal numbers; a copy of the smallest is 20 MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 8


def test_chunks_are_no_larger_than_what_pytorch_works_on_alone():
    """With more it calls in its other threads, which costs more than it saves when others use them, too."""
    assert bits.CHUNK["cpu"] <= 2**15
