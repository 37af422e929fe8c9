"""The words of lesson 07."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson


def _after(words: str, hint: int | None = None) -> Diagnosis:
    """Make a diagnosis of what a step left behind; the watcher's sentence, where it has one, comes last."""
    return Diagnosis(f"After {{call}}, {{place}} is {{got}}; it should be {{want}}. {words}{{watcher}}", hint)


_REGION_LEFT = (
    "{call} returned with an autocast region still open: {got} is in force for whatever comes next. `with` closes what it opens, "
    "`__enter__` alone does not."
)

STEP = Exercise(
    id="7.1",
    title="The canonical step",
    minutes=8,
    function="training_step",
    hints=(
        "Six things in a fixed order: forget old gradients, forward pass and loss in FP16, backward pass of the *scaled* loss, the step, "
        "the new scale; and the loss is what you return. Nothing in it asks whether the step was skipped.",
        "The region ends before the backward pass. Who makes the step is the scaler: it unscales, looks for an overflow, and calls the "
        "optimizer only if there is none. To clear the gradients at the *end* is too late for the first call, and to clear them only after "
        "a good step leaves the infinite ones in place.",
        "The optimizer's `zero_grad`; `with torch.autocast(…, torch.float16):` around forward and loss; then three lines of the scaler's, `scale(…)` "
        "with `.backward()`, `step(…)`, `update()`; last, the loss without its graph.",
    ),
    diagnoses={
        "stale-counts": _after(
            "Gradients that were there before this call were not cleared in time, and `backward` adds to them. If one of them "
            "is infinite, every sum with it is, too: every step from then on is skipped, and the scale sinks to 0.",
            hint=2,
        ),
        "cleared-too-early": _after(
            "The gradients were cleared between the backward pass and the step: nothing was left to step with.",
            hint=1,
        ),
        "not-scaled": _after(
            "The loss was not multiplied by the scale before the backward pass: small gradients become 0 in FP16, and the "
            "scaler, where it is used, divides by a scale that nothing was multiplied with.",
            hint=1,
        ),
        "not-unscaled": _after(
            "`optimizer.step()` was called directly, with gradients that are still multiplied by the scale. With plain SGD the "
            "step is as many times too long; Adam would hide it.",
            hint=2,
        ),
        "never-skips": _after(
            "`unscale_` makes gradients true, and notes an overflow; but it is `scaler.step` that acts on it. `optimizer.step()` "
            "makes its step whatever the gradients are.",
            hint=2,
        ),
        "watcher-says": _after("Six lines do what was asked for; something else was done as well."),
        "stepped-twice": _after(
            "The optimizer was asked to step more than once. `scaler.step(optimizer)` calls `optimizer.step()` itself.",
            hint=2,
        ),
        "no-step": _after("Nobody asked the optimizer to step. `update` only changes the scale.", hint=1),
        "no-backward": _after(
            "No backward pass was made: no new gradient is there.",
            hint=1,
        ),
        "step-first": _after(
            "The step was asked for before the backward pass: the gradients it used were old ones, or none.",
            hint=1,
        ),
        "no-update": _after(
            "`scaler.update()` was not called. Without it the scale never falls after an overflow and never grows, and the scaler's "
            "notes on this step stay.",
            hint=1,
        ),
        "update-first": _after(
            "`scaler.update()` came before any step: it ends the step, and forgets what was found in it.",
            hint=1,
        ),
        "scale-given": _after(
            "`scaler.update` was given a scale. It takes that one as it is; only without an argument does it count clean steps, "
            "and lower or raise the scale by itself.",
            hint=2,
        ),
        "other-scaler": _after(
            "Another scaler than the one that was passed asked the optimizer to step. What one scaler has noted, its scale above all, no other "
            "one knows: a new one begins at 65536 each time.",
            hint=2,
        ),
        "unscales-early": _after(
            "`unscale_` was called before the backward pass. It divides what is in `.grad` at that moment, which is nothing yet.",
            hint=2,
        ),
        "graph-kept": _after(
            "The gradients carry a graph of their own, as after `create_graph=True`: it stays in memory for as long as they do, and no step "
            "needs it.",
        ),
        "update-twice": _after(
            "`scaler.update()` was called more than once in one step: it counts as so many steps without an overflow.",
            hint=1,
        ),
        "no-autocast": _after(
            "Forward pass and loss belong inside of `torch.autocast`, for the kind of device that the inputs are on.",
            hint=2,
        ),
        "bf16-region": _after(
            "The dtype of the region is the second argument of `torch.autocast`. On a CPU, the default is BF16.",
            hint=2,
        ),
        "no-forward": _after(
            "The model was not called.",
            hint=1,
        ),
        "forward-twice": _after(
            "Every call of a model in training mode counts: batch norm moves its statistics, dropout draws another mask, and "
            "the loss that you return is not the one that was walked back.",
            hint=1,
        ),
        "backward-inside": _after(
            "The backward pass ran inside of the region. Every operator has its dtype from the forward pass; where a model has "
            "an FP32 part of its own, its gradients are then computed in FP16.",
            hint=2,
        ),
        "unscales-twice": Diagnosis(
            "{call} failed: {got}. The gradients were unscaled twice. To call `unscale_` is allowed once, and not needed here.",
            hint=2,
        ),
        "unscales-late": _after(
            "`unscale_` was called after the step, which has unscaled the gradients by itself.", hint=2
        ),
        "loss-scaled": Diagnosis(
            "{call} returned {got}, where {want} is the loss: this one is multiplied by the scale. Whoever plots it sees the scale jump.",
            hint=2,
        ),
        "loss-attached": Diagnosis(
            "{call} returned a tensor with {got}: it holds the whole graph of this step in memory, for as long as the caller keeps it.",
        ),
        "region-left-open": Diagnosis(
            _REGION_LEFT + " The weights that it has cast stay cached, too, and go stale."
        ),
        "wrong-loss": Diagnosis(
            "{call} returned {got}; the loss is {want}.",
            hint=1,
        ),
        "wrong-step": _after(
            "The order of the calls looks right. What else was changed, and when?",
            hint=2,
        ),
    },
    why=(
        "Old gradients go first, whether or not the last step was skipped. The loss is scaled once, in front of the one backward pass, which "
        "runs outside of the region. `scaler.step` unscales, looks for an overflow and steps, or does not; `update` sets the scale for the next "
        "call. There is no `if` in it: a skipped step is the scaler's business."
    ),
)
CLIP = Exercise(
    id="7.2",
    title="Clip what is true",
    minutes=7,
    function="clipped_step",
    hints=(
        "A limit of 1.0 is meant for true gradients. After the backward pass they are multiplied by the scale: 65536 times too large, and "
        "whatever is cut to 1.0 then is divided by 65536 afterwards.",
        "The scaler's `unscale_` makes the gradients of an optimizer true, in place, and remembers whether one overflowed; `scaler.step` does not do it "
        "again. `torch.nn.utils.clip_grad_norm_` returns the norm from before it cut; its `error_if_nonfinite` must stay off.",
        "As 7.1, with two lines between backward pass and step: first the scaler's `unscale_`, then the clipping of `model.parameters()` to "
        "`max_norm`, whose result you return at the end.",
    ),
    diagnoses={
        "clips-scaled": _after(
            "The gradients were clipped while they were multiplied by the scale: the norm was far above the limit whatever they were, and "
            "what was left was then divided by the scale. The step is short by a factor of about the scale, and nothing says so.",
            hint=1,
        ),
        "not-clipped": _after(
            "The step has been made with gradients that were not clipped. Clipping too late is as good as none, and so is clipping before the "
            "backward pass.",
            hint=2,
        ),
        "unscales-again": _after(
            "The gradients were divided by the scale by hand, of which the scaler knows nothing: `scaler.step` divides them once more.",
            hint=2,
        ),
        "cuts-values": _after(
            "Each number was cut by itself (`clip_grad_value_`), which changes the direction of the step. A total norm was asked for."
        ),
        "one-by-one": _after(
            "The gradients were clipped parameter by parameter, or layer by layer. The total norm is one number for all of them, and one factor cuts them all."
        ),
        "always-cuts": _after(
            "The gradients were brought to the limit even where their norm was below it. What is short enough stays as it is."
        ),
        "raises-on-overflow": _after(
            "A gradient that overflows is daily business with a loss scale, and the scaler is about to skip the step: nothing must raise.",
            hint=2,
        ),
        "overflow-hidden": Diagnosis(
            "{call} overflowed and returned {got}; the norm of such gradients is {want}. Infinite gradients were replaced, or left out of the "
            "norm. Leave them as they are: the scaler skips the step.",
            hint=2,
        ),
        "norm-scaled": Diagnosis(
            "{call} returned {got}; the norm of the true gradients is {want}. This one is multiplied by the scale: it was computed before "
            "`unscale_`. Plotted, it doubles whenever the scale does.",
            hint=1,
        ),
        "norm-of-nothing": Diagnosis(
            "{call} returned {got}; the norm is {want}. When it was computed, no gradient was there: that comes after the backward pass.",
            hint=1,
        ),
        "norm-after": Diagnosis(
            "{call} returned {got}; before clipping it was {want}. A norm that is measured after clipping only ever says the limit.",
            hint=2,
        ),
        "norm-shape": Diagnosis(
            "{call} returned a tensor of shape `{got}`; one number is asked for, of shape {want}, as `clip_grad_norm_` returns it."
        ),
        "norm-attached": Diagnosis(
            "{call} returned a tensor with {got}: it keeps the graph of the norm alive."
        ),
        "wrong-norm": Diagnosis(
            "{call} returned {got}; the Euclidean norm of all true gradients together is {want}.",
            hint=2,
        ),
        "basics": _after(
            "That is not a matter of clipping, but of the step itself, as in exercise 7.1. {says}"
        ),
        "watcher-says": _after("Clipping is the one thing that was to come between backward pass and step."),
        "wrong-clipped-step": _after(
            "Neither clipping nor the order of the calls explains it. What else was changed?", hint=2
        ),
    },
    why=(
        "`unscale_` divides by the scale once, and the scaler remembers that it has. From there to the step the gradients are true, and clipping, "
        "logging and whatever else looks at them belongs there. If one is infinite, so is the norm, and clipping makes NaN of it: that does "
        "not matter, because `unscale_` has taken its note already, and `step` skips."
    ),
)

