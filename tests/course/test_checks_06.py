"""What the checks of lesson 06 lean on, and what must not upset them.

They lean on CUDA's policy on CPU tensors, on what can be seen from above and below autocast, and on numbers in prose.
"""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from amp_lab.autocast import emulate
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import policy
from amp_lab.course import catalog
from amp_lab.course.judging.exercise import check_of, grade, judge
from amp_lab.course.judging.verdict import Raised, Stopped, Wrong
from amp_lab.course.lessons.l06 import drawing, losses, repairing, scenes, settings, telling
from amp_lab.course.lessons.l06.elsewhere import claimed
from amp_lab.course.lessons.l06.given import BrokenBlock
from tests.course.answers import l06

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parents[2] / "solutions" / "06_autocast.py"
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
LETTERS = list(telling.EXPRESSIONS)


@contextlib.contextmanager
def cuda_switch(dtype=HALF):
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


# 6.1: is the truth the truth?


def on_a_fake_gpu(expression):
    """Run an expression with PyTorch's own CUDA kernels of autocast, through fake tensors."""
    names = dict.fromkeys("xpt", SINGLE) | {"h": HALF, "d": torch.float64}
    with FakeTensorMode(), cuda_switch():
        made = {name: torch.empty(4, 4, dtype=dtype, device="cuda") for name, dtype in names.items()}
        made |= {name: torch.empty(4, device="cuda") for name in ("mean", "var", "weight", "bias")}
        try:
            return expression.compute(SimpleNamespace(**made)).dtype
        except RuntimeError as error:
            return telling.RAISES if "unsafe to autocast" in str(error) else error


# Not d: indexing needs CUDA's library. Not k: fake tensors do not check dtypes. Both below, in other ways.
@pytest.mark.parametrize("letter", [letter for letter in LETTERS if letter not in "dk"])
def test_pytorchs_own_kernels_for_cuda_say_the_same(letter):
    assert on_a_fake_gpu(telling.EXPRESSIONS[letter]) == telling.right_answer()[letter]


def test_pytorchs_own_kernel_of_dot_takes_the_widest():
    with FakeTensorMode(), cuda_switch():
        half, single = (torch.empty(4, dtype=dtype, device="cuda") for dtype in (HALF, SINGLE))
        assert torch.dot(half, single).dtype == SINGLE == telling.right_answer()["d"]


def test_plain_pytorch_refuses_the_in_place_product():
    with pytest.raises(RuntimeError, match="dtype"):
        telling.EXPRESSIONS["k"].compute(telling._tensors(lambda tensor: tensor))


@pytest.mark.parametrize("letter", LETTERS)
def test_the_policy_explains_each_fate(letter):
    fate, got = policy("cuda").fate(telling.EXPRESSIONS[letter].op), telling.right_answer()[letter]
    plain = telling.outcomes(contextlib.nullcontext)[letter]
    want = {
        Fate.LOWER: torch.float64 if letter == "b" else HALF,
        Fate.FP32: SINGLE,
        Fate.FP32_UNLESS: HALF if letter == "g" else SINGLE,
        Fate.WIDEST: SINGLE,
        Fate.REFUSED: telling.RAISES,
        Fate.FOLLOWS: plain,
    }
    assert got == want[fate]


def test_every_fate_is_among_the_twelve():
    fates = {policy("cuda").fate(each.op) for each in telling.EXPRESSIONS.values()}
    assert fates == {Fate.LOWER, Fate.FP32_UNLESS, Fate.WIDEST, Fate.REFUSED, Fate.FOLLOWS}


def test_a_cpus_answers_are_those_of_its_own_autocast():
    own = telling.outcomes(lambda: torch.autocast("cpu", HALF))
    with emulate.cuda_autocast():
        assert telling.outcomes_on_a_cpu() == own != telling.right_answer()


def test_the_page_shows_what_is_run():
    table = dict(re.findall(r"\*\*([a-l])\*\* \| `([^`]*)`", SOURCE.read_text(encoding="utf-8")))
    assert table == {letter: each.words for letter, each in telling.EXPRESSIONS.items()}


# What is seen


def test_calls_are_seen_above_autocast_and_products_below():
    x = torch.ones(2, 2)
    with scenes.watched(HALF, cuda=BRAIN) as seen:
        x @ x
        with torch.autocast("cpu", enabled=False):
            x.addmm_(x, x)
    assert [(call.name, call.dtypes, call.cpu, call.cuda) for call in seen.product_calls()] == [
        ("matmul", {SINGLE}, True, BRAIN),
        ("addmm_", {SINGLE}, False, BRAIN),
    ]
    assert [(each.op, set(each.dtypes), each.in_place) for each in seen.products] == [
        ("mm", {HALF}, False),
        ("addmm_", {SINGLE}, True),
    ]
    assert seen.dtypes() == {HALF, SINGLE}
    assert not torch.is_autocast_enabled("cuda")


