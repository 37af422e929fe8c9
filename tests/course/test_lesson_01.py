"""Lesson 01's checks from the inside: what they tell apart, and that the page asks what they check."""

import itertools
import math
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_lab.course import catalog
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import check_of, grade, judge
from amp_lab.course.judging.expect import Region, Trial, alike
from amp_lab.course.judging.verdict import Raised, Stopped, Wrong
from amp_lab.course.lessons.l01 import decoding, limits, promotion, rounding

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "solutions" / "01_number_formats.py").read_text(encoding="utf-8")
REGIONS = [
    *((decoding._decode, each) for each in decoding._REGIONS),
    *((rounding._round, each) for each in rounding._REGIONS),
]


@pytest.mark.parametrize(("right", "region"), REGIONS)
def test_every_misconception_shows_and_no_two_look_alike(right: Any, region: Region) -> None:
    answers = [("right", right), *region.misconceptions]
    shown = [(name, [answer(*case) for case in region.cases]) for name, answer in answers]
    for (name, one), (other_name, other) in itertools.combinations(shown, 2):
        if name != other_name:
            assert not all(map(alike, one, other)), f"{name} and {other_name} cannot be told apart"


def test_limits_misconceptions_show_and_no_two_look_alike() -> None:
    for name, misconceptions in limits._OF_ONE_LIMIT.items():
        right = ("right", lambda e, f, name=name: getattr(limits._limits(e, f), name))
        shown = [
            (idea, [answer(*case) for case in limits._CASES]) for idea, answer in (right, *misconceptions)
        ]
        for (idea, one), (other_idea, other) in itertools.combinations(shown, 2):
            assert one != other, f"{idea} and {other_idea} cannot be told apart"


def test_no_slip_in_a_formula_looks_like_another_or_like_an_idea() -> None:
    (region, *_), right = decoding._REGIONS, ("right", decoding._decode)
    slips = [
        (name, lambda bits, slip=slip: slip(*decoding._fields(bits))) for name, _, slip in decoding._SLIPS
    ]
    answers = [right, *region.misconceptions, *slips]
    shown = [(name, [answer(*case) for case in region.cases]) for name, answer in answers]
    for (name, one), (other_name, other) in itertools.combinations(shown, 2):
        if name != other_name:
            assert not all(map(alike, one, other)), f"{name} and {other_name} cannot be told apart"


def test_no_bias_looks_like_another() -> None:
    trials = [Trial("", case, limits._limits(*case), limits._limits(*case)) for case in limits._CASES]
    shown = [
        (formula, limits._with_bias(trials, bias, from_field=from_field))
        for _, bias, formula in limits._BIASES
        for from_field in (True, False)
    ]
    right = [(trial.want.max, trial.want.smallest_normal) for trial in trials]
    factors = [[(a * x, b * y) for x, y in right] for _, a, b in limits._EXPONENTS]
    for formula, one in shown:
        assert one not in (right, *factors), formula
        assert [other for other, seen in shown if seen == one and other != formula] == []