ACCUMULATE = Exercise(
    id="7.3",
    title="One step from several micro-batches",
    minutes=12,
    function="accumulated_step",
    hints=(
        "What happens once for each micro-batch: forward, loss, backward. What happens once for all of them: clearing, unscaling, clipping, "
        "the step, the update. And the mean over the batch is no mean of means if the parts differ in size.",
        "Each loss is a mean over its own examples. Multiply it by its share of all examples, `len(inputs)` of the total, before it is scaled. "
        "`backward` adds up. `unscale_` may be called once between two updates, after the last backward pass.",
        "Count all examples first. Loop: region, loss times share, `scaler.scale(…).backward()`, and add the detached loss to a sum. After the "
        "loop: `unscale_`, clip, `step`, `update`; return the sum.",
    ),
    diagnoses={
        "counts-batches": _after(
            "Each loss got the same share. That is right while all micro-batches are of one size; here they are not, and the examples of a small "
            "one count for more.",
            hint=2,
        ),
        "not-divided": _after(
            "The losses were added up as they are: gradients as many times too large as there are micro-batches.",
            hint=2,
        ),
        "divides-by-all": _after(
            "Each loss, a mean already, was divided by the number of all examples: that takes the mean twice.",
            hint=2,
        ),
        "last-only": _after(
            "Only the last micro-batch counts: the gradients were cleared inside of the loop.", hint=1
        ),
        "first-only": _after("Only the first micro-batch counts. Does the loop end too early?", hint=1),
        "clips-scaled-sum": _after(
            "The gradients were clipped before `unscale_`: it is the scaled norm that was compared with the limit.",
            hint=2,
        ),
        "clips-each": _after(
            "The gradients were clipped after each micro-batch, when part of the sum was there. Clip once, the whole sum.",
            hint=1,
        ),
        "never-clips": _after("The sum of the gradients was not clipped to `max_norm`.", hint=2),
        "unscales-in-loop": _after(
            "`unscale_` was called before the last backward pass. It divides what is there; what is added later is scaled, and the sum is of two "
            "kinds. A second call for the same step raises.",
            hint=2,
        ),
        "steps-in-loop": _after(
            "The scaler was asked for a step, or an update, {steps} times: they stand inside of the loop. One step was asked for, and the scale "
            "must not change between the parts of a sum.",
            hint=1,
        ),
        "cleared-between": _after(
            "The gradients were cleared between two backward passes: what had been added up until then is lost.",
            hint=1,
        ),
        "drops-bad": _after(
            "A micro-batch that was infinite was left out, and the step was made from the others. Leave that to the scaler: it skips the whole step, "
            "and lowers the scale.",
            hint=1,
        ),
        "clips-otherwise": _after(
            "With a limit that nothing reaches, the step is right: each micro-batch gets its share. It is the clipping that is not of the total norm "
            "of the whole sum, to `max_norm`.",
            hint=2,
        ),
        "ends-early": Diagnosis(
            "{call} called the model for {got} micro-batches, where {want} were expected. Nothing shows in the weights, since the step is "
            "skipped; but the loss of the rest is missing. No `break` is needed: one infinite part makes the sum infinite.",
        ),
        "concatenates": Diagnosis(
            "{call} called the model with batches of {got} where the micro-batches are of {want}. The step is right, but the batch was split because "
            "it does not fit into memory.",
            hint=1,
        ),
        "graphs-together": Diagnosis(
            "{call} had the graphs of {got} micro-batches in memory at once, where there is room for {want}: all these forward passes came before "
            "the backward pass. The step is right, but each micro-batch needs a backward pass of its own, before the next one.",
            hint=1,
        ),
        "loss-of-last": Diagnosis(
            "{call} returned {got}; the loss of the whole batch is {want}. That is the loss of the last micro-batch.",
            hint=2,
        ),
        "loss-summed": Diagnosis(
            "{call} returned {got}; the loss of the whole batch is {want}. The losses of the micro-batches were added or averaged without regard "
            "to how many examples each has.",
            hint=2,
        ),
        "sum-scaled": Diagnosis(
            "{call} returned {got}; the loss is {want}. It is still multiplied by the scale.", hint=2
        ),
        "sum-attached": Diagnosis(
            "{call} returned a tensor with {got}: summed up like this, the graphs of all micro-batches stay in memory, which is what accumulation "
            "was to avoid."
        ),
        "wrong-total": Diagnosis("{call} returned {got}; the loss of the whole batch is {want}.", hint=2),
        "basics": _after("That has nothing to do with micro-batches; exercise 7.1 has it. {says}"),
        "watcher-says": _after("That is neither the shares nor the clipping."),
        "wrong-sum": _after(
            "The order of the calls is right. Which share of the whole does each loss get?", hint=2
        ),
    },
    why=(
        "`backward` adds up what each micro-batch gives, and all of it is multiplied by one scale, because `update` waits until the end. Each mean "
        "counts with its share of the examples, so that the sum is the gradient of the whole batch. Then it is unscaled, clipped and used "
        "once. One infinite micro-batch makes the sum infinite, and the whole step is skipped."
    ),
)

