"""The words of lesson 06."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson


def _left_changed(advice: str) -> Diagnosis:
    return Diagnosis(f"After {{call}} {{setting}} was {{got}}; before, it was {{want}}. {advice}")


FATES = Exercise(
    id="6.1",
    title="Twelve fates",
    minutes=8,
    function="fates",
    hints=(
        "Three questions, in this order. Does the operation write into one of its arguments? Then autocast keeps out, and plain PyTorch decides: the result has the dtype of what it is written into, "
        "or there is an error. Is it on one of autocast's lists? Then its list decides. Is it on none? Then plain type promotion decides, as in lesson 01. And FP64 is never made smaller.",
        '`why("sum", "cuda")`, from `amp_lab.autocast.policy`, says what autocast does with an operation, asked from your PyTorch. Beware of names that look alike: `sum` is on a list, `mean` is not; `@` goes to FP16, '
        "`dot` takes the widest of its inputs. A `dtype=` in the call is an order, and autocast obeys.",
        "Sort the letters. Matrix products of FP32: the region's dtype. FP64: untouched. What needs FP32 for its range: FP32, whatever comes in. Told a dtype: that dtype. FP32 beside FP16 in `+` or `dot`: FP32. On no list, all of it FP16 or with FP32 only as "
        "statistics and parameters: FP16. In place: the dtype of the tensor, if plain PyTorch accepts the mixture at all. And one function is refused, always.",
    ),
    diagnoses={
        "no-dict": Diagnosis(
            '{call} returned {got}, which is {kind}; the exercise asks for a `dict`, from each letter to a dtype or `"raises"`.'
        ),
        "letters-missing": Diagnosis(
            "{call} has the letters {got}. Still missing: {missing}. Each of the twelve expressions needs an entry."
        ),
        "letters-unknown": Diagnosis(
            '{call} has an entry for {got}, which the table does not. The letters are lower-case strings, from `"a"` to `"l"`.'
        ),
        "no-dtype": Diagnosis(
            '{call} says {got} for {letter}, which is {kind}. Each letter needs a dtype of PyTorch\'s, such as `torch.float64`, or the string `"raises"`.'
        ),
        "everything-lower": Diagnosis(
            "{call} says {got} for every expression that returns something. A region is no `.half()`: autocast has five lists, and for what is on none of them it does nothing at all."
            " Begin with `{expression}`.",
            hint=1,
        ),
        "without-region": Diagnosis(
            "{call} says {got} for `{expression}`, and all the rest is what PyTorch does with no region either. If you ran them: were they inside `torch.autocast`, and was that for the device that the tensors are on?",
            hint=1,
        ),
        "cpus-answers": Diagnosis(
            '{call} says {got} for `{expression}`, and the rest, too, is what `torch.autocast("cpu", torch.float16)` does by itself. A CPU has other lists than CUDA. Run them inside '
            "`emulate.cuda_autocast()`, and CUDA's lists hold.",
            hint=2,
        ),
        "product-follows-inputs": Diagnosis(
            "{call} says `{expression}` is {got}: as if autocast looked at what comes in. It looks at the operation. `@` is on the list of those that gain from Tensor Cores, and FP32 inputs are cast for it; that is what "
            "autocast is for.",
            hint=1,
        ),
        "fp64-cast": Diagnosis(
            "{call} says `{expression}` is {got}. Autocast casts FP32 and the 16-bit formats only. Who computes in FP64 has asked for it, and is left alone.",
            hint=1,
        ),
        "region-decides-all": Diagnosis(
            "{call} says `{expression}` is {got}. `+` is on no list, so autocast does nothing: it is plain type promotion, and of two tensors with dimensions the wider one wins.",
            hint=1,
        ),
        "sum-raises": Diagnosis(
            "{call} says {got} for `{expression}`. Sums take any two dtypes: `+` is plain type promotion, as in lesson 01. It is products that refuse a mixture.",
            hint=1,
        ),
        "dot-is-a-product": Diagnosis(
            "{call} says `{expression}` is {got}. It is a product, but no matrix product: nothing to gain from Tensor Cores. It stands on the list of those whose inputs must agree, "
            "and which take the widest dtype among them.",
            hint=2,
        ),
        "mixture-raises": Diagnosis(
            "{call} says {got} for `{expression}`. Outside of a region that is so: its two inputs must have one dtype. Inside, it is on a list for just that: both are brought to the widest dtype among them.",
            hint=2,
        ),
        "softmax-stays": Diagnosis(
            "{call} says `{expression}` is {got}. Exponentials leave FP16's range early (lesson 02): softmax is on the list that goes to FP32, and it stays FP32 at the end.",
            hint=1,
        ),
        "sum-stays": Diagnosis(
            "{call} says `{expression}` is {got}. A sum of FP16 numbers easily exceeds 65504, though each of them is small. So `sum`, called without a dtype, is told to return FP32.",
            hint=2,
        ),
        "dtype-overruled": Diagnosis(
            '{call} says `{expression}` is {got}: as if autocast overruled the call. `sum` is on the list "FP32, unless a dtype is passed". Here one is.',
            hint=2,
        ),
        "mean-like-sum": Diagnosis(
            "{call} says `{expression}` is {got}: as if `mean` were treated like `sum`. A mean lies between its numbers and cannot leave their range, so it is on no list. It follows its input.",
            hint=2,
        ),
        "batch-norm-widens": Diagnosis(
            "{call} says `{expression}` is {got}. FP32 statistics and parameters with FP16 activations are a mixture that this function knows: it computes in FP32 inside, and returns the "
            "dtype of its *input*. Autocast has no rule for it and needs none.",
            hint=1,
        ),
        "batch-norm-raises": Diagnosis(
            "{call} says {got} for `{expression}`. It is made for just this mixture: FP16 activations, and statistics and parameters in FP32. That is how a network with BatchNorm runs in a region.",
            hint=1,
        ),
        "in-place-widens": Diagnosis(
            "{call} says {got} for `{expression}`. The underscore: the result is written into `h`, and a tensor cannot change its dtype. What the sum was computed in is rounded to that of `h`, and if it is too large, it is infinite.",
            hint=1,
        ),
        "in-place-raises": Diagnosis(
            "{call} says {got} for `{expression}`. `add_` takes any float dtype and rounds the result to that of the tensor that it writes into. It is the *product* in place that plain PyTorch refuses for two dtypes.",
            hint=1,
        ),
        "in-place-autocast": Diagnosis(
            "{call} says `{expression}` is {got}: as if in-place operations followed autocast. They do not, and plain PyTorch refuses to multiply FP32 matrices into an FP16 one. `torch.addmm(h, x, x)` follows, and works.",
            hint=1,
        ),
        "bce-runs": Diagnosis(
            "{call} says `{expression}` is {got}. On CUDA this function is refused in every region, even with FP32 inputs: probabilities that come from an FP16 network have lost what a logarithm needs. Exercise 6.5 is about what to do.",
            hint=2,
        ),
        "wrong-fate": Diagnosis(
            "{call} says {got} for `{expression}`. That is not so. ({share} letters are wrong.)",
            hint=1,
        ),
    },
    why=(
        "The fate hangs on the operation, not on what comes in: products go to FP16, what leaves FP16's range goes to FP32 (unless you name a dtype), a few take the widest input, one is refused. All others, `mean`, `+` and batch_norm among them, "
        "are not touched: there the dtypes that come in decide. And neither are in-place operations, nor FP64. This check keeps no table: it ran the twelve expressions in a region with CUDA's policy."
    ),
)

BLOCK = Exercise(
    id="6.2",
    title="Repair a block",
    minutes=12,
    function="Block",
    hints=(
        "Two repairs. Above: a number that overflows does so at the *first* operation that makes it too large. Which one is it here, and what must be FP32 before it? Below: autocast casts for operations that return a new tensor; "
        "what writes into a tensor that is already there is not on its lists.",
        "`x.float()` before anything is squared (in a region `x.pow(2)` and `torch.rsqrt` go to FP32 by themselves; `x * x` does not). For the product `@`, `F.linear` or `torch.addmm`, not `addmm_`. "
        "Leave the dtype of the product to autocast: no `.half()`, and no region of your own.",
        "Take `x` to FP32, and compute the mean of its squares, `torch.rsqrt(... + 1e-6)` and the product with `gain` from that. Then one `@` with `self.weight`, plus `self.bias`, and `relu`. `@` takes any number of leading dimensions, so nothing need be flattened.",
    ),
    diagnoses={
        "no-module": Diagnosis(
            "{call} returned {got}. `Block` should be a class, with `class Block(BrokenBlock):`, and its objects modules.",
        ),
        "parameters-changed": Diagnosis(
            "After {call} the block's `{name}` is {got}; it should be {want}, as in `BrokenBlock`.",
        ),
        "half-parameters": Diagnosis(
            "After {call} the block's `{name}` is {got}, and it should be {want}. FP16 weights lose small steps (lesson 03), and a `GradScaler` refuses them. Autocast makes the FP16 copies that the product needs.",
            hint=2,
        ),
        "in-place": Diagnosis(
            "{call} ran its product as `{op}`, in {got}; the region's dtype is {want}. It writes into a tensor that is already there, and autocast has no rule for such operations. So the FP32 inputs stayed FP32, with no word.",
            hint=1,
        ),
        "autocast-off": Diagnosis(
            "{call} ran its product in {got}; the region's dtype is {want}. Autocast is switched off where the product is. An island round the norm is fine, but the product, nearly all of the work, must lie outside of it.",
            hint=2,
        ),
        "half-hard-coded": Diagnosis(
            "{call} ran its product in {got}, and {want} is right here. A dtype is fixed in your code: where the region has another one, or there is none, the product is computed in the wrong one, or dies of two. Let autocast choose.",
            hint=2,
        ),
        "product-dtype": Diagnosis(
            "{call} ran its product in {got}, and {want} is right here. Of all products, `@`, `matmul`, `linear`, `addmm` and `einsum` follow the region; `dot`, `inner` and `tensordot` take the widest of their inputs, and FP64 stays FP64.",
            hint=2,
        ),
        "no-product": Diagnosis(
            "{call} ran {got} of the product of rows and `weight` as a matrix product in {want}. Multiplying and adding up by hand goes past autocast and past Tensor Cores.",
            hint=2,
        ),
        "thrown-away": Diagnosis(
            "{call} ran a product in {dtype}, but its output has {got} exactness, not {want}: what you return was computed in another way. The {dtype} product must be the one that counts.",
            hint=2,
        ),
        "stale-copy": Diagnosis(
            "{call}, called again after an optimizer had changed the parameters in place, returned {got} where {want} is right. Something was kept from before: cast parameters when they are used, and keep no copy of them.",
            hint=2,
        ),
        "small-row": Diagnosis(
            "{call} returned {got} where {want} is right, in a row whose largest entry is {size}. There the 1e-6 under the root counts, and squares in 16 bits vanish. Add it to the mean of squares, in FP32, and scale nothing down in 16 bits.",
            hint=1,
        ),
        "left-changed": _left_changed(
            "A block must leave PyTorch's settings to its caller: the rest of the model runs by them."
        ),
        "norm-overflows": Diagnosis(
            "{call} returned {got} in a row where {want} is right, which is what `bias` alone gives. The squares of that row, computed in FP16, are infinite, 1/√∞ is 0, and the row is gone, without any NaN.",
            hint=1,
        ),
        "cast-too-late": Diagnosis(
            "{call} returned {got} in a row where {want} is right. Your code casts to FP32, but what it casts is infinite already: the square came first.",
            hint=1,
        ),
        "clamps": Diagnosis(
            "{call} returned {got} where {want} is right: as if the large entries of `x` had been cut off. That hides the overflow and changes the answer.",
            hint=1,
        ),
        "row-not-finite": Diagnosis(
            "{call} returned {got} where {want} is right: not a finite number. Where does your code divide by zero, or leave the range?",
            hint=1,
        ),
        "wrong-output": Diagnosis(
            "{call} returned {got} where {want} is right (shape, or value beyond what {dtype} explains).",
            hint=2,
        ),
        "no-gradient": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `{name}` is {got}. Something on the way cut it off, such as `.detach()`, `.data` or `no_grad`.",
        ),
        "wrong-gradient": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `{name}` has {got} where {want} is right.",
            hint=1,
        ),
    },
    why=(
        "Autocast protects single operations, not formulas. `x * x` is on no list, so it overflows where `x.pow(2)` would not; one `.float()` in front says what you mean, and holds for every way of writing the rest. "
        "And it casts only for operations that return something new: an in-place product just takes what it finds. `@` gets the FP32 result of the norm and the FP32 weight, and autocast casts both, the weight once for the whole region."
    ),
)

COVARIANCE = Exercise(
    id="6.3",
    title="An FP32 island",
    minutes=8,
    function="covariance",
    hints=(
        "An island takes two things. Autocast must be off inside, or the product goes to FP16 whatever comes in. And what comes in must be cast to FP32, for switching autocast off does not change a single tensor. For which device must it be off? For the one that `x` is on.",
        "`torch.autocast(device_type, enabled=False)` as a `with` block, with `x.device.type`. Inside, and before anything else, `x.float()`. Where no region is open, both do no harm.",
        "Open the block for the device of `x`, make `x` FP32 as its first line, subtract the mean over `dim=-2` from that, and return the product of the transposed and the centred tensor, divided by the number of rows less one, from inside the block.",
    ),
    diagnoses={
        "no-cast": Diagnosis(
            "{call} multiplied in {got}: autocast was off, but the input was still FP16. Switching autocast off casts nothing. Inside the island, the first line must.",
            hint=1,
        ),
        "not-disabled": Diagnosis(
            "{call} multiplied in {got}, although your code handed FP32 tensors to the product: autocast was still on, and cast them back. `.float()` alone makes no island.",
            hint=1,
        ),
        "only-cuda": Diagnosis(
            '{call} multiplied in {got}: autocast is off for "cuda" in your code, and this tensor is on the CPU. No error tells you. Ask `x` where it is.',
            hint=2,
        ),
        "narrowed": Diagnosis(
            "{call} multiplied in {got}: autocast was off, and your own code made the tensors smaller. An FP32 island computes in FP32.",
            hint=1,
        ),
        "only-cpu": Diagnosis(
            '{call} multiplied in {got}: it is for "cpu" that your code switches autocast off, or asks whether it is on, and this tensor says that it is on a GPU (the check lets it say so, and autocast follow, on every machine). Ask `x` where it is.',
            hint=2,
        ),
        "devices-listed": Diagnosis(
            '{call} multiplied in {got}: it is for other devices that your code switches autocast off, or asks whether it is on; "{kind}", of Intel\'s GPUs, is none of them (the check lets `x` say so on every machine). *Any* device: ask `x` where it is.',
            hint=2,
        ),
        "asks-for-cuda": Diagnosis(
            "{call} multiplied in {got}, and not while CUDA's autocast was on as well, which is no matter of a tensor on the CPU: the switch that your code asks is another device's. `torch.is_autocast_enabled()` without an argument asks about CUDA. An island need not ask.",
            hint=2,
        ),
        "cancels": Diagnosis(
            "{call} returned {got} where {want} is right. It is computed in FP32, and yet the digits are gone: a sum of squares less n times the squared mean subtracts two large numbers that are nearly equal. Subtract the mean first, then multiply.",
            hint=2,
        ),
        "unprotected": Diagnosis(
            "{call} multiplied in {got}: autocast was on, and the input was FP16. A cast of the *result* is too late: what has overflowed stays infinite, what was rounded stays rounded.",
            hint=1,
        ),
        "centred-in-half": Diagnosis(
            "{call} returned {got} where {want} is right. The product was FP32, but the mean, or the difference from it, was computed in FP16 before. The island begins too late.",
            hint=1,
        ),
        "cast-back": Diagnosis(
            "{call} returned a tensor of {got}; the exercise asks for {want}. The work was done in FP32, and then rounded: the cast back undoes the island.",
        ),
        "left-changed": _left_changed(
            "All that follows in the caller's region now runs in another way. A `with` block puts everything back by itself, even after an error."
        ),
        "no-way-back": Diagnosis(
            "{call} returned a tensor from which no gradient reaches `x`: {got}. A `.detach()`, `.data` or `no_grad` cut the way.",
        ),
        "wrong-slope": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `x` has {got} where {want} is right.",
            hint=2,
        ),
        "batches-mixed": Diagnosis(
            "{call} returned {got}; the right shape is {want}. Leading dimensions are batches: transpose the last two only, with `.mT`, and take the mean over `dim=-2`.",
        ),
    },
    why=(
        "Off and cast: each alone leaves the product in FP16, the first because the input is, the second because autocast is still on. The island is opened for the device of `x`; for another one it would change nothing, and say nothing. "
        "(FP64 inside would be safe with autocast on, for it is never cast; on most GPUs it is many times slower.) Keep `loss.backward()` outside of any region, or the island's own backward runs in FP16."
    ),
)

GRAM = Exercise(
    id="6.4",
    title="Your own backward",
    minutes=10,
    function="make_gram",
    hints=(
        "Backward must know what autocast was like when *its* forward ran, and it runs at a time when that may be over. One decorator notes the state in `ctx`, the other one brings it back: neither is of use alone. Both must be told which device's autocast is meant.",
        "`torch.amp.custom_fwd(device_type=...)` is a decorator for `forward`, `torch.amp.custom_bwd(device_type=...)` one for `backward`. Each stands next to `def`, *below* the line that makes the method static. The class stands inside `make_gram`, so that it sees the argument.",
        "Copy the class into `make_gram`, put a decorator directly above each `def`, hand the `device_type` that you were given to both, and return the class.",
    ),
    diagnoses={
        "no-class": Diagnosis(
            "{call} returned {got}. It should return the class itself, a subclass of `torch.autograd.Function`: without calling it, and without `.apply`.",
        ),
        "no-decorators": Diagnosis(
            "{call}: backward after the region raised an error: {got}. The state that autocast for the device of `x` had in forward, for the CPU here, is not noted, or not brought back. (`torch.is_autocast_enabled()` without an argument asks about CUDA.)",
            hint=1,
        ),
        "fwd-alone": Diagnosis(
            "{call}: backward after the region raised an error: {got}. `custom_fwd` noted the state of autocast; without `custom_bwd` on backward nobody brings it back.",
            hint=1,
        ),
        "bwd-alone": Diagnosis(
            "{call}: backward raised an error: {got}. `custom_bwd` looks for what `custom_fwd` would have noted in forward, and there is nothing.",
            hint=1,
        ),
        "wrong-device-type": Diagnosis(
            '{call}: backward after the region raised an error: {got}. It is decorated, but for another device: the tensors are on the CPU, where `make_gram("cpu")` is told so, and it is autocast for "cuda" that your code brings back. Use `device_type`.',
            hint=1,
        ),
        "device-type-ignored": Diagnosis(
            '{call}: backward {got}, and its forward was in {want}. Here all tensors say that they are on "xpu", an Intel GPU (the check lets them, and autocast follow, on every machine). Your code notes and brings back the state of another device. Use `device_type`.',
            hint=1,
        ),
        "no-product": Diagnosis(
            "{call} ran {got}. Multiplying and adding up by hand goes past autocast and past Tensor Cores, forward and backward.",
            hint=2,
        ),
        "thrown-away": Diagnosis(
            "{call} gave a result with {got} exactness, not {want}, though a product in 16 bits was run: what you return was computed in another way.",
            hint=2,
        ),
        "not-in-ctx": Diagnosis(
            "{call}: {got}, and {want} is right. One call at a time works, so something is kept in a place that all calls share: the class, or a variable outside. The next forward overwrites it. What belongs to one call belongs in its `ctx`.",
            hint=1,
        ),
        "gradient-changed": Diagnosis(
            "{call}: backward changed in place the gradient that it was given, from {want} to {got}. Others may still need it: write `grad + grad.mT`, and nothing that ends in `_`.",
        ),
        "left-changed": _left_changed(
            "Forward and backward run in the middle of somebody else's model: open regions with `with`, or leave it to the decorators."
        ),
        "fixed-in-forward": Diagnosis(
            "{call}: forward computed in {got}; {want} is right there. With `cast_inputs`, or a cast or a region of your own, the function has one dtype for ever, whatever the caller's region says.",
            hint=2,
        ),
        "casts-by-hand": Diagnosis(
            "{call}: forward computed in {region}, and backward in {got}; {want} is right. A cast by hand makes the error go away, and the Tensor Cores with it.",
            hint=1,
        ),
        "follows-the-caller": Diagnosis(
            "{call}: forward computed in {region}, and backward in {got}; {want} is right. It went by the region in which it was called, and not by the one that its forward had.",
            hint=1,
        ),
        "always-on": Diagnosis(
            "{call}: forward ran outside of any region, and so did backward, which computed in {got}; {want} is right. A region is fixed in your backward; whether there was one is a question to forward.",
            hint=1,
        ),
        "dtype-forgotten": Diagnosis(
            "{call}: forward computed in {region}, and backward in {got}; {want} is right. To note *whether* autocast was on is not enough: its dtype belongs to the state.",
            hint=2,
        ),
        "wrong-product": Diagnosis(
            "{call} computed {got} where {want} is right.",
        ),
        "gradient-missing": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `x` is {got}; {want} is right. Backward must give something of the shape of `x` for each input.",
        ),
        "wrong-backward": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `x` has {got} where {want} is right. The gradient that arrives is not symmetric, and `x` stands in the product twice.",
        ),
        "backward-off": Diagnosis(
            "{call}, and `backward()` after it: the gradient of `x` has {got} where {want} is right, by (grad + grad.mT) @ x, the formula of the page.",
        ),
    },
    why=(
        "Autograd's own operations remember the dtypes that they had in forward. Yours does not, unless `custom_fwd` notes the state of autocast in `ctx` and `custom_bwd` opens the same region again."
    ),
)

LOSS = Exercise(
    id="6.5",
    title="A loss that autocast refuses",
    minutes=6,
    function="loss",
    hints=(
        "A probability close to 1 cannot say how close: FP16 has nothing between 0.9995 and 1, and FP32 nothing between 0.99999994 and 1. The sigmoid of 20 is closer. The logit still knows. So stay with the logits to the end.",
        "`F.binary_cross_entropy_with_logits(logits, targets)` has sigmoid and logarithm in one, in a form that keeps the digits. Autocast sends it to FP32, or call `.float()` on the *logits*.",
        "One line: the function of hint 2, given the FP32 logits and the targets. Its default is the mean. No sigmoid of your own.",
    ),
    diagnoses={
        "bce-refused": Diagnosis(
            "{call} raised an error: {got}. CUDA's autocast refuses this function, in FP32, too. The message says what to do.",
            hint=2,
        ),
        "half-probabilities": Diagnosis(
            "{call} returned {got}; {want} is right. The sigmoid was computed in FP16, where every logit above 8.32 gives exactly 1. `.float()` after it brings no digit back.",
            hint=1,
        ),
        "probabilities": Diagnosis(
            "{call} returned {got}; {want} is right. Even an FP32 sigmoid is exactly 1 for logits above 17.4, and the logarithm of 1 − 1 is infinite (PyTorch's function cuts it off at 100). "
            "Probabilities are the wrong thing to keep.",
            hint=1,
        ),
        "patched": Diagnosis(
            "{call} returned {got}; {want} is right. Cutting off what is extreme, in the logits or in the probabilities, makes the loss finite, and wrong: all confident mistakes cost the same, and have no gradient.",
            hint=1,
        ),
        "sigmoid-twice": Diagnosis(
            "{call} returned {got}; {want} is right. `binary_cross_entropy_with_logits` takes the sigmoid itself. After yours, that is one too many: every logit lies between 0 and 1 then.",
            hint=2,
        ),
        "sum-for-mean": Diagnosis(
            "{call} returned {got}; {want} is right. That is the sum over all elements; the exercise asks for their mean.",
        ),
        "half-loss": Diagnosis(
            "{call} returned {got}; {want} is right. Logits, targets or losses are FP16 somewhere, and rounded to three digits. What is on none of autocast's lists is not widened.",
            hint=2,
        ),
        "wrong-loss": Diagnosis(
            "{call} returned {got}; {want} is right. What it computes is not the mean cross-entropy, or it has too few digits.",
            hint=2,
        ),
        "left-changed": _left_changed(
            "A loss has no business with that: whoever calls it goes on in the same region."
        ),
        "loss-cut-off": Diagnosis(
            "{call} returned a loss with {got}: no gradient reaches the logits. A `.detach()`, `.item()` or `no_grad` cut the way.",
        ),
        "wrong-loss-gradient": Diagnosis(
            "{call}: after `(loss * {scale}).backward()` the gradient of the logits has {got}; {want} is right, which is {scale} · (sigmoid(logit) − target) / number of elements.",
            hint=1,
        ),
    },
    why=(
        "With z for the logit and t for the target, the loss is max(z, 0) − z·t + log1p(e^−|z|): nothing overflows, and no digit is lost, because 1 − sigmoid is never formed. Its gradient is sigmoid(z) − t. "
        "In a region, autocast takes the FP16 logits to FP32 for it; your `.float()` does the same, and holds outside of a region, too."
    ),
)

LESSON = Lesson(
    slug="06_autocast",
    title="Autocast",
    minutes=105,
    difficulty="medium",
    needs="lessons 02 and 04; modules in PyTorch",
    exercises=(FATES, BLOCK, COVARIANCE, GRAM, LOSS),
)
