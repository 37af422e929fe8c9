"""The quiz of lesson 04. What it says of numbers, tests/course/test_quiz_04.py computes."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "“Differentiation is linear. So instead of the loss I multiply the gradients by 1024, once they are in "
        "`.grad`, and divide by 1024 in the optimizer.” What comes of it in FP16?",
        (
            Option(
                "The same as with a scaled loss: the factor comes out in front.",
                "In exact arithmetic it does. But every FP16 operation on the way back rounds, and rounding to "
                "zero is not linear: 1024 times zero is zero.",
            ),
            Option(
                "Less than the same: it helps those gradients that became subnormal.",
                "A subnormal that has been rounded stays as coarse as it is, however large it is made. Nothing is "
                "gained for any gradient.",
            ),
            Option(
                "Nothing is gained: what is lost on the way back is lost already.",
                "The factor must be there before the first FP16 rounding, so it goes onto the loss. What reaches "
                "`.grad` is FP32 and in no danger.",
                right=True,
            ),
        ),
    ),
    Question(
        "The gradients of a network have sizes from 2^-45 to 2^-3. Which loss scale brings all of them through "
        "FP16?",
        (
            Option(
                "2^21: it lifts the smallest to 2^-24, the smallest FP16 number.",
                "And the largest to 2^18, which is infinity in FP16. One infinite gradient spoils the step; a few "
                "lost ones do not.",
            ),
            Option(
                "2^18: it lifts the largest to 2^15, the highest power of two there is.",
                "That is the most that is safe, without any headroom. But the smallest end at 2^-27, and that "
                "becomes zero.",
            ),
            Option(
                "2^10: a compromise, with half the exponent of 2^21.",
                "That lifts 2^-45 to 2^-35, which is zero still, and leaves room unused at the upper end. There is "
                "nothing to be gained by it: the larger the scale, the fewer are lost.",
            ),
            Option(
                "None: a scale moves the window, but makes it no wider.",
                "From 2^-24 to 2^15 there are 40 powers of two, and these gradients need 43. One takes the largest "
                "scale that is safe. What is lost then does little harm as long as it is the smallest of a layer; a "
                "layer that loses all of them learns nothing, nor do those behind it.",
                right=True,
            ),
        ),
    ),
    Question(
        "Somebody raises the loss scale from 1024 to 2048. At that step the gradient norm in the log jumps from "
        "5600 to 11200, while the loss goes on as before. What does the log show?",
        (
            Option(
                "The norm of gradients that are still scaled.",
                "It doubles with the scale, so the scale is still in it: the true norm is about 5.5 both times. If "
                "the same norm decides about clipping, the step is wrong, too.",
                right=True,
            ),
            Option(
                "Gradients that begin to explode, at last.",
                "Then the loss would tell. A factor of exactly 2 at the step where the scale doubled has a simpler "
                "cause.",
            ),
            Option(
                "What it should: scaled gradients are larger.",
                "They are, on the way back. But a log, like clipping and the optimizer, is for the gradients of "
                "the loss itself: unscale first, measure next.",
            ),
        ),
    ),
    Question(
        "A loss of 3.2 is multiplied by a scale of 65536. That makes 209,715, and FP16 ends at 65,504. What "
        "happens?",
        (
            Option(
                "The loss is infinite, and so is every gradient.",
                "It would be if the loss were rounded to FP16 after scaling. A loss is computed in FP32, and FP32 "
                "has room for much more.",
            ),
            Option(
                "The scaled loss stops at 65,504: the gradients come out too small.",
                "FP16 does not stop at its largest number, it goes to infinity. And the loss is not FP16.",
            ),
            Option(
                "Nothing yet: what must fit into FP16 are the gradients behind it.",
                "The loss is FP32, and its value does not even appear on the way back: only slopes do, times the "
                "scale. In a mean cross-entropy over 256 examples no output sees more than 65536 / 256.",
                right=True,
            ),
        ),
    ),
    Question(
        "Eight micro-batches are accumulated at a scale of 65536. In each, the largest gradient of a weight is "
        "0.9, so 58,982 when scaled: just below FP16's end. The losses are not divided by 8 until the end. Does "
        "the sum overflow?",
        (
            Option(
                "Yes: after the second micro-batch it is beyond 65,504.",
                "It is, and may be: the sum is kept in `.grad`, which has the dtype of the weight, FP32.",
            ),
            Option(
                "No: each is added in FP32, and only on its own way back FP16 counts.",
                "Every micro-batch walks back by itself and fits. The sum, 471,859, is an ordinary FP32 number. "
                "With weights in FP16 it would have overflowed.",
                right=True,
            ),
            Option(
                "No, but only because gradients of different batches cancel.",
                "They often do, but nothing may depend on it. Here all eight may have the same sign.",
            ),
        ),
    ),
    Question(
        "You chose the scale from the gradients of the first steps, with a headroom of 4, and keep it. Late in "
        "training all gradients are a hundred times smaller. What do you see?",
        (
            Option(
                "Nothing to worry about: smaller gradients cannot overflow.",
                "They cannot. But the window has two ends, and they moved towards the other one.",
            ),
            Option(
                "No error at all; more and more gradients are zero.",
                "They sank by almost 7 powers of two, and the lowest fell out of FP16. Now a scale 64 times as "
                "large would be safe. A scale that follows the gradients is the subject of lesson 05.",
                right=True,
            ),
            Option(
                "An infinite gradient, as the scale is too large for them now.",
                "The other way round: the smaller the gradients are, the larger a scale they bear.",
            ),
        ),
    ),
)
