"""The quiz of lesson 00. What its explanations say of training runs, tests/course/test_quiz_00.py runs."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "The naive FP16 run all but stopped, while most of its gradients were not zero. Where did the learning get "
        "lost?",
        (
            Option(
                "In the loss: it was rounded so coarsely that it could not fall.",
                "The loss is only looked at; what moves the weights is the gradients, and those were there. The loss "
                "stood still because the weights did.",
            ),
            Option(
                "In the backward pass: what is small becomes zero in FP16.",
                "That happens in other networks, and lesson 04 is about it. Here the page counted the gradients: "
                "they were not zero.",
            ),
            Option(
                "In the update: weight minus step rounds back to the weight.",
                "Each step was smaller than half the gap between two FP16 numbers, so the nearest number to its "
                "result was the weight it had started from.",
                right=True,
            ),
            Option(
                "In the optimizer: momentum does not work with 16-bit numbers.",
                "The running sum that momentum keeps was fine, and so was the step made from it. It was taking the "
                "step that changed nothing.",
            ),
        ),
    ),
    Question(
        "Somebody wants to rescue the naive FP16 run with half of AMP: multiply the loss by 1,024 and divide the "
        "gradients by 1,024 again before the optimizer steps, with all weights still in FP16. Does that help?",
        (
            Option(
                "No: after the division, the steps are as small as before.",
                "Scaling protects gradients on their way through the backward pass. The step that it leads to has its "
                "old size, and rounds away as before. What helps here is a weight with finer gaps: FP32.",
                right=True,
            ),
            Option(
                "Yes: larger gradients make larger steps, and those survive.",
                "They would, but the division comes before the step. (Without it, this would be a learning rate 1,024 "
                "times as high.)",
            ),
            Option(
                "No: a loss times 1,024 is beyond what FP16 can reach.",
                "The loss starts near 2.3, and 2.3 times 1,024 is far below 65,504. The scaled run is finite, and "
                "gets stuck all the same.",
            ),
        ),
    ),
    Question(
        "BF16 reaches as far as FP32, but its numbers lie further apart than those of FP16. How does the same run go "
        "with everything in BF16, `model.bfloat16()`?",
        (
            Option(
                "Like FP32: its range is what matters, and it is the same.",
                "Nothing left FP16's range in this run, so more range cures nothing. The gaps were the trouble, and "
                "BF16 has wider ones.",
            ),
            Option(
                "Like naive FP16: both formats have 16 bits to spend.",
                "Both have 16 bits, but they spend them differently: BF16 gives more of them to range, and has fewer "
                "left for precision.",
            ),
            Option(
                "To NaN after some steps, since the errors add up.",
                "Rounding makes a number a little wrong, not infinite, and BF16 reaches further than FP16, which did "
                "not overflow either.",
            ),
            Option(
                "Stuck earlier than FP16, at a higher loss: wider gaps.",
                "The gaps are 8 times as wide as in FP16, so much larger steps round away already. Mixed precision "
                "with BF16 keeps its weights in FP32, too.",
                right=True,
            ),
        ),
    ),
    Question(
        'A script for GPUs says `with torch.autocast("cuda", torch.float16):` around the forward pass. You run it with '
        "model and data on the CPU. What happens?",
        (
            Option(
                "PyTorch moves what is inside the region to the GPU first.",
                "`autocast` chooses dtypes; it never moves a tensor to another device.",
            ),
            Option(
                "All is computed in FP32, and no error tells you of it.",
                "A region speaks for one type of device, and leaves tensors elsewhere alone. "
                "`torch.autocast(x.device.type, ...)` names the one that x is on.",
                right=True,
            ),
            Option(
                "An error: FP16 arithmetic works on GPUs, and only there.",
                "There is no error. And FP16 arithmetic, `autocast` and `GradScaler` do work on a CPU; what needs the "
                "right hardware is the speed.",
            ),
        ),
    ),
    Question(
        "After an hour of training in naive FP16 a colleague reports: no error, no NaN, the loss went down. What would "
        "you do before you believe that FP16 did no harm?",
        (
            Option(
                "Nothing: a number format that is too small shows as NaN or inf.",
                "That is how overflow shows. A step that rounds away leaves no trace: the loss stays finite, and just "
                "stops falling earlier than it could.",
            ),
            Option(
                "Train on: where there is no NaN after an hour, none will come.",
                "It may come late all the same. And the failure on this page never makes a NaN, however long the run "
                "takes.",
            ),
            Option(
                "Compare the loss, step by step, with a run of the same in FP32.",
                "Naive FP16 fails quietly, and for a while the two runs looked alike here, too. Only beside FP32 did "
                "it show.",
                right=True,
            ),
        ),
    ),
)
