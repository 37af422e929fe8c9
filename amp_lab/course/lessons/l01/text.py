"""The words of lesson 01."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

DECODE_HALF = Exercise(
    id="1.1",
    title="Sixteen bits, one number",
    minutes=10,
    function="decode_half",
    hints=(
        "Cut the 16 bits into three fields first. Then there are three cases, and only the exponent field decides which: 31, "
        "0, or anything between. The table above says what each of them means: which power of two, and whether a 1 that is not "
        "stored leads the fraction. Zero needs no case of its own.",
        "`bits >> n` moves the bits n places to the right, and `& 0b11111` keeps the last five. Ten bits, divided by 2^10, are a "
        "fraction of ten binary places. `2.0 ** e` is exact for every e that you need. `math.inf` and `math.nan` are floats. "
        "The sign bit is the leftmost, and 1 means minus: multiply by `-1.0`, for minus zero exists only among floats.",
        "Refuse what is outside first. `sign = -1.0 if <leftmost bit> else 1.0`; `exponent = <the next five>`; `fraction = "
        "<the last ten> / 1024`. Then: exponent 31 gives NaN or `sign * math.inf`; exponent 0 gives `sign * fraction` times "
        "2^−14; any other gives `sign * (1 + fraction)` times 2^(exponent − 15).",
    ),
    diagnoses={
        "converts-the-int": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The *number* {got} was made a float; what is asked for is the "
            "number that these 16 *bits* stand for.",
            hint=1,
        ),
        "bf16-fields": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is what the bits mean in BF16, with 8 bits of exponent and 7 "
            "of fraction; FP16 has 5 and 10.",
            hint=2,
        ),
        "byte-order": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The two bytes were read in the wrong order: the sign is the "
            "highest bit of the int.",
            hint=2,
        ),
        "leading-zeros": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The fields were cut from a text without its leading zeros, as "
            '`bin` makes it: all 16 places count. `f"{{bits:016b}}"` has them.',
            hint=2,
        ),
        "sign-inverted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Size right, sign wrong: a sign bit of 1 means minus.",
            hint=2,
        ),
        "no-leading-one": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The leading 1 is missing: a normal number is 1.fraction, and the 1 "
            "is not stored because it is always there.",
            hint=1,
        ),
        "fraction-ignored": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the power of two alone: the ten bits of the fraction lie "
            "between it and the next one.",
            hint=2,
        ),
        "fraction-1023": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The fraction was divided by 1023. Ten binary places make steps of "
            "1/1024: all ones stand for 1023/1024, just short of the whole.",
            hint=2,
        ),
        "fraction-decimal": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The fraction was written behind the point as a decimal number. Its "
            "places are binary: one half, a quarter, an eighth …",
            hint=2,
        ),
        "fraction-backwards": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The fraction was read from the wrong end: its leftmost bit is "
            "worth one half, its last one 1/1024.",
            hint=2,
        ),
        "fraction-whole": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The ten bits of the fraction were taken as a whole number: they "
            "stand behind the point, so divide by 1024.",
            hint=2,
        ),
        "bias": Diagnosis(
            "{call} returned {got}; the right answer is {want}. All of your powers of two are off by one and the same factor, as "
            "if the bias were {bias}. It is 15: a field of 15 means 2^0.",
            hint=1,
        ),
        "xor": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is what `{formula}` gives. In Python `^` is the exclusive or "
            "of two ints; a power is `**`.",
        ),
        "parentheses": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is what `{formula}` gives: Python takes powers first, then "
            "products, then sums and differences, then shifts, then `&`. A pair of parentheses is missing.",
        ),
        "sign-lost": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sign, the leftmost of the 16 bits, was lost on the way here.",
            hint=2,
        ),
        "complement": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The bits were inverted to negate, as in the two's complement of "
            "integers. In floating point a number and its negative differ in the sign bit alone.",
            hint=1,
        ),
        "exponent-unmasked": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sign bit got into the exponent and made it 32 too large: "
            "after the shift, keep the last five bits only.",
            hint=2,
        ),
        "no-subnormals": Diagnosis(
            "{call} returned {got}; the right answer is {want}. An exponent field of 0 was treated like any other. It marks the "
            "subnormals: no leading 1, and the exponent stays at −14.",
            hint=1,
        ),
        "implicit-one": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The exponent −14 is right, but subnormals have no leading 1: "
            "0.fraction, not 1.fraction.",
            hint=1,
        ),
        "flushed-to-zero": Diagnosis(
            "{call} returned {got}; the right answer is {want}. With an exponent field of 0 a number is zero only if the fraction "
            "is 0, too: all others are subnormals.",
            hint=1,
        ),
        "subnormal-exponent": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your subnormals are 0.fraction × 2^({exponent}). They keep the "
            "exponent of the smallest normal numbers, −14, so that the spacing goes on evenly down to zero.",
            hint=1,
        ),
        "zero-sign": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sign of the zero was lost. `0.0` and `-0.0` are two floats, and the sign "
            "bit says which. A plain `0` or `0.0` has no minus, and among ints `-1 * 0` is 0; `-1.0 * 0.0` is -0.0.",
            hint=2,
        ),
        "zero-as-normal": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A zero has an exponent field of 0 and so no leading 1: it needs no "
            "case of its own beside the subnormals.",
            hint=1,
        ),
        "infinity-as-number": Diagnosis(
            "{call} returned {got}; the right answer is {want}. An exponent field of 31 is no further power of two: it is kept for "
            "infinity and NaN, and 65504 is the largest number.",
            hint=1,
        ),
        "infinity-is-nan": Diagnosis(
            "{call} returned {got}; the right answer is {want}. With an exponent field of 31 it is the fraction that decides: 0 is "
            "infinity, anything else NaN.",
            hint=1,
        ),
        "nan-as-number": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Infinity is right already, but an exponent field of 31 with any "
            "other fraction is NaN.",
            hint=1,
        ),
        "nan-as-infinity": Diagnosis(
            "{call} returned {got}; the right answer is {want}. An exponent field of 31 is infinity only where the fraction is 0; "
            "here it is not.",
            hint=1,
        ),
        "some-nans": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Some NaNs are recognised and others are not: any fraction but 0 "
            "makes a NaN, 1,023 of them for each sign.",
            hint=1,
        ),
    },
    why=(
        "Three fields, three cases. The leading 1 of a normal number need not be stored; with an exponent field of 0 it is "
        "dropped and the exponent stays at −14, so subnormals continue the spacing of the smallest normal numbers, 2^−24, down "
        "to zero. And sign times size, in floats, gives minus zero for free."
    ),
)

FORMAT_LIMITS = Exercise(
    id="1.2",
    title="The limits of a format",
    minutes=8,
    function="format_limits",
    hints=(
        "Think in patterns. Which exponent field and which fraction has the largest finite number? Which has the smallest normal "
        "one, and which the smallest subnormal one? Then decode them as in exercise 1.1.",
        "The bias is `2 ** (exponent_bits - 1) - 1`. The highest field that a number may have is two less than "
        "`2 ** exponent_bits`, which leaves `bias` as the largest exponent; the lowest of a normal number is 1, which leaves "
        "`1 - bias`. A fraction of all ones is 1 − eps, and one of a single 1 in the last place is eps. Subnormals have the "
        "exponent of the smallest normal number. Powers of two are exact: `2.0 ** n`.",
        "`max` is (2 − eps) × 2^bias, `smallest_normal` is 2^(1 − bias), `smallest_subnormal` is that times eps. Return "
        "`FormatLimits(max=..., smallest_normal=..., smallest_subnormal=..., eps=...)`.",
    ),
    diagnoses={
        "no-format-limits": Diagnosis(
            "{call} returned {got}, which is {kind}. Return the four numbers under their names, so that nobody can mix them up: "
            "`FormatLimits(max=..., smallest_normal=..., smallest_subnormal=..., eps=...)`.",
        ),
        "another-class": Diagnosis(
            "{call} returned {got}, but of another class than `amp_lab.formats.FormatLimits`, which only has the same name. Do not define "
            "it yourself: the first cell of this page imports it. Run that cell again, and then your function's.",
        ),
        "eps-half": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is half of it: the most by which rounding near 1 can be wrong. eps is "
            "the whole distance from 1 to the next number.",
            hint=2,
        ),
        "eps-double": Diagnosis(
            "{call} is {got}; the right one is {want}, half of that. The last of fraction_bits places is worth 2^−fraction_bits: "
            "the leading 1 is not stored and takes none of them.",
            hint=2,
        ),
        "eps-steps": Diagnosis(
            "{call} is {got}; the right one is {want}. With n fraction bits, 2^n steps lie between 1 and 2, not 2^n − 1: the last "
            "one reaches 2.",
            hint=2,
        ),
        "eps-smallest": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is the smallest positive number of the format; eps is the distance "
            "from 1 to the next number, where the spacing is much wider.",
            hint=1,
        ),
        "bias-large": Diagnosis(
            "{call} is {got}, half of {want}, and the smallest normal number, {normal}, is half of the right one, too: every "
            "exponent is one too small. The bias is 2^(exponent_bits − 1) − 1, mind the last − 1.",
            hint=2,
        ),
        "bias-small": Diagnosis(
            "{call} is {got}, twice {want}, and the smallest normal number, {normal}, is twice the right one, too: every "
            "exponent is one too large. The bias is 2^(exponent_bits − 1) − 1.",
            hint=2,
        ),
        "exponents": Diagnosis(
            "{call} is {got}, twice {want}, and the smallest normal number, {normal}, is half of the right one: your exponents "
            "reach one too far at both ends. The lowest and the highest field are no exponents of normal numbers; and the "
            "bias is 2^(exponent_bits − 1) − 1.",
            hint=2,
        ),
        "bias-xor": Diagnosis(
            "{call} is {got}; the right one is {want}. It comes from a bias of `{formula}`. In Python `^` is the exclusive or of two "
            "ints; a power is `**`.",
        ),
        "bias-fixed": Diagnosis(
            "{call} is {got}; the right one is {want}. It comes from a bias of {formula} for every format. The bias depends on the "
            "width: it is 2^(exponent_bits − 1) − 1, which makes 15 of 5 bits and 127 of 8.",
            hint=2,
        ),
        "bias-parentheses": Diagnosis(
            "{call} is {got}; the right one is {want}. It comes from a bias of `{formula}`. The bias is 2^(exponent_bits − 1) − 1: "
            "the first − 1 belongs to the power, the second does not.",
            hint=2,
        ),
        "top-exponent": Diagnosis(
            "{call} is {got}; the right one is {want}, half of that. The highest exponent field was used for numbers; it is kept "
            "for infinity and NaN.",
            hint=2,
        ),
        "no-fraction": Diagnosis(
            "{call} is {got}; the right one is {want}. The exponent is right, but {got} has a fraction of 0: the largest number "
            "has a fraction of all ones.",
            hint=2,
        ),
        "next-power": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is the power of two after the largest number, where infinity begins: "
            "a fraction of all ones is one step, 2^−fraction_bits, short of a whole.",
            hint=2,
        ),
        "max-whole": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is one less than a power of two, as with the largest of the whole numbers. Here the "
            "number before that power is further away: the fraction has only fraction_bits places.",
            hint=2,
        ),
        "one-step-short": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is the number before the largest one: a fraction of all ones is "
            "1 − 2^−fraction_bits.",
            hint=2,
        ),
        "normal-from-zero": Diagnosis(
            "{call} is {got}; the right one is {want}, twice that. An exponent field of 0 was counted as a normal number's; it is kept for "
            "zero and the subnormals, and normal numbers begin at 1.",
            hint=2,
        ),
        "normal-is-subnormal": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is the smallest *subnormal* number; the smallest normal one has a "
            "fraction of 0 and the exponent field 1.",
            hint=1,
        ),
        "subnormal-half": Diagnosis(
            "{call} is {got}; the right one is {want}, twice that. Subnormals keep the exponent of the smallest normal number, "
            "1 − bias, and their last place is worth 2^−fraction_bits times it, not half of that.",
            hint=2,
        ),
        "subnormal-double": Diagnosis(
            "{call} is {got}; the right one is {want}, half of that. Subnormals have no leading 1, but still all of "
            "their fraction_bits places: the last is worth 2^−fraction_bits of the smallest normal number.",
            hint=2,
        ),
        "subnormal-is-normal": Diagnosis(
            "{call} is {got}; the right one is {want}. {got} is the smallest *normal* number; below it, subnormals go on in equal "
            "steps, and the smallest of them is a single step.",
            hint=1,
        ),
        "wrong-limit": Diagnosis(
            "{call} is {got}; the right one is {want}.",
            hint=2,
        ),
    },
    why=(
        "Exponent bits buy range, fraction bits buy precision: `max` and `smallest_normal` hang on the first (the fraction moves "
        "`max` by less than a factor of 2), `eps` on the second alone. So BF16, with 8 and 7, reaches as far as FP32 and is eight "
        "times coarser than FP16. FP8 E4M3 breaks the rule: it gives up infinity and reaches 448, where the formula says 240."
    ),
)

TO_BFLOAT16 = Exercise(
    id="1.3",
    title="Round to BF16 by hand",
    minutes=15,
    function="to_bfloat16",
    hints=(
        "Cutting off the lower 16 bits always goes towards zero. Add something first, so that a carry runs into the upper half "
        "exactly where the number is to be rounded up. Because a carry out of the fraction goes into the exponent, it makes "
        "the next power of two, and infinity after the largest number, all by itself.",
        "A half is `0x8000` in the lower 16 bits. Adding `0x7FFF` carries for all that is *more* than a half. For exactly a half "
        "it depends on the last bit that is kept, `(bits >> 16) & 1`: add that, too. `& ~0xFFFF` clears the lower half. NaN "
        "goes its own way: `x.isnan()` and `torch.where`.",
        "View `x` as int32 and call it `bits`. Add `0x7FFF` and the last kept bit, then clear the lower 16 bits. View the sum as "
        "float32. At last `torch.where(<where x is NaN>, torch.nan, <that>)`: a NaN of many ones would carry into "
        "the sign and become a zero.",
    ),
    diagnoses={
        "lets-pytorch-round": Diagnosis(
            "{call} used a tensor of dtype `torch.bfloat16`: the call of {got} took or made one. PyTorch rounds well, "
            "but here you are the hardware: do it on the bits, as integers.",
            hint=2,
        ),
        "unchanged": Diagnosis(
            "{call} returned {got}, the number that was given; the nearest BF16 number is {want}. BF16 keeps 7 bits of the 23 in the fraction: "
            "the lower 16 bits of the result are zero.",
            hint=1,
        ),
        "truncates": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. The lower 16 bits were cut off, which always goes towards "
            "zero and is wrong by up to a whole step, not half of one.",
            hint=1,
        ),
        "rounds-away": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. Your code goes away from zero whenever anything is cut off; "
            "round to the *nearest*.",
            hint=2,
        ),
        "rounds-to-fp16": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. {got} is what FP16 makes of it: 10 bits of fraction, and "
            "65504 as the largest number. BF16 has 7, and the range of FP32.",
            hint=1,
        ),
        "converts-the-value": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. The *value* was converted to an integer, as `.int()` and "
            "`.to(torch.int32)` do, which drops what is behind the point. `.view(torch.int32)` shows the *bits*.",
        ),
        "bits-as-value": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. {got} is the *integer* that the bits look like, as `.float()` "
            "and `.to(torch.float32)` convert it. `.view(torch.float32)` takes the bits back as they are.",
        ),
        "int64-bits": Diagnosis(
            "{call} {got}. Your bits have become int64 on the way, and `.view(torch.float32)` makes two numbers of 64 bits. `.long()` does "
            "that, or `torch.where(..., 0x8000, 0x7FFF)`, whose two Python numbers are int64. Go back with `.to(torch.int32)` first.",
        ),
        "this-one-only": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Many other numbers come out right. {why}",
            hint=2,
        ),
        "kept-bits": Diagnosis(
            "{call} returned {got}; the nearest BF16 number is {want}. Your code keeps {kept} bits of the fraction. BF16 has 7, so 16 "
            "of FP32's 23 go.",
            hint=2,
        ),
        "halves-up": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The input is exactly half-way between the two, and your code always goes "
            "up there. The rule is: to the even one, whose last kept bit is 0.",
            hint=2,
        ),
        "halves-down": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The input is exactly half-way between the two, and your code always goes "
            "towards zero there. The rule is: to the even one, whose last kept bit is 0.",
            hint=2,
        ),
        "halves-to-odd": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The input is exactly half-way between the two, and your code takes the odd "
            "one, whose last kept bit is 1. Take the even one.",
            hint=2,
        ),
        "carry-lost": Diagnosis(
            "{call} returned {got}; the right answer is {want}. All kept bits of the fraction are 1, so rounding up carries beyond them. "
            "The carry belongs into the exponent: do the addition on all 32 bits at once.",
            hint=1,
        ),
        "saturates": Diagnosis(
            "{call} returned {got}; the right answer is {want}. BF16 does not stop at its largest number: what rounds beyond "
            "it is infinity, and so is infinity itself.",
            hint=1,
        ),
        "flushes": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Subnormals were made zero. They need no case of their own: the same "
            "addition on the bits rounds them, too.",
            hint=1,
        ),
        "zero-sign": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sign was lost: a zero has one, and what is rounded to zero "
            "keeps its own.",
            hint=1,
        ),
        "infinity-to-nan": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Infinity is no NaN: its lower 16 bits are zero already, so rounding "
            "leaves it alone.",
            hint=2,
        ),
        "nan-rounded-away": Diagnosis(
            "{call} returned {got}; it must stay {want}. What made it a NaN, its fraction, was rounded away, and an "
            "exponent of all ones with a fraction of 0 is infinity. Treat NaN apart.",
            hint=2,
        ),
        "nan-lost": Diagnosis(
            "{call} returned {got}; it must stay {want}. A NaN says that there is no right number: no code further on "
            "should get one that looks right.",
            hint=2,
        ),
        "nan-carried": Diagnosis(
            "{call} returned {got}; it must stay {want}. Treat NaN apart: rounding up a fraction of many ones "
            "carries through the exponent into the sign, and an ordinary number is left.",
            hint=2,
        ),
        "not-in-this-layout": Diagnosis(
            "{call}: {share} elements are wrong, though the same numbers in one row come out right. {number} became {got}; "
            "the right answer is {want}. Not every tensor lies in memory row after row: a transposed one does not.",
            hint=2,
        ),
        "not-each-by-itself": Diagnosis(
            "{call}: {share} elements are wrong. {number} became {got}; the right answer is {want}, and that is what your code gives "
            "for this number alone. Decide for each element, not for the whole tensor.",
            hint=2,
        ),
    },
    why=(
        "Adding 0x7FFF plus the last kept bit carries into the upper half exactly where the lower half is more than a half, or "
        "half and the kept part odd: nearest, ties to even. Floating-point patterns of one sign are ordered like the integers that they "
        "look like, so one addition serves normal numbers, subnormals and overflow to infinity alike. Only NaN must be kept "
        "apart. PyTorch itself rounds in the same way."
    ),
)

PROMOTED = Exercise(
    id="1.4",
    title="Who decides the dtype",
    minutes=6,
    function="promoted",
    hints=(
        "Two questions, in this order. Which *kind* is higher: floating point before integer? Only if both are of one kind: who "
        "has a say about the width?",
        "Python numbers and 0-dim tensors decide the width only if no tensor with dimensions is of their kind; Python numbers "
        "have none at all and take what the tensor has, or the default dtype. FP16 and BF16 hold numbers that the other does "
        "not. Or run it: `(left + right).dtype`, and `torch.result_type(left, right)`.",
        "`left` and `right` as code: `torch.ones(3, dtype=torch.float16)` has shape `(3,)`, `torch.ones(1)` has `(1,)`, "
        "`torch.ones(())` is 0-dim. Add them row by row, look at `.dtype`, and put what you see behind its letter.",
    ),
    diagnoses={
        "no-dict": Diagnosis(
            "{call} returned {got}, which is {kind}. Return a `dict` from each row's letter to a dtype.",
        ),
        "rows-missing": Diagnosis(
            "{call} has no entry for {rows}; the keys in it are: {got}. The table has twelve rows, from `'a'` to `'l'`, and each "
            "needs its dtype.",
        ),
        "rows-unknown": Diagnosis(
            "{call} has an entry for {got}, which is no row of the table. Its rows are `'a'` to `'l'`.",
        ),
        "no-dtype": Diagnosis(
            "{call} has {got} in row {row}, which is {kind}, not a dtype. {advice}",
        ),
        "half-wins": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: the narrower "
            "dtype does not win. Where both may decide, the wider one does, and a 0-dim tensor never narrows one with dimensions.",
            hint=1,
        ),
        "python-widens": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: a Python number does not "
            "widen a floating-point tensor, however many bits Python itself uses for it.",
            hint=2,
        ),
        "one-of-two-halves": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: neither can hold all numbers "
            "of the other, FP16 for lack of range and BF16 for lack of precision. The sum takes the smallest dtype that can.",
            hint=2,
        ),
        "zero-dim-counts": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: a 0-dim tensor does not widen "
            "one with dimensions of the same kind; there it counts like a Python number.",
            hint=2,
        ),
        "two-zero-dims": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: no tensor with dimensions is "
            "there to overrule them, so the two 0-dim tensors settle it by their widths.",
            hint=2,
        ),
        "one-element-has-a-dimension": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: shape `(1,)` has one element, "
            "but it has a dimension, so it counts in full. Only shape `()` is 0-dim.",
            hint=2,
        ),
        "integer-counts": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: floating point is the higher "
            "kind, and an integer beside it decides nothing about the width, be it of 64 bits.",
            hint=1,
        ),
        "kind-before-dimensions": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: dimensions matter only among "
            "operands of one kind. Floating point is the higher kind and wins even as a single number.",
            hint=1,
        ),
        "python-float-is-double": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). {left} with {right}: the Python number makes it "
            "floating point, but brings no width of its own. Without one, PyTorch takes the default dtype.",
            hint=2,
        ),
        "wrong-row": Diagnosis(
            "{call} says `{got}` in row {row}; that is wrong (rows wrong: {share}). The row is {left} with {right}.",
            hint=1,
        ),
    },
    why=(
        "The highest kind wins: floating point before integer. Within it, tensors with dimensions settle the width, then 0-dim "
        "tensors, and a Python number only asks for its kind. So `x * 0.5` keeps FP16, one FP32 vector beside it makes FP32, "
        "and FP16 meets BF16 in FP32, the smallest dtype that holds both. That is type promotion, without autocast; lesson 06 "
        "tells what autocast changes."
    ),
)

LESSON = Lesson(
    slug="01_number_formats",
    title="Number formats",
    minutes=60,
    difficulty="medium",
    needs="lesson 00; bit operations on integers (`>>`, `&`)",
    exercises=(DECODE_HALF, FORMAT_LIMITS, TO_BFLOAT16, PROMOTED),
)
