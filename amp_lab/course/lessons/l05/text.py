"""The words of lesson 05."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

HAS_OVERFLOW = Exercise(
    id="5.1",
    title="Find the overflow",
    minutes=8,
    function="has_overflow",
    hints=(
        "Ask every single number whether it is finite: that covers both infinities and NaN. Do not first put the numbers of a gradient "
        "together into one. A sum or a norm of finite numbers can be infinite, and a maximum may lose a NaN or a minus infinity.",
        "`torch.isfinite(tensor)` answers for every number, and `.all()` puts the answers together. Gradients that are `None` are skipped "
        "before anything is asked of them. `grad.to_dense()` makes an ordinary tensor of a sparse one. A comparison of tensors is "
        "a tensor: `bool(...)`, or an `if`, makes a Python `bool` of it.",
        "One loop over `parameters`, no more: go on to the next one where the gradient is `None`, return `True` at the first gradient whose dense form is "
        "not finite everywhere, and return `False` below the loop.",
    ),
    diagnoses={
        "looks-at-weights": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Your code looks at the weights. An overflow happens in the gradients: "
            "`parameter.grad`.",
            hint=2,
        ),
        "inverted": Diagnosis(
            "{call} gave {got}; the right answer is {want}. All answers are the wrong way round: `True` means that something overflowed, and "
            "`isfinite` says `True` where nothing did.",
            hint=2,
        ),
        "misses-inf": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Infinity was missed. A number that is too large becomes infinity first, and "
            "a test for NaN alone, such as `isnan` or `x != x`, is False for it.",
            hint=1,
        ),
        "misses-minus-inf": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Minus infinity was missed. It equals neither `inf` nor the largest number of a tensor; "
            "gradients have both signs.",
            hint=1,
        ),
        "misses-nan": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Infinity is found, NaN is not. NaN is not equal to, less than or greater than "
            "anything, so every comparison with it is False.",
            hint=1,
        ),
        "nan-in-max": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Whether a NaN is found depends on where it stands. Python's `max` and `min` keep the "
            "number that they had when a comparison is False, and with NaN each one is. Those of PyTorch let a NaN through.",
            hint=1,
        ),
        "beyond-fp16": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Here an FP32 gradient above 65504 counts as an overflow. If FP16 had overflowed, "
            "there would be an infinity; this number is large and fine.",
            hint=1,
        ),
        "draws-a-line": Diagnosis(
            "{call} gave {got}; the right answer is {want}. This number is large, and finite: a line is drawn where there is none, even if it is drawn at "
            "the largest number of the dtype. Only infinities and NaN have overflowed, and `isfinite` knows them.",
            hint=2,
        ),
        "norm-overflows": Diagnosis(
            "{call} gave {got}; the right answer is {want}. All numbers are finite, but their squares are not: the norm overflowed, not a gradient.",
            hint=1,
        ),
        "sum-overflows": Diagnosis(
            "{call} gave {got}; the right answer is {want}. All numbers are finite, but their sum is not: the sum overflowed, not a gradient.",
            hint=1,
        ),
        "one-parameter-only": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Not all parameters count. Does one decide alone: is there a `return` inside the loop that ends it at the "
            "first, or a variable that each turn writes over? Or is the first or the last one left out?",
            hint=1,
        ),
        "all-must-overflow": Diagnosis(
            "{call} gave {got}; the right answer is {want}. One bad gradient is enough: `any`, not `all`, over the parameters.",
            hint=2,
        ),
        "several-shapes": Diagnosis(
            "{call}: {got} One gradient alone was no problem. Several have several shapes, so look at each by itself.",
            hint=1,
        ),
        "stops-at-none": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Your loop ends at the first gradient that is `None`. Others come after it: `continue` "
            "goes on with the next, `break` and `return` do not.",
            hint=2,
        ),
        "none-is-overflow": Diagnosis(
            "{call} gave {got}; the right answer is {want}. A parameter without a gradient took no part in the loss, as in a frozen layer. "
            "Nothing has overflowed there.",
            hint=2,
        ),
        "crashes-on-none": Diagnosis(
            "{call}: {got} A parameter that took no part in the loss has no gradient, and its `.grad` is `None`. Skip those.",
            hint=2,
        ),
        "crashes-on-nothing": Diagnosis(
            "{call}: {got} Here there is no gradient at all, and your code needs at least one. The answer is False: nothing has overflowed.",
            hint=1,
        ),
        "skips-sparse": Diagnosis(
            "{call} gave {got}; the right answer is {want}. Sparse gradients are left out. An embedding overflows like any other layer.",
            hint=2,
        ),
        "sparse-is-overflow": Diagnosis(
            "{call} gave {got}; the right answer is {want}. A sparse gradient is an ordinary one that stores fewer rows; it has not overflowed "
            "unless one of its numbers has.",
            hint=2,
        ),
        "crashes-on-sparse": Diagnosis(
            "{call}: {got} The gradient is sparse, and many functions refuse those. `grad.to_dense()` makes an ordinary tensor of it.",
            hint=2,
        ),
        "misses-sum-of-rows": Diagnosis(
            "{call} gave {got}; the right answer is {want}. What is stored for one row twice belongs to one entry of the gradient, their sum, and that is "
            "beyond FP16. `grad.to_dense()` adds them up in the gradient's own dtype; `grad._values()` shows the parts, and FP64 makes their sum finite.",
            hint=2,
        ),
        "replaces-gradient": Diagnosis(
            "{call} gave the parameter number {number} another `.grad`: it was {was}, and what stands there now is a new one, {got}. Its numbers are the same, but whoever "
            "holds the old one does not see it, and `SparseAdam` refuses a dense one. Keep what you make under a name of your own.",
            hint=2,
        ),
        "goes-through-twice": Diagnosis(
            "{call}: {got} With a list in place of `model.parameters()` your code is right. But that is a generator: it has no length "
            "and no first element, and after one loop it is empty. Go through it once, or make a list of it first.",
            hint=1,
        ),
    },
    why=(
        "`isfinite` asks every number by itself, so neither a sum nor a square can overflow on the way, and it is False for both infinities and for "
        "NaN. `to_dense` leaves a dense gradient as it is. PyTorch asks the same question in one call for all gradients of a dtype, and "
        "unscales in passing; on a GPU your loop would wait once for every parameter."
    ),
)

NEXT_SCALE = Exercise(
    id="5.2",
    title="The next scale",
    minutes=8,
    function="next_scale",
    hints=(
        "Two cases, and in each of them two numbers: write down what becomes of the scale *and* of the count. Take care which count is compared "
        "with the interval: this step is one of the clean ones.",
        "`max(a, b)` keeps a number from sinking below another. `state.clean_steps + 1` is the count with this step. The settings are attributes, "
        "such as `rule.growth_interval`. `ScaleState(scale, clean_steps)` makes a new state; the old one is left as it is.",
        "If it overflowed: a state with `max(<scale × backoff factor>, <floor>)` and the count 0. Otherwise add one to the count; if that reaches the "
        "interval, a state with scale × growth factor and 0, else one with the same scale and the new count.",
    ),
    diagnoses={
        "no-state": Diagnosis(
            "{call} returned {got}, which is {kind}. Return both numbers as a new `ScaleState(scale, clean_steps)`, the class that "
            "`amp_lab.scaling` has: the next call needs both.",
            hint=2,
        ),
        "finished-inside": Diagnosis(
            "{call} runs {got}, which follows the rule already. Write it yourself: two cases, in about six lines.",
            hint=1,
        ),
        "changes-state": Diagnosis(
            "{call}: {got} A `ScaleState` cannot be changed, and that is the point of a pure function: the old state stays as it was. "
            "Make a new one.",
            hint=2,
        ),
        "inverted": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The two cases are the wrong way round: `overflowed` is True when the step had to be skipped.",
            hint=1,
        ),
        "no-backoff": Diagnosis(
            "{call} returned {got}; the right answer is {want}. After an overflow the scale stays as large as it was, and so the next step will overflow, too.",
            hint=1,
        ),
        "grows-on-overflow": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale grew after an overflow. It was too large already: the backoff factor, below 1, makes it smaller.",
            hint=2,
        ),
        "shrinks-by-growth": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale was divided by the growth factor. The way down has a factor of its own, `backoff_factor`.",
            hint=2,
        ),
        "divides-by-backoff": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale was divided by the backoff factor, which makes it larger: the factor is below 1, so multiply.",
            hint=2,
        ),
        "fixed-settings": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That is what PyTorch's usual settings give: a factor of 0.5 or 2.0, an interval of 2000. "
            "The settings that hold here are in `rule`.",
            hint=2,
        ),
        "min-for-max": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale fell to the floor at once. `min` takes the smaller of two numbers; what may "
            "not sink below the floor is the *larger* of it and the smaller scale.",
            hint=2,
        ),
        "counter-survives-overflow": Diagnosis(
            "{call} returned {got}; the right answer is {want}. An overflow ends the row of clean steps. If the count goes on, the scale grows again too "
            "early, and overflows again.",
            hint=1,
        ),
        "counter-starts-at-one": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The count starts again at 0: the step that changed the scale belongs to the old row, "
            "and no step has been made with the new scale.",
            hint=1,
        ),
        "sinks-below": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale sank below `min_scale`. What counts is where the backoff leads, not where it starts.",
            hint=2,
        ),
        "fixed-floor": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The floor is taken to be 1. Which it is, `rule.min_scale` says.",
            hint=2,
        ),
        "stops-above-floor": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale was not changed because the smaller one would be below the floor. Then it goes "
            "down to the floor, which is still smaller than what has just overflowed.",
            hint=2,
        ),
        "does-not-count": Diagnosis(
            "{call} returned {got}; the right answer is {want}. A clean step counts one more, also when the scale stays: otherwise it never grows.",
            hint=1,
        ),
        "grows-each-time": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale grew after one clean step. It grows with the last of `growth_interval` clean steps "
            "in a row.",
            hint=1,
        ),
        "grows-early": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale grew one step too early. Was this step counted twice?",
            hint=1,
        ),
        "grows-late": Diagnosis(
            "{call} returned {got}; the right answer is {want}. This step makes the row complete, and the scale does not grow. It is a clean one, too: count it "
            "before you compare, and the interval is reached when the two are equal.",
            hint=1,
        ),
        "never-grows": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The count starts again, and the scale did not grow: one unlucky overflow would "
            "leave it too small for ever.",
            hint=1,
        ),
        "grows-by-backoff": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale was changed by the backoff factor. The way up has a factor of its own, `growth_factor`.",
            hint=2,
        ),
        "counter-survives-growth": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The scale grew, and the count was not set back. With `>=` it would grow at every step from "
            "now on, with `==` never again.",
            hint=1,
        ),
    },
    why=(
        "An overflow costs a step, so the scale gives way at once; growth is only an attempt, so it waits for a long row of clean steps, and "
        "what breaks the row or ends it starts the count at 0. The floor is an addition of this page and of `amp_lab`. "
        "Because the function is pure, it can be tried without a GPU, a model or an optimizer."
    ),
)

LOSS_SCALER = Exercise(
    id="5.3",
    title="A scaler of your own",
    minutes=20,
    function="LossScaler",
    hints=(
        "What must be remembered from one call to the next? How many clean iterations in a row there were; and for each optimizer *by itself* that was unscaled since the last "
        "`update()`, whether it overflowed. That one piece of memory answers three questions: must `step` unscale first, must it skip, and must `update` back off?",
        "A dict from optimizer to bool will do. `for group in optimizer.param_groups: for p in group['params']` goes through all parameters. `grad.isfinite().all()` "
        "judges a gradient, `grad.div_(...)` divides it in place. `optimizer in my_dict` says whether `unscale_` was called already; "
        "`any(my_dict.values())` whether anything overflowed. `loss.float()` is a no-op for FP32.",
        "`__init__`: a count of 0 and an empty dict. `scale`: the loss in FP32, times the scale. `unscale_`: collect the gradients that are not None, note under "
        "this optimizer whether they are not all finite, divide each. `step`: call `unscale_` if the optimizer is not in the dict; make the optimizer's step if the dict "
        "says False. `update`: the rule of exercise 5.2 without the floor, then clear the dict.",
    ),
    diagnoses={
        "finished-inside": Diagnosis(
            "{call} runs {got}, a part of a finished scaler. Then the check would compare it with itself. Write the four methods yourself: it takes about "
            "twenty lines.",
            hint=1,
        ),
        "scales-in-place": Diagnosis(
            "{call} changed the loss itself, to {got}; it should still be {want}. Whoever prints or adds up the loss later would see the scaled one. "
            "`loss *= ...` works in place; `loss * ...` makes a new tensor.",
            hint=2,
        ),
        "half-product": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The product was made in FP16, where 65504 is the largest number: a number of Python does not widen an "
            "FP16 tensor. Take the loss to FP32 first.",
            hint=2,
        ),
        "not-scaled": Diagnosis(
            "{call} returned {got}, the loss as it was; the right answer is {want}. Without the factor, small gradients are lost in `backward()`.",
            hint=2,
        ),
        "divides-loss": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The loss was divided by the scale. It is multiplied before `backward()`, and the gradients are divided afterwards.",
            hint=2,
        ),
        "fixed-scale": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The loss was multiplied by 65536, the default. The scale that holds is `self.loss_scale`, and `update()` changes it.",
            hint=1,
        ),
        "graph-lost": Diagnosis(
            "{call} has {got} and leads `backward()` nowhere: the weights got no gradient. Multiply the tensor itself; `.item()`, `.detach()`, `torch.tensor(loss)` and `no_grad` cut it "
            "off from the graph that made it.",
            hint=2,
        ),
        "crashes-on-none": Diagnosis(
            "{call}: {got} A parameter that took no part in the loss has no gradient, and its `.grad` is `None`.",
            hint=2,
        ),
        "not-unscaled": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}. The gradients are as large as before. Did the division make a new tensor that nobody keeps? "
            "`grad / s` does; `grad.div_(s)` changes the gradient itself.",
            hint=2,
        ),
        "unscale-multiplies": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}. The scale was applied a second time instead of taken out: divide.",
            hint=2,
        ),
        "group-left-out": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}. Some gradients are unscaled and this one is not. An optimizer may have several groups in "
            "`param_groups`, each with several parameters, and a `.grad` of None is not the last one.",
            hint=2,
        ),
        "wrong-gradient": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}.",
            hint=2,
        ),
        "steps-early": Diagnosis(
            "{call} changed a weight: it was {want} and is {got}. Only `step` may do that. Between the two calls somebody wants to clip the gradients.",
            hint=1,
        ),
        "scale-moves": Diagnosis(
            "After {call} the scale is {got}; before, it was {want}. Only `update()` may change it, once, when all optimizers have made their steps: "
            "the gradients of the others are still scaled with the old one.",
            hint=1,
        ),
        "never-steps": Diagnosis(
            "{call} let the optimizer make {got} steps, and the gradients were clean: {want} step is due. `optimizer.step()` changes the weights.",
            hint=1,
        ),
        "steps-twice": Diagnosis(
            "{call} let the optimizer make {got} steps; {want} is due.",
            hint=1,
        ),
        "steps-with-scaled": Diagnosis(
            "{call} made the weights {got}; they should be {want}. The step was made with gradients that are still scaled. Nobody had called `unscale_` in this iteration, so `step` must.",
            hint=1,
        ),
        "unscales-twice": Diagnosis(
            "{call} made the weights {got}; they should be {want}. The gradients were divided by the scale twice, so that almost nothing is left of the step. "
            "Remember that `unscale_` was called.",
            hint=1,
        ),
        "unscaled-stays": Diagnosis(
            "{call} made the weights {got}; two clean steps make {want}. In the second iteration the gradients were not unscaled: that `unscale_` was called holds for one iteration only, "
            "and `update()` ends it.",
            hint=1,
        ),
        "wrong-weights": Diagnosis(
            "{call} made the weights {got}; a step with the true gradients makes {want} of them.",
            hint=2,
        ),
        "steps-on-overflow": Diagnosis(
            "{call} made the step, and now a weight is {got}: one infinity in a gradient, and the training is over. After an overflow "
            "`optimizer.step()` must not be called.",
            hint=1,
        ),
        "steps-with-zeros": Diagnosis(
            "{call} made the step, with something finite in place of the bad number, and the weight is {got}. Zeros are gradients, too: momentum and weight "
            "decay move the weights, and Adam counts a step. After an overflow `optimizer.step()` must not be called.",
            hint=1,
        ),
        "misses-nan": Diagnosis(
            "{call} made the step, and now a weight is {got}. Infinities are noticed, NaN is not: every comparison with it is False. `isfinite` covers both.",
            hint=2,
        ),
        "misses-infinity": Diagnosis(
            "{call} made the step, and now a weight is {got}. Not every kind of overflow is noticed: {kind} was missed. `isfinite` is False for both infinities and for NaN.",
            hint=2,
        ),
        "looks-at-some": Diagnosis(
            "{call} made the step, and now a weight is {got}. It depends on the place whether an overflow is noticed. All parameters of all groups count: does one turn of a loop write over "
            "what an earlier one found?",
            hint=2,
        ),
        "hides-overflow": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}. What overflowed is no longer there. Whoever looks for the cause, or logs the norm, must find it: "
            "skip the step, and leave the gradient.",
            hint=1,
        ),
        "left-scaled-after-overflow": Diagnosis(
            "{call} left the gradient {got}; unscaled it is {want}. *All* gradients are divided, also if one of them overflowed: whoever looks at them now would "
            "take scaled ones for true ones.",
            hint=2,
        ),
        "skips-finite": Diagnosis(
            "{call} {got} the step, although all gradients are finite. Large is not infinite: a norm or a sum can overflow by itself, and 65504 is no limit for FP32.",
            hint=2,
        ),
        "looks-again": Diagnosis(
            "{call} made the step, and now a weight is {got}. Clipping made a finite number of the infinity, but not a true one. What `unscale_` found must be remembered; "
            "a look in `step` comes too late.",
            hint=1,
        ),
        "no-backoff": Diagnosis(
            "{call} shows {got}; right is {want}. After an overflow the scale stays as large as it was, so the next iteration overflows, too.",
            hint=1,
        ),
        "fixed-settings": Diagnosis(
            "{call} shows {got}; right is {want}. The scale moves by a factor that is fixed in your code. `growth_factor` and `backoff_factor` say by how much.",
            hint=1,
        ),
        "grows-on-overflow": Diagnosis(
            "{call} shows {got}; right is {want}. After an overflow the scale grows. It was too large: `backoff_factor` makes it smaller.",
            hint=1,
        ),
        "has-floor": Diagnosis(
            "{call} shows {got}; right is {want}. Your scale has a floor, as in exercise 5.2. PyTorch's has none, and this one shall be its equal.",
        ),
        "has-ceiling": Diagnosis(
            "{call} shows {got}; right is {want}. Your scale has a largest value. Where there is room for more, PyTorch's goes on growing.",
        ),
        "found-is-lost": Diagnosis(
            "{call} shows {got}; right is {want}. The step was skipped, but `update()` took the iteration for a clean one. What was found must be kept until `update()` has "
            "seen it: forget it there, not in `step`.",
            hint=1,
        ),
        "never-grows": Diagnosis(
            "{call} shows {got}; right is {want}. The scale never grows. Count the clean iterations in a row, and grow when there are `growth_interval` of them.",
            hint=1,
        ),
        "grows-late": Diagnosis(
            "{call} shows {got}; right is {want}. The scale grows one iteration too late: the one that makes the row complete counts, too.",
            hint=1,
        ),
        "grows-early": Diagnosis(
            "{call} shows {got}; right is {want}. The scale grows before there were `growth_interval` clean iterations in a row.",
            hint=1,
        ),
        "counter-survives-growth": Diagnosis(
            "{call} shows {got}; right is {want}. The count is not set back when the scale grows, so it grows again after every clean iteration.",
            hint=1,
        ),
        "counter-survives-overflow": Diagnosis(
            "{call} shows {got}; right is {want}. The count goes on over an overflow. Only clean iterations in a *row* let the scale grow.",
            hint=1,
        ),
        "found-stays": Diagnosis(
            "{call} shows {got}; right is {want}. One overflow is remembered for ever: everything after it is skipped, too. Once `update()` has made use of it, it must be forgotten.",
            hint=1,
        ),
        "overflow-leaks": Diagnosis(
            "{call} shows {got}; right is {want}. (yes/no: first and second optimizer.) The overflow of one optimizer kept the other from its step, whose gradients were clean. Remember for "
            "each optimizer by itself what was found.",
            hint=1,
        ),
        "one-flag-for-all": Diagnosis(
            "{call} shows {got}; right is {want}. (yes/no: first and second optimizer.) Only the first optimizer was unscaled: after that, the gradients of all of them "
            "counted as unscaled. Remember for each optimizer by itself that it was, and what was found.",
            hint=1,
        ),
        "all-must-overflow": Diagnosis(
            "{call} shows {got}; right is {want}. The scale backs off only if all optimizers overflowed. One is enough: `any`, not `all`.",
            hint=2,
        ),
        "last-one-counts": Diagnosis(
            "{call} shows {got}; right is {want}. `update()` does not look at all optimizers. The scale was too large for one that it leaves out: if any overflowed, back off.",
            hint=2,
        ),
        "step-left-out": Diagnosis(
            "{call} shows {got}; right is {want}. `unscale_` found an overflow, and `update()` took no notice, because that optimizer's step was left out. What counts is what was found "
            "since the last update, whether or not a step was asked for.",
            hint=1,
        ),
        "backs-off-for-each": Diagnosis(
            "{call} shows {got}; right is {want}. Two optimizers overflowed, and the scale backed off twice. They had the same scale, so once is enough: "
            "back off in `update()`, not where the overflow is found.",
            hint=1,
        ),
        "counts-for-each": Diagnosis(
            "{call} shows {got}; right is {want}. The count went up once for each optimizer. It counts iterations: one for each `update()`.",
            hint=1,
        ),
        "wrong-run": Diagnosis(
            "{call} shows {got}; right is {want}.",
            hint=1,
        ),
        "differs-from-torch": Diagnosis(
            "{call}: before iteration {iteration} your scaler and `torch.amp.GradScaler` agree in every bit, in this one they do not. The {what} with yours: {got}; with PyTorch's: {want}.",
            hint=1,
        ),
    },
    why=(
        "One dict by optimizer answers all three questions: whether its gradients are unscaled, whether its step must be skipped, and whether the scale has to "
        "back off. Each optimizer is judged by its own gradients, and all share one scale, so that moves once, at the end. `torch.amp.GradScaler` keeps the same memory, but "
        "on the GPU, in tensors; it asks for it only in `step`, once for each optimizer. And it refuses calls in the wrong order, which lesson 07 is about."
    ),
)

RESUMABLE_SCALER = Exercise(
    id="5.4",
    title="Remember across restarts",
    minutes=9,
    function="ResumableScaler",
    hints=(
        "Go through the table: which of these numbers decide what the scaler does in the next iterations? All five do. The new one may have been made with other settings, so they must "
        "travel, too. What was found in an iteration that is over need not.",
        "`tensor.item()` takes a Python number out of a 0-dim tensor, and `tensor.fill_(number)` puts one in. Both methods work on `self`; the second one returns nothing. "
        "`vars(self)` is not a copy: it is the very dict in which Python keeps the attributes.",
        "Return a dict with five names: the scale as a number, the count, both factors and the interval. To load, `fill_` the scale's tensor with the saved scale and set the other four "
        "attributes to what `state` has under their names.",
    ),
    diagnoses={
        "state-changes": Diagnosis(
            "{call} returned a dict in which `{name}` was {want}. When the scaler had gone on, it was {got} in that same dict. A checkpoint must hold the state at the moment "
            "of saving, so return a dict of its own. `vars(self)` and `self.__dict__` are the attributes themselves.",
            hint=2,
        ),
        "no-name": Diagnosis(
            "{call} has {got}, which is not a text. JSON makes a text of every key, and then it is not found under its old name.",
        ),
        "not-plain": Diagnosis(
            "{call} has under `{name}` {got}, which is {kind} and no plain number. A checkpoint that holds objects can often be loaded only where and with what it was made, and "
            "texts and lists must be taken apart again. Save each number under a name of its own, as an `int` or `float` of Python.",
            hint=2,
        ),
        "shares-state": Diagnosis(
            "Two scalers loaded the same state with {call}. Only one of them went on, and yet the other's scale, or the state, is now {got}. They share one dict: take the numbers "
            "out of it.",
            hint=2,
        ),
        "scale-lost": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}. The scale did not come over. Is it in the state, and does `load_state_dict` put it into *this* scaler, `self`?",
            hint=1,
        ),
        "scale-rounded": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}. A scale need not be whole nor a power of two, and it may be very small: `int` or `round` makes 0 of it, from which no "
            "growth leads away. Save it as the `float` that it is.",
            hint=2,
        ),
        "setting-rounded": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}. The scale is right at first, but `{lost}` is not quite what it was, or the one that this scaler was made with. A factor need not be "
            "whole nor a power of two: save it as the `float` that it is.",
            hint=2,
        ),
        "finished-inside": Diagnosis(
            "{call} runs {got}, which belongs to a scaler that can be saved already. Begin with `ForgetfulScaler`, and give it the two methods.",
            hint=1,
        ),
        "count-lost": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}. The scale is right at first, but the count of clean iterations did not come over: the scale grows at another time.",
            hint=1,
        ),
        "setting-lost": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}. The scale is right at first, but `{lost}` is the one that this scaler was made with, or a wrong one. Settings belong to the state.",
            hint=1,
        ),
        "scale-type": Diagnosis(
            "{call} returned {got}; the saved scaler would have returned {want}. `loss_scale` must stay a 0-dim FP32 tensor. A Python number in its place does not widen an FP16 loss, "
            "and a tensor of another dtype or shape changes that of the loss.",
            hint=2,
        ),
        "goes-on-otherwise": Diagnosis(
            "{call} shows {got}; the saved one would have gone on with {want}.",
            hint=1,
        ),
    },
    why=(
        "The scale and the count are what the scaler has learnt, the factors and the interval are how it goes on learning: five plain numbers. They are taken out on saving and put in on "
        "loading, so nothing is shared. `torch.amp.GradScaler.state_dict()` holds the same five, under the names scale, growth_factor, backoff_factor, growth_interval and _growth_tracker."
    ),
)

LESSON = Lesson(
    slug="05_dynamic_loss_scaling",
    title="Dynamic loss scaling",
    minutes=75,
    difficulty="medium",
    needs="lesson 04; classes in Python",
    exercises=(HAS_OVERFLOW, NEXT_SCALE, LOSS_SCALER, RESUMABLE_SCALER),
)