@pytest.mark.parametrize(
    ("exponent_bits", "fraction_bits"), list(itertools.product(range(2, 9), range(1, 24)))
)
def test_every_format_counts(exponent_bits: int, fraction_bits: int) -> None:
    def answer(*widths: int) -> limits.FormatLimits:
        right = limits._limits(*widths)
        return right._replace(eps=1.0) if widths == (exponent_bits, fraction_bits) else right

    verdict = grade("1.2", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.observed["call"] == f"`format_limits({exponent_bits}, {fraction_bits}).eps`"


def test_limits_are_those_of_pytorch() -> None:
    for widths, dtype in {
        (5, 10): torch.float16,
        (8, 7): torch.bfloat16,
        (8, 23): torch.float32,
        (5, 2): torch.float8_e5m2,
    }.items():
        info = torch.finfo(dtype)
        got = limits._limits(*widths)
        assert (got.max, got.smallest_normal, got.eps) == (info.max, info.tiny, info.eps)
        patterns = torch.tensor([1]).to({1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[dtype.itemsize])
        assert got.smallest_subnormal == patterns.view(dtype).item()


def test_numbers_in_the_words_of_the_lesson() -> None:
    assert limits._limits(4, 3).max == 240.0
    assert torch.finfo(torch.float8_e4m3fn).max == 448.0
    assert limits._limits(8, 7).eps == 8 * limits._limits(5, 10).eps
    assert decoding._NUMBERS[0x7BFF] == 65504.0
    assert sum(math.isnan(number) for number in decoding._NUMBERS) == 2 * 1023
    assert (torch.ones(3).half() * 0.5).dtype is torch.float16
    assert (torch.ones(3).half() * torch.ones(3)).dtype is torch.float32


def test_a_number_of_kept_bits_is_told_only_if_no_other_number_would_do() -> None:
    shown = {
        (bits, rounded): [rounding._kept(x, bits, rounded=rounded) for (x,) in rounding._REGIONS[0].cases]
        for bits, rounded in itertools.product(range(1, 24), (True, False))
    }
    for one, other in itertools.combinations(shown, 2):
        if one[0] != other[0]:
            assert not all(map(alike, shown[one], shown[other])), f"{one} and {other} cannot be told apart"


def test_the_halves_of_the_check_are_halves() -> None:
    for (x,) in rounding._REGIONS[1].cases:
        below, above = rounding._truncate(x).double(), rounding._add_and_cut(x, 0xFFFF).double()
        assert x.double() == (below + above) / 2


def test_decoding_knows_every_number_of_fp16() -> None:
    for bits, number in enumerate(decoding._NUMBERS):
        assert alike(number, struct.unpack("<e", struct.pack("<H", bits))[0])


def test_the_sweep_meets_every_bit_of_every_exponent() -> None:
    for seed in range(64):
        fractions = decoding._fractions(seed)
        assert len(set(fractions)) == 64
        assert {0, 1, 512, 1023} <= set(fractions) <= set(range(1024))
    assert decoding._fractions(1) != decoding._fractions(2)


def _bare(bits: int) -> float:
    return decoding._decode(bits) if 0 <= bits < 65536 else _refuse()


def _refuse() -> Any:
    raise ValueError


@pytest.mark.parametrize("field", range(64))
def test_a_slip_in_the_last_bit_of_any_exponent_is_found(field: int) -> None:
    def slips(bits: int) -> float:
        value = _bare(bits)
        if bits >> 10 == field and bits & 1:
            return 0.0 if math.isnan(value) else value * (1 + 2**-11)
        return value

    assert type(grade("1.1", slips)) is Wrong


@pytest.mark.parametrize("bits", [*range(0, 65536, 997), 0xFDFF, 0x83FE])
def test_a_quick_answer_is_asked_for_every_pattern(bits: int) -> None:
    verdict = grade("1.1", lambda given: 7.5 if given == bits else _bare(given))
    assert isinstance(verdict, Wrong)
    assert verdict.observed["call"] == decoding._in_words(bits)


def test_a_slow_answer_is_asked_for_less_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(decoding, "_FULL_SWEEP_S", 0.0)
    assert grade("1.1", lambda bits: asked.append(bits) or _bare(bits)).passed
    assert 4096 <= len(asked) < 8192
    assert len({bits >> 10 for bits in asked if 0 <= bits < 65536}) == 64
    asked.clear()
    monkeypatch.setattr(rounding, "_FULL_SWEEP_S", 0.0)
    assert grade("1.3", lambda x: asked.append(x.numel()) or _half_even(x)).passed
    assert max(asked) > 10_000
    assert sum(asked) < 16_000


def _half_even(x: torch.Tensor, lost: int = 0) -> torch.Tensor:
    """Round rightly, but for the bits in `lost`, which are cleared first."""
    bits = x.view(torch.int32) & ~lost
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF
    return torch.where(x.isnan(), x, rounded.view(torch.float32))


@pytest.mark.parametrize("bit", range(15))
def test_every_bit_of_the_lower_half_counts(bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "_FULL_SWEEP_S", 0.0)
    verdict = grade("1.3", lambda x: _half_even(x, lost=1 << bit))
    assert isinstance(verdict, Wrong)
    assert verdict.observed["call"].startswith("`to_bfloat16(tensor([")


@pytest.mark.parametrize("field", range(0, 512, 7))
def test_every_sign_and_exponent_counts_even_for_slow_answers(
    field: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "_FULL_SWEEP_S", 0.0)

    def answer(x: torch.Tensor) -> torch.Tensor:
        chosen = (x.view(torch.int32) >> 23 & 511) == field
        return torch.where(chosen & ~x.isnan(), rounding._truncate(x), _half_even(x))

    verdict = grade("1.3", answer)
    assert isinstance(verdict, Wrong) == (field & 255 != 255)  # infinity has nothing to round


@pytest.mark.parametrize("upper", [0x0001, 0x3F83, 0x7F7E, 0x8123, 0xC9A5, 0xFF11])
def test_every_upper_half_counts_for_quick_answers(upper: int) -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        chosen = (x.view(torch.int32) >> 16 & 0xFFFF) == upper
        return torch.where(chosen & ~x.isnan(), rounding._truncate(x), _half_even(x))

    assert not grade("1.3", answer).passed


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (0x3F810000, "zero: there is nothing to round"),
        (0x4A558000, "exactly a half, and the last kept bit is 1"),
        (0x4A2A8000, "exactly a half, and the last kept bit is 0"),
        (0x4A2A8001, "`0x8001`, is more than a half"),
        (0x4A2A7FFF, "`0x7FFF`, is less than a half"),
    ],
)
def test_what_is_wrong_in_the_sweep_is_shown_by_itself(pattern: int, words: str) -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.view(torch.int32) == pattern, 7.0, _half_even(x))

    verdict = grade("1.3", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "this-one-only"
    assert verdict.observed["call"].endswith(f"(bits `0x{pattern:08X}`)")
    assert words in verdict.sentence


def test_what_is_wrong_only_among_many_is_told_so() -> None:
    verdict = grade("1.3", lambda x: _half_even(x) if x.numel() < 5000 else x.clone())
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "not-each-by-itself"


def test_int64_bits_are_recognised_without_a_dimension_too() -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int32).long()
        wide = (bits + 0x7FFF + (bits >> 16 & 1) & ~0xFFFF).view(torch.float32)
        return torch.where(x.isnan(), torch.nan, wide[..., ::2])

    verdict = grade("1.3", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "int64-bits"
    assert "RuntimeError" in verdict.sentence


def test_twice_as_many_elements_are_not_always_int64_bits() -> None:
    verdict = grade("1.3", lambda x: torch.cat((x, x)))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "wrong-shape"


def test_another_error_of_a_view_is_told_as_it_is() -> None:
    verdict = grade("1.3", lambda x: x.view(torch.int64))
    assert type(verdict) is Raised
    assert "Float as Long" in verdict.sentence


def test_a_nan_that_became_another_nan_in_the_input_is_shown_by_its_bits() -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        x[x.isnan()] = torch.nan
        return _half_even(x)

    verdict = grade("1.3", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "mutated-input"
    assert "0xFFC00000" in str(verdict.observed["want"])
    assert "0x7FC00000" in str(verdict.observed["got"])


def _with(bits: int, *, bias: int = 15, lowest: int = -14) -> float:
    """Decode with another bias for normal numbers, or another exponent for subnormals."""
    value = _bare(bits)
    if not math.isfinite(value):
        return value
    return value * 2.0 ** (15 - bias) if bits >> 10 & 31 else value * 2.0 ** (lowest + 14)


@pytest.mark.parametrize("bias", [0, 14, 16, 31])
def test_the_bias_that_was_used_is_told(bias: int) -> None:
    verdict = grade("1.1", lambda bits: _with(bits, bias=bias))
    assert isinstance(verdict, Wrong)
    assert (verdict.diagnosis, verdict.observed["bias"]) == ("bias", bias)


@pytest.mark.parametrize("lowest", [-15, -13, -24])
def test_the_exponent_of_subnormals_that_was_used_is_told(lowest: int) -> None:
    verdict = grade("1.1", lambda bits: _with(bits, lowest=lowest))
    assert isinstance(verdict, Wrong)
    assert (verdict.diagnosis, verdict.observed["exponent"]) == ("subnormal-exponent", lowest)


@pytest.mark.parametrize("kept", [6, 8, 10, 22])
@pytest.mark.parametrize("rounded", [True, False])
def test_the_number_of_kept_bits_is_told(kept: int, rounded: bool) -> None:
    verdict = grade("1.3", lambda x: rounding._kept(x, kept, rounded=rounded))
    assert isinstance(verdict, Wrong)
    assert (verdict.diagnosis, verdict.observed["kept"]) == ("kept-bits", kept)


HUGE = 10**5000  # Python refuses to write so many digits, and so would pytest's names


@pytest.mark.parametrize("huge", [HUGE, -HUGE], ids=["plus", "minus"])
@pytest.mark.parametrize("bits", [0x3C00, 0x0001, 0x7E00, 0b0_10110_0000000111])
def test_an_int_beyond_all_floats_is_only_wrong(huge: int, bits: int) -> None:
    verdict = grade("1.1", lambda given: huge if given == bits else _bare(given))
    assert isinstance(verdict, Wrong)
    assert verdict.observed["got"] == "an `int` of more than 40 digits"


@pytest.mark.parametrize("huge", [HUGE, math.inf, math.nan, -1], ids=["huge", "inf", "nan", "negative"])
def test_any_number_may_come_back_as_a_limit(huge: float) -> None:
    for name in limits.FormatLimits._fields:
        assert (
            type(grade("1.2", lambda e, f, name=name: limits._limits(e, f)._replace(**{name: huge}))) is Wrong
        )


def test_tensors_of_no_dimension_and_of_no_element_are_asked_for() -> None:
    for refused in (lambda x: x.dim() == 0, lambda x: x.numel() == 0, lambda x: not x.is_contiguous()):

        def answer(x: torch.Tensor, refused: Any = refused) -> torch.Tensor:
            if refused(x):
                raise ArithmeticError
            return torch.where(x.isnan(), x, rounding._add_and_cut(x, 0x7FFF + rounding._last_kept(x)))

        assert type(grade("1.3", answer)) is Raised


def test_tensors_of_all_shapes_and_layouts_are_asked_for() -> None:
    tensors = [x for (x,) in rounding._shapes()]
    assert {x.dim() for x in tensors} == {0, 1, 2, 3, 4, 5}
    assert {(0,), (0, 3)} <= {tuple(x.shape) for x in tensors}
    assert {x.dim() for x in tensors if not x.is_contiguous()} == {1, 2, 4}
    assert {x.dim() for x in tensors if 0 in x.stride()} == {1, 2}
    assert any(x.storage_offset() for x in tensors if x.numel() > 1)
    together = torch.cat([x for region in rounding._REGIONS for (x,) in region.cases])
    assert tensors[0].is_contiguous()
    assert alike(tensors[0], together)


def test_bits_are_shown_with_a_single_number() -> None:
    verdict = grade("1.3", lambda x: rounding._add_and_cut(x, 0x8000))
    assert isinstance(verdict, Wrong)
    assert (
        verdict.observed["call"]
        == "`to_bfloat16(tensor([1.0039062], dtype=torch.float32))` (bits `0x3F808000`)"
    )
    assert rounding._in_words(torch.tensor(-0.0)).endswith("(bits `0x80000000`)")
    assert "bits" not in rounding._in_words(torch.ones(2))
    assert "bits" not in rounding._in_words(torch.ones(0))


def test_patterns_are_shown_field_by_field() -> None:
    verdict = grade("1.1", lambda bits: 0.0)
    assert isinstance(verdict, Wrong)
    assert verdict.observed["call"] == "`decode_half(0b0_01111_0000000000)`"
    assert 0b0_01111_0000000000 == 0x3C00
    assert decoding._in_words(0xFFFF) == "`decode_half(0b1_11111_1111111111)`"
    assert decoding._in_words(-1) == "`decode_half(-1)`"
    assert decoding._in_words(65536) == "`decode_half(65536)`"


def test_an_endless_loop_is_stopped_in_the_sweep_too() -> None:
    def answer(bits: int) -> float:
        while bits == 0b0_10110_0000000111:
            pass
        return _bare(bits)

    verdict = judge(catalog.exercise("1.1"), check_of("1.1"), answer, limit_s=2.0)
    assert isinstance(verdict, Stopped)
    assert "decode_half(0b0_10110_0000000111)" in verdict.sentence


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.bfloat16(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.type(torch.bfloat16),
        lambda x: x.to(torch.empty(0, dtype=torch.bfloat16)),
        lambda x: x.view(torch.int16).view(torch.bfloat16),
        lambda x: torch.tensor(x.tolist(), dtype=torch.bfloat16),
        lambda x: torch.zeros(x.shape, dtype=torch.bfloat16).copy_(x),
        lambda x: torch.frombuffer(bytearray(4), dtype=torch.bfloat16).float(),
        lambda x: torch.zeros_like(x, dtype=torch.bfloat16),
        lambda x: torch.nn.Linear(1, 1, dtype=torch.bfloat16),
        lambda x: torch.autocast("cpu", torch.bfloat16).__enter__() and x[None] @ x[None],
    ],
)
def test_every_way_to_let_pytorch_round_is_noticed(use: Any) -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        use(x)
        return x.clone()

    verdict = grade("1.3", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "lets-pytorch-round"


def test_an_integer_answer_uses_no_bf16_and_the_watch_ends_with_it() -> None:
    watch = rounding._Watch()
    with watch:
        torch.ones(3).view(torch.int32).add(1).view(torch.float32)
    assert watch.seen == []
    torch.ones(3).bfloat16()
    assert watch.seen == []
    with watch:
        torch.ones(3).bfloat16()
    assert watch.seen == ["bfloat16"]


def test_checks_do_not_load_the_compiler() -> None:
    # A dispatch mode would: torch._dynamo takes seconds to import.
    code = (
        "import sys; from amp_lab.course import grade; from tests.course.answers.l01 import rounds_on_the_bits; "
        "assert grade('1.3', rounds_on_the_bits).passed; print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


def _table() -> Iterator[tuple[str, str, str]]:
    yield from re.findall(r"^# \| ([a-z]) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def test_the_page_has_the_rows_that_are_checked() -> None:
    assert list(_table()) == [(name, str(row.left), str(row.right)) for name, row in promotion.ROWS.items()]


@pytest.mark.parametrize("name", promotion.ROWS)
def test_no_idea_about_a_row_is_right(name: str) -> None:
    row = promotion.ROWS[name]
    assert row.dtype() not in row.ideas
    assert torch.result_type(row.left.value(), row.right.value()) is row.dtype()
    assert (row.right.value() + row.left.value()).dtype is row.dtype(), (
        "the order of operands must not matter"
    )


def test_a_sum_has_the_dtype_that_a_product_has() -> None:
    for row in promotion.ROWS.values():
        assert (row.left.value() * row.right.value()).dtype is row.dtype()


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)


def _table_with(name: str, dtype: Any) -> dict[str, Any]:
    return {each: dtype if each == name else row.dtype() for each, row in promotion.ROWS.items()}


@pytest.mark.parametrize("name", promotion.ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_counts(name: str, dtype: torch.dtype) -> None:
    row = promotion.ROWS[name]
    verdict = grade("1.4", lambda: _table_with(name, dtype))
    assert verdict.passed == (dtype is row.dtype())
    if isinstance(verdict, Wrong):
        assert verdict.diagnosis == row.ideas.get(dtype, "wrong-row")
        assert verdict.observed["row"] == name


@pytest.mark.parametrize("name", promotion.ROWS)
@pytest.mark.parametrize("said", [*DTYPES, "float32", torch.ones(1), None])
def test_no_message_tells_the_dtype_of_a_row(name: str, said: Any) -> None:
    row = promotion.ROWS[name]
    verdict = grade("1.4", lambda: _table_with(name, said))
    if verdict.passed:
        return
    assert f"row {name}" in verdict.sentence
    # The row itself and what was answered may be named; the examples are of FP64, which is right nowhere.
    for named in (str(row.left), str(row.right), f"`{said}`", "float64", describe(said)):
        verdict_words = verdict.sentence.replace(named, "")
        verdict = replace(verdict, sentence=verdict_words)
    if row.ideas.get(said) == "one-of-two-halves":  # its rule is about these two
        verdict = replace(
            verdict, sentence=re.sub("FP16 for lack of range and BF16 for lack of", "", verdict.sentence)
        )
    assert not re.search(r"torch\.\w*\d|FP16|BF16|FP32|FP64|INT64", verdict.sentence), verdict.sentence


def test_a_table_without_rows_is_told_what_is_in_it() -> None:
    verdict = grade("1.4", lambda: {"row a": torch.float16, 2: torch.float16})
    assert isinstance(verdict, Wrong)
    assert verdict.observed["got"] == "'row a', 2"
    verdict = grade("1.4", lambda: dict.fromkeys(range(1000), torch.float16))
    assert isinstance(verdict, Wrong)
    assert str(verdict.observed["got"]).endswith("10, 11, …")


class _Liar(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise ArithmeticError

    __iter__ = __getitem__ = keys = __len__ = items  # type: ignore[assignment]


def test_no_method_of_a_dict_of_the_learners_is_called() -> None:
    assert grade("1.4", lambda: _Liar(_table_with("", None))).passed