SHARE = Exercise(
    id="7.4",
    title="Two optimizers, one scaler",
    minutes=8,
    function="two_optimizers_step",
    hints=(
        "One loss, one backward pass, so one scale for both. The scaler keeps a note for each optimizer whether its gradients overflowed, until "
        "the update, which reads them all.",
        "`scaler.step` for each optimizer, and after *both* of them one `update`. Clear the gradients of both. The optimizer whose "
        "gradients are finite makes its step even if the other is skipped.",
        "As 7.1, with `head(encoder(…))` in the region, and each line that names the optimizer written twice: `zero_grad` and `step`. "
        "`update` stays one line.",
    ),
    diagnoses={
        "updates-between": _after(
            "`scaler.update()` was called between the two steps. It may change the scale, and the second optimizer then divides by another one "
            "than the loss was multiplied with; and it counts one step as two.",
            hint=2,
        ),
        "all-or-nothing": _after(
            "Only one network's gradients overflowed, and both were left out. The scaler decides for each optimizer by itself; no `if` is needed.",
            hint=2,
        ),
        "one-steps": _after("Only one optimizer was asked to step: the {which} stays as it is.", hint=2),
        "one-cleared": _after("Old gradients of the {which} were not cleared, and count as well.", hint=2),
        "walks-twice": _after(
            "Two backward passes were made from one loss. One fills the gradients of both networks.", hint=1
        ),
        "cut-off": _after(
            "No gradient reaches the encoder. A `detach()` or `no_grad` has cut the way between the networks.",
        ),
        "pair-loss-scaled": Diagnosis("{call} returned {got}, the scaled loss; the loss is {want}.", hint=2),
        "pair-loss-attached": Diagnosis(
            "{call} returned a tensor with {got}; return the loss without its graph."
        ),
        "wrong-pair-loss": Diagnosis("{call} returned {got}; the loss of this step is {want}.", hint=1),
        "basics": _after("That would be wrong with one optimizer, too: exercise 7.1 has it. {says}"),
        "watcher-says": _after("The two networks are right; what else was done?"),
        "wrong-pair": _after(
            "The order of the calls is right; look at which networks and optimizers they are for.", hint=2
        ),
    },
    why=(
        "Both gradients come from one scaled loss, so both are divided by the same scale, and it must not change in between. `step` looks at its "
        "own optimizer's gradients alone, and `update`, once, lowers the scale if any of them overflowed. (That one network can move while the other "
        "stands still is what PyTorch documents; where that would hurt, as in a GAN, a scaler for each is the other way.)"
    ),
)

