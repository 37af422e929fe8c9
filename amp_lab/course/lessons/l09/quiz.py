"""The quiz of lesson 09. What it says of Trainers, tests/course/test_quiz_09.py tries."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "A Trainer makes its `GradScaler` inside of `train`, and `save` writes model and optimizer. The "
        "run is stopped and resumed each night. What does that cost, if its scale had settled at 1,024?",
        (
            Option(
                "Nothing: a scale is not part of what was learnt.",
                "It is part of which steps are made. The first ones after a restart overflow.",
            ),
            Option(
                "An error: the optimizer's state does not fit the scaler.",
                "The two know nothing of each other's state. Nothing is raised, which is the trouble.",
            ),
            Option(
                "Some skipped steps each morning, from 65,536 down.",
                "Six halvings lie between 65,536 and 1,024: six batches that teach nothing, every time.",
                right=True,
            ),
            Option(
                "One wrong step, which is as much too large as the scale.",
                "A step that overflows is skipped, and one that does not is unscaled: none is wrong.",
            ),
        ),
    ),
    Question(
        "The last window of an epoch has two micro-batches, of 48 and 12 samples, in place of four. The loop "
        "calls `backward()` on each mean loss divided by 4, as ever. What is the sum of the gradients?",
        (
            Option(
                "The mean over 60 samples: that is what accumulation is for.",
                "It would be with four micro-batches of one size. The last window is often a ragged one.",
            ),
            Option(
                "Half of a mean in which the 12 count four times as much.",
                "Two of four parts are there, with one weight for 48 samples and for 12. Weigh by the share.",
                right=True,
            ),
            Option(
                "Half of a mean in which the 12 count a quarter as much.",
                "Half is right. But few samples that share a whole part among them count for more, not less.",
            ),
            Option(
                "The mean over 60 samples, but half as large as it should be.",
                "Half is right: two of four parts are there. The weight of each sample is wrong as well.",
            ),
        ),
    ),
    Question(
        "A script keeps one checkpoint: `torch.save(state, 'last.pt')` at the end of each epoch. The "
        "process is killed while that line is at work. What is there in the morning?",
        (
            Option(
                "The old checkpoint, since the new one was not finished.",
                "The old one is the very file that was opened for writing, and so emptied.",
            ),
            Option(
                "The new checkpoint, since the system completes the file.",
                "The system writes what it was given. A killed process gives no more.",
            ),
            Option(
                "A file that cannot be read, and no checkpoint at all.",
                "Write beside it, bring it to the disk, and rename: then one of the two is always whole.",
                right=True,
            ),
            Option(
                "A file with some of the weights, which loads with a warning.",
                "A zip archive's table of contents is written last. Without it nothing can be loaded.",
            ),
        ),
    ),
    Question(
        "A run with dropout is resumed in the midst of an epoch. Weights, optimizer, scaler, scheduler and "
        "the number of the step are restored. The losses are not those of the run that nobody stopped. Why?",
        (
            Option(
                "The order of the batches and the masks are drawn anew.",
                "Both come from generators. Their states, and the place in the epoch, belong to the run.",
                right=True,
            ),
            Option(
                "Weights lose their last bits on the way to a file.",
                "A file holds each FP32 number in all of its 32 bits. What comes back is equal.",
            ),
            Option(
                "FP16 sums come out differently in each process.",
                "On the same machine with the same number of threads they do not, as this page has shown.",
            ),
            Option(
                "The scaler starts to count its clean steps anew.",
                "Its state holds that count, and it was restored.",
            ),
        ),
    ),
    Question(
        "One run in FP32 ends at a dev loss of 0.405, one in BF16 at 0.412. What follows?",
        (
            Option(
                "BF16 is a little worse: it has only 8 significant bits.",
                "It has. Whether 0.007 comes from that or from luck, two numbers cannot tell.",
            ),
            Option(
                "Nothing, until the spread over seeds is known.",
                "On this page five runs in FP32 lie further apart than that. Compare seed by seed.",
                right=True,
            ),
            Option(
                "They are equally good: AMP does not change results.",
                "That is a belief, too. With enough seeds a small difference could well be found.",
            ),
            Option(
                "A longer run would show which of the two is better.",
                "A longer run in each is again one number against one. Luck does not go away with length.",
            ),
        ),
    ),
    Question(
        "On a T4, `torch.cuda.is_bf16_supported()` says True. What does `precision='auto'` take, and why?",
        (
            Option(
                "BF16, since PyTorch says that it is supported.",
                "Supported means that it can be computed: here by FP32 units, with casts on top.",
            ),
            Option(
                "FP32, since a T4 has no units for either format.",
                "It has Tensor Cores for FP16: the generation before BF16 came to NVIDIA's GPUs.",
            ),
            Option(
                "FP16 with a loss scale, since its BF16 is emulated.",
                "Ask with `including_emulation=False`, and the T4 says False.",
                right=True,
            ),
            Option(
                "FP16 without a loss scale, since CUDA handles underflow.",
                "No hardware does. A gradient below 2^-25 is zero in FP16 wherever it is computed.",
            ),
        ),
    ),
)
