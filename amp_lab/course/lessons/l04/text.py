"""The words of lesson 04."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

SCALED_BACKWARD = Exercise(
    id="4.1",
    title="Scale, walk back, unscale",
    minutes=12,
    function="scaled_backward",
    hints=(
        "Gradients get lost on the way *back*, inside the network, so multiply before the walk back begins: the loss. Divide when "
        "the gradients have arrived in FP32. And only what arrived just now may be divided: keep it apart from what was there.",
        "`loss * scale` is a new tensor with its own `.backward()`. `backward` adds to `.grad` *in place*: another name for the "
        "old tensor is no copy. Set `.grad = None` first and `backward` makes a new tensor, or none where the loss does not lead: then "
        "the old one goes back as it was. Or let `torch.autograd.grad(..., "
        "allow_unused=True)` return the gradients and leave `.grad` alone.",
        "Three loops: put all old `.grad` into a list and set them to `None`; call `backward` on the scaled loss; then, for each "
        "parameter, divide `.grad` by `scale` and add the old one. Mind the two cases of `None`: nothing arrived, nothing was there.",
    ),
    diagnoses={
        "left-alone": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Every `.grad` is as it was before: to return gradients, or to give a "
            "local name a new value, puts nothing into `.grad`. (And what is made from `loss.item()` knows no way back.)",
            hint=2,
        ),
        "not-scaled": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. That is what `loss.backward()` leaves, without the scale: inside the "
            "network this gradient was below all FP16 numbers, and became zero or a coarse neighbour.",
            hint=1,
        ),
        "only-unscales": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Gradients were divided by the scale, but the loss was never multiplied "
            "by it: what FP16 lost on the way back stays lost, and the rest is `scale` times too small.",
            hint=1,
        ),
        "scales-the-gradients": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were multiplied when they had arrived: too late "
            "for those that had become zero on the way, and wrong for all others. What must be multiplied is the loss.",
            hint=1,
        ),
        "not-unscaled": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. It is still `scale` times the gradient: divide it in `.grad`. "
            "(`grad = grad / scale` only gives a local name a new value.)",
            hint=1,
        ),
        "divides-the-loss": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The loss was *divided* by the scale, which pushes small gradients "
            "further down, out of FP16. Multiply the loss; divide the gradients.",
            hint=1,
        ),
        "scales-twice": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}, which is scale² times less. The loss was multiplied by the scale, "
            "and the gradients once more: at the end they must be divided.",
            hint=1,
        ),
        "unscales-twice": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were divided by the scale twice; the loss was multiplied "
            "only once.",
            hint=1,
        ),
        "first-only": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The first parameter is right; the others were not unscaled. Does your "
            "loop end too early?",
        ),
        "whole-numbers": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. `//` rounds down to a whole number, and most gradients are less than "
            "one: `/` divides.",
        ),
        "scale-in-half": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The scale was used in FP16, whose largest number is 65504: there "
            "65536 is infinity. Loss and gradients are FP32, and a Python `float` leaves them so.",
            hint=2,
        ),
        "unscales-in-half": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradient was in FP16 while it was unscaled, or after: there it is "
            "as small as before, and lost at last. It arrives in FP32; divide it there.",
            hint=1,
        ),
        "clears": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}: the gradient that was there before, plus the new one. What was "
            "there is gone. `backward` adds, and so must you: somebody accumulates here.",
            hint=1,
        ),
        "old-unscaled": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradient that was there before was divided by the scale, too. It "
            "was unscaled already: divide only what arrived now.",
            hint=1,
        ),
        "old-in-place": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Where `.grad` was `None` your code is right. But `backward`, `zero_` "
            "and `/=` change a gradient *in place*: your name for the old one was no copy, and sees all that happens to it.",
            hint=2,
        ),
        "old-twice": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The old gradient was put aside, but it was still in `.grad` when "
            "the new one arrived, and so it was counted again (divided or not).",
            hint=2,
        ),
        "old-scaled": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradient that was there before was multiplied by the scale: it "
            "never was scaled, and stays as it is.",
            hint=1,
        ),
        "hooks-left": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The first call was right, but it left its hooks on the parameters, and "
            "in the next call they divide once more. `register_hook` returns a handle: call its `.remove()`.",
        ),
        "scale-ignored": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Your code takes a scale of its own. It did where many scales do; here "
            "only the one that is given brings the gradients into FP16's range.",
            hint=1,
        ),
        "idle-lost": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The loss does not depend on `idle`, so no gradient arrives, and `.grad` "
            "stays `None`, or zero, as you left it. But something was in it before: put that back here, too.",
            hint=2,
        ),
        "idle-stops": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Without `idle`, on which the loss does not depend, your code does it "
            "right. Does a loop end there? `continue` passes over one parameter, `break` over all that come after it.",
            hint=2,
        ),
        "idle-crashes": Diagnosis(
            "{call} failed: {got}. The loss does not depend on `idle`, so there is no gradient for it: its `.grad` stays as it was, "
            "perhaps `None`. Real networks have such parameters; leave them out.",
            hint=2,
        ),
        "frozen": Diagnosis(
            "{call} left {got} behind: there the parameter stays as it is for the rest of the training. `.grad` can be changed without it, or "
            "under `torch.no_grad()`.",
        ),
        "loss-changed": Diagnosis(
            "{call} changed the loss in place: it was {want} and is {got} now. The caller prints it next. `loss *= scale` writes into the "
            "caller's tensor; `loss * scale` makes a new one.",
        ),
        "weights-changed": Diagnosis(
            "{call} changed a weight from {want} to {got}. Only `.grad` is to change here; the step is the optimizer's business.",
        ),
        "wrong-gradient": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}.",
            hint=1,
        ),
    },
    why=(
        "The backward pass is linear: multiply the loss by S and every number on the way back is S times larger. So each gets into "
        "FP16's range, and what arrives in FP32 is divided by S. If S is a power of two, neither step rounds: only the exponent "
        "moves. What was in `.grad` before never was scaled, so it is kept apart from the division."
    ),
)

PICK_SCALE = Exercise(
    id="4.2",
    title="The largest scale that is safe",
    minutes=10,
    function="pick_scale",
    hints=(
        "One number of all the gradients decides: the one nearest to overflow. Divide what FP16 can hold by what it would be, with "
        "the headroom in it, and go down to a power of two. The special cases come before the division.",
        "`.abs().max().item()` of each tensor, then the largest of these. `math.frexp(x)` returns m and e with x = m × 2^e and m "
        "from ½ to just below 1; `math.floor(math.log2(x))` is the exponent below, too. `.isfinite().all()` finds infinity and NaN. "
        "Python's `max` of numbers is not to be trusted with a NaN. Zero is what is `== 0`: `allclose` takes tiny numbers for zero, too.",
        "For each tensor: raise if not all is finite, else remember the largest size. If that is zero: 65536.0. Otherwise "
        "`ratio = 65504 / (<headroom times largest>)`, k is the exponent of the power of two at or below it, no more than 126; "
        "raise if k is below −24.",
    ),
    diagnoses={
        "too-high": Diagnosis(
            "{call} returned {got}; the right answer is {want}, half of that. Times {got}, the largest gradient with its headroom "
            "is beyond 65504: round *down* to a power of two. (`math.frexp` gives an exponent one higher, and a mantissa below 1.)",
            hint=2,
        ),
        "rounds": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The exponent was rounded to the *nearest* whole number, which is "
            "beyond the limit half of the time. A limit rounds down.",
            hint=2,
        ),
        "too-low": Diagnosis(
            "{call} returned {got}; the right answer is {want}, twice that, and still below the limit. Was the exponent lowered "
            "twice, or was each of two numbers rounded to a power of two by itself? Divide first, round once.",
            hint=2,
        ),
        "headroom-ignored": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is the scale without headroom: the first gradient that is "
            "larger than these overflows. If it isn't given, `headroom` is 4.",
            hint=1,
        ),
        "headroom-bits": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The headroom was taken for a number of *bits*, or powers of two. It "
            "is a plain factor.",
            hint=1,
        ),
        "headroom-inverted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The headroom went in the wrong way: it must make the scale "
            "smaller.",
            hint=1,
        ),
        "headroom-fixed": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is right for a headroom of 4, which is only what it is if "
            "nobody says otherwise.",
        ),
        "headroom-whole": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The headroom was made a whole number, or one that is at least 1; it "
            "may be any positive number.",
        ),
        "returns-exponent": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the exponent k; the scale is 2^k.",
        ),
        "inverse": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is its inverse, which *un*scales.",
            hint=1,
        ),
        "power-of-ten": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is a power of ten: multiplying by it rounds in binary. A power "
            "of two only moves the exponent.",
            hint=2,
        ),
        "natural-log": Diagnosis(
            "{call} returned {got}; the right answer is {want}. `math.log` is the natural logarithm, to the base of 2.718…; for powers "
            "of two it is `math.log2`.",
        ),
        "no-power-of-two": Diagnosis(
            "{call} returned {got}, which is no power of two; the right answer is {want}. Any other factor rounds when it is "
            "multiplied and again when it is divided out.",
            hint=2,
        ),
        "not-the-largest": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} follows from the {instead} of the gradients. But it is the single "
            "largest one that overflows first.",
            hint=1,
        ),
        "signs": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The gradient that is largest in *size* is not always the one that "
            "is largest: −65520 overflows as well. Take sizes first, the maximum next.",
            hint=2,
        ),
        "one-tensor": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Only one of the tensors in the list was looked at; one scale serves "
            "them all.",
            hint=1,
        ),
        "smallest-maximum": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is the scale that suits the tensor with the *smallest* gradients; "
            "with it the largest overflow. Of the scales of several tensors the lowest is safe.",
            hint=1,
        ),
        "any-zero": Diagnosis(
            "{call} returned {got}; the right answer is {want}. One of the tensors is all zeros, but the others are not: {got} is only for "
            "the case that all of them are.",
            hint=1,
        ),
        "sum-zero": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is for gradients that are *all zero*. Here one entry is, or a sum or a "
            "maximum because of the signs. The largest *size* is zero only if all are.",
            hint=2,
        ),
        "part-only": Diagnosis(
            "{call} returned {got}; the right answer is {want}. There may be more tensors or more entries here than before, and the "
            "largest comes last. Every entry of every tensor counts, whatever the shape.",
            hint=1,
        ),
        "mean-of-maxima": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The largest sizes of the tensors were added or averaged; the largest "
            "of them decides alone.",
            hint=1,
        ),
        "constant": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your code returns {got} whatever the gradients are.",
            hint=1,
        ),
        "lifts-the-smallest": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} suits the *smallest* gradient. A scale is not made for that "
            "one: it goes as high as the largest allows, and what is too small even then is lost.",
            hint=1,
        ),
        "int-truncates": Diagnosis(
            "{call} returned {got}; the right answer is {want}. `int` cuts towards zero, so it makes −6 of −6.99. `math.floor` goes "
            "down.",
            hint=2,
        ),
        "limit-of-fp32": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is what FP32 could hold. The gradients are FP32 here, but on the way "
            "back they must fit into FP16, up to 65504.",
            hint=1,
        ),
        "limit-refused": Diagnosis(
            "{call} returned {got}; the right answer is {want}. With it the product is exactly 65504, and that is allowed: FP16 holds "
            "it.",
            hint=1,
        ),
        "limit-65536": Diagnosis(
            "{call} returned {got}; the right answer is {want}. With {got} the product is exactly 65536, which FP16 makes "
            "infinite: its largest number is 65504.",
            hint=1,
        ),
        "limit-65520": Diagnosis(
            "{call} returned {got}; the right answer is {want}. With {got} the product is more than 65504, though FP16 would still round "
            "it down to that. What is asked for is a product that FP16 holds, not one that rounding saves.",
            hint=1,
        ),
        "never-below-one": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A loss scale may be less than 1: these gradients overflow unless they "
            "are made smaller.",
            hint=1,
        ),
        "capped": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your code never goes beyond {got}. There is nothing special about that "
            "scale: the limit is 2^126.",
            hint=1,
        ),
        "tiny-taken-for-zero": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is for gradients that are *all zero*. These are tiny, but not zero: "
            "were they compared with a small number, with a tolerance (`allclose`), in FP16, or as squares?",
            hint=2,
        ),
        "beyond-126": Diagnosis(
            "{call} returned {got}; the right answer is {want}, which is 2^126: the inverse of a larger power of two is no normal FP32 "
            "number, and gradients unscaled with it would be lost.",
            hint=2,
        ),
        "no-gradient": Diagnosis(
            "{call} {got}; the right answer is {want}. All gradients are zero, or there are none, so there is nothing to divide by and no "
            "scale to prefer: give the usual one.",
            hint=1,
        ),
        "nan-lost": Diagnosis(
            "{call} {got}, as if there were no NaN; it should raise a `ValueError`. A NaN gets lost in Python's `max`, since every "
            "comparison with it is `False` (`max(0.0, nan)` is 0.0), and `nan_to_num` hides it. Ask every tensor before.",
            hint=2,
        ),
        "refuses-too-much": Diagnosis(
            "{call} {got}. But a scale from 2^−24 to 2^126 suits these gradients, with their headroom. Refuse what is not finite, and what "
            "is too much even times 2^−24; nothing else.",
            hint=1,
        ),
        "too-large": Diagnosis(
            "{call} {got}; it should raise a `ValueError`. Times even 2^−24, the lowest scale that is allowed, the largest gradient with "
            "its headroom is beyond 65504. To stop there is no answer, nor to go lower.",
            hint=1,
        ),
        "other-error": Diagnosis(
            "{call} {got}; a `ValueError` is asked for, with a message that helps. What you got comes from an `assert`, which "
            "`python -O` leaves out, or from a step that such gradients do not survive: test them first, with `if`.",
            hint=2,
        ),
    },
    why=(
        "Scaling moves all gradients up alike, so the largest alone says how far they may go, and a power of two moves them "
        "without rounding. Headroom is for what was not seen: gradients of the next batch may be larger. Infinity and NaN are refused, "
        "for no finite factor brings them back. That one number must be chosen for a whole training is the weakness of static "
        "scaling: lesson 05 lets it move."
    ),
)

CLIP_SCALED = Exercise(
    id="4.3",
    title="Clip what is scaled",
    minutes=10,
    function="clip_scaled",
    hints=(
        "`max_norm` is a length for true gradients, and what lies in `.grad` is `scale` times as long. Bring both to the same "
        "scale before you compare them. One norm of all parameters together, one factor for all.",
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)` clips all together, passes over `None`, and returns the norm *before* "
        "clipping: of what lies in `.grad` when it is called. By hand it is the root of the sum of all squares, "
        "and `min(1, max_norm / norm)`, where a norm of zero needs care.",
        "First a loop over the parameters that divides each `.grad` that is not `None` by `scale`. Then clip as you would without "
        "a scale, and return what the clipping returns.",
    ),
    diagnoses={
        "untouched": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients are as they were: neither unscaled nor clipped. "
            "(`grad = grad / scale` only gives a local name a new value.)",
            hint=2,
        ),
        "not-clipped": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients are unscaled, but longer than `max_norm`: they were not "
            "clipped, or were compared with a limit that is larger: a `max_norm` that was scaled, say, while they no longer were.",
            hint=2,
        ),
        "clips-before-unscaling": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The *scaled* gradients were clipped to `max_norm`, and what was left "
            "was divided by the scale (`max_norm / scale` for unscaled ones comes to the same): the step is far too small, and no "
            "error tells you. Unscale first, and leave `max_norm` alone.",
            hint=1,
        ),
        "never-unscales": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were clipped as they were, scaled. Long ones come "
            "out right by luck, as they end at `max_norm` either way; short ones are blown up to `max_norm`, or stay scaled.",
            hint=1,
        ),
        "unscales-only-what-it-clips": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. These gradients are short enough and were left alone, scale and all. "
            "Clipping depends on the norm; unscaling does not.",
            hint=1,
        ),
        "clips-twice": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The factor max_norm / norm was applied twice.",
            hint=2,
        ),
        "always-max-norm": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were made as long as `max_norm` though they were shorter. "
            "Clipping only ever shortens: the factor is at most 1.",
            hint=2,
        ),
        "unscales-twice": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were divided by the scale twice.",
            hint=1,
        ),
        "multiplies": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients were multiplied by the scale once more; to unscale is "
            "to divide.",
            hint=1,
        ),
        "max-norm-unscaled": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. `max_norm` was divided by the scale, too. It is meant for unscaled "
            "gradients and needs no unscaling; for scaled ones it is `max_norm * scale`.",
            hint=1,
        ),
        "per-parameter": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Each parameter was clipped by its own norm, which bends the direction of "
            "the step. One norm, of all gradients together, and one factor.",
            hint=1,
        ),
        "by-value": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Each *entry* was limited to `max_norm`, as `clip_grad_value_` does. "
            "Here it is the length of all entries together that has a limit.",
            hint=2,
        ),
        "other-norm": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The length was not measured as the root of the sum of all squares: "
            "norms do not add up, a mean is no sum, and neither the longest nor the first says how long all are together.",
            hint=2,
        ),
        "matrix-norm": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Of a matrix, `torch.linalg.norm(..., 2)` is the largest singular value, "
            "not the root of the sum of all squares. `.norm()` without a 2 is, and `torch.linalg.vector_norm`.",
            hint=2,
        ),
        "shape-crashes": Diagnosis(
            "{call} {got}. Gradients have as many dimensions as their weights: two for a matrix, none for a single number. `.flatten()` "
            "each before you put them together, or square each and take its `.sum()`.",
            hint=2,
        ),
        "unscales-in-half": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The gradients went through FP16, with its three digits and its largest "
            "number. They are FP32: leave them there.",
            hint=2,
        ),
        "wrong-gradient": Diagnosis(
            "{call} left {got} in {place}; unscaled and clipped, it should be {want}.",
            hint=1,
        ),
        "returns-scaled-norm": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right, but the norm that you return is that of the "
            "*scaled* ones: in a log it would jump whenever the scale changes.",
            hint=2,
        ),
        "returns-norm-after": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right. What you return is their norm *after* clipping, "
            "and in a log it would never be more than `max_norm`.",
            hint=2,
        ),
        "returns-norm-unscaled-twice": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right, but their norm was divided by the scale although "
            "they were unscaled when it was taken.",
            hint=2,
        ),
        "returns-factor": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right. {got} is what they were multiplied by, "
            "or could have been; the norm is asked for.",
            hint=2,
        ),
        "returns-other-norm": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right, but what you return is another measure: the root "
            "of the sum of *all* squares is asked for.",
            hint=2,
        ),
        "wrong-norm": Diagnosis(
            "{call} returned {got}; the right norm is {want}. The gradients are right.",
            hint=2,
        ),
        "zero-norm": Diagnosis(
            "{call} {got}. All gradients are zero there, so `max_norm / norm` divides by zero. Nothing is to be clipped, and the norm is "
            "0.",
            hint=2,
        ),
        "idle-crashes": Diagnosis(
            "{call} {got}. The parameter `idle` has no gradient, its `.grad` is `None`: the loss does not depend on it. Pass over it.",
            hint=2,
        ),
        "idle-stops": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. Without `idle`, whose `.grad` is `None`, your code does it right. Pass "
            "over such a parameter with `continue`, or `if`; a `break` forgets all that come after it.",
            hint=2,
        ),
        "frozen": Diagnosis(
            "{call} left {got} behind: the next backward pass would give it no gradient. To change `.grad` takes no such switch; it has "
            "no graph behind it.",
            hint=2,
        ),
        "weights-changed": Diagnosis(
            "{call} changed {place} itself from {want} to {got}. It is the gradients, `.grad`, that are to be unscaled and clipped.",
            hint=2,
        ),
    },
    why=(
        "A norm and its limit must be on the same scale: unscale the gradients, or multiply `max_norm` by the scale and unscale "
        "at the end. Clipping first leaves a step that is up to `scale` times too short, and no error. The other way round, "
        "with no unscaling, clipping even hides the fault: whatever is long ends at `max_norm`."
    ),
)

ACCUMULATE = Exercise(
    id="4.4",
    title="Many small batches, one step",
    minutes=10,
    function="accumulate",
    hints=(
        "Write the plain loop first: in it, backward adds up over the micro-batches, and there is one step at the end. The mean over all "
        "is the mean of the means, as all have the same size. Then ask where each gradient is multiplied by the scale, and that it is "
        "divided once, before the step.",
        "Divide each loss by `len(micro_batches)`, multiply by `scale`, `backward`. After the loop `optimizer.param_groups` is a list "
        'of dicts, and `group["params"]` a list of parameters (or take `model.parameters()`). `zero_grad` comes last.',
        "In the loop: the loss of one batch, divided and scaled, and its `backward`, nothing else. After the loop: each `.grad` that is "
        "not `None` divided by `scale`; then `step`; then `zero_grad`.",
    ),
    diagnoses={
        "not-unscaled": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The optimizer saw gradients that were still scaled: they must be "
            "unscaled *before* `step`; after it, it is too late.",
            hint=1,
        ),
        "not-divided": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The gradients of all micro-batches were *added*; the mean over all "
            "examples is that sum divided by the number of micro-batches.",
            hint=1,
        ),
        "not-scaled": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The loss was never multiplied by the scale, so what is computed in "
            "FP16 on the way back became zero.",
            hint=1,
        ),
        "only-unscales": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The gradients were divided by a scale that the loss was never "
            "multiplied by.",
            hint=1,
        ),
        "unscales-again": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. `.grad` was divided after every micro-batch. But it is a *sum*: what "
            "the earlier ones put there was divided again each time, and only the last counts. Divide once, at the end.",
            hint=1,
        ),
        "unscales-twice": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The gradients were divided by the scale twice.",
            hint=1,
        ),
        "last-only": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. That is the gradient of the last micro-batch alone: those before "
            "it were cleared. Clear after the step, not inside the loop.",
            hint=2,
        ),
        "first-only": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. That is the gradient of the first micro-batch alone: the loop "
            "ended after it.",
            hint=1,
        ),
        "own-step": Diagnosis(
            "{call} moved the weights as it should, but the optimizer took {got}. To move them by hand, or with another optimizer, passes "
            "over its momentum, its weight decay and the learning rates of its groups: call its `step()`.",
            hint=2,
        ),
        "steps-more": Diagnosis(
            "{call} took {got} of the optimizer, where {want} is right. The weights are right only because nothing was left to move them; "
            "with momentum, and zeros for gradients, they would have moved again.",
            hint=1,
        ),
        "steps-too-often": Diagnosis(
            "{call} took {got} of the optimizer, and the weights are not where one step leads. Every micro-batch after the first "
            "saw other weights: step once, after the loop.",
            hint=1,
        ),
        "no-step": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The optimizer took no step.",
            hint=1,
        ),
        "cleared-too-early": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The optimizer did step, but found no gradients: they were "
            "cleared before, or never got into the parameters. First `step`, then `zero_grad`.",
            hint=2,
        ),
        "divided-twice": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The gradient was divided by the number of micro-batches twice.",
            hint=1,
        ),
        "divides-by-examples": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. It was divided by the number of examples in a micro-batch. That is "
            "in the mean already: what is missing is the number of micro-batches, and nothing else.",
            hint=1,
        ),
        "scale-in-half": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The scale was used in FP16, where 65536 is infinity. Loss and "
            "gradients are FP32: keep the scale a Python `float`.",
            hint=2,
        ),
        "first-group-only": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. This optimizer has several parameter groups, and only the first "
            "of them was unscaled.",
            hint=2,
        ),
        "idle-crashes": Diagnosis(
            "{call} {got}. A parameter of this model gets no gradient, its `.grad` is `None`: the loss does not depend on it. Pass over "
            "it.",
            hint=2,
        ),
        "not-cleared": Diagnosis(
            "{call} left {got} in {place}: the weights are right, but the next batch would add to these gradients. Clear them when the "
            "step is done.",
            hint=2,
        ),
        "hooks-left": Diagnosis(
            "{call} left hooks behind: {place} had {want} before the call and has {got} after it. The weights are right, but a hook that "
            "stays acts on whatever comes later. Registering one returns a handle with a `.remove()`.",
        ),
        "scale-ignored": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. With a scale of 65536 something overflows here. Take the scale that "
            "you are given, both times.",
            hint=1,
        ),
        "momentum-scaled": Diagnosis(
            "{call} left a momentum of {got} for {place}; it should be {want}. The weights are right, but momentum is a sum of *gradients* "
            "that is kept from call to call, and the next may come with another scale. Make the gradients right, not what follows from them.",
            hint=1,
        ),
        "idle-moves": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The loss does not depend on it, and its `.grad` is `None`, which an "
            "optimizer passes over. A gradient of zeros is another thing: weight decay is added to it.",
            hint=2,
        ),
        "momentum-lost": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. That is a step without the momentum of the call before: the optimizer "
            "keeps it in its `state`, which is to stay.",
        ),
        "rate-for-scale": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. The learning rate was lowered in place of the gradients. That comes "
            "to the same only for the simplest SGD: weight decay is added to *gradients*, and so came out too small.",
            hint=1,
        ),
        "idle-stops": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. Without `idle`, which gets no gradient, your code does it right. "
            "Pass over it with `continue`, or `if`; with a `break` the parameters behind it are forgotten.",
            hint=2,
        ),
        "settings-changed": Diagnosis(
            "{call} left {place} at {got}; it was {want}. Weights and gradients are right, but the next call would find another model or "
            "optimizer. Change nothing but these, or put it back.",
            hint=2,
        ),
        "rate-changed": Diagnosis(
            "{call} left {place} at {got}; it was {want}. The weights moved as they should, but the next step "
            "would not: unscale the gradients, or put the rate back.",
            hint=2,
        ),
        "wrong-factor": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}. Every weight moved {factor} times as far as it should: look for "
            "a factor too many, or one that is missing.",
            hint=1,
        ),
        "wrong-step": Diagnosis(
            "{call} moved {place} by {got}; it should move by {want}.",
            hint=1,
        ),
    },
    why=(
        "A sum of scaled gradients is the scaled sum, as long as the scale stays the same: so scale each loss, add up, and divide "
        "once before the step. To divide `.grad` after every micro-batch divides the early ones again and again. (Unscaling each "
        "*fresh* gradient before it is added is right as well.) And the scale must not change between two micro-batches: lesson 05 comes "
        "back to that."
    ),
)

LESSON = Lesson(
    slug="04_static_loss_scaling",
    title="Static loss scaling",
    minutes=80,
    difficulty="medium",
    needs="lesson 03",
    exercises=(SCALED_BACKWARD, PICK_SCALE, CLIP_SCALED, ACCUMULATE),
)