SCHEDULE = Exercise(
    id="7.5",
    title="A schedule that waits for real steps",
    minutes=10,
    function="scheduled_step",
    hints=(
        "A skipped step must not move the learning rate. `scaler.step` returns nothing that tells, and a fused optimizer is called even if it is skipped. "
        "But a skip leaves a trace in the scale, once it was updated.",
        "Read `scaler.get_scale()` before `update` and after it. Which way does it move after an overflow, and which way after many good steps? "
        "Only one of them is a skip.",
        "`before = scaler.get_scale()`, then the lines of 7.1; then compare: a skip is where the scale has become *smaller*. If it has not, "
        "the scheduler makes its step; return the comparison.",
    ),
    diagnoses={
        "always-schedules": _after(
            "The step was skipped, and the scheduler moved all the same. A run with many skips at its start loses a part of its warm-up like this.",
            hint=1,
        ),
        "fused-counts": _after(
            "Until now your code waited for real steps; this optimizer is fused. It gets the overflow handed over, is called, and leaves the weights "
            "alone by itself: that it was called says nothing.",
            hint=1,
        ),
        "growth-is-skip": _after(
            "The scale has changed, because it *grew*: nothing was skipped, and the scheduler should have moved. `!=` sees both alike.",
            hint=2,
        ),
        "only-on-growth": _after(
            "The scheduler moves only where the scale grows. Most good steps leave it as it is.",
            hint=2,
        ),
        "only-on-skip": _after(
            "The comparison is the wrong way round: the scheduler moves when a step was skipped.", hint=2
        ),
        "never-schedules": _after("The scheduler did not move though the step was made.", hint=2),
        "schedules-first": _after(
            "The scheduler moved before the optimizer: this step was made with the learning rate of the next.",
            hint=2,
        ),
        "looks-in-part": _after(
            "Where everything overflowed your code has seen it; here it is one number of one gradient, and the scaler skips the step as well. "
            "Its scale tells of every skip.",
            hint=2,
        ),
        "rate-by-hand": _after(
            "The learning rate itself is right: somebody has set it by hand. The scheduler does not know, and goes on from its own count.",
            hint=2,
        ),
        "wrong-report": Diagnosis(
            "{call} returned {got}; {want} is what happened. The scheduler has done right: say what you have told it.",
            hint=2,
        ),
        "basics": _after(
            "Neither scheduler nor learning rate is to blame, but the step, as in exercise 7.1. {says}"
        ),
        "wrong-schedule": _after(
            "Once for each step that was made, and after it: that is when the scheduler should move.", hint=1
        ),
    },
    why=(
        "After `update`, a smaller scale means an overflow, and so a skip; the same or a larger one means that the step was made. It holds for fused "
        "optimizers, too, for several of them (then it means: at least one was skipped), and with every scaler that has `get_scale`. On a GPU, "
        "`get_scale` waits for the device: the price of an answer in Python."
    ),
)

