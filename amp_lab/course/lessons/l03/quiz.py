"""The quiz of lesson 03. What it says of numbers, tests/course/test_quiz_03.py computes."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A network trained as `model.half()` gets stuck. Its gradients look healthy: few are zero, none is "
        "infinite. But from one step to the next hardly a weight changes. Which technique is missing?",
        (
            Option(
                "FP32 master weights: the steps are too small for FP16.",
                "Each step is smaller than half the gap to the next FP16 number and rounds away. A master adds the "
                "steps up until they show.",
                right=True,
            ),
            Option(
                "Loss scaling: larger gradients make steps that FP16 can add.",
                "The gradients are divided by the scale again before the step, so the step stays what it was. Loss "
                "scaling saves gradients that would become zero; these are not.",
            ),
            Option(
                "FP32 accumulation: the sums inside the layers stall.",
                "Stalled sums would make wrong gradients. These are fine; what is lost is lost when they are added "
                "to the weights.",
            ),
        ),
    ),
    Question(
        "Two FP16 matrices are multiplied on ideal Tensor Cores, but a program cuts the sums of 4,096 products into "
        "four pieces, takes a product of FP16 matrices for each, and adds up the four results. How often is something "
        "rounded to FP16 on the way to one element?",
        (
            Option(
                "8,191 times: after each product and each addition.",
                "That is what a loop over FP16 tensors does. Inside a piece nothing is rounded to FP16.",
            ),
            Option(
                "4 times: when the sum of each piece is there.",
                "The results of the pieces are FP16 tensors. So is the sum of two of them.",
            ),
            Option(
                "7 times: for the four pieces, and for three additions.",
                "Each product of matrices rounds once, at its end; then three additions of FP16 tensors follow, and "
                "each of them rounds as well. A single product of the whole matrices rounds once.",
                right=True,
            ),
            Option(
                "Once: when the whole sum is there.",
                "That is so for a single product. Here each piece hands on an FP16 matrix, and what it rounded away "
                "does not come back.",
            ),
        ),
    ),
    Question(
        "A network trains under `torch.autocast` in BF16. Inside the region its weights are BF16 in any case, so "
        "somebody adds `model.bfloat16()` at the top, to save memory. What is lost by that?",
        (
            Option(
                "Small steps: the optimizer now adds them to BF16 weights.",
                "Outside the region the parameters were FP32, and that is where steps add up. Now the working copy is "
                "all there is, and no step under about 0.2 % of its weight moves anything.",
                right=True,
            ),
            Option(
                "Nothing: the network computes with the same weights as before.",
                "At the first step it does. But the weights are also what remembers all the steps so far.",
            ),
            Option(
                "FP32 sums: the products now add up in BF16.",
                "How a product adds up does not depend on where its operands come from. They were BF16 before, too.",
            ),
            Option(
                "Small gradients: they become zero in BF16.",
                "BF16 reaches as far down as FP32. Underflow is FP16's trouble.",
            ),
        ),
    ),
    Question(
        "The masters are FP32, a gradient is FP16 and holds 1e-5, and the code says `master -= 1e-3 * gradient`. "
        "What does the master see of this step?",
        (
            Option(
                "The step of 1e-8, since the master is FP32.",
                "The product is computed before the master comes into it, and both of its factors together make an "
                "FP16 tensor.",
            ),
            Option(
                "Nothing: the product is zero before the master sees it.",
                "A Python number times an FP16 tensor is FP16, where 1e-8 is zero. Take the gradient to FP32 first.",
                right=True,
            ),
            Option(
                "An error: FP32 and FP16 must not be mixed.",
                "Matrix products refuse to mix; a subtraction promotes without a word.",
            ),
            Option(
                "The step of 1e-8, since a Python float is 64 bits wide.",
                "A Python number has no say about the width beside a floating-point tensor.",
            ),
        ),
    ),
    Question(
        "With FP32 masters in place, 97 % of a network's gradients are zero in FP16, though in FP32 they are not. "
        "The largest of all is about 2e-7. What helps?",
        (
            Option(
                "Nothing: so small a gradient means that training is done.",
                "How large a gradient is depends on the units of the loss. Multiply the loss by 1,000, and nothing "
                "about the task has changed.",
            ),
            Option(
                "To convert the FP16 gradients to FP32 before the step.",
                "The masters do that anyway. But what has become zero in the backward pass stays zero in any "
                "format.",
            ),
            Option(
                "To multiply the loss by 65,536 and divide the gradients.",
                "Every gradient in the backward pass moves 16 powers of two up, away from underflow, and the "
                "largest is still far from 65,504. The division comes after the conversion to FP32.",
                right=True,
            ),
            Option(
                "To take a learning rate 65,536 times as large.",
                "Zero times anything is zero: the learning rate comes too late.",
            ),
        ),
    ),
    Question(
        "A tenth of a gradient's entries lie between 2^−25 and 2^−24, the smallest FP16 number. What does the cast "
        "to FP16 make of them?",
        (
            Option(
                "Zero: they are below the smallest number.",
                "Many texts count them so. But a cast takes the nearer neighbour, and above the middle that is not "
                "zero.",
            ),
            Option(
                "Subnormal numbers close to what they were.",
                "2^−24 is the first subnormal number. Between it and zero there is none.",
            ),
            Option(
                "2^−24: each is rounded up, to at most twice its size.",
                "They survive, with a large error. Lost for good are those up to 2^−25, with the tie.",
                right=True,
            ),
        ),
    ),
)
