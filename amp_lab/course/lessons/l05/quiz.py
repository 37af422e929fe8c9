"""The quiz of lesson 05. What it says of scalers, tests/course/test_quiz_05.py computes."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A colleague starts a run with `torch.amp.GradScaler`. The very first step is skipped and the scale "
        "falls from 65536 to 32768; the next 1,500 steps are made. What is wrong with the run?",
        (
            Option(
                "The model: a healthy one does not overflow at the start.",
                "The scaled gradients overflowed, not the model. At half the scale the same gradients are "
                "fine, as the 1,500 steps show.",
            ),
            Option(
                "The learning rate: smaller steps prevent the overflow.",
                "The first overflow happens before any step is made. The size of a scaled gradient depends "
                "on the loss, the model and the scale.",
            ),
            Option(
                "The weights: the infinity of the first step is in them.",
                "A step that is skipped leaves the weights as they are. That is what skipping is for.",
            ),
            Option(
                "Nothing: the scaler was looking for a scale that fits.",
                "It starts high on purpose and pays a step or two for finding out. It is the scale that was "
                "wrong, and it has been put right.",
                right=True,
            ),
        ),
    ),
    Question(
        "The gradients of a long run stay of one size: at scale 65536 they overflow, at 32768 they do not. "
        "Somebody sets the growth interval to 100 and, to be quick, the growth factor to 4; the backoff factor "
        "is 0.5 as always. How many of its steps are skipped in the long run?",
        (
            Option(
                "None: after the first skips the scaler knows better.",
                "It keeps no record of scales that failed. After 100 clean steps it tries a larger one again, "
                "for gradients may have become smaller.",
            ),
            Option(
                "One in 101: it tries the larger scale again and again.",
                "So it would be with a growth factor of 2. Here the attempt goes up to 131072, and half of "
                "that still overflows.",
            ),
            Option(
                "Two in 102: it tries too much, and must come back.",
                "100 clean steps, then 131072 and 65536, which both overflow, and 32768 again. A growth factor "
                "beyond 2 pays for its boldness with more than one skip.",
                right=True,
            ),
            Option(
                "Every second one: the scale goes up and down in turn.",
                "That would be an interval of 1 and a factor of 2. Growth waits for a whole row of clean "
                "steps; only backing off is immediate.",
            ),
        ),
    ),
    Question(
        "Two optimizers share one scaler. In one iteration an infinity stands in the gradients of the "
        "first, and those of the second are clean. Then come `step(first)`, `step(second)` and `update()`. "
        "What do they do?",
        (
            Option(
                "Both steps are skipped, and the scale is halved.",
                "Each optimizer is judged by its own gradients, and those of the second are fine.",
            ),
            Option(
                "One step is skipped, and the scale is halved.",
                "The second optimizer steps, so from now on the two differ by one in their number of steps. "
                "The scale belongs to both, and it was too large for one of them.",
                right=True,
            ),
            Option(
                "One step is skipped, and the scale stays.",
                "A single overflow in any optimizer is enough for `update` to back off: the next loss would "
                "overflow with the same scale.",
            ),
            Option(
                "Both steps are made, and the scale is halved.",
                "Then the first optimizer would write the infinity into its weights.",
            ),
        ),
    ),
    Question(
        "`scaler.unscale_(optimizer)` meets an infinity. Then `clip_grad_value_` makes 1.0 of it, and all "
        "gradients are finite. What does `scaler.step(optimizer)` do?",
        (
            Option(
                "It skips: what `unscale_` found is remembered.",
                "The number that overflowed is lost; 1.0 is the bound of the clipping and no gradient. So "
                "the scaler goes by what it saw before anybody touched it.",
                right=True,
            ),
            Option(
                "It steps: by now all the gradients are finite.",
                "It does not look again. A scaler that did would train with a made-up number, and would not "
                "back off either.",
            ),
            Option(
                "It unscales again, looks again, and then steps.",
                "It knows that the gradients are unscaled already. Otherwise every step after clipping "
                "would be divided by the scale twice.",
            ),
        ),
    ),
    Question(
        "One weight of a model has become NaN. It is trained on with `torch.amp.GradScaler`, at its usual "
        "settings from a scale of 65536. What happens?",
        (
            Option(
                "After 16 skips the scale is 1, and there it stays.",
                "That would be a sensible floor, and `DynamicLossScaler` of this package can have one. "
                "PyTorch's scaler has none.",
            ),
            Option(
                "At the second skip in a row an error is raised.",
                "No number of skips raises one. Two in a row are quite normal at the start of a run, so "
                "that alone would be no reason.",
            ),
            Option(
                "All steps are skipped, and the scale sinks to 0.",
                "It takes 166 steps, without one word. No scale can help against a NaN in the model: if "
                "many steps in a row are skipped, stop and look for the cause.",
                right=True,
            ),
            Option(
                "The first step makes all other weights NaN, too.",
                "The NaN is found in the gradients, and the step is skipped. The weights stay as they are, "
                "for ever.",
            ),
        ),
    ),
    Question(
        "In a run the scale has settled at 64. It is killed and goes on from a checkpoint with the model "
        "and the optimizer, but with a new scaler. What is different from the same run without a break?",
        (
            Option(
                "The weights blow up: their gradients are 1024 times as large.",
                "Gradients are divided by the same scale that the loss was multiplied by. A scale that is "
                "too large makes overflows, and those are skipped.",
            ),
            Option(
                "Nothing: with the first `update()` the old scale is back.",
                "One update halves the scale once. And which scale the old one had, nobody has told the new "
                "one.",
            ),
            Option(
                "Ten batches go by without a step, and the runs part ways.",
                "From 65536 to 64 the scale must be halved ten times, and each time a step is skipped. Save "
                "`scaler.state_dict()` with the rest: it is five numbers.",
                right=True,
            ),
        ),
    ),
)
