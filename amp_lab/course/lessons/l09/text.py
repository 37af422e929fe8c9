"""The words of lesson 09."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson


def _after(words: str, hint: int | None = None) -> Diagnosis:
    """Make a diagnosis of what a step left behind."""
    return Diagnosis(f"After {{call}}, {{place}} is {{got}}; it should be {{want}}. {words}", hint)


STEP = Exercise(
    id="9.1",
    title="The step of a Trainer",
    minutes=15,
    function="train_step",
    hints=(
        "One order serves all precisions: clear; for each micro-batch forward, loss, look at it, backward; then unscale, clip, step, update, schedule. "
        "What differs is only who notices a gradient that is not finite.",
        "A disabled scaler hands everything through, so that the same calls serve FP32 and BF16; but it looks at nothing. `clip_grad_norm_` "
        "returns the norm before clipping: one infinite number makes it infinite. The loss is to be looked at *before* "
        "`unscale_`, or the scaler waits for an `update` that never comes.",
        "Inside of the loop: `torch.autocast(…, dtype, enabled=dtype != torch.float32)`; the loss times `len(inputs) / samples`; `raise FloatingPointError` "
        "unless it is finite. After it: `scaler.unscale_(…)`, the norm from clipping, `raise` once more if `not scaler.is_enabled()` and the norm is not finite; the scale "
        "before; step and update; the scheduler if the scale has not fallen.",
    ),
    diagnoses={
        "never-clears": _after(
            "Gradients that were there before are part of this step: `backward` adds to what it finds.",
            hint=1,
        ),
        "clears-too-late": _after(
            "Gradients are cleared after the step. Those that were there before the first one, or that an error has left behind, "
            "are part of the next sum.",
            hint=1,
        ),
        "last-only": _after("Only the last micro-batch took part in the step.", hint=1),
        "first-only": _after("Only the first micro-batch took part in the step.", hint=1),
        "counts-batches": _after(
            "All micro-batches have the same weight. They are not of one size: the samples of a small one then count for more.",
            hint=2,
        ),
        "not-divided": _after(
            "The losses of the micro-batches were added, each as a mean of its own: the sum is as many times too large.",
            hint=2,
        ),
        "divides-twice": _after(
            "`loss_function` is a mean already. Divided by the number of samples once more, it is far too small.",
            hint=2,
        ),
        "clips-scaled": _after(
            "The gradients were clipped before they were unscaled: the limit was compared with a norm that is as many times too large as "
            "the scale.",
            hint=1,
        ),
        "clips-each": _after(
            "The gradients were clipped after each micro-batch. What counts is the norm of the whole sum, once it is there.",
            hint=1,
        ),
        "clips-values": _after(
            "Each number was clipped for itself, which turns the gradient another way. What is limited is the norm of the whole.",
            hint=2,
        ),
        "never-clips": _after("The gradients were not clipped.", hint=1),
        "always-schedules": _after(
            "This step was skipped, and the scheduler moved. `scaler.step` may leave the optimizer alone: the scale falls then.",
            hint=2,
        ),
        "schedules-early": _after(
            "The scheduler moved before the optimizer, so this step was made with the learning rate of the next.",
            hint=2,
        ),
        "never-schedules": _after("The scheduler was not moved.", hint=1),
        "growth-is-skip": _after(
            "The scale *grew*, and the scheduler stood still. Only a scale that has fallen tells of a skipped step.",
            hint=2,
        ),
        "not-scaled": Diagnosis(
            "{call} failed: {got}. Nothing was multiplied by the scale: the backward pass begins at `scaler.scale(…)` of the loss, in every precision.",
            hint=1,
        ),
        "passes-by": _after(
            "`optimizer.step()` was called directly. Only `scaler.step(optimizer)` leaves a step out whose gradients overflow.",
            hint=1,
        ),
        "no-update": _after("`scaler.update()` was not called, so the scale stays what it was.", hint=1),
        "unscaled-and-left": Diagnosis(
            "{call} failed: {got}. An earlier step raised its error after `unscale_` and before `update`, so the scaler takes this step for a part of "
            "that one. Look at the loss before you unscale.",
            hint=2,
        ),
        "unscales-twice": Diagnosis(
            "{call} failed: {got}. One `unscale_` for each step, after the last backward pass.", hint=1
        ),
        "loss-passes": Diagnosis(
            "The loss is not finite, but {call} raised no error: {got} instead of raising {want}. A smaller scale does not help here: "
            "loss and weights are the same at every scale, so training would go on for ever without a step.",
            hint=2,
        ),
        "gradients-pass": Diagnosis(
            "{call}: {got} instead of raising {want}. No scaler is enabled, so nobody has looked at the gradients. From "
            "this step on, some weights are no numbers any more.",
            hint=2,
        ),
        "raises-on-overflow": Diagnosis(
            "{call} raised {got}; right is {want}. The loss is finite, and a scaler is enabled: it leaves this step out and lowers its "
            "scale, and training goes on.",
            hint=2,
        ),
        "changed-and-raised": Diagnosis(
            "{call} raised the right error, but too late: {place} is {got}, and was {want} before. Whoever catches the error goes on with these.",
            hint=2,
        ),
        "other-error": Diagnosis(
            "{call} raised {got}; the exercise asks for {want}, so that callers can tell this case from all others."
        ),
        "other-region": Diagnosis(
            "In {call}, autocast was {got} during a forward pass; it should be {want}. The dtype is an argument: FP32 means no autocast, "
            "and a region without a dtype takes the device's own default.",
            hint=2,
        ),
        "eval-mode": Diagnosis(
            "In {call}, the model was called in {got}; it was given in {want}. A step trains: dropout and batch norm do their work.",
            hint=1,
        ),
        "other-batches": Diagnosis(
            "In {call}, the model was given {got} samples at a time; it should be {want}. Each micro-batch goes through the model once, by "
            "itself: memory is for one graph.",
            hint=1,
        ),
        "graphs-together": Diagnosis(
            "In {call}, {got} forward passes were made before the first backward pass; it should be {want}. The graphs of all "
            "of them are in memory at once.",
            hint=1,
        ),
        "window-changed": Diagnosis(
            "{call} changed the list of micro-batches: it is {got} now, and was {want}. Whoever passed it may need it."
        ),
        "loss-scaled": Diagnosis(
            "{call} returned {got}; the mean loss is {want}. This one is multiplied by the scale.", hint=1
        ),
        "wrong-loss": Diagnosis(
            "{call} returned {got}; the mean loss of all samples is {want}. The losses of the micro-batches are to be weighted as their gradients are.",
            hint=1,
        ),
        "wrong-step": _after(
            "No known mistake leads to these numbers. Go through your lines in their order.", hint=1
        ),
    },
    why=(
        "One loop serves FP32, BF16 and FP16, because a disabled scaler hands everything through. It also looks at nothing: in FP32 and BF16, an infinite "
        "gradient would go into the weights, so the norm, which clipping computes anyway, is asked. A loss that is not finite is no case for a scaler at all: "
        "it would lower its scale for ever. The error comes before anything has changed, so that whoever catches it still has a model."
    ),
)

CHOOSE = Exercise(
    id="9.2",
    title="Choose a precision",
    minutes=8,
    function="choose_precision",
    hints=(
        'Only "auto" looks at the machine; a wish is granted. And only one of the precisions needs a scaler: the one with few exponent bits.',
        "Ask how the machine *computes* BF16, not whether it takes it: `.says_bf16` is true on GPUs that emulate it, slower than FP32. On a CPU, vector "
        "units are no reason to leave FP32; matrix units are.",
        '`machine.bf16 in ("tensor cores", "matrix units")` is the question, for "cuda" and for "cpu". Where the answer is no: "fp16" on "cuda", else "fp32". '
        'Then look the dtype up in a dict, and return it with `wanted == "fp16"`.',
    ),
    diagnoses={
        "scales-bf16": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. BF16 has the exponents of FP32: what is no zero there is none here, and there is nothing to scale.",
            hint=1,
        ),
        "never-scales": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. FP16 without a scale loses small gradients.", hint=1
        ),
        "always-scales": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. A scaler for every precision costs a look at all gradients, and skips steps for nothing.",
            hint=1,
        ),
        "scales-the-wrong-one": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. It is FP16, with its five exponent bits, that needs a scale, not BF16.",
            hint=1,
        ),
        "believes-emulation": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. This GPU emulates BF16, which is slower than FP32. PyTorch counts that as supported, unless it is asked "
            "with `including_emulation=False`.",
            hint=2,
        ),
        "always-fp16": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. Where the hardware computes BF16, it is as fast as FP16 and needs no scaler.",
            hint=2,
        ),
        "knows-nvidia-only": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. Tensor cores are NVIDIA's name. Other makers call theirs matrix units.",
            hint=2,
        ),
        "vectors-are-fast": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. Vector units that take BF16 gain little over FP32, and it has only eight bits of precision.",
            hint=2,
        ),
        "cpu-always": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. `torch.autocast` works on every CPU, with BF16 as its default; faster it is only with matrix units.",
            hint=2,
        ),
        "cpu-never": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. A CPU may have matrix units for BF16 (Intel's AMX), as a GPU has.",
            hint=2,
        ),
        "not-only-cuda": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. FP16 is the second choice on CUDA alone; everywhere else it is FP32.",
            hint=1,
        ),
        "native-anywhere": Diagnosis(
            '{call} returned `{got}`; right is `{want}`. The rule asks for BF16 units on CUDA and on CPUs alone. For any other device "auto" is FP32, whatever it has.',
            hint=2,
        ),
        "wish-ignored": Diagnosis(
            "{call} returned `{got}`; right is `{want}`. Whoever names a precision gets it: to debug in FP32, or to compare.",
            hint=1,
        ),
        "wrong-choice": Diagnosis("{call} returned `{got}`; right is `{want}`.", hint=1),
    },
    why=(
        "Three questions, in this order: is BF16 native (then it, without a scaler), is this CUDA (then FP16, with one), else FP32. What PyTorch calls "
        "supported is not what is fast: a T4 says yes to BF16, and emulates it. A Trainer that takes the dtype from such a table runs on any machine, and `precision=` overrules it."
    ),
)

KEEP = Exercise(
    id="9.3",
    title="A file that is whole or not there",
    minutes=20,
    function="RunFile",
    hints=(
        "Never touch the old file. Write a second one beside it; only a whole one takes the name. And look before you load: compare the names first, change objects afterwards.",
        "`os.replace` is one step for everybody who looks, as long as both files are in one folder. Without `flush` and `os.fsync` before it, the name can be on the disk before the bytes are. "
        "`finally` clears away what an error has left.",
        "Write with `torch.save(…, file)` into an open file called `path` plus an ending; flush it, `os.fsync` it (it takes the file's `fileno()`), close it, `os.replace(…)`. "
        'To load: `torch.load(…, weights_only=True, map_location="cpu")`, `saved.keys() ^ self.parts.keys()`, then `load_state_dict` for each part, '
        "`torch.set_rng_state` and `random.setstate`.",
    ),
    diagnoses={
        "no-file": Diagnosis("After {call} there is {got} at `path`.", hint=1),
        "pickled-objects": Diagnosis(
            "{call} wrote a file that does not load with `weights_only=True`: {got}. Save what `state_dict()` gives: tensors, numbers, strings, in dicts, lists and tuples.",
            hint=1,
        ),
        "left-over": Diagnosis(
            "After {call}, {got} is left beside `path`. After a thousand saves, the disk is full of these.",
            hint=2,
        ),
        "part-lost": Diagnosis(
            "After {call}, {place} is {got}; it was {want} when the run was saved.", hint=1
        ),
        "torch-random-lost": Diagnosis(
            "After {call}, {place} gives {got}; without a break it would have been {want}. The state of PyTorch's generator is a part of the run: dropout draws from it.",
            hint=2,
        ),
        "python-random-lost": Diagnosis(
            "After {call}, {place} gives {got}; without a break it would have been {want}. The state of Python's generator is a part of the run: augmentation "
            "draws from it.",
            hint=2,
        ),
        "save-disturbs": Diagnosis(
            "{call} changed the run: {place} is {got}; it was {want} before. With and without checkpoints, a run must come to the same end.",
        ),
        "gone-for-a-while": Diagnosis(
            "During {call} there was {got} at `path` ({when}). A run that dies at that moment has no checkpoint at all. `os.replace` puts one file "
            "in the place of another in one step.",
            hint=2,
        ),
        "half-for-a-while": Diagnosis(
            "During {call} there was {got} the old checkpoint nor the new one at `path` ({when}). A run that dies at that moment has no checkpoint at all.",
            hint=1,
        ),
        "not-written": Diagnosis("After {call}, `path` holds {got}. The run has gone on since then.", hint=1),
        "names-collide": Diagnosis(
            "Saving and loading {call} {got}. Parts may have any name, so keep them in a dict of their own, apart from all that you add.",
            hint=1,
        ),
        "writes-in-place": Diagnosis(
            "In {call}, {got}. Until the last byte is written there is no whole checkpoint. Write beside it, then `os.replace`.",
            hint=1,
        ),
        "other-folder": Diagnosis(
            "In {call}, the new file came from {got}. Between two disks, nothing can be moved in one step: `os.replace` fails, "
            "and `shutil.move` copies.",
            hint=2,
        ),
        "not-synced": Diagnosis(
            "In {call}, the new file took the name while its bytes were {got}. After a power failure the name can be there with an empty file behind it: "
            "`flush`, then `os.fsync`, then the name.",
            hint=2,
        ),
        "old-file-lost": Diagnosis(
            "After {call} there is {got} at `path`; the old checkpoint, of {want}, should still be there. (`shutil.move` copies where it "
            "cannot move.)",
            hint=1,
        ),
        "error-swallowed": Diagnosis(
            "{call} ended with {got}. Nothing was saved, and the caller believes it was. Clear away, but let the `OSError` go on.",
            hint=2,
        ),
        "missing-unnoticed": Diagnosis(
            "{call} ended with {got}. A part of the run is not in the file: it goes on with a new scaler or optimizer, and nobody knows.",
            hint=1,
        ),
        "extra-unnoticed": Diagnosis(
            "{call} ended with {got}. The file has a part that nobody asked for: has this run forgotten its scaler?",
            hint=1,
        ),
        "not-named": Diagnosis(
            "{call} raised {got}. It should be a `KeyError` that names what is on one side only, such as {want}.",
            hint=1,
        ),
        "half-loaded": Diagnosis(
            "{call} raised its error too late: {place} is {got}; it was {want} before. Compare the names first, then load.",
            hint=1,
        ),
        "needs-gpu": Diagnosis(
            "{call} failed: {got}. `map_location` says where the tensors go instead.", hint=2
        ),
        "runs-code": Diagnosis(
            "In {call}, {got}. A pickle is a program. With `weights_only=True` PyTorch reads tensors and plain values, and refuses the rest.",
            hint=2,
        ),
    },
    why=(
        "At every moment `path` holds one whole checkpoint: the old one until `os.replace`, the new one from then on. `os.fsync` makes this true for a power failure as well. "
        "Names are compared before anything is loaded, because the worst checkpoint is the one that loads in part: a run without its scaler's or generator's state trains on, and nobody knows."
    ),
)

EVALUATE = Exercise(
    id="9.4",
    title="Evaluate",
    minutes=12,
    function="evaluate",
    hints=(
        "Two worlds: the forward pass is in 16 bits, and everything that is counted is FP32 or more. And whoever only looks leaves no trace.",
        "Note `training` of every module in `model.modules()` and put each back in a `finally`; `model.train()` would wake those that were frozen. Weigh each batch by "
        "`len(inputs)`: the last one may be small.",
        "Evaluation mode on; for each batch `with torch.inference_mode(), torch.autocast(…):` around `model(inputs)` alone, then `outputs.float()` for loss and metrics, "
        "`float(…) * len(inputs)` added to sums that are Python numbers, and in the end each sum divided by the number of samples, if there are any.",
    ),
    diagnoses={
        "train-mode": Diagnosis(
            "In {call}, the model had {got}; right is {want}. Dropout then draws masks, and batch norm learns from data that it should not see.",
            hint=2,
        ),
        "other-region": Diagnosis(
            "During the forward pass in {call}, autocast was {got}; right is {want}. Evaluation is in the precision that the model trains in, and FP32 "
            "means without autocast.",
            hint=1,
        ),
        "keeps-graph": Diagnosis(
            "In {call}, the model was called {got}; right is {want}. A graph keeps all activations, and nobody walks it back.",
            hint=2,
        ),
        "other-batches": Diagnosis(
            "In {call}, the model was given batches of {got}; right is {want}: each batch of the loader once.",
            hint=1,
        ),
        "sixteen-bit-metrics": Diagnosis(
            "In {call}, loss and metrics were given outputs as {got}; right is {want}. Sums in 16 bits round, and squares overflow beyond 65504.",
            hint=1,
        ),
        "wide-metrics": Diagnosis(
            "In {call}, loss and metrics were given outputs as {got}; right is {want}. FP64 meets functions that hold FP32 weights and fails there.",
            hint=1,
        ),
        "mode-lost": Diagnosis(
            "After {call}, {place} is {got}; it was {want} before. Each module goes back to the mode that it was in: one may be frozen.",
            hint=2,
        ),
        "mode-lost-on-error": Diagnosis(
            "After {call}, {place} is {got}; it was {want} before. Whoever catches the error goes on with a model in the wrong mode.",
            hint=2,
        ),
        "statistics-moved": Diagnosis(
            "After {call}, {place} is {got}; it was {want} before. Batch norm has learned from data that it should not see.",
            hint=2,
        ),
        "model-changed": Diagnosis(
            "After {call}, {place} is {got}; it was {want} before. Evaluation only looks.", hint=1
        ),
        "graphs-stay-off": Diagnosis(
            "After {call}, recording of graphs is {got}; it was {want} before. Use `with`, which puts it back.",
            hint=2,
        ),
        "error-hidden": Diagnosis(
            "{call} ended with {got}. Put the modes back, but let the error go on.", hint=2
        ),
        "other-names": Diagnosis(
            '{call} returned a dict with {got}; it should have {want}: "loss", and each name of `metrics`.',
            hint=1,
        ),
        "mean-of-batches": Diagnosis(
            "{call} is {got}; the mean over all samples is {want}. This is the mean of the batches' means: samples of a small batch count for more.",
            hint=2,
        ),
        "last-batch-only": Diagnosis(
            "{call} is {got}; the mean over all samples is {want}. This is that of the last batch alone.",
            hint=2,
        ),
        "not-divided": Diagnosis(
            "{call} is {got}; the mean over all samples is {want}. This is the sum of the batches' means.",
            hint=2,
        ),
        "divides-by-samples": Diagnosis(
            "{call} is {got}; the mean over all samples is {want}. The batches' means were divided by the number of samples, but not weighted by theirs.",
            hint=2,
        ),
        "sum-of-samples": Diagnosis(
            "{call} is {got}; the mean over all samples is {want}. The division is missing.", hint=2
        ),
        "wrong-mean": Diagnosis("{call} is {got}; the mean over all samples is {want}.", hint=2),
    },
    why=(
        "The model runs as it trains, in 16 bits and without a graph; what is counted is FP32 in each batch, and Python's 64-bit numbers over all of them, weighted by samples. Modes are put back one by one, in a `finally`: "
        "the next training step finds the model that it left, whatever happened in between."
    ),
)


def _claim(words: str) -> Diagnosis:
    return Diagnosis(f"{{call}} {{got}}. {words}")


REVIEW = Exercise(
    id="9.5",
    title="The review",
    minutes=15,
    function="true_claims",
    hints=(
        "Do not judge by style. For each claim ask: what would I run to see it? Then run it: the code is on the page.",
        "Walk through one epoch with a pencil: what is in `.grad`, which names are local, who talks to whom, which argument is never used? Seven claims are true.",
        "Three of the true claims are about what is missing (clearing, evaluating, saving), three about an error as soon as it runs, "
        "one about a second run on the same machine.",
    ),
    diagnoses={
        "no-such-claim": Diagnosis(
            "{call} returned a set with {got} in it, which is not the letter of a claim on this page."
        ),
        "claim-A": _claim(
            "Look for `zero_grad`: there is none. `backward` adds to what is there: without AMP, the optimizer steps with the sum of all batches."
        ),
        "claim-B": _claim(
            "`update` ends a step: it lowers the scale after an overflow, or counts a clean step. Without it the scaler refuses the next step, with a `RuntimeError`."
        ),
        "claim-C": _claim(
            "`barrier()` waits for a process group. In one process there is none, and PyTorch raises a `ValueError`, with AMP and without."
        ),
        "claim-D": _claim(
            "DDP averages gradients while `backward` runs, and each of these exchanges waits for all ranks by itself. A barrier only adds a wait."
        ),
        "claim-E": _claim(
            "`train_sampler` is used without a look: `None` has no `set_epoch`, so the first line of the first epoch raises an `AttributeError`."
        ),
        "claim-F": _claim(
            "A `DistributedSampler` shuffles with its seed plus the epoch's number. Without `set_epoch` that number stays 0, and all epochs have one order."
        ),
        "claim-G": _claim(
            "`scaler` is a local variable of `train`. `save` cannot reach it, and a resumed run begins at 65536 again, however long it had searched for its scale."
        ),
        "claim-H": _claim(
            "Every operator's backward runs in the dtype that autocast chose for its forward. PyTorch's own advice is to leave the region before `backward`."
        ),
        "claim-I": _claim("`dev_loader` is an argument, and no line uses it."),
        "claim-J": _claim("FP32 goes down to 1.4e-45. It is FP16, which ends at 6e-8, that needs a scale."),
        "claim-K": _claim(
            "`model = ...` further down makes `model` a local name in all of `worker`. `model.cuda()` stands before it: there is no such local yet."
        ),
        "claim-L": _claim(
            "Port 12345 is written into the code, and rank 0 listens on it. It cannot be taken twice."
        ),
        "claim-M": _claim(
            "`train()` sets a flag in each module and touches no statistics. Once per step is more often than needed, and harmless."
        ),
        "claim-N": _claim(
            "Gradients are averaged before `scaler.step` looks at them, so an infinity of one rank is one of all: all skip together, and all scales are equal."
        ),
    },
    why=(
        "Gradients that pile up, a scaler that cannot be saved and a dev loader that nobody reads raise no error: such a Trainer trains, only badly. "
        "The barrier, the sampler, the local name and the port do raise one, but only on somebody else's machine. A test that runs ten steps in one process finds nearly all of them."
    ),
)

LESSON = Lesson(
    slug="09_trainer",
    title="A Trainer",
    minutes=140,
    difficulty="medium",
    needs="lessons 05, 06 and 07",
    exercises=(STEP, CHOOSE, KEEP, EVALUATE, REVIEW),
)