PENALTY = Exercise(
    id="7.6",
    title="Gradient penalty",
    minutes=12,
    function="penalty_step",
    hints=(
        "Two backward passes. The first makes gradients that become part of the loss: they must be scaled on their way, or FP16 loses them, and true "
        "before their norm is taken. The second walks back from the whole sum, and through the first.",
        "`torch.autograd.grad(…, create_graph=True)` of the scaled loss returns gradients that can be walked back through, and leaves `.grad` alone. "
        "Divide each by `scaler.get_scale()`; `unscale_` is for `.grad` only. The Euclidean norm of all is the root of the sum of all squares.",
        "After the region: `grads = torch.autograd.grad(…)` of `scaler.scale(loss)` and the list of parameters. Divide. In a second region: norm, and "
        "loss plus `weight` times norm. Then as 7.1 with that sum.",
    ),
    diagnoses={
        "penalty-of-scaled": _after(
            "The penalty was taken of gradients that are multiplied by the scale. It outweighs the loss by as much, and changes whenever the scale does.",
            hint=1,
        ),
        "first-pass-unscaled": _after(
            "The gradients for the penalty came from a loss that `scaler` has not scaled. Here it is small: they became 0 on their way through FP16, and so did "
            "the penalty.",
            hint=1,
        ),
        "penalty-is-constant": _after(
            "The penalty changes the loss but no gradient: for `backward` it is a constant. Without `create_graph=True`, after a `detach`, and by `clip_grad_norm_` or "
            "`get_total_norm`, which work without a graph, there is no way through it.",
            hint=2,
        ),
        "graph-freed": _after(
            "The first pass has freed the graph that the second one needs: `create_graph=True` keeps it, and records the first pass as well.",
            hint=2,
        ),
        "no-penalty": _after("The step is that of the loss alone.", hint=1),
        "loss-left-out": _after("The step is that of the penalty alone: the loss itself counts, too."),
        "weight-ignored": _after(
            "The penalty counts with a weight of 1; `weight` says how much it should.", hint=2
        ),
        "squared-norm": _after("The penalty is the norm squared: a root is missing.", hint=2),
        "norms-summed": _after(
            "The norms of the parameters' gradients were added up. The norm of all together is the root of the sum of all squares.",
            hint=2,
        ),
        "norm-of-some": _after("Some parameters were left out of the norm, the biases perhaps.", hint=2),
        "penalty-outside": _after(
            "The penalty was added after the loss was scaled: its gradient is not multiplied by the scale, but divided by it at the end.",
            hint=1,
        ),
        "divided-too-often": _after(
            "The penalty is divided by the scale once more than it was multiplied by it: next to nothing is left.",
            hint=1,
        ),
        "norm-of-inputs": _after(
            "The norm is that of the gradient with respect to the inputs, as some GANs take it. Here it is that of the parameters' gradients.",
            hint=2,
        ),
        "eps-too-large": _after(
            "Something is added below the root, 1e-6 perhaps. Here the loss is small, and all squares together are less than that.",
            hint=2,
        ),
        "overflow-unsaid": Diagnosis(
            "{call} returned {got}; the gradients of the first pass have overflowed, and with them the sum is {want}. Return it as it is: what reads "
            "the log should see it.",
        ),
        "counted-twice": _after(
            "The gradient of the loss counts twice: the first pass left it in `.grad`, and the second adds to that.",
            hint=2,
        ),
        "total-scaled": Diagnosis(
            "{call} returned {got}; the sum is {want}. It is multiplied by the scale.", hint=1
        ),
        "total-attached": Diagnosis(
            "{call} returned a tensor with {got}, and behind it two graphs, that of the loss and that of its gradients."
        ),
        "returns-loss": Diagnosis(
            "{call} returned {got}, which is the loss; with its penalty it is {want}.", hint=2
        ),
        "wrong-total-loss": Diagnosis("{call} returned {got}; loss and penalty are {want} together.", hint=2),
        "basics": _after("The penalty may be right; the step is not, as in exercise 7.1. {says}"),
        "wrong-penalised-step": _after(
            "That is no step for loss + weight · norm. Is the norm that of the true gradients, and is the way through it open?",
            hint=1,
        ),
    },
    why=(
        "Both passes run through FP16, so both start from something scaled. In between the gradients are divided, so that the norm is the true one "
        "whatever the scale. `create_graph` records the first pass, and the second walks back through it. An overflow in the first pass makes the "
        "norm infinite, and all gradients of the second with it: the step is skipped like any other."
    ),
)

