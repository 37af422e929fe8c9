"""The quiz of lesson 10. What it says of ranks, tests/course/test_quiz_10.py tries."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "Eight ranks train with DDP in FP16, each with a `GradScaler` of its own. On rank 3 a gradient "
        "overflows in the backward pass. Which ranks skip the step?",
        (
            Option(
                "Rank 3 alone: the others have seen no overflow.",
                "They have, in their own `.grad`: the mean of seven numbers and an infinity is infinite.",
            ),
            Option(
                "All eight: what DDP has averaged is infinite for all.",
                "Each scaler looks at the mean, finds the same, and halves its scale. Nobody has to send a word.",
                right=True,
            ),
            Option(
                "None: seven finite gradients outweigh an infinite one.",
                "There is no outweighing an infinity: added to anything finite, it stays one.",
            ),
            Option(
                "All eight, if the script sends `found_inf` to the others.",
                "It would tell them what they know. Only an infinity made after the averaging is known to one.",
            ),
        ),
    ),
    Question(
        "A loop for two ranks has the line `if not loss.isfinite(): continue` before `loss.backward()`. On "
        "rank 1 a batch gives NaN. What happens?",
        (
            Option(
                "Rank 0 makes the step with its own gradient.",
                "Its all-reduce needs two. It waits for what rank 1 sends next, whatever that is.",
            ),
            Option(
                "Both ranks leave the batch out, as they should.",
                "The loss of rank 0 is finite, so rank 0 goes on into `backward()`.",
            ),
            Option(
                "DDP raises an error that names rank 1 and the batch.",
                "DDP does not know of rank 1's `continue`. All that it sees is that nothing comes.",
            ),
            Option(
                "Rank 0 gets gradients of another step, or waits.",
                "All-reduces pair in the order in which they come. One of rank 0 is too many from here on.",
                right=True,
            ),
        ),
    ),
    Question(
        "Four micro-batches make a step. The loop computes each loss, and for the first three calls "
        "`backward()` inside `with ddp.no_sync():`. How often are gradients exchanged in a step?",
        (
            Option(
                "Once, in the last micro-batch, as it is meant to be.",
                "It would be with the forward pass inside as well: there DDP decides.",
            ),
            Option(
                "Four times: DDP has decided in the forward pass.",
                "The result is right, and the exchange was paid for four times. Take the forward pass in.",
                right=True,
            ),
            Option(
                "Never, so that the ranks' weights drift apart.",
                "That is what comes of four micro-batches in `no_sync`, the last one included.",
            ),
            Option(
                "Three times: the last one comes without its forward.",
                "All four forward passes are outside, and so all four backward passes exchange.",
            ),
        ),
    ),
    Question(
        "A model has 10 million weights, all of them trained. It runs under FP16 autocast in DDP, without a "
        "communication hook. How many bytes of gradients does a rank hand to all-reduce in a step?",
        (
            Option(
                "20 MB, since under autocast gradients are FP16.",
                "Those of activations are. Gradients of FP32 weights are FP32, and they are what is sent.",
            ),
            Option(
                "40 MB, since the gradients of FP32 weights are FP32.",
                "Only a hook halves that, and it is a choice of its own, which FP32 training can make as well.",
                right=True,
            ),
            Option(
                "60 MB: FP32 weights and gradients of 16 bits each.",
                "Weights are not sent: the same gradients and the same optimizer give the same weights.",
            ),
            Option(
                "80 MB: each gradient goes out and comes back once.",
                "On the wire much depends on the algorithm. What is handed over is each gradient once.",
            ),
        ),
    ),
    Question(
        "A script uses `DistributedSampler`, and nobody calls its `set_epoch`. What do ten epochs look like?",
        (
            Option(
                "Ranks get overlapping parts, from the second epoch on.",
                "All ranks take the same order and deal from it, so parts never overlap (but for padding).",
            ),
            Option(
                "An error comes with the second epoch, on all ranks.",
                "Nothing is raised, and that is the trouble: the order is drawn from seed plus epoch, and epoch is 0.",
            ),
            Option(
                "Each rank sees the same samples in the same order.",
                "Ten times the very same batches: rank 0 never sees a sample of rank 1. No error says so.",
                right=True,
            ),
            Option(
                "Ranks get other samples, but never in another order.",
                "The order decides who gets which. It is drawn once, from seed plus epoch 0, for all epochs.",
            ),
        ),
    ),
    Question(
        "Two ranks under `torchrun --max-restarts 3`, a checkpoint every 100 steps. Rank 1 is killed in step "
        "1,003. What does torchrun do?",
        (
            Option(
                "It starts both ranks anew; the script must resume.",
                "Rank 0 cannot go on alone. Which checkpoint to load is the script's business: here step 1,000's.",
                right=True,
            ),
            Option(
                "It starts rank 1 anew, while rank 0 waits in step 1,003.",
                "The process group of rank 0 is broken with its partner's death. It is ended, too.",
            ),
            Option(
                "It goes on with rank 0 and half of the samples.",
                "Within a node no rank is given up. A whole node can be, with `--nnodes=1:2`; all restart then, too.",
            ),
            Option(
                "It brings back the weights from step 1,000 by itself.",
                "It knows nothing of weights or files: it starts processes, watches them and starts them again.",
            ),
        ),
    ),
)
