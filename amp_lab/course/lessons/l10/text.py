"""The words of lesson 10."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson


def _seen(words: str, hint: int | None = None) -> Diagnosis:
    """Make a diagnosis of what was seen of the ranks."""
    return Diagnosis(f"In {{call}}, {{got}}; it should be {{want}}. {words}", hint)


SCRIPT = Exercise(
    id="10.1",
    title="Complete the script",
    minutes=20,
    function="train",
    file="scratch/train_ddp.py",
    hints=(
        "Around the loop of one process stand four things: a group is opened and closed, the model is wrapped, the samples are dealt out, and one rank "
        "saves. Inside of it there is nothing new: one scaler for each rank stays equal by itself.",
        "`init_process_group` reads the rest from torchrun's environment. `DistributedSampler(dataset)` knows rank and size from the group; it goes to "
        "`DataLoader(…, sampler=…)`, and wants to be told the number of each epoch. The wrapper puts `module.` before all names.",
        "Group, wrapper, sampler, loader, SGD and scaler, in this order. For each epoch `set_epoch`; for each batch clear, "
        "`autocast` in FP16 around forward pass and loss, scaled backward pass, step, update, and note `get_scale()`. After the loop the state dict of `model` itself, "
        "where `dist.get_rank()` is 0; then `del` the wrapped model, which holds on to the group, and `destroy_process_group`.",
    ),
    diagnoses={
        "no-train": Diagnosis(
            "{call} defines {got}, but no function `train`. Run the cell that writes the file as it stood, with its `def train(…)`."
        ),
        "fixed-port": _seen(
            "The second run on this machine finds the port taken. torchrun has found a free one, and tells all ranks.",
            hint=2,
        ),
        "waits": Diagnosis(
            "{call} does not come to its end: {got}. A rank that enters an exchange waits until all ranks have entered it. "
            "So all ranks make the same exchanges, in the same order.",
            hint=1,
        ),
        "never-meets": Diagnosis(
            "{call} does not come to its end: {got}. The group opens when as many ranks are there as it is said to have, each with a number of its own. "
            "torchrun's environment tells both, and `init_process_group(backend)` reads it.",
            hint=2,
        ),
        "stands-still": Diagnosis(
            "{call} does not come to its end: {got}. Where a rank stands still, nothing is computed, and no exchange is waited for; the others wait for it.",
            hint=1,
        ),
        "died": Diagnosis(
            "{call} ended processes: {got}, without an error of Python. In exchanges of different sizes ranks end so.",
            hint=1,
        ),
        "other-group": _seen(
            "A rank that is alone in its group trains alone. torchrun's environment tells how many there are, and `init_process_group(backend)` reads it.",
            hint=2,
        ),
        "other-inputs": _seen("The batches go into `model` as the dataset gives them.", hint=1),
        "never-trains": _seen("Train the `model` that is handed in, not a copy of it.", hint=1),
        "same-samples": _seen(
            "The ranks trained with the same samples: twice the work for one result. A `DistributedSampler` with the same seed on all ranks gives each its own.",
            hint=2,
        ),
        "samples-left-out": _seen(
            "In each epoch every sample is dealt to a rank, also those of a last batch that is not full.",
            hint=2,
        ),
        "uneven": _seen(
            "Each rank needs as many samples as the others: with other numbers, one has a batch more, and waits for ever in its last all-reduce. A `DistributedSampler` deals some twice to fill up.",
            hint=2,
        ),
        "same-order": _seen(
            "A `DistributedSampler` shuffles with its seed and the number of the epoch, which is 0 until `set_epoch` is told another.",
            hint=2,
        ),
        "same-parts": _seen(
            "Each rank has the same samples in every epoch, in whatever order. Deal them out anew each time.",
            hint=2,
        ),
        "other-epochs": _seen("`epochs` says how often all samples are dealt out.", hint=2),
        "other-batches": _seen("`batch_size` is that of one rank.", hint=2),
        "no-autocast": _seen(
            "The forward pass belongs into `torch.autocast(device.type, torch.float16)`; without a dtype, the CPU takes BF16.",
            hint=1,
        ),
        "unscaled": Diagnosis(
            "{call} failed: {got}. The backward pass begins at `scaler.scale(loss)`.", hint=1
        ),
        "no-update": _seen(
            "Each batch makes one step: one `scaler.step`, then one `scaler.update()`, on every rank.", hint=1
        ),
        "unscales-twice": Diagnosis(
            "{call} failed: {got}. `unscale_` comes at most once in a step, before `scaler.step`, which does it by itself.",
            hint=1,
        ),
        "scaler-off": _seen(
            "A `GradScaler` without a device is one for CUDA; where there is no GPU it switches itself off, and small gradients are lost in FP16. Name the device: `torch.amp.GradScaler(device.type)`.",
            hint=1,
        ),
        "no-step": Diagnosis(
            "{call} failed: {got}. `update` comes once in a step, after `scaler.step(optimizer)`, which looks for infinities.",
            hint=1,
        ),
        "no-gradients": Diagnosis(
            "{call} failed: {got}. The optimizer's parameters have no gradients when `scaler.step` comes: no backward pass was made, or they were cleared after it, or belong to another model.",
            hint=1,
        ),
        "half-weights": Diagnosis(
            "{call} failed: {got}. Weights stay FP32: `autocast` casts them inside of each operator, so `model` needs no `.half()`.",
            hint=1,
        ),
        "other-scales": _seen(
            "A scaler begins at 65536, and what it does then is its own matter: halve after an overflow, which all ranks see.",
            hint=1,
        ),
        "other-parameters": _seen(
            "FSDP puts each rank's part of the parameters in their place. Here each rank keeps the whole model: DDP leaves its parameters as they are.",
            hint=1,
        ),
        "ranks-differ": _seen(
            "Each rank trains a model of its own: its gradients were not averaged before the step. The wrapped model does that, if it is the one that is called, and outside of `no_sync`.",
            hint=1,
        ),
        "passes-by": _seen(
            "`optimizer.step()` was called directly, with gradients that are multiplied by the scale. `scaler.step(optimizer)` divides, and leaves out what overflows.",
            hint=1,
        ),
        "never-clears": _seen(
            "Gradients pile up from step to step: `zero_grad` belongs into each of them, and a backward pass begins at the loss of its own batch.",
            hint=1,
        ),
        "averaged-late": _seen(
            "Gradients or weights were exchanged by hand, but too late: all that a rank does with gradients, beginning with `scaler.unscale_` or `scaler.step`, needs those that are averaged already. "
            "Else one rank finds an infinity that the other never sees. Average between the backward pass and the scaler, or let the wrapped model do it.",
            hint=1,
        ),
        "stale-casts": _seen(
            "Several steps stand in one region of autocast. It casts each weight once and keeps the copy until it ends, so that later forward passes use weights from before the steps. "
            "Each batch has a region of its own, around forward pass and loss.",
            hint=1,
        ),
        "rate-times-ranks": _seen(
            "To multiply the rate by the number of ranks is a choice for large batches, not part of DDP: the mean over all ranks asks for no other rate. Here it stays what the exercise says.",
            hint=1,
        ),
        "other-rate": _seen("The exercise names the learning rate.", hint=1),
        "half-loss": _seen(
            "Times a scale of 65536 it is infinite before the backward pass begins. Inside of the region, autocast computes a loss in FP32.",
            hint=2,
        ),
        "other-optimizer": _seen(
            "The exercise asks for one SGD with all parameters of `model`, and for no more than its `lr`. (A scaler decides for each optimizer by itself whether it makes its step.)",
            hint=1,
        ),
        "hardly-moves": _seen(
            "The weights have hardly moved: gradients were divided by the scale, and had not been multiplied by it as often. `backward()` is called on what `scaler.scale(loss)` returns; "
            "whoever clips gradients calls `scaler.unscale_(optimizer)` first; and nobody else divides by the scale.",
            hint=1,
        ),
        "divides-by-ranks": _seen(
            "Loss or gradients were divided by the number of ranks as well. DDP's all-reduce gives the mean already.",
            hint=1,
        ),
        "adds-ranks": _seen(
            "The gradients of the ranks were added. DDP takes their mean, so that the learning rate does not depend on how many there are.",
            hint=1,
        ),
        "wrong-weights": _seen(
            "Samples, learning rate and scaler are right, and the steps are not: look at the loss, at what is done to gradients on their way to the step, and at the order of calls.",
            hint=1,
        ),
        "barriers": _seen(
            "DDP waits for all ranks in each backward pass by itself. A barrier in the step only costs time.",
            hint=1,
        ),
        "one-rank-decides": Diagnosis(
            "In {call}, {got}. A rank decides by its own loss, of which the others know nothing. `scaler.step` needs no help: the NaN is in the averaged gradients, so that all ranks leave this step out together.",
            hint=1,
        ),
        "not-saved": _seen("Rank 0 saves the weights at the end.", hint=1),
        "all-save": _seen(
            "One rank is enough: all have the same weights. And where all write to one file at the same time, what is left may be whole or not.",
            hint=1,
        ),
        "other-saves": _seen(
            "Rank 0 saves, as in every script: with several machines, it is the one whose disk others look at.",
            hint=1,
        ),
        "wrapped-names": _seen(
            "These are the names of the wrapper. A plain model cannot load them: save the state dict of `model`, or of `ddp.module`.",
            hint=2,
        ),
        "not-plain": _seen(
            "Save what `state_dict()` of the plain model gives, and nothing around it.", hint=2
        ),
        "saved-early": _seen("Training went on after the file was written.", hint=1),
        "group-left": _seen(
            "Close it with `destroy_process_group`: without it PyTorch warns, and NCCL may hang at the end.",
            hint=1,
        ),
        "wrong-scales": Diagnosis("{call} returned {got}; the scales after the steps were {want}.", hint=2),
    },
    why=(
        "Around the loop of one process stand four things. The group comes from torchrun's environment, so the same file runs on one machine or on ten. The sampler deals the samples out "
        "anew in each epoch; DDP averages gradients *before* the scaler looks, so all ranks see the same infinity, skip the same step and have the same scale without a word. "
        "Rank 0 saves the plain model, which loads without DDP."
    ),
)

SHARD = Exercise(
    id="10.2",
    title="Shard and reshuffle",
    minutes=8,
    function="shard",
    hints=(
        "All ranks must see the *same* shuffled order, each for itself, without talking; then each takes its own part of it.",
        "`torch.Generator().manual_seed(…)` with a number that seed and epoch decide and the rank does not, given to `torch.randperm`. Fill the order up from its "
        "beginning until `ranks` divides its length; with more ranks than samples, that is more than once.",
        "`torch.randperm(samples, generator=…).tolist()`; the share is `samples / ranks`, rounded up; append the first few of the order until there are `share * ranks`, "
        "more than once if there are few samples; then every `ranks`-th, beginning with number `rank`.",
    ),
    diagnoses={
        "uneven": _seen(
            "The rank with more batches waits for the others for ever in its last step. All get equally many.",
            hint=2,
        ),
        "fills-up-once": _seen(
            "With fewer samples than are missing, to append the order once is not enough: append it until there is one for each rank.",
            hint=2,
        ),
        "drops": _seen(
            "The samples that are over were left out. Deal some twice instead.",
            hint=2,
        ),
        "own-shuffle": _seen(
            "Each rank shuffles in its own way and takes its part of that: some samples come twice, others not at all. The rank must not decide the order.",
            hint=1,
        ),
        "everything": _seen("Each rank was given all samples. Its part is a fraction of them.", hint=1),
        "not-all": _seen("In each epoch, every sample is dealt to some rank.", hint=1),
        "padded-too-much": _seen(
            "More samples than needed are dealt twice: as many as the last rank lacks are enough.", hint=2
        ),
        "never-shuffles": _seen("The order is that of the data, which may be sorted.", hint=2),
        "same-each-epoch": _seen(
            "Two epochs are dealt in the same way. The epoch must be part of what the generator is seeded with, also where `seed` is 0.",
            hint=2,
        ),
        "parts-stay": _seen(
            "The same samples stay together, in whatever order and with whichever rank. Shuffle all of them anew, then share out.",
            hint=1,
        ),
        "seed-unused": _seen("Another seed must give another order: `seed` was not used.", hint=2),
        "global-random": _seen(
            "The order does not follow from seed and epoch alone, but from what is another in each process: random numbers that were drawn before (dropout!), or that nobody can draw again, or the time, or the number of the process. So the orders of the ranks do not fit together.",
            hint=2,
        ),
        "hash-of-text": _seen(
            "`hash` of a text is another number in each process of Python, so that each rank has an order of its own. Compute the number that seeds the generator from the two ints.",
            hint=2,
        ),
        "random-disturbed": _seen(
            "Whoever calls this finds the global random numbers at another place. Use a generator of its own.",
            hint=2,
        ),
        "no-such-sample": _seen("These are no indices of samples.", hint=2),
    },
    why=(
        "All ranks compute the same order from seed and epoch alone, so nobody has to send it, and a restarted rank finds its place again. Each takes every `ranks`-th. Equally many for all, because a rank "
        "with one batch more waits for ever in its last all-reduce. `DistributedSampler` does just this."
    ),
)

STEP = Exercise(
    id="10.3",
    title="One exchange, one decision",
    minutes=12,
    function="ddp_step",
    hints=(
        "Exchange only with the last micro-batch; and decide nothing on one rank alone. Whatever is infinite on one rank is infinite on all, once gradients are averaged.",
        "`ddp.no_sync()` is noticed in the *forward* pass: both passes stand inside of it, for all micro-batches but the last. The scaler needs no help: it looks "
        "at gradients that are averaged already. Whether the step was made can be seen from the scale, before and after.",
        "Clear once. For each micro-batch: `contextlib.nullcontext()` if it is the last one, otherwise `ddp.no_sync()`; inside, the FP16 region with the loss over the number of "
        "micro-batches, then the scaled backward pass. Then step and update, once; the weights have moved if the scale has not fallen.",
    ),
    diagnoses={
        "waits": Diagnosis(
            "{call} does not come to its end: {got}. The decision of one rank takes away an exchange that the other waits for.",
            hint=1,
        ),
        "stands-still": Diagnosis(
            "{call} does not come to its end: {got}. A step needs no waiting there: where a rank stands still, nothing is computed, and nothing is exchanged.",
            hint=1,
        ),
        "died": Diagnosis(
            "{call} ended processes: {got}, without an error of Python. Ranks that meet in exchanges of different sizes end so.",
            hint=1,
        ),
        "no-exchange": _seen(
            "No gradient left its rank, and the replicas drift apart: all backward passes were inside of `no_sync`, or went through the model inside of the wrapper.",
            hint=2,
        ),
        "many-exchanges": _seen(
            "One is enough for all micro-batches. Whether DDP exchanges is decided in the forward pass: put that, too, into `no_sync`. And what DDP has averaged needs no all-reduce of yours.",
            hint=2,
        ),
        "exchanged-early": _seen(
            "DDP exchanged before the last micro-batch: what came after it stays on its rank. It is the *last* one that runs without `no_sync`.",
            hint=2,
        ),
        "no-update": Diagnosis(
            "{call} failed: {got}. A step has one `scaler.step`, then one `scaler.update()`, on every rank, also where it was left out.",
            hint=1,
        ),
        "barriers": _seen(
            "The all-reduce waits for all ranks by itself. A barrier only adds a wait.", hint=1
        ),
        "unscaled": Diagnosis(
            "{call} failed: {got}. Every backward pass begins at `scaler.scale(…)`.", hint=2
        ),
        "unscales-twice": Diagnosis(
            "{call} failed: {got}. `unscale_` comes once in a step, after the last backward pass; `scaler.step` does it by itself.",
            hint=1,
        ),
        "ranks-differ": _seen(
            "From here on, each rank trains a model of its own. Whether a step is made must come out the same on all ranks.",
            hint=1,
        ),
        "averaged-late": _seen(
            "Ranks exchanged gradients or weights by hand when the scaler had looked at gradients already: `scaler.unscale_` and `scaler.step` act on what is in `.grad` then, so one rank finds an infinity that the other never sees. Exchange before both.",
            hint=1,
        ),
        "scales-differ": _seen("One rank's scaler has seen something that the other's has not.", hint=1),
        "moved": _seen(
            "A gradient of this step is not finite, so the weights must stay, on all ranks. `scaler.step` sees to that where every micro-batch has made its backward pass, and nothing was put in place of what it brought; "
            "`optimizer.step()` called directly does not.",
            hint=1,
        ),
        "no-checks": Diagnosis(
            "{call} failed: {got}. `update` comes once, after `scaler.step`, which looks for infinities; both on every rank.",
            hint=1,
        ),
        "no-gradients": Diagnosis(
            "{call} failed: {got}. `scaler.step` found nothing in `.grad`: clear gradients before the first micro-batch, not behind the last, and call `backward` on the scaled loss of each, through `ddp`.",
            hint=1,
        ),
        "no-step": _seen("`scaler.step(optimizer)` makes it, with the optimizer that is handed in.", hint=1),
        "many-steps": _seen("A step is made once, when all micro-batches are through.", hint=1),
        "scale-moves": _seen("Nothing has overflowed, so the scale stays.", hint=1),
        "scale-stays": _seen(
            "A step with gradients that are not finite lowers the scale: `scaler.update()` has to come, on every rank, in every step.",
            hint=1,
        ),
        "not-divided": _seen(
            "The losses of the micro-batches were added. The mean is asked for: divide each by their number.",
            hint=2,
        ),
        "divides-by-ranks": _seen(
            "A mean over ranks was divided by their number once more: that is done in DDP's exchange. What is left to divide by is the number of micro-batches.",
            hint=2,
        ),
        "adds-ranks": _seen(
            "The gradients of the ranks were added. The mean is asked for, as DDP's all-reduce gives it.",
            hint=1,
        ),
        "last-only": _seen("Only the last micro-batch took part in the step.", hint=1),
        "never-clears": _seen("What `.grad` held before is part of this step.", hint=1),
        "passes-by": _seen(
            "`optimizer.step()` was called directly, with gradients that are multiplied by the scale.", hint=1
        ),
        "hardly-moves": _seen(
            "This step has hardly moved the weights: gradients were divided by the scale, and had not been multiplied by it as often. `backward()` is called on what `scaler.scale(loss)` returns; "
            "whoever clips gradients calls `scaler.unscale_(optimizer)` first; and nobody else divides by the scale.",
            hint=1,
        ),
        "no-autocast": _seen("Each forward pass belongs into an FP16 region.", hint=2),
        "wrong-weights": _seen(
            "No known mistake leads to these numbers. Go through your lines in their order.", hint=1
        ),
        "says-no": Diagnosis(
            "{call} returned {got}; right is {want}: the weights have moved. (`scaler.step` returns what `optimizer.step` returns, and for SGD that is None. Compare the scale before `update` with the scale after it.)",
            hint=2,
        ),
        "wrong-answer": Diagnosis("{call} returned {got}; right is {want}.", hint=2),
    },
    why=(
        "Only the last micro-batch exchanges, forward pass included, so a step costs one all-reduce however many there are. An infinity or a NaN of one rank is in the average, so that it reaches all "
        "ranks: each scaler finds it, skips and lowers its scale, and no rank has asked another. Whoever decides on their own loss instead leaves the others waiting."
    ),
)

PAYLOAD = Exercise(
    id="10.4",
    title="The payload of a step",
    minutes=6,
    function="payload_bytes",
    hints=(
        "What is sent are gradients: which tensors have one, and what is its dtype?",
        "A gradient has the dtype of its parameter. Autocast casts inside of operators, and DDP does not see that; only a communication hook sends something else. Buffers and frozen "
        "parameters have no gradient.",
        "Over all `model.parameters()` that require gradients: `numel()` times the `itemsize` of `compression`, or of the parameter's own dtype where that is None.",
    ),
    diagnoses={
        "autocast-halves": _seen(
            "Autocast casts inside of operators: weights and their gradients stay FP32, and so does what is sent.",
            hint=2,
        ),
        "hook-ignored": _seen(
            "The communication hook casts the gradients before they are sent: their size is that of `compression`.",
            hint=2,
        ),
        "counts-frozen": _seen("A frozen parameter has no gradient, so there is nothing to send.", hint=1),
        "counts-buffers": _seen(
            "Buffers have no gradients. (DDP broadcasts them, with another call.)", hint=2
        ),
        "times-ranks": _seen("This is what all ranks together hand in. Asked is for one of them.", hint=1),
        "per-rank": _seen("Each rank hands in all of its gradients, not a part of them.", hint=1),
        "counts-twice": _seen(
            "A parameter that two layers share has one gradient. `model.parameters()` names it once.", hint=1
        ),
        "all-fp32": _seen("A gradient has the dtype of its parameter, and these are not all FP32.", hint=2),
        "counts-bits": _seen("This is how many bits there are. Asked is for bytes.", hint=2),
        "counts-traffic": _seen(
            "How often numbers travel until all ranks have the mean is the business of all-reduce. Asked is for what a rank hands in, once.",
            hint=1,
        ),
        "counts-numbers": _seen("This is how many numbers there are. Asked is for bytes.", hint=2),
    },
    why=(
        "DDP sends what `.grad` will hold, in the dtype of the parameter: FP32 under autocast, too. What halves the bytes is a communication hook that casts the buckets, or "
        "parameters that are 16 bits wide. How many ranks there are changes how an all-reduce travels, not what one rank hands in."
    ),
)


def _program(words: str) -> Diagnosis:
    return Diagnosis(f"{{call}} {{got}}. {words}", hint=1)


DEADLOCKS = Exercise(
    id="10.5",
    title="Find the deadlocks",
    minutes=12,
    function="hanging_programs",
    hints=(
        "Write one line for each rank: its exchanges in their order. A backward pass of `ddp` is one, unless it is inside of `no_sync`; `barrier` and `all_reduce` are others. Where the "
        "lines are of one length, nobody waits.",
        "What a rank decides by data of its own (`continue`, `break`, `except`, the length of its list) may take an exchange away. What all ranks decide alike, or what takes none away, may not.",
        "Five of the ten programs hang. In each of them one rank makes fewer exchanges than the other: a barrier, or the backward passes of one or of many batches.",
    ),
    diagnoses={
        "no-such-program": Diagnosis(
            "{call} returned a set with {got} in it, which is not the letter of a program on this page."
        ),
        "program-A": _program(
            "Only rank 0 enters the barrier. It is indented one level too far, and is not needed at all at this place."
        ),
        "program-B": _program(
            "Rank 0 makes five exchanges, rank 1 four. In the last step, rank 0 waits: samplers give all ranks equally many for this reason."
        ),
        "program-C": _program(
            "Each rank makes one backward pass for each batch, overflow or not. The infinity is in the average, and both scalers skip."
        ),
        "program-D": _program(
            "Rank 1 leaves out one backward pass. Rank 0's exchange is answered by that of the next batch, and its last one by nobody."
        ),
        "program-E": _program(
            "The micro-batches inside of `no_sync` exchange nothing. Each rank has one exchange, with its last one. (The mean is another matter.)"
        ),
        "program-F": _program(
            "`ddp.module` is the plain model: without the wrapper and without a backward pass, nothing is exchanged."
        ),
        "program-G": _program(
            "Rank 0 leaves the loop, rank 1 makes one more step, and waits in it. To stop is a decision for all ranks."
        ),
        "program-H": _program("All ranks look at the same total, and so they leave in the same step."),
        "program-I": _program(
            "The error is caught, and with it went the exchange of this batch: from here on the ranks are out of step."
        ),
        "program-J": _program(
            "Rank 0 is late, and rank 1 waits for it in each step; but it does come. Slow is no deadlock."
        ),
    },
    why=(
        "A deadlock is a matter of counting: each rank's exchanges, in their order, must be the same. Data of one rank may change numbers, never the sequence. So a decision is either made by all, from a number that "
        "was exchanged, or it is left to what is averaged already, as the scaler's is."
    ),
)

LESSON = Lesson(
    slug="10_ddp_amp",
    title="DDP + AMP",
    minutes=95,
    difficulty="hard",
    needs="lessons 05, 06, 07 and 09",
    exercises=(SCRIPT, SHARD, STEP, PAYLOAD, DEADLOCKS),
)
