"""The quiz of lesson 07. What it says of loops, tests/course/test_quiz_07.py tries."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A loop never calls `zero_grad`. With `GradScaler` and SGD it trains nearly as well as the "
        "right one, until one step overflows. What comes then?",
        (
            Option(
                "One skipped step, then training goes on.",
                "It would, if somebody zeroed the gradients. The infinity stays where it is.",
            ),
            Option(
                "An error at the next `scaler.step`.",
                "Nothing is raised: to skip a step is what the scaler is there for.",
            ),
            Option(
                "Every later step is skipped, and the scale sinks.",
                "∞ plus anything is ∞ or NaN, and no scale divides it away. Halving after halving, down"
                " to 0.",
                right=True,
            ),
            Option(
                "The weights become NaN within one epoch.",
                "They do not change at all: every step is skipped. That is why the loss stays finite.",
            ),
        ),
    ),
    Question(
        "Somebody logs the total gradient norm between `backward()` and `scaler.step`, without "
        "`unscale_`. What does the curve show?",
        (
            Option(
                "The true norm: `step` unscales on its own.",
                "It does, but later. Between the two calls the gradients are still scaled.",
            ),
            Option(
                "The true norm, but rounded to FP16 numbers.",
                "Gradients of FP32 parameters are FP32. What is wrong is the factor.",
            ),
            Option(
                "The norm after clipping, so at most `max_norm`.",
                "Clipping with which order? Nothing in that line has clipped yet.",
            ),
            Option(
                "The true norm times the scale, with its jumps.",
                "Each halving and doubling of the scale is a jump by 2 in the curve.",
                right=True,
            ),
        ),
    ),
    Question(
        "Four micro-batches make one step. Where does `scaler.update()` belong?",
        (
            Option(
                "After each `backward()`, to react quickly.",
                "Then the parts of a sum are multiplied by different scales, and no division makes them"
                " right.",
            ),
            Option(
                "Once, after the step of the fourth one.",
                "One step, one update: the scale must stay while gradients are being added up.",
                right=True,
            ),
            Option(
                "Before the first `backward()` of the window.",
                "Before the very first step that is refused: nothing has been looked at that the scale "
                "could follow.",
            ),
            Option(
                "After each step that was not skipped.",
                "It is the skipped ones above all that need it: the scale falls in `update()`, nowhere else.",
            ),
        ),
    ),
    Question(
        "`if scaler.get_scale() != before: print('skipped')`, after `update()`. When does it speak wrongly?",
        (
            Option(
                "When the optimizer is a fused one.",
                "The scale falls there, too. It is the calls of `optimizer.step` that tell nothing then.",
            ),
            Option(
                "When two optimizers share the scaler.",
                "If one of them was skipped the scale has fallen. It cannot say which one; but it is "
                "not wrong.",
            ),
            Option(
                "When the scale grows after a clean step.",
                "Growth changes it as well, once in each growth interval. Only a scale that has fallen "
                "tells of a skip.",
                right=True,
            ),
            Option(
                "Never: only a skip changes the scale.",
                "Each growth interval without a skip doubles it: 2,000 clean steps with PyTorch's defaults.",
            ),
        ),
    ),
    Question(
        "With SGD, `loss.backward()` in place of `scaler.scale(loss).backward()` takes steps 65,536 "
        "times too small. With Adam it trains well. Is the loop right, then?",
        (
            Option(
                "No: FP16 loses small gradients unscaled.",
                "The scale was to lift them out of underflow. Adam hides the wrong size, not the "
                "missing gradients.",
                right=True,
            ),
            Option(
                "Yes, Adam adapts to any scale.",
                "To a constant factor. But gradients that FP16 made zero are zero whatever they are "
                "divided by.",
            ),
            Option(
                "No, but only because `eps` is too large.",
                "`eps` suffers, too, and can be changed. Gradients that have underflowed cannot come back.",
            ),
            Option(
                "Yes, once the scale has stopped moving.",
                "Then Adam's means have one unit, which is well. What FP16 has lost is lost all the same.",
            ),
        ),
    ),
    Question(
        "After a resume, the first six steps are skipped, and the weights differ from the run that was "
        "not stopped. What was forgotten?",
        (
            Option(
                "The state of the optimizer.",
                "Then the weights would differ, but nothing would be skipped that was not before.",
            ),
            Option(
                "The seed of the shuffling.",
                "Other batches, other weights; but they bear the same scale as those before.",
            ),
            Option(
                "The state of the scaler.",
                "It starts at 2^16 again, and has to find its place a second time, a skipped step for "
                "each halving.",
                right=True,
            ),
            Option(
                "The state of the scheduler.",
                "A learning rate that starts again changes the weights. It makes no gradient overflow "
                "by itself.",
            ),
        ),
    ),
)
