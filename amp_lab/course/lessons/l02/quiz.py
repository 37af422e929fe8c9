"""The quiz of lesson 02. What it says of numbers, tests/course/test_quiz_02.py computes."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A colleague adds a loss scale of 1,024 to a loop in naive FP16, where everything has 16 bits. Which of her "
        "troubles goes away?",
        (
            Option(
                "A norm by hand, which turns rows of 300 into zeros.",
                "Those rows are activations, and a scale on the loss comes after them: the forward pass stays as it "
                "is. The square of 300 overflows as before.",
            ),
            Option(
                "Gradients of 1e-8, which arrive as zeros at the weights.",
                "Times 1,024 they are about 1e-5, which FP16 holds, and the division in FP32 gives 1e-8 back. "
                "Underflow in the backward pass is what a loss scale is for, and all that it is for.",
                right=True,
            ),
            Option(
                "Steps of 1e-4, which do not move weights of about 1.",
                "After the division the step is 1e-4 again, and in FP16 a weight of 1 needs more than twice as much to "
                "move down, and more than four times as much to move up. What helps is an FP32 weight.",
            ),
            Option(
                "An epoch's loss, which comes out the lower the longer the epoch.",
                "That sum stops since what is added is too small beside it, and no gradient takes part. A Python "
                "float as the sum helps.",
            ),
        ),
    ),
    Question(
        "Binary cross-entropy is the loss of a yes-or-no answer: −log(1 − p) if the answer is no, where p is the "
        "sigmoid of a logit. For a logit of 12 that is 12. You take the sigmoid in FP16, then `.float()`, then "
        "`F.binary_cross_entropy` with a target of 0 (no). What do you get?",
        (
            Option(
                "About 12: the logarithm is taken in FP32, as it should be.",
                "It is, but of what? The probability had been rounded in FP16 before, and `.float()` cannot undo "
                "that.",
            ),
            Option(
                "Zero: to the loss, a probability of 1 is a perfect answer.",
                "It would be if the target were 1. Here the target is 0, and this is the worst answer there is.",
            ),
            Option(
                "100: FP16 makes the probability 1, and log(1 − 1) is cut off.",
                "The probability is 0.999994, and the FP16 number nearest to it is 1. Log(0) is −∞, which this "
                "function cuts off at −100. Go to FP32 before the sigmoid, or use the loss that takes logits.",
                right=True,
            ),
        ),
    ),
    Question(
        "FP16 fails in four places, and you move the model to BF16, all of it. Which of them gets worse?",
        (
            Option(
                "A mean of squares of activations of about 500.",
                "250,000 is too much for FP16 and nothing special for BF16, which reaches as far as FP32. The mean is "
                "a little coarser, but it is there.",
            ),
            Option(
                "A running loss that a loop adds up batch by batch.",
                "BF16 has 3 bits of fraction fewer, so the sum stops at an eighth: counting by ones it ends at 256 "
                "and no longer at 2,048. More range is no help to a sum.",
                right=True,
            ),
            Option(
                "A mask of −1e9 in a row where nothing is kept.",
                "BF16 holds a number close to −1e9. The row is constant, not infinite, and softmax gives every place "
                "the same finite weight.",
            ),
            Option(
                "An eps of 1e-8 that guards a division by zero.",
                "FP16 makes zero of it. In BF16 it stays, and even one divided by it is in range.",
            ),
        ),
    ),
    Question(
        "A normalisation by hand computes `(x - x.mean()) / (variance + eps).sqrt()` in FP16, and a row comes that "
        "holds the same value everywhere. With which eps does the row become zeros?",
        (
            Option(
                "1e-12, as `F.normalize` has it: the smaller the better.",
                "FP16 makes zero of it, so the row is 0 ÷ 0: all NaN. (`F.normalize` makes NaN of a row of FP16 "
                "zeros, too.)",
            ),
            Option(
                "1e-8, as Adam has it: small beside every variance.",
                "It is below half of the smallest FP16 number, and zero in FP16. What is left is 0 ÷ 0, which is NaN.",
            ),
            Option(
                "None: with a variance of 0 it is 0 ÷ 0 in any case.",
                "Just this an eps prevents, if it is large enough to be there.",
            ),
            Option(
                "1e-5, as LayerNorm has it: its root is about 0.003.",
                "FP16 holds 1e-5, as a subnormal number, and the root of it comfortably. 0 ÷ 0.003 is 0. An eps under "
                "a root may be smaller than one that stands there alone.",
                right=True,
            ),
        ),
    ),
    Question(
        "The FP16 vector `v` holds first one 2,048 and then a thousand ones. Three people add it up in FP16. Who does "
        "not get 3,048?",
        (
            Option(
                "A loop from the front, one number at a time.",
                "The sum is 2,048 from the start, and each 1 rounds away: it ends where it began. Small numbers must "
                "be added while the sum is small.",
                right=True,
            ),
            Option(
                "A loop from the back, one number at a time.",
                "A thousand ones make 1,000, exactly, and 1,000 + 2,048 is an even number below 4,096: FP16 has it.",
            ),
            Option(
                "`v.sum()`, which adds all of it in one call.",
                "It adds in FP32, where every 1 counts, and rounds once at the end. FP16 has 3,048.",
            ),
            Option(
                "Nobody: the sum does not depend on the order.",
                "In mathematics it does not. In floating point every addition rounds, and by how much depends on the "
                "sum so far.",
            ),
        ),
    ),
    Question(
        "`x` holds 1,000 FP16 activations, all of them 300. Which line gives their mean square, 90,000?",
        (
            Option(
                "`(x * x).mean().float()`",
                "The mean adds in FP32 inside, but the squares are FP16, and infinite before it begins. FP32 at the "
                "end only holds the infinity.",
            ),
            Option(
                "`x.square().float().mean()`",
                "FP32 comes after the square, which is infinite by then.",
            ),
            Option(
                "`x.float().square().mean()`",
                "The square is taken in FP32, which reaches up to the square of every FP16 number and far beyond.",
                right=True,
            ),
            Option(
                "`x.square().mean(dtype=torch.float32)`",
                "This sets the dtype of the mean. Its input, the square, has already been rounded to FP16.",
            ),
        ),
    ),
)
