"""The words of lesson 03."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

TENSOR_CORE_MATMUL = Exercise(
    id="3.1",
    title="Multiply like a Tensor Core",
    minutes=8,
    function="tensor_core_matmul",
    hints=(
        "Three things have a precision of their own: what goes in, what adds up, what comes out. Products and sums are to be "
        "FP32, all of them, and a result is rounded once, when its whole sum is there. No loop is needed.",
        "`.float()` gives the same numbers in FP32, exactly. A product of two FP32 matrices, `@`, is computed and added up in "
        "FP32. `.half()` rounds to FP16, and makes infinity of what is too large.",
        "Take both matrices to FP32, multiply *those* with `@`, and take the product, once it is complete, back to FP16.",
    ),
    diagnoses={
        "not-rounded-at-all": Diagnosis(
            "{call} returned a tensor of {got}; {want} is asked for. To add up in more than 16 bits is right, but the result of the "
            "product goes back to memory in FP16, rounded once.",
            hint=1,
        ),
        "elementwise": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is `a * b`, element times element; a matrix product is `@`.",
            hint=2,
        ),
        "transposed": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Rows of `a` met *rows* of `b`; they belong to its columns.",
            hint=2,
        ),
        "swapped": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is `b @ a`: a matrix product depends on the order.",
            hint=2,
        ),
        "through-bf16": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Operands or sums went through BF16, which has three fraction bits fewer "
            "than FP16. Of the wider formats, FP32 holds every FP16 number.",
            hint=2,
        ),
        "accumulates-in-fp16": Diagnosis(
            "{call} returned {got}; the right answer is {want}. All products are 1, so nothing but the running sum can go wrong: in FP16 it "
            "stands still at 2048, for 2049 rounds back. Add up in FP32.",
            hint=1,
        ),
        "accumulates-in-bf16": Diagnosis(
            "{call} returned {got}; the right answer is {want}. All products are 1, so nothing but the running sum can go wrong: in BF16 it "
            "stands still at 256, for 257 rounds back. Add up in FP32.",
            hint=1,
        ),
        "rounds-partial-sums": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A part of the sum was rounded to FP16 before the rest was added: of one tile, of one "
            "half, or at every so many products. FP16 has neither 2049 nor anything from 65520 on, and what a partial sum loses "
            "does not come back. Round when the whole sum is there, once.",
            hint=1,
        ),
        "rounds-products": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Each product was rounded to FP16 before it was added, and 2^−26 "
            "rounds to zero there. FP16 times FP16 is an FP16 tensor: take the operands to FP32 first.",
            hint=2,
        ),
        "loses-subnormal-operands": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Operands below 2^−14 are subnormal, and FP16 numbers like all others. Yours "
            "became zero on the way, or something else: they were set to zero, or divided while they were FP16. Take them to FP32 as they are.",
            hint=2,
        ),
        "rounds-otherwise": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The sum is right as far as FP32 goes, but its last rounding is not that of a "
            "cast, which takes the nearest FP16 number and, of two that are equally near, the even one. `.half()` does it.",
            hint=2,
        ),
        "saturates": Diagnosis(
            "{call} returned {got}; the right answer is {want}. FP16 does not stop at 65504: what rounds beyond it is infinity. "
            "Hiding it would hide an overflow from everybody who looks for one.",
            hint=2,
        ),
        "rounds-often": Diagnosis(
            "{call} has {got} where {want} is right: {steps} FP16 numbers away. With an FP32 accumulator and one rounding it is at most the "
            "neighbour, so something was rounded to 16 bits on the way.",
            hint=1,
        ),
    },
    why=(
        "FP32 holds every FP16 number and every product of two of them: 11 binary digits times 11 are 22, and FP32 has 24. So only "
        "the sum is rounded, in FP32, and then the result, once. Plain `a @ b` passes as well: PyTorch's own FP16 product adds "
        "up in FP32, on a CPU and, unless the switch of above lets pieces be added in FP16, on a GPU. Your function says in the open what makes "
        "it safe."
    ),
)

MASTER_WEIGHTS = Exercise(
    id="3.2",
    title="Masters and working copies",
    minutes=12,
    function="MasterWeights",
    hints=(
        "Who keeps the truth? Only the masters remember small steps, so the step is taken on them, in FP32, from the first operation "
        "to the last; a parameter is written, never read. Ask of each line: what is its dtype, and does it make a new tensor or write into one that is there?",
        "`list(params)` keeps what can be gone through only once. `.detach()` leaves the history behind, `.clone()` makes memory of "
        "its own, `.float()` makes FP32, but returns the *same* tensor if it is FP32 already. Inside `torch.no_grad()` you may write "
        "into parameters: `x.copy_(y)` writes y into x, and rounds to x's dtype. `x -= y` writes into x, `x = x - y` does not.",
        "Make one detached, cloned FP32 tensor for each parameter and keep both lists. In `step`, without gradients being recorded, go "
        "through both lists together: where there is a gradient, subtract lr times *the gradient in FP32* from the master, in place; "
        "then copy the master into its parameter.",
    ),
    diagnoses={
        "no-masters": Diagnosis(
            "{call}: its `masters` are {got}. Keep them as a list of FP32 tensors, one for each parameter, in `self.masters`.",
            hint=1,
        ),
        "no-step": Diagnosis(
            "{call}: its `step` is {got}. The class needs a method `step(self, lr)`.",
        ),
        "too-few-masters": Diagnosis(
            "{call}: number of `masters`: {got}, number of parameters: {want}. Each parameter needs one, also one that is FP32 already, and one "
            "that has no gradient yet.",
            hint=2,
        ),
        "too-many-masters": Diagnosis(
            "{call}: number of `masters`: {got}, number of parameters: {want}. If it grows with each object: a list in the body of a class "
            "belongs to all its objects together; make it in `__init__`.",
            hint=2,
        ),
        "master-dtype": Diagnosis(
            "{call}: the master of `{name}` has dtype {got}. Masters are `torch.float32`, whatever the parameter is.",
            hint=2,
        ),
        "master-shape": Diagnosis(
            "{call}: the master of `{name}` has shape {got}; that of its parameter is {want}.",
            hint=2,
        ),
        "master-start": Diagnosis(
            "{call}: the master of `{name}` starts at {got}. Before the first step a master is its parameter, {want}, in FP32.",
            hint=1,
        ),
        "updates-fp16-weights": Diagnosis(
            "{call}: the master of `{name}` is {got} and not {want}, but the parameter has moved, to {weight}. The step was taken from the "
            "parameter. Take it from the master, which alone remembers small steps, and copy the master into the parameter.",
            hint=1,
        ),
        "master-not-kept": Diagnosis(
            "{call}: the master of `{name}` is still {got}, and it should be {want} after two steps; the parameter took the first one twice. The "
            "new value was not kept: `master = master - …` gives the name to a new tensor, while the old one stays in the list.",
            hint=2,
        ),
        "never-copied-back": Diagnosis(
            "{call}: `{name}` is still {got}, though its master is right. The network computes with the parameter: after each step, "
            "write the master into the Parameter object that is there.",
            hint=2,
        ),
        "copied-back-too-early": Diagnosis(
            "{call}: `{name}` is {got} and its master {want}: the parameter is one step behind. First the step, then the copy.",
            hint=1,
        ),
        "parameter-not-master": Diagnosis(
            "{call}: `{name}` is {got}. After a step each parameter is its master rounded to the parameter's dtype, here {want}.",
            hint=1,
        ),
        "fp32-rounded": Diagnosis(
            "{call}: `{name}` is {got}, rounded to FP16, and its master is {want}. This parameter is FP32: round to the dtype of the "
            "parameter, not always to FP16.",
            hint=2,
        ),
        "fp32-passed-over": Diagnosis(
            "{call}: the master of `{name}` is still {got}, and it should be {want}. A parameter that is FP32 already takes part like all "
            "others, with a master of its own.",
            hint=1,
        ),
        "wrong-direction": Diagnosis(
            "{call}: the master of `{name}` is {got}; right is {want}. The gradient points uphill: subtract it.",
        ),
        "lr-ignored": Diagnosis(
            "{call}: the master of `{name}` is {got}; right is {want}. The step is `lr` times the gradient.",
        ),
        "wrong-master": Diagnosis(
            "{call}: the master of `{name}` is {got}; right is {want}. A step subtracts lr times the gradient from the master, in FP32 all along.",
            hint=1,
        ),
        "masters-made-anew": Diagnosis(
            "{call}: the numbers of `{name}` end at {got}; right is {want}. The master was made from the parameter again, and "
            "what the parameter cannot hold is forgotten. Masters are made once, in `__init__`.",
            hint=1,
        ),
        "steps-lost": Diagnosis(
            "{call}: the master of `{name}` is still {got}; right is {want}. Each step is too small for FP16: somewhere the master, or "
            "the difference, passes through it, and every step is rounded away.",
            hint=1,
        ),
        "product-in-fp16": Diagnosis(
            "{call}: the master of `{name}` is still {got}; right is {want}. A Python number times an FP16 gradient is FP16, and lr times this "
            "gradient is too small for it. Take the gradient to FP32 first.",
            hint=2,
        ),
        "aliases": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. What was written into the FP32 parameter got into its master: they share their "
            "memory. `.float()` and `.to(torch.float32)` copy nothing where nothing changes.",
            hint=2,
        ),
        "changed-not-overwritten": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. What somebody had written into the parameter is still in it: it was changed, not "
            "written over. 0 × NaN is NaN, and NaN plus anything as well. `copy_` looks at nothing that was there.",
            hint=2,
        ),
        "not-written": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. Large steps come out right; after this one, too small for FP16 or zero, the parameter "
            "was not written. Write it after every step: it may be FP32, or somebody may have changed it.",
            hint=1,
        ),
        "stops-at-the-end": Diagnosis(
            "{call}: `{name}` is {got}; its master, rounded to FP16, is {want}. Rounding is that of any cast: what FP16 cannot reach becomes "
            "infinity, and NaN stays NaN. Another number would hide it.",
            hint=2,
        ),
        "hides-not-finite": Diagnosis(
            "{call}: the master of `{name}` is {got}; right is {want}. A gradient of infinity or NaN was left out or replaced. `step` takes "
            "gradients as they are; whether to step at all is decided elsewhere (lesson 05).",
            hint=1,
        ),
        "fails-without-gradient": Diagnosis(
            "{call} {got}. The gradient of `w` is None: a parameter that took no part in the loss has none. Pass it over.",
            hint=1,
        ),
        "moves-without-gradient": Diagnosis(
            "{call}: `{name}` is {got}, and it has no gradient: it should stay {want}.",
            hint=1,
        ),
        "stops-without-gradient": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. The gradient of `w` is None, and that ended the step for all that came after it: "
            "`continue` goes on, `break` and `return` do not.",
        ),
        "forgotten-without-gradient": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. It had no gradient at first, but it has one now. Each step looks anew.",
            hint=1,
        ),
        "generator-used-up": Diagnosis(
            "{call}: `{name}` is {got}; right is {want}. The parameters came from a generator, as `model.parameters()` is one. It can be gone "
            "through once, so the second time it was empty: make a list of it first.",
            hint=2,
        ),
        "masters-of-nothing": Diagnosis(
            "{call}: number of `masters`: {got}, number of parameters: {want}. The parameters came from a generator, as `model.parameters()` is one, and "
            "something had gone through it before. Make a list first, and go through that.",
            hint=2,
        ),
        "new-objects": Diagnosis(
            "{call} put {got} into the list of parameters. The model goes on with the Parameter that it has: write into that one.",
            hint=2,
        ),
        "parameter-dtype": Diagnosis(
            "{call}: `{name}` has dtype {got} afterwards; it must stay {want}. The working copy is what the network computes with.",
            hint=2,
        ),
        "no-longer-trainable": Diagnosis(
            "{call}: `{name}` has {got} afterwards. A parameter stays a leaf that requires a gradient: write into it where no gradients are recorded.",
            hint=2,
        ),
        "grad-changed": Diagnosis(
            "{call}: the gradient of `{name}` was {want} and is {got} afterwards. `step` reads gradients; whoever calls it may still need them.",
            hint=1,
        ),
        "history-grows": Diagnosis(
            "{call}: a master has a history of {got} and it grows with every step, with memory that nobody gives back. Detach the masters, and take "
            "the step where no gradients are recorded.",
            hint=2,
        ),
    },
    why=(
        "The master takes every step in FP32, where steps add up that are thousands of times smaller than FP16 can add to a weight; "
        "the parameter is nothing but its picture in FP16, drawn anew after each step. `torch.amp` does the same the other way round: "
        "the *parameters* are FP32 and so are the masters, and autocast draws the 16-bit picture when an operation needs one."
    ),
)

LOST_FRACTION = Exercise(
    id="3.3",
    title="How much is lost",
    minutes=6,
    function="lost_fraction",
    hints=(
        "Two questions to each entry: is it nonzero now, and would it still be in FP16? You know from lesson 01 where underflow ends, but you need no "
        "limit at all: the cast itself knows. Which entries may be in the denominator?",
        "`grads != 0` is a tensor of True and False, and so is `grads.half() == 0`; `&` is “and” for each pair of them. `.sum()` counts "
        "the True ones, `.item()` makes a Python number. A share of nothing is 0 / 0: look before you divide.",
        "Count the entries that are nonzero in FP32; if there are none, the answer is 0.0. Count those among them whose FP16 "
        "version equals zero. Divide the second number by the first, and return a plain float.",
    ),
    diagnoses={
        "share-kept": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is the share that FP16 *keeps*.",
            hint=1,
        ),
        "percent": Diagnosis(
            "{call} returned {got}; the right answer is {want}, as a share: all is 1, not 100.",
        ),
        "count": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is how many are lost: divide by how many there were.",
            hint=2,
        ),
        "over-survivors": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The lost ones were divided by those that are nonzero *in FP16*; what was lost is "
            "missing there. Divide by those that were nonzero before.",
            hint=1,
        ),
        "rounding-counted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Everything that FP16 changes was counted. Most of that is rounding, a "
            "twentieth of a percent; lost is only what becomes zero.",
            hint=1,
        ),
        "never-lost": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Did you look for nonzero entries after the cast, or compare two FP16 tensors? Who "
            "was nonzero, only the FP32 tensor knows.",
            hint=1,
        ),
        "loses-like-bf16": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is what BF16 loses: almost nothing, for it reaches as far down as FP32.",
            hint=2,
        ),
        "eps-limit": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the share below 2^−10, FP16's `eps`. That is the gap next to 1; near "
            "zero the numbers lie far closer.",
            hint=1,
        ),
        "sign-ignored": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A gradient may be negative: what counts is its size.",
            hint=1,
        ),
        "zeros-counted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Entries that were zero before the cast were counted as lost. Nothing was lost there.",
            hint=1,
        ),
        "zeros-over-nonzero": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The denominator is right, but entries that were zero before the cast "
            "are among those that you count as lost.",
            hint=2,
        ),
        "all-entries": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The lost ones are counted rightly, but divided by all entries. Of a layer "
            "that is half zeros that would show half the damage: divide by the nonzero ones.",
            hint=2,
        ),
        "equal-ones-merged": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Equal entries were counted once. Each of them is the gradient of a weight of "
            "its own: count entries, not different values.",
            hint=2,
        ),
        "overflow-counted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. What is too large for FP16 was counted, too. That is another fate: it becomes "
            "infinity, not zero.",
            hint=1,
        ),
        "overflow-left-out": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Entries that become infinity are missing in the denominator. They were nonzero, "
            "so they belong there.",
            hint=1,
        ),
        "counts-in-16-bits": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Small gradients come out right, so it is the *counting*: FP16 counts by ones "
            "only to 2048, int16 to 32767. Masks of True and False need no conversion: `.sum()` counts them in 64 bits.",
            hint=2,
        ),
        "subnormals-lost": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the share below 2^−14, about 6.1e-5. That is the smallest *normal* "
            "number; subnormals go on below it for another ten powers of two.",
            hint=1,
        ),
        "smallest-limit": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the share up to 2^−24, the smallest FP16 number. But a cast takes the nearer "
            "neighbour: what is above half of that number is rounded *up* to it.",
            hint=1,
        ),
        "another-limit": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your limit between what is lost and what is kept is not that of FP16. The cast "
            "itself knows it.",
            hint=1,
        ),
        "tie-kept": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Exactly 2^−25 lies in the middle between 0 and the smallest number. A tie goes to the "
            "even neighbour, and that is 0: this one is lost, too.",
            hint=1,
        ),
        "near-limit": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your limit is near 2^−25, but it is another number. Write it as a power of two, or let "
            "the cast decide.",
            hint=1,
        ),
        "nothing-nonzero": Diagnosis(
            "{call} {got}; it should return 0.0. Where nothing is nonzero nothing can be lost, and 0 / 0 is no share.",
            hint=2,
        ),
    },
    why=(
        "The cast itself is the limit: `grads.half() == 0` is true up to and including 2^−25, the tie, which goes to the even neighbour, "
        "zero. What was zero before is no loss, so it counts neither above nor below the line. 2^−14 is where normal numbers end, 2^−24 is the "
        "smallest number of all, and half of that is where underflow ends."
    ),
)

LESSON = Lesson(
    slug="03_mixed_precision_by_hand",
    title="Mixed precision by hand",
    minutes=60,
    difficulty="medium",
    needs="lesson 02",
    exercises=(TENSOR_CORE_MATMUL, MASTER_WEIGHTS, LOST_FRACTION),
)
