"""The quiz of lesson 01. What it says of numbers, tests/course/test_quiz_01.py computes."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A colleague moves a model from FP16 to BF16 “because BF16 is the more exact of the two”. Do you agree?",
        (
            Option(
                "Yes: BF16 is newer, and the upper half of an FP32 number.",
                "The upper half keeps the sign and the whole exponent, but only 7 fraction bits. FP16 has 10 of "
                "them, so its digits are finer.",
            ),
            Option(
                "No: BF16 reaches further, but of the two it is coarser.",
                "More exponent bits, fewer fraction bits: far fewer infinities and lost zeros, and a larger "
                "rounding error in every number. That is often a good trade, but it is a trade.",
                right=True,
            ),
            Option(
                "No: both have 16 bits, so one is as exact as the other.",
                "They have the same number of patterns, but spread them differently. From 1 to 2 FP16 has eight "
                "times as many numbers as BF16.",
            ),
        ),
    ),
    Question(
        "A gradient is 4e-8, two thirds of the smallest positive FP16 number. What does a cast to FP16 make of "
        "it?",
        (
            Option(
                "Zero: it is smaller than the smallest number there is.",
                "Only up to half of the smallest number everything becomes zero. Between zero and the smallest "
                "number a cast takes the nearer one, as anywhere else.",
            ),
            Option(
                "About 4e-8: subnormal numbers are there for that.",
                "The smallest positive number is itself the first subnormal one. Below it there is nothing left "
                "but zero.",
            ),
            Option(
                "The smallest number, about 1.5 times what it was.",
                "It lies nearer to the smallest number than to zero, so it is rounded up. Near zero a cast can be "
                "wrong by far more than the usual 0.05 %.",
                right=True,
            ),
            Option(
                "NaN: the result is not a number that FP16 has.",
                "Rounding never makes a NaN of a number. NaN comes from operations without an answer, such as inf "
                "− inf.",
            ),
        ),
    ),
    Question(
        "`x` is an FP16 tensor, and all its values are 4096. What is in `x + 1`?",
        (
            Option(
                "4096 in FP16: the sum rounds back to where it started.",
                "From 4096 on, FP16 numbers lie 4 apart, so 4096 is the number nearest to 4097. No step of 1 can "
                "ever move it; lesson 02 is full of such sums.",
                right=True,
            ),
            Option(
                "4097 in FP16: far below 65,504 there is room for it.",
                "There is range for it, but no digit. 4097 needs 12 binary places behind the leading 1, and FP16 "
                "has 10.",
            ),
            Option(
                "4097 in FP32: a Python number brings the default dtype.",
                "A Python number has a say only in its kind. An FP16 tensor is of that kind or a higher one, so "
                "the sum stays FP16.",
            ),
            Option(
                "4100 in FP16: a sum goes up to the next number there is.",
                "Up or down, the nearest number is taken. 4096 is 1 away from 4097, and 4100 is 3 away.",
            ),
        ),
    ),
    Question(
        "The outputs of a layer are too large for FP16, and some layers later the loss is NaN. How does a number "
        "that is too large end as NaN?",
        (
            Option(
                "A number that is too large becomes NaN in the cast.",
                "It becomes infinity, which is a perfectly good answer: larger than anything else. E4M3 has no "
                "infinity; FP16 has.",
            ),
            Option(
                "Infinity, and later an operation such as inf − inf.",
                "A mean subtracted, a softmax, a product with zero: operations on infinities have no answer, and "
                "from there on NaN spreads. So the NaN that you see is seldom where the trouble began.",
                right=True,
            ),
            Option(
                "The bits wrap around, as integers do, to any number.",
                "Integers do so. A floating-point number that is too large goes to infinity, or to the largest "
                "number in a format that saturates.",
            ),
        ),
    ),
    Question(
        "You allow TF32 for matrix products, and the GPU has it. What has changed?",
        (
            Option(
                "Weights take 19 bits, and a matrix less memory.",
                "TF32 is not a dtype. Tensors are FP32 before and after, 32 bits a number.",
            ),
            Option(
                "Very large values now become infinity in a product.",
                "TF32 has all 8 exponent bits of FP32, so it reaches as far.",
            ),
            Option(
                "Products see 10 fraction bits of each input, no more.",
                "The dtype stays, the memory stays, the range stays; the products are about as exact as with FP16 "
                "inputs. Nothing in your code shows it, which is why it surprises people.",
                right=True,
            ),
            Option(
                "Nothing until tensors are cast to the new dtype.",
                "There is no such dtype to cast to. The switch alone decides, for FP32 tensors as they are.",
            ),
        ),
    ),
    Question(
        "`h` is an FP16 tensor of shape (8, 64). You add a learned FP32 temperature to it. Its shape was () and "
        "is now (1,). What happens to `h + temperature`?",
        (
            Option(
                "Nothing: one number has no say beside 512.",
                "It is not counted how many numbers there are. What counts is whether a tensor has dimensions, "
                "and (1,) is one.",
            ),
            Option(
                "It was FP16 and is FP32 from now on.",
                "A 0-dim FP32 tensor gives way to an FP16 tensor with dimensions; a tensor of shape (1,) does "
                "not. No error tells you, only the memory and the time do.",
                right=True,
            ),
            Option(
                "It was FP32 before, and FP32 it stays.",
                "A 0-dim tensor of the same kind has no say beside a tensor with dimensions: that sum was FP16.",
            ),
            Option(
                "An error: FP16 and FP32 cannot be mixed.",
                "Matrix products refuse to mix, and that error is well known. A sum promotes instead, without a "
                "word.",
            ),
        ),
    ),
)