RESUME = Exercise(
    id="7.7",
    title="Save and resume",
    minutes=10,
    function="Checkpoint",
    hints=(
        "Whatever a step changes must be in the file: weights and statistics, what the optimizer keeps, where the schedule is, the scale and its count of "
        "good steps. Each of the four objects has a method for it.",
        "`state_dict()` gives plain containers with tensors and numbers, which `weights_only=True` lets in; objects, it does not. "
        "`GradScaler.load_state_dict` raises for the empty `{}` of a disabled scaler: test it first.",
        "Save a `dict` from four names to four `state_dict()`. To load: `torch.load(path, weights_only=True)`, then `load_state_dict` of each, the "
        "scaler's only if its state is not empty.",
    ),
    diagnoses={
        "scale-lost": Diagnosis(
            "After {call}, {place} is {got}; it was {want} when the run was saved. The scaler is not in the file, or not loaded: it begins anew, at a "
            "scale that overflows again, and steps are skipped that the first run made.",
            hint=1,
        ),
        "clean-steps-lost": Diagnosis(
            "After {call}, {place} is {got}; it was {want}. The scale came back as a number, without the rest of the scaler's state: it will move in "
            "other steps than it would have.",
            hint=2,
        ),
        "weights-lost": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The model's state did not come back whole. Buffers belong to it, such as the "
            "statistics of batch norm; `parameters()` has none.",
            hint=2,
        ),
        "momenta-lost": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. What the optimizer has gathered, or its settings, are gone: the next steps go another way.",
            hint=1,
        ),
        "schedule-lost": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. The schedule begins anew, or without its place.",
            hint=1,
        ),
        "no-file": Diagnosis(
            "{call} left {got} at the path that it was given. `torch.save(state, path)` writes one."
        ),
        "pickled-objects": Diagnosis(
            "After {call}, `torch.load(path, weights_only=True)` gave {got}. It loads tensors, numbers, and containers of them in any shape. Whole "
            "objects would run their code when they are loaded, and break when it changes.",
            hint=2,
        ),
        "cannot-be-saved": Diagnosis(
            "{call} failed: {got}. Some object is in there itself: `state_dict()`, with its parentheses, gives what belongs into a file.",
            hint=2,
        ),
        "save-disturbs": Diagnosis(
            "{call} changed the run: {place} is {got}; it should be {want}. To save is to look, not to touch."
        ),
        "objects-changed": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}. What a checkpoint brings back are states: `load_state_dict` puts them into the objects "
            "that are there, and leaves the rest.",
            hint=2,
        ),
        "run-broken": Diagnosis(
            "After {call}, the run cannot go on: {got}. `load_state_dict` of each of the four is all that is needed.",
            hint=2,
        ),
        "empty-state": Diagnosis(
            "{call} failed: {got}. The state of a disabled scaler is the empty `{{}}`. An FP32 run can be resumed with AMP, and the other way round: "
            "a scaler without a saved state begins fresh.",
            hint=2,
        ),
        "fresh-scale-lost": Diagnosis(
            "After {call}, {place} is {got}; it should be {want}, as it was before: there was nothing to load, or nobody to load it.",
            hint=2,
        ),
    },
    why=(
        "Four states, one file. The scaler's is small, two numbers and its settings, and the one that people forget: then the run goes on from 65536, "
        "skips what it had learnt not to, and is another run. Plain states load under `weights_only=True`, into new objects with other weights, "
        "in another process, and an empty one says that there was no scaling."
    ),
)

