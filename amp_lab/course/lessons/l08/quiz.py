"""The quiz of lesson 08. What it says of memory and time, tests/course/test_quiz_08.py tries."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A model has 1 GiB of FP32 weights and trains with Adam. Now it trains with `torch.amp` in FP16. "
        "How much do weights, gradients and optimizer state take between two steps?",
        (
            Option(
                "2 GiB: all of them are FP16 now.",
                "None of them is. Autocast converts what goes into an operator, and leaves parameters, their "
                "gradients and Adam's two moments in FP32.",
            ),
            Option(
                "3 GiB: weights and gradients halve.",
                "A gradient has the dtype of its parameter, and the parameters stay FP32.",
            ),
            Option(
                "4 GiB: the same as before.",
                "Four FP32 numbers for each parameter: weight, gradient, two moments. What halves are "
                "activations, and they are gone between two steps.",
                right=True,
            ),
            Option(
                "4.5 GiB: FP16 copies come on top.",
                "Those copies exist between forward and backward. Between two steps they are gone.",
            ),
        ),
    ),
    Question(
        "A network of wide linear layers trains with a batch of 4. Under autocast it needs more memory "
        "than in FP32. Where does it come from?",
        (
            Option(
                "From the scaler, which keeps scaled gradients.",
                "Scaling multiplies the loss, one number. The gradients are scaled in the place where they are.",
            ),
            Option(
                "From FP16 copies of weights, kept for backward.",
                "Each costs half of its weight. With 4 samples the activations that halve are much smaller.",
                right=True,
            ),
            Option(
                "From master weights, which are kept in FP32.",
                "The FP32 parameters serve as master weights; they were there before.",
            ),
            Option(
                "From activations that are kept in both formats.",
                "Some are, where FP32 and FP16 operators meet. But with 4 samples all of them together are small.",
            ),
        ),
    ),
    Question(
        "On an A100 the FP16 peak is 16 times the FP32 peak. A large `relu` gets FP16 in the place of FP32. "
        "How much faster can it be, by the roofline?",
        (
            Option(
                "16 times: the ratio of the two peaks.",
                "Peaks count arithmetic. `relu` makes one comparison for each number that it loads and stores: "
                "the Tensor Cores have no part in it.",
            ),
            Option(
                "8 times: half the peak ratio at best.",
                "Arithmetic is not what takes the time here. Ask how many bytes move.",
            ),
            Option(
                "2 times: half as many bytes move.",
                "It waits for memory in both formats, and there is half as much to wait for.",
                right=True,
            ),
            Option(
                "Not at all: autocast leaves it alone.",
                "Autocast does not cast for `relu`. But its input comes in FP16 from the layer before, and is "
                "half as large.",
            ),
        ),
    ),
    Question(
        "On a GPU: `start = time.time()`, then `loss = model(x).mean()`, then `print(time.time() - start)`. "
        "It prints 0.3 ms. What takes 0.3 ms?",
        (
            Option(
                "The forward pass of the whole model.",
                "Nobody waited for it. CUDA operators are put into a queue, and Python goes on.",
            ),
            Option(
                "To put its operators into a queue.",
                "The GPU may still be at work. Call `torch.cuda.synchronize()` before you look at the clock, "
                "both times.",
                right=True,
            ),
            Option(
                "The copy of the batch to the GPU.",
                "`x` may have been there before. And a copy is not what these lines call.",
            ),
            Option(
                "The forward pass, and the backward.",
                "No line calls `backward()`; and nobody waited for the forward pass either.",
            ),
        ),
    ),
    Question(
        "Two people switch AMP on, on the same A100, with PyTorch's defaults before and after. One network is "
        "made of convolutions, the other of matrix products, all large. Who may gain more?",
        (
            Option(
                "Convolutions: cuDNN is made for FP16.",
                "It is quick in FP16. But it was quick before as well: the default allows TF32 there.",
            ),
            Option(
                "Neither: both get the same Tensor Cores.",
                "After, yes. But a gain has a before, too.",
            ),
            Option(
                "Products: their FP32 was without TF32.",
                "TF32 is off for matrix products and on for cuDNN's convolutions. So the first leave the FP32 "
                "units, and the second only go from TF32 to FP16.",
                right=True,
            ),
            Option(
                "Neither: A100s use TF32 for everything.",
                "They can. PyTorch's default allows it for cuDNN's convolutions, and not for matrix products.",
            ),
        ),
    ),
    Question(
        "`compare` says that AMP takes 0.97 of the time of FP32. In the same run FP32 takes 1.04 of the time "
        "of FP32, as A/A. What do you know?",
        (
            Option(
                "That AMP is 3 % faster here.",
                "Something that is nothing has made 4 % in this run. 3 % is less than that.",
            ),
            Option(
                "That AMP is 7 % faster here.",
                "Differences do not add up like this. The A/A ratio says how far to trust a ratio.",
            ),
            Option(
                "That this machine is broken.",
                "Other programs and a changing clock are enough. Measure longer, or when it is idle.",
            ),
            Option(
                "Nothing yet: noise is 4 %.",
                "The run cannot tell 0.97 from 1. More rounds may.",
                right=True,
            ),
        ),
    ),
)
