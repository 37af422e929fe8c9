"""The words of lesson 02."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

SAFE_NORM = Exercise(
    id="2.1",
    title="A norm that survives",
    minutes=6,
    function="safe_norm",
    hints=(
        "Three things can leave FP16: a square, the sum of the squares, and the norm itself. Ask of every step which dtype its "
        "*result* has: PyTorch computes a square in the dtype of what it squares.",
        "`.float()` makes FP32 of a tensor; where it stands decides everything. `.square()`, `.sum()` and `.sqrt()` keep the dtype "
        "that they get. Or let one call do it all: `torch.linalg.vector_norm(x, dtype=...)` converts its input *first*.",
        "Widen `x`, and only then square, sum over all elements and take the root. FP32 reaches to 3.4e38 and down to 1.4e-45, "
        "so there is no need to divide by the largest element; zeros then need no case of their own.",
    ),
    diagnoses={
        "returns-fp16": Diagnosis(
            "{call} returned {got}; the norm is {want}, and it is asked for in FP32. An FP16 tensor cannot hold a norm beyond 65504, "
            "and of any other it keeps three digits.",
            hint=1,
        ),
        "squares-in-fp16": Diagnosis(
            "{call} returned {got}; the norm is {want}. The squares were FP16 numbers, and in FP16 256² is infinity and 0.0001² is "
            "zero. What is lost in a square, no `.float()` behind it brings back.",
            hint=2,
        ),
        "sum-in-fp16": Diagnosis(
            "{call} returned {got}; the norm is {want}. Each square was in FP32, but their sum was kept in FP16: 65504 is its limit, "
            "and before that small squares no longer move a large total.",
            hint=2,
        ),
        "norm-in-fp16": Diagnosis(
            "{call} returned {got}; the norm is {want}. Inside, everything went well; then the norm was rounded to FP16, as "
            "`x.norm()` does with an FP16 `x`, and `.float()` behind it came too late.",
            hint=2,
        ),
        "leaves-the-range": Diagnosis(
            "{call} returned {got}; the norm is {want}. Something on the way left the range of its dtype, or divided zero by zero. Print "
            "the intermediate values with their dtypes: the first that is inf or nan is the culprit.",
            hint=1,
        ),
        "held-at-the-top": Diagnosis(
            "{call} returned {got}; the norm is {want}. 65504 is FP16's largest number, and infinity was replaced by it. That hides the "
            "overflow; the norm is as wrong as before.",
            hint=1,
        ),
        "small-lost": Diagnosis(
            "{call} returned {got}; the norm is {want}. Large inputs come out right, the smallest do not: a fixed factor, or a constant that was "
            "added for safety, pushed them or their squares out of FP16, or swamped them.",
            hint=1,
        ),
        "rounded-on-the-way": Diagnosis(
            "{call} returned {got}; the norm is {want}. The range is right everywhere, but only two or three digits are: something on the way, "
            "such as a division by the largest element, was rounded to 16 bits.",
            hint=1,
        ),
        "zero-over-zero": Diagnosis(
            "{call} returned {got}; the norm is {want}. All other inputs come out right. Dividing by the largest size keeps squares small, "
            "but here the largest is 0, and 0 / 0 is NaN. In FP32 there is no need to divide.",
            hint=1,
        ),
        "adds-eps": Diagnosis(
            "{call} returned {got}; the norm is {want}. A small constant was added for safety. It is not small beside such inputs, and nothing "
            "here needs it: the root of 0 is 0.",
            hint=1,
        ),
        "another-norm": Diagnosis(
            "{call} returned {got}; the Euclidean norm is {want}. What came back is {which}.",
            hint=2,
        ),
    },
    why=(
        "FP16 numbers are at most 65504 and at least 2^−24 in size, so their squares lie between 2^−48 and 2^32. FP32 holds all of "
        "them exactly, and has digits enough to add up 300 in any order; for millions let PyTorch add, in many small sums. "
        "`torch.linalg.vector_norm(x, dtype=torch.float32)` does the same in one call. Under autocast on CUDA `norm` is one of the ops "
        "that take FP32 by themselves (lesson 06); `x * x` is not."
    ),
)

STABLE_LOG_SOFTMAX = Exercise(
    id="2.2",
    title="Log-softmax without infinity",
    minutes=10,
    function="stable_log_softmax",
    hints=(
        "Adding the same number to all logits along `dim` does not change softmax. Which number keeps every exp at 1 or below and "
        "makes at least one of them exactly 1? And in which dtype do you subtract it? 65504 − (−65504) is a logit's largest distance.",
        "`logits.amax(dim, keepdim=True)` is the largest along `dim`, in a shape that broadcasts; `.sum(dim, keepdim=True)` likewise. Take "
        "the logarithm of the *sum*, not of each share: a share can underflow to 0, a sum that has a 1 in it cannot. Or "
        "`torch.log_softmax` does it all, with its `dtype=`.",
        "Widen the logits; subtract the largest along `dim`: call that `z`. Its sum of exp along `dim` is 1 or more; the answer is `z` minus "
        "the logarithm of that sum. Never add the maximum back: large + small would lose the small one.",
    ),
    diagnoses={
        "no-log": Diagnosis(
            "{call} is {got}; the right value is {want}. {got} is an exp, or a share of a sum of them; "
            "the logarithm of the share is asked for. It is never above 0.",
            hint=2,
        ),
        "another-base": Diagnosis(
            "{call} is {got}; the right value is {want}. That is a logarithm to another base: `torch.log` is the natural one.",
        ),
        "sum-forgotten": Diagnosis(
            "{call} is {got}; the right value is {want}. The maximum was subtracted, but not the logarithm of the sum of exp: the "
            "exp of your results do not add up to 1.",
            hint=2,
        ),
        "maximum-not-put-back": Diagnosis(
            "{call} is {got}; the right value is {want}. The sum of exp was computed of shifted logits, and its logarithm subtracted from "
            "unshifted ones. Both must be shifted, or neither.",
            hint=1,
        ),
        "no-maximum": Diagnosis(
            "{call} is {got}; the right value is {want}. exp was taken of the logits as they are. In FP16 it is infinite from 12 on, in "
            "FP32 from 89, in FP64 from 710, and zero on the other side: subtract the maximum first.",
            hint=1,
        ),
        "maximum-of-everything": Diagnosis(
            "{call} is {got}; the right value is {want}. One maximum was subtracted from all. Where all logits along `dim` lie far "
            "below it, each exp is 0, and so is their sum. Each needs its own.",
            hint=2,
        ),
        "maximum-of-sizes": Diagnosis(
            "{call} is {got}; the right value is {want}. The largest *size* was subtracted. Where all logits are very negative that moves "
            "them still further down, until each exp is 0. Take the largest logit, with its sign.",
            hint=1,
        ),
        "mean-subtracted": Diagnosis(
            "{call} is {got}; the right value is {want}. The mean was subtracted. That is right in exact arithmetic, but a logit may still lie "
            "far above the mean, and its exp overflows. Only the maximum rules that out.",
            hint=1,
        ),
        "log-of-softmax": Diagnosis(
            "{call} is {got}; the right value is {want}. The softmax was computed first: a share below the smallest number underflows to 0, and "
            "log(0) is −infinity. What is lost there, no logarithm brings back; stay with logarithms all the way.",
            hint=2,
        ),
        "floor": Diagnosis(
            "{call} is {got}; the right value is {want}. However small the share, your result stops at {floor}: a constant was "
            "added before the logarithm, or taken as the least before or after it. That avoids −infinity with a wrong number, without a gradient.",
            hint=2,
        ),
        "infinity-replaced": Diagnosis(
            "{call} is {got}; the right value is {want}. {got} is the lowest number of {dtype}: an infinity was replaced by it, or a "
            "result clamped to it. The right value is lost all the same. See that no infinity comes about.",
            hint=1,
        ),
        "clamped": Diagnosis(
            "{call} is {got}; the right value is {want}. The logits were clamped to ±{bound}. That keeps exp finite, and makes logits equal "
            "that are not.",
            hint=1,
        ),
        "another-dim": Diagnosis(
            "{call} is {got}; the right value is {want}. The softmax was taken along another dimension than `dim`: {which}.",
            hint=2,
        ),
        "no-keepdim": Diagnosis(
            "{call} is {got}; the right value is {want}. A maximum or a sum along `dim` lost that dimension, and broadcasting lined it up "
            "with another one. In a square matrix no error tells.",
            hint=2,
        ),
        "result-in-fp16": Diagnosis(
            "{call} is {got}; the right value is {want}. {got} is an FP16 number: the result was rounded to FP16, and then made FP32 "
            "again. Widen the logits, not the result.",
            hint=2,
        ),
        "subtracts-in-fp16": Diagnosis(
            "{call} is {got}; the right value is {want}. The maximum was subtracted in FP16. Two FP16 numbers can be 131008 apart, and "
            "their distance is rounded to three digits.",
            hint=1,
        ),
        "steps-in-fp16": Diagnosis(
            "{call} is {got}; the right value is {want}. Nothing overflows, but the errors go up to a thousandth, which is FP16's share: exp, the "
            "sum or its logarithm was computed in it.",
            hint=2,
        ),
        "sum-swallowed": Diagnosis(
            "{call} is {got}; the right value is {want}. max + log(sum) was rounded before it was subtracted, as `logsumexp` does: beside a large "
            "maximum, {dtype} keeps few digits of a small logarithm. Subtract the maximum from the logit first, and the logarithm then.",
            hint=1,
        ),
    },
    why=(
        "exp(x − max) is at most 1, and 1 for the largest: the sum is at least 1 and its logarithm finite, however far the others lie "
        "below. The difference can be twice as large as any FP16 number, so it needs FP32. And the order counts: (x − max) − log(sum) keeps "
        "its digits, x − (max + log(sum)) does not. `torch.log_softmax(logits, dim, dtype=torch.float32)` takes all these steps, "
        "and cross_entropy is made of it."
    ),
)

SMALLEST_EFFECTIVE_STEP = Exercise(
    id="2.3",
    title="The smallest step that moves a weight",
    minutes=10,
    function="smallest_effective_step",
    hints=(
        "Draw `w` and the next larger FP16 number. Where between the two does rounding turn? What happens exactly *there*? And is the next "
        "larger number equally far from a power of two, and from its negative?",
        "`torch.nextafter(w, inf)` of two FP16 tensors is the next larger number. A tie goes to the neighbour whose last bit is 0: "
        "`.view(torch.int16) & 1` is the last bit. Or search: the patterns 1, 2, 3, … viewed as FP16 are all positive numbers in order.",
        "By formula: half the distance to the next larger number if the last bit of `w` is 1, else the FP16 number just above that half. "
        "By search: add each positive FP16 number to `w`, in FP16, and take the first for which the sum is another number than `w`.",
    ),
    diagnoses={
        "not-a-step": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The step must be positive, for a negative `w`, too: it is added and moves "
            "`w` up. And no finite FP16 number is beyond 65504.",
        ),
        "whole-gap": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the whole distance to a neighbour. A sum need not reach the "
            "neighbour: it is rounded to the nearest number, and that turns much earlier.",
            hint=1,
        ),
        "half-gap": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is half the distance to a neighbour: half-way is a tie, and "
            "a tie goes to the even one. Is that always the neighbour?",
            hint=2,
        ),
        "above-half-always": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your step is always the first number *beyond* half a distance. But a "
            "tie does not always go back to `w`: see the last bit of `w`, and on which side its neighbour is nearer.",
            hint=2,
        ),
        "largest-lost": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the largest step that is still lost: you are one FP16 number "
            "short.",
            hint=1,
        ),
        "ties-to-odd": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A tie goes to the neighbour whose last bit is 0, the even one. Your code has it "
            "the other way round.",
            hint=2,
        ),
        "downward": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the step that moves `w` when it is *subtracted*. At a power of two "
            "the next numbers above and below are not equally far.",
            hint=1,
        ),
        "sign-ignored": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sign of `w` was dropped. A positive step moves a negative `w` towards "
            "zero, and below a power of two the numbers lie twice as close.",
            hint=1,
        ),
        "powers-of-two-only": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Only powers of two were tried, as by halving a step until it does "
            "nothing. Between two of them lie 1023 other FP16 numbers.",
            hint=2,
        ),
        "same-everywhere": Diagnosis(
            "{call} returned {got}, and the same for every other `w`; the right answer is {want}. eps and its like belong to 1.0: "
            "the distance between neighbours doubles with every power of two.",
            hint=1,
        ),
        "share-of-the-weight": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your step is always {share} times `w`. Between two powers of two, "
            "neighbours are equally far apart, however large the number.",
            hint=1,
        ),
        "added-in-a-wider-format": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Such a step moves a number of FP32 or FP64: the sum was formed "
            "there, or the distance asked for there (`math.ulp` is for FP64). Here it is rounded to FP16.",
            hint=2,
        ),
        "added-in-bf16": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is the step that BF16 needs: with 7 bits of fraction its numbers lie "
            "8 times as far apart as those of FP16, which has 10.",
            hint=2,
        ),
        "no-fp16-number": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is no FP16 number: stored as a step in FP16 it becomes "
            "{rounded}. The number just above another one must be FP16's, not that of a Python float.",
            hint=2,
        ),
        "at-this-weight": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Many other weights come out right. {why}",
            hint=2,
        ),
    },
    why=(
        "A sum moves to the next number once it is past the middle; in the middle itself it goes to the even one of the two. So an odd `w` needs "
        "half the distance, and an even one the FP16 number just above that. Upwards of a negative power of two the "
        "distance is half as long. For the weight 1.0 that is 0.00049, for 0.01 it is 128 times smaller: always between a quarter "
        "and half of a thousandth of the weight. Updates of learning rate × gradient are often smaller, and then training stands still: lesson 03 keeps "
        "the weights in FP32 for this reason."
    ),
)

MASKED_SCORES = Exercise(
    id="2.4",
    title="Masks that fit",
    minutes=7,
    function="masked_scores",
    hints=(
        "The number that hides a score must be far below every score, and *finite* in the dtype of the scores: a row of nothing but "
        "−infinity has no softmax. And it should take the place of a score. What is added to a score depends on the score.",
        "`torch.finfo(scores.dtype).min` is the lowest finite number of a dtype. `scores.masked_fill(mask, value)` and "
        "`torch.where(condition, one, other)` replace; mind which of the two means *hide*: `~keep` is the opposite of `keep`.",
        "One line: where `keep` is True take the score, elsewhere the lowest finite number of the scores' own dtype, or any such "
        "number that all dtypes hold and that lies far enough below −1000.",
    ),
    diagnoses={
        "does-not-fit": Diagnosis(
            "{call} {got}. {fill} is too much for `{dtype}`, whose lowest finite number is {lowest}. `masked_fill` refuses such a number; "
            "`torch.where` and arithmetic make −infinity of it, and a row of only that has no softmax.",
            hint=2,
        ),
        "lowest-of-fp32": Diagnosis(
            "{call} {got}. You hide with the lowest number of FP32, and the scores are `{dtype}`: theirs is {lowest}. Ask "
            "`torch.finfo` about the dtype that the number goes into.",
            hint=2,
        ),
        "minus-infinity": Diagnosis(
            "{call} {got}. −infinity hides a score perfectly while something else in the row is kept. Where nothing is, softmax computes "
            "−inf − (−inf), and the whole row is NaN. The lowest finite number of `{dtype}` is {lowest}.",
            hint=1,
        ),
        "eps-vanishes": Diagnosis(
            "{call} {got}. In FP32 your code hides with {fill}, the logarithm of {eps}. In `{dtype}` {eps} is zero, and log(0) is "
            "−infinity; a row of only that has no softmax. Nor is {fill} low enough for scores down to −1000.",
            hint=2,
        ),
        "adds-the-lowest": Diagnosis(
            "{call} has {got} at index {place}, where the score is {score} and nothing in the row is kept. The lowest number, {lowest}, was "
            "*added*: with a negative score the sum goes beyond the range. Put it in the place of the score instead. {row}",
            hint=1,
        ),
        "makes-nan": Diagnosis(
            "{call} has {got} at index {place}, where the score is {score}, and softmax makes NaN of that row. Arithmetic with infinity does: "
            "0 × inf, inf − inf. In FP16 1e9 is infinity, too. Replace scores, do not compute with them. {row}",
            hint=2,
        ),
        "inverted": Diagnosis(
            "{call} has {got} at index {place}, where `keep` is True and the score is {score}; where `keep` is False, scores are as they were. "
            "The mask is the wrong way round: True means keep.",
            hint=2,
        ),
        "nothing-hidden": Diagnosis(
            "{call} still has the score {got} at index {place}, where `keep` is False. Did you return `scores` itself? `masked_fill` "
            "returns a new tensor.",
            hint=2,
        ),
        "weights-returned": Diagnosis(
            "{call} returned {got}: each row adds up to 1. Those are weights; return the *scores*, for softmax comes after your "
            "function.",
        ),
        "filled-with-zero": Diagnosis(
            "{call} has {got} at index {place}, where `keep` is False, and softmax gives it a weight of {weight}. A score of 0 is an "
            "ordinary score: exp(0) is 1. Only a very negative score gets nothing. {row}",
            hint=1,
        ),
        "not-low-enough": Diagnosis(
            "{call} has {got} at index {place}, where `keep` is False, and softmax gives it a weight of {weight}. What hides a score must lie "
            "far below every score that is kept, and those go down to −1000. {row}",
            hint=1,
        ),
        "kept-changed": Diagnosis(
            "{call} has {got} at index {place}, which is kept and had the score {score}; now it weighs {weight}, and should weigh {want}. "
            "What is kept must keep its distance to the others. Was something large added and taken away again? That rounds. {row}",
            hint=2,
        ),
        "promoted": Diagnosis(
            "{call} returned `{got}`, and the scores are `{want}`. The mask brought FP32 in: a bool tensor times a Python float has the "
            "default dtype, and FP32 wins over 16 bits. Replace scores, or give the mask their dtype.",
            hint=2,
        ),
    },
    why=(
        "The lowest finite number of the scores' own dtype fits by definition, and lies so far below any score that exp of the distance is 0. "
        "It takes the place of a score and so does not depend on it. A row where nothing is kept has equal scores then: its weights "
        "are equal and finite, and nobody reads them. −1e4 does as well for scores of this size, in all dtypes."
    ),
)

RUNNING_MEAN = Exercise(
    id="2.5",
    title="A mean over many batches",
    minutes=7,
    function="running_mean",
    hints=(
        "A mean is a sum and a count, and both go over *elements*. Which dtype has the sum of one batch? And the sum of all? Divide once, "
        "at the end.",
        "`batch.sum(dtype=torch.float32)`, `batch.float()` or `batch.double()` add in a wide format; `.item()` makes a Python float, which "
        "has 64 bits, and the total of many batches needs them. `batch.numel()` counts elements. One `for` loop does both: a generator has no second walk and no `len`.",
        "Start with `total = 0.0` and `count = 0`. For each batch, widen it, add its sum to the one and its number of elements to the "
        "other. After the loop: if the count is 0 raise a `ValueError`, else return their quotient.",
    ),
    diagnoses={
        "mean-of-means": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is the mean of the batches' means: every batch counts the same, however "
            "few elements it has.",
            hint=1,
        ),
        "counts-batches": Diagnosis(
            "{call} returned {got}; the mean is {want}. The sum of all elements was divided by the number of *batches*.",
            hint=1,
        ),
        "counts-rows": Diagnosis(
            "{call} returned {got}; the mean is {want}. The count is that of rows: `len(batch)` and `batch.shape[0]` are the size of the first "
            "dimension only.",
            hint=2,
        ),
        "not-divided": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is the sum of all elements: divide it by their number.",
            hint=1,
        ),
        "one-batch": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is the mean of a single batch, the first or the last. Is `return` inside the "
            "loop, or the total set anew in each round?",
            hint=1,
        ),
        "moving-average": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is a moving average, in which the last batches count more than the first, "
            "as BatchNorm's running statistics do. Here every element counts the same.",
            hint=1,
        ),
        "batch-sum-in-fp16": Diagnosis(
            "{call} returned {got}; the mean is {want}. The sum of each batch is an FP16 number: infinite from 65520 on, and rounded to "
            "three digits before. PyTorch adds up in FP32 inside, but `batch.sum()` returns what the batch is.",
            hint=2,
        ),
        "total-in-fp16": Diagnosis(
            "{call} returned {got}; the mean is {want}. The total is kept in FP16. It overflows before you divide; and a large total "
            "no longer moves when small numbers are added to it.",
            hint=2,
        ),
        "total-in-fp32": Diagnosis(
            "{call} returned {got}; the mean is {want}. The total is kept in FP32, as a tensor from `torch.zeros(())` is, or the mean "
            "is. FP32 has 24 bits: beside a large total small terms round away, only later than in FP16. A Python float has 53.",
            hint=2,
        ),
        "mean-in-fp16": Diagnosis(
            "{call} returned {got}; the mean is {want}. {got} is an FP16 number, as all your results are: a mean that is corrected term by "
            "term in FP16 stands still when the correction is less than half a gap.",
            hint=1,
        ),
        "rounded-for-show": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is the mean, rounded to {digits}. Round when you print, not when you return.",
        ),
        "overflows": Diagnosis(
            "{call} returned {got}; the mean is {want}. A sum overflowed before it was divided. The mean is an ordinary number; "
            "what it is made from is not.",
            hint=1,
        ),
        "small-lost": Diagnosis(
            "{call} returned {got}; the mean is {want}. Elements this small do not survive a division in FP16: below 2^−25 there is "
            "only 0. Divide once, at the end, and not in FP16.",
            hint=1,
        ),
        "rounded-on-the-way": Diagnosis(
            "{call} returned {got}; the mean is {want}. That is right to three digits: a sum or a mean was rounded to FP16 on the way. "
            "`batch.mean()` of an FP16 batch is FP16, however it is computed inside.",
            hint=2,
        ),
        "empty-batch": Diagnosis(
            "{call} returned {got}; the mean is {want}. One batch is empty, and its `mean()` is 0 / 0, which is NaN; 0 × NaN is NaN, too. Sums have "
            "no such trouble: an empty one is 0.",
            hint=1,
        ),
        "refuses-an-empty-batch": Diagnosis(
            "{call} {got}. A batch may be empty while others are not; it adds nothing to the sum, and 0 to the count. Only if there is no "
            "element in all of them there is no mean.",
            hint=1,
        ),
        "zero-for-nothing": Diagnosis(
            "{call} {got}; the mean is {want}. These elements are zeros, or add up to zero, and have a mean like others. Only where there is "
            "no element at all there is none: ask the count, not the sum.",
            hint=1,
        ),
        "needs-a-list": Diagnosis(
            "{call} {got}. The same batches in a list come out right, but a generator has no `len` and no index: it gives one batch after the "
            "other, and that is all.",
            hint=2,
        ),
        "walks-twice": Diagnosis(
            "{call} {got}. The same batches in a list come out right. A generator can be walked through only once: what was taken "
            "out for the sum, or for a look at the first batch, is gone.",
            hint=2,
        ),
    },
    why=(
        "A Python float has 64 bits: its range and its digits are enough for any number of FP16 elements, where an FP32 total stands still in the end, too. What is added needs care as well, "
        "so each batch is widened before its sum. Dividing once, by the number of elements, gives each the same weight, whatever batch it "
        "came in. PyTorch's `sum` adds FP16 in FP32 inside; it is the result that is FP16, and that overflows."
    ),
)

LESSON = Lesson(
    slug="02_fp16_failures",
    title="FP16 failures",
    minutes=85,
    difficulty="medium",
    needs="lesson 01; what softmax does",
    exercises=(SAFE_NORM, STABLE_LOG_SOFTMAX, SMALLEST_EFFECTIVE_STEP, MASKED_SCORES, RUNNING_MEAN),
)