READ = Exercise(
    id="7.8",
    title="Read the log",
    minutes=8,
    function="faults",
    hints=(
        "For each run ask: is the loss finite, and does it fall? Which way does the scale go, and from when on? What does the norm do when the "
        "scale doubles? What does the learning rate do in a step that was skipped?",
        "Skips at the start and one after a growth are healthy. A norm that doubles with the scale was measured on scaled gradients. A scale that is halved in "
        "every step is looking for a cure that it does not have; whether the *loss* is finite tells where the infinity comes from. `log_table` prints the numbers.",
        "Two faults have no run. Begin with the two runs whose scale sinks without end and tell them apart by their loss; then the one with the strange norm; then "
        "the one whose scale jumps up in the middle; then the two that look alike, by their learning rates.",
    ),
    diagnoses={
        "run-missing": Diagnosis(
            "{call} returned {got}, with no fault for run {run}. Its keys are the letters of the six runs."
        ),
        "no-such-run": Diagnosis("{call} has the key {got}; the runs are called A to F."),
        "no-such-fault": Diagnosis(
            "{call} gives {got} for run {run}. A fault is one letter of the list, in quotes."
        ),
        "said-twice": Diagnosis(
            "{call} gives {got} to run {first} and to run {second}. Every fault of the list is used at most once.",
            hint=1,
        ),
        "run-A": Diagnosis(
            '{call}: for run A you say {got}, "{words}" Look at its skipped steps: eight at the start, from a scale that was too high, and two more, each '
            "right after the scale had grown. The learning rate waits for them, the norm does not follow the scale, the loss falls.",
            hint=2,
        ),
        "run-B": Diagnosis(
            '{call}: for run B you say {got}, "{words}" One growth, one overflow, and from then on every step is skipped, though the *loss* stays finite and stands still. '
            "No forward pass is to blame: an infinity is left in `.grad`.",
            hint=2,
        ),
        "run-C": Diagnosis(
            '{call}: for run C you say {got}, "{words}" No step is skipped, the loss hardly falls, and the norm is in the thousands, then in the ten thousands, and '
            "doubles whenever the scale does. Whose norm is that?",
            hint=2,
        ),
        "run-D": Diagnosis(
            '{call}: for run D you say {got}, "{words}" From step 25 on the *loss* itself is NaN. It is computed before any gradient, and no smaller scale '
            "makes it finite; the scale sinks for nothing.",
            hint=2,
        ),
        "run-E": Diagnosis(
            '{call}: for run E you say {got}, "{words}" Compare its learning rate with that of run A during the first eight steps, which both '
            "skip: here it falls, and the run has less of it for the rest.",
            hint=2,
        ),
        "run-F": Diagnosis(
            '{call}: for run F you say {got}, "{words}" In step 37 the scale jumps to 65536, which no growth does, and steps are skipped until the gradients fit again. '
            "65536 is where every new `GradScaler` begins.",
            hint=2,
        ),
    },
    why=(
        "Four numbers tell most faults apart. Loss NaN: the forward pass. Loss finite and still, every step skipped: gradients that stay infinite. "
        "Norm that follows the scale: somebody looks at scaled gradients. Scale that jumps to 65536: a new scaler. Learning rate that falls in "
        "skipped steps: the schedule. And some skips are only the scaler at work."
    ),
)
FIND = Exercise(
    id="7.9",
    title="Find the overflow",
    minutes=10,
    function="where_it_breaks",
    hints=(
        "Three questions, batch by batch. Does a scale of 1 or more make it finite? Then the scaler gets there by itself, and the batch is passed over. "
        "If not: in which operator of which module is the first infinity or NaN made, at a scale of 1, and in which pass? And is there any smaller scale that helps?",
        '`find_overflow(model, loss_fn, batch, device_type="cuda")` answers all three, on any machine. Its `.ok` is true where nothing overflows; `.module` and `.phase` say where '
        "it begins; `.scale` is the largest scale that cures, or `None`. A report can be not `.ok` though the batch does not break by the definition above: `.scale` tells.",
        "Loop over `enumerate(batches)`; keep the report of each batch. Go on to the next if it is `.ok`, or if its `.scale` is not `None` and at least 1. Otherwise return the "
        "number, and three attributes of the report, in the order of the docstring. After the loop, return `None`.",
    ),
    diagnoses={
        "stops-at-scale": Diagnosis(
            "{call} stops at batch {got}. Its gradients overflow at 2^16, and are finite at {cure}: a scaler is there after a few skipped steps, and nothing in the model is "
            "at fault. Such a batch is to be passed over.",
            hint=1,
        ),
        "blames-healthy": Diagnosis(
            "{call} stops at batch {got}, whose loss and gradients are finite at every scale up to {cure}. Batches are numbered from 0.",
            hint=1,
        ),
        "passes-over": Diagnosis(
            "{call} returned {got}: it has passed over batch {number}, which is not finite at a scale of 1, or of 2, or of any larger one. Look at its {phase} pass.",
            hint=2,
        ),
        "looks-at-loss": Diagnosis(
            "{call} stops at batch {got}, whose loss is {loss}. An earlier one breaks as well, with a loss of {earlier}: what is finite on the way forward can be infinite on the "
            "way back.",
            hint=1,
        ),
        "later-batch": Diagnosis(
            "{call} stops at batch {got}, which breaks; so does an earlier one, in its {phase} pass, and the first was asked for.",
            hint=1,
        ),
        "other-phase": Diagnosis(
            "{call}: of batch {number} you say {got}. Its loss is {loss}, at every scale: is what comes before the loss at fault, or what comes after it?",
            hint=1,
        ),
        "no-such-module": Diagnosis(
            "{call}: for batch {number} you name {got}, and the model has no module of this name. A path is asked for, as `model.named_modules()` gives it, such as {example}.",
            hint=2,
        ),
        "first-to-end": Diagnosis(
            "{call}: for batch {number} you name {got}. It is the first module that *ends* with a result that is not finite, which is what forward hooks tell. But it has been given NaN: "
            "the operator that made it stands in the `forward` of another module, which ends later.",
            hint=2,
        ),
        "first-bad-gradient": Diagnosis(
            "{call}: for batch {number} you name {got}. The gradients of its parameters are not finite, nor are those of {count} parameters in all: from where it begins, infinity is handed on "
            "to all that the backward pass comes to later. Where is it made of finite numbers?",
            hint=2,
        ),
        "only-when-scaled": Diagnosis(
            "{call}: for batch {number} you name {got}. There a number passes 65504 when the scale is 2^16, but not when it is 1: of that the scale is the cause. The batch breaks "
            "at a scale of 1 as well. What is the first to pass 65504 then?",
            hint=2,
        ),
        "outer-module": Diagnosis(
            "{call}: for batch {number} you name {got}. The first infinity or NaN is made somewhere in there, but that module has parts, and only calls them. Name the innermost one, "
            "whose own `forward` holds the operator.",
            hint=2,
        ),
        "other-module": Diagnosis(
            "{call}: for batch {number} you name {got}, which is not where the first infinity or NaN is made of finite numbers.",
            hint=2,
        ),
        "no-cure-forward": Diagnosis(
            "{call}: for batch {number} you say that a scale of {got} cures it. With it the loss is {loss}, as without: it is computed before the scale is multiplied in.",
            hint=1,
        ),
        "no-cure-backward": Diagnosis(
            "{call}: for batch {number} you say that a scale of {got} cures it. With it, the gradients of {count} parameters are not finite. The first NaN is no number that was too large: "
            "0 times infinity stays NaN at every scale, and in FP32.",
            hint=1,
        ),
        "gives-up": Diagnosis(
            "{call}: for batch {number} you say {got}, that no scale cures it. Its loss is finite and its gradients are numbers, only too large ones: a scale below 1 makes them smaller.",
            hint=1,
        ),
        "too-large": Diagnosis(
            "{call}: for batch {number} you say {got}. At that scale the gradients of {count} parameters are not finite.",
            hint=2,
        ),
        "not-largest": Diagnosis(
            "{call}: for batch {number} you say {got}. At that scale it is finite; but it is not the largest power of two of which that is true.",
            hint=2,
        ),
        "not-four": Diagnosis(
            "{call} returned {got}, which has {length} parts. Four are asked for: number, module, phase, scale."
        ),
        "no-such-batch": Diagnosis(
            "{call} gives {got} as the number of a batch: a whole number from 0 to {last} is asked for. Where no batch breaks, return `None` alone."
        ),
        "no-such-phase": Diagnosis(
            '{call} gives {got} as the phase: it is "forward" or "backward", as a string and in small letters.'
        ),
        "no-such-scale": Diagnosis(
            "{call} gives {got} as the scale: a power of two is asked for as a plain number (0.5 is 2^-1), or `None` where no scale cures."
        ),
        "model-changed": Diagnosis(
            "{call} left the model with {got}. The loop goes on with this model: put back what you set, remove the hooks you added, or look at a copy of it."
        ),
    },
    why=(
        "There are four kinds of batch. Finite at some scale of 1 or more: the scaler's daily business. True gradients beyond 65504: a scale below 1 cures it, though the "
        "cause is in the loss or in the data. Infinite on the way forward: no scale reaches it. NaN on the way back, from a derivative that does not exist: no scale helps, and no FP32 either. "
        "The phase says where to look, the scale whether it is about range at all, and the operator what to change."
    ),
)
EXERCISES = (STEP, CLIP, ACCUMULATE, SHARE, SCHEDULE, PENALTY, RESUME, READ, FIND)

LESSON = Lesson(
    slug="07_gradscaler_in_practice",
    title="GradScaler in practice",
    minutes=195,
    difficulty="medium",
    needs="lessons 05 and 06",
    exercises=EXERCISES,
)