def test_what_overflowed_is_seen_when_it_is_cast():
    with scenes.watched(None) as seen:
        torch.tensor([300.0]).half().square().float()
    assert [(call.name, call.infinite) for call in seen.calls] == [
        ("half", False),
        ("square", False),
        ("float", True),
    ]


@pytest.mark.parametrize("region", [HALF, BRAIN, None])
def test_regions_have_their_names(region):
    assert scenes.where(region) in (
        "in an FP16 region",
        "in a BF16 region",
        "outside of any region",
    )


# 6.2: the block is broken as the page says


def broken(x, region):
    torch.manual_seed(0)
    block = BrokenBlock(8)
    with torch.no_grad():
        block.bias.copy_(torch.randn(8))
    with emulate.cuda_autocast(), scenes.watched(region) as seen:
        return block, block(x), seen


def test_the_broken_block_is_right_in_fp32():
    x = torch.randn(3, 8) * 1000
    block, got, _ = broken(x, None)
    want = torch.relu(torch.nn.functional.rms_norm(x, (8,), eps=1e-6) @ block.weight + block.bias)
    torch.testing.assert_close(got, want)


def test_under_autocast_it_loses_rows_and_multiplies_in_fp32_without_an_error():
    x = torch.randn(3, 8).half()
    x[1] *= 1000
    block, got, seen = broken(x, HALF)
    assert [(each.op, set(each.dtypes)) for each in seen.products] == [("addmm_", {SINGLE})]
    assert got.isfinite().all()
    lost = [bool((row == torch.relu(block.bias)).all()) for row in got]
    assert lost == [False, True, False]


def test_square_and_pow_go_to_fp32_and_a_product_of_two_does_not():
    x = torch.full((2,), 300.0).half()
    with emulate.cuda_autocast(), torch.autocast("cpu", HALF):
        assert [each.dtype for each in (x * x, x.pow(2), x.square(), x**2)] == [HALF, SINGLE, SINGLE, SINGLE]


# 6.5: numbers in its sentences


def test_where_a_sigmoid_becomes_one():
    x = torch.linspace(0, 20, 20001, dtype=torch.float64)
    for dtype, at in ((HALF, 8.32), (SINGLE, 17.4)):
        first = x[(x.sigmoid().to(dtype) == 1).nonzero()[0]].item()
        assert at - 0.1 < first <= at
    below = [torch.nextafter(torch.ones(()).to(dtype), torch.zeros(()).to(dtype)) for dtype in (HALF, SINGLE)]
    assert [f"{below[0].item():.4f}", f"{below[1].item():.8f}"] == ["0.9995", "0.99999994"]


# Nothing is left behind, and what lies about upsets nothing


