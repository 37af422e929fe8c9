"""The quiz of lesson 06. What it says of autocast, tests/course/test_quiz_06.py asks PyTorch."""

from amp_lab.course.quizzes.questions import Option, Question

QUIZ = (
    Question(
        "In an FP16 region on CUDA, `h = layer(x)`, with an `nn.Linear`. Which of these is FP16?",
        (
            Option(
                "`h.sum()`",
                "A sum is FP32 unless the call passes a dtype.",
            ),
            Option(
                "`h.mean()`",
                "`mean` sounds like a sum, but has no rule. It follows its input, and that is FP16.",
                right=True,
            ),
            Option(
                "`h.softmax(-1).mean()`",
                "`mean` follows its input; but the softmax has made that FP32.",
            ),
            Option(
                "None: sums need FP32.",
                "Not all that adds up has a rule. Ask for each one: `why` tells.",
            ),
        ),
    ),
    Question(
        "`features = backbone(x)` stands in the region, `head(features)` a line below its end. `mat1 "
        "and mat2 must have the same dtype`, says PyTorch. Which repair keeps the training right?",
        (
            Option(
                "`head.half()`, to match the features.",
                "Then the head's parameters and gradients are FP16: small steps are lost (lesson 02), "
                "and `GradScaler` refuses to unscale them.",
            ),
            Option(
                "Moving the call of `head` into the region.",
                "`linear` has a rule there: the FP32 weights stay, and copies of them are multiplied.",
                right=True,
            ),
            Option(
                "`torch.set_default_dtype(torch.float16)`",
                "That changes the dtype of tensors made from now on. The head's weights exist already.",
            ),
            Option(
                "`backbone.float()` in front of the region.",
                "Its weights are FP32 as they are. It is the output that autocast computes in FP16.",
            ),
        ),
    ),
    Question(
        "A hand-written norm overflows in FP16. Somebody wraps it: `with torch.autocast(x.device.type, "
        "enabled=False): return norm(x)`. It still overflows. Why?",
        (
            Option(
                "A nested region cannot be disabled.",
                "It can, and it is: nothing is cast in there any more.",
            ),
            Option(
                "`x.device.type` is not the right name for the device.",
                "It is the one that always fits. A wrong device would disable nothing.",
            ),
            Option(
                "`x` is still FP16, and what has no rule follows it.",
                "Without casts, everything in there is done in the dtype that comes in. "
                "`norm(x.float())` makes it an island.",
                right=True,
            ),
            Option(
                "The weights have been cast already, and are in the cache.",
                "The cache is only looked at where something is cast. In a disabled region nothing is.",
            ),
        ),
    ),
    Question(
        "A team moves `loss.backward()` into the region, to save a line. Their test compares the "
        "gradients of a plain network of `nn.Linear` and ReLU, before and after: no bit differs. Where "
        "will it hurt?",
        (
            Option(
                "Nowhere: a backward pass gets its dtypes from the forward pass.",
                "So it is for layers whose forward pass was cast. An island's backward pass is FP32 "
                "only as long as nobody casts it.",
            ),
            Option(
                "In models with FP32 islands: their backward products are cast.",
                "A product is a product; in a region it is cast down, in a backward pass, too. The "
                "island is one in the forward pass only.",
                right=True,
            ),
            Option(
                "In the weights' copies, which would be cached for too long.",
                "The region still ends in every iteration, after the backward pass, and the cache with it.",
            ),
            Option(
                "In the loss: it is computed in FP16, and rounded.",
                "The loss is computed before the backward pass, as it was.",
            ),
        ),
    ),
    Question(
        "A pretrained network is frozen with `requires_grad_(False)` and called 8 times in one region. "
        "How often is the weight of each of its `nn.Linear` cast?",
        (
            Option(
                "Once: the copy is kept until the region ends.",
                "That is what happens to weights in training. A tensor that requires no gradient is not"
                " kept.",
            ),
            Option(
                "Never: what is frozen stays FP32, as it was stored.",
                "The rule looks at the operator. Its inputs are cast, frozen or not.",
            ),
            Option(
                "8 times: the cache holds only leaves that require a gradient.",
                "The weights of its products could be stored in 16 bits: they are never updated, so no step "
                "is lost, and no weight is cast.",
                right=True,
            ),
            Option(
                "Twice: for the forward and for the backward pass.",
                "The backward pass uses what the forward pass has saved. It casts no weights.",
            ),
        ),
    ),
    Question(
        "The same model, the same loop; only `dtype=torch.float16` becomes `torch.bfloat16`. What else "
        "changes in what autocast does?",
        (
            Option(
                "Nothing: each operator keeps its fate.",
                "Lower precision now means BF16, all else is the same. What BF16 cannot hold, such as "
                "positions over 256, is for you to look at.",
                right=True,
            ),
            Option(
                "`exp`, `log` and `pow` stay in BF16, whose range is that of FP32.",
                "They are cast to FP32 as before. The list does not look at the dtype.",
            ),
            Option(
                "Binary cross entropy on probabilities is no longer refused.",
                "It is, on CUDA: the rule belongs to the operator. BF16 has even fewer digits near 1.",
            ),
            Option(
                "Sums are done in BF16, since nothing can overflow.",
                "They are FP32 unless told otherwise, and for good reason: 256 + 1 is 256 in BF16.",
            ),
        ),
    ),
)