def state():
    return (
        emulate.cuda_autocast().on,
        emulate.tensor_cores().on,
        [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )


def raises(x):
    raise ValueError("no")


def never_ends(x):
    while True:
        x = x + 1


@pytest.mark.parametrize(
    "answer",
    [
        l06.opens_an_island,
        l06.leaves_autocast_off,
        l06.never_leaves_the_region,
        l06.casts_and_does_not_disable,
        raises,
    ],
)
def test_a_check_leaves_nothing_behind(answer):
    before = state()
    grade("6.3", answer)
    assert state() == before


def test_nor_does_one_that_is_stopped():
    before = state()
    exercise = catalog.exercise("6.3")
    assert type(judge(exercise, check_of("6.3"), never_ends, limit_s=0.2)) is Stopped
    assert state() == before


@pytest.mark.parametrize("bank", l06.BANKS, ids=lambda bank: bank.exercise_id)
def test_a_page_with_everything_switched_on_changes_no_verdict(bank):
    with emulate.cuda_autocast(), emulate.tensor_cores(), torch.autocast("cpu", HALF), cuda_switch(BRAIN):
        for answer in bank.right_answers.values():
            verdict = grade(bank.exercise_id, answer)
            assert verdict.passed, verdict.text
        for answer, diagnosis in [*bank.wrong_answers.values()][::3]:
            verdict = grade(bank.exercise_id, answer)
            assert type(verdict) is Wrong
            assert verdict.diagnosis == diagnosis, verdict.text


# Tensors that say they are elsewhere


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_tensors_claim_a_device_and_autocast_follows_it(kind):
    x = torch.ones(2, 2)
    with emulate.cuda_autocast(), claimed(kind, HALF):
        assert (x.device.type, x.is_cpu, x.is_cuda) == (kind, False, kind == "cuda")
        assert torch.zeros(2, device=x.device).requires_grad_().sum().device.type == kind
        found = [(x @ x).dtype]
        with torch.autocast("cpu", enabled=False):
            found.append((x @ x).dtype)
        with torch.autocast(kind, enabled=False):
            found.append((x @ x).dtype)
    assert found == [HALF, HALF, SINGLE]
    assert x.device.type == "cpu"
    assert not torch.is_autocast_enabled(kind)


def test_what_is_moved_to_the_cpu_is_computed_there():
    x = torch.ones(2, 2)
    with emulate.cuda_autocast(), claimed("cuda", HALF) as device:
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        moved = x.cpu()
        assert (moved @ moved).dtype == SINGLE
        assert device.left
        moved.to(x.device)
        assert not device.left


def test_an_error_of_the_answers_own_is_told_elsewhere_too():
    def refuses_gpus(x):
        if x.device.type != "cpu":
            raise ValueError("on a CPU only")
        return l06.opens_an_island(x)

    verdict = grade("6.3", refuses_gpus)
    assert type(verdict) is Raised
    assert "on a CPU only" in verdict.sentence
    assert '"cuda"' in verdict.sentence


# Settings


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: torch.set_autocast_enabled("cpu", False),
        lambda: torch.set_autocast_enabled("xpu", True),
        lambda: torch.set_autocast_dtype("cuda", torch.float32),
        lambda: torch.set_autocast_cache_enabled(False),
        torch.autocast_increment_nesting,
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    ],
)
def test_every_setting_is_compared_and_put_back(spoil):
    def answer(logits, targets):
        result = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), targets)
        spoil()
        return result

    before = settings.now()
    verdict = grade("6.5", answer)
    assert type(verdict) is Wrong
    assert verdict.diagnosis == "left-changed"
    assert settings.now() == before


# 6.2: rounding decides nothing


@pytest.mark.parametrize("case", drawing.CASES)
def test_relus_edge_is_far_away(case):
    found = drawing.right(case.x().detach(), drawing.parameters(), case.region)
    assert (found.inner.abs() > 2 * found.near).all()


RIGHT_BLOCKS = [
    l06.CastsFirst,
    l06.CastsByHandOnAnIsland,
    l06.FoldsTheGainIntoTheWeight,
    l06.IslandRoundTheNorm,
]


@pytest.mark.parametrize("case", [case for case in drawing.CASES if case.learns and all(case.sizes)])
@pytest.mark.parametrize("answer", RIGHT_BLOCKS)
def test_right_blocks_pass_with_a_margin(answer, case):
    made, leaf = answer(drawing.WIDTH), case.x()
    repairing._give_parameters(made, drawing.parameters())
    with emulate.cuda_autocast(), emulate.tensor_cores(), scenes.watched(case.region):
        out = made(scenes.given(leaf))
    found = drawing.right(leaf.detach(), drawing.parameters(), case.region)
    assert ((out.double() - found.output).abs() < 0.75 * found.near).all()
    seed = torch.rand(leaf.shape, generator=torch.Generator().manual_seed(8)) - 0.5
    (out.float() * seed).sum().backward()
    leaves = {"x": leaf} | dict(made.named_parameters())
    want = repairing.right_gradients(leaves, seed)
    for name, each in leaves.items():
        off = repairing.gradient_off(name, each.grad.double(), want[name], case.region)
        assert (off < 0.5).all(), name


# 6.5: what its text promises


def test_the_loss_has_a_tiny_case_and_a_large_one():
    tiny = [case for case in losses.CASES if case.sure]
    assert [float(losses.right(*case.tensors()).detach()) < 1e-6 for case in tiny] == [True]
    assert losses._LARGE.tensors()[0].numel() >= 1e5
    assert 1 / losses._LARGE.tensors()[0].numel() < torch.finfo(HALF).smallest_normal


def test_an_answer_that_loops_does_not_meet_the_large_case():
    calls = []

    def loops(logits, targets):
        calls.append(logits.numel())
        return l06.takes_one_logit_after_the_other(logits, targets)

    assert grade("6.5", loops).passed
    assert max(calls) == 24
