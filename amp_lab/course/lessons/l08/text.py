"""The words of lesson 08."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

KEPT = Exercise(
    id="8.1",
    title="What forward keeps",
    minutes=10,
    function="activation_bytes",
    hints=(
        "Autograd tells you of every tensor that it saves. Each lives in a storage, and memory is taken by storages: several tensors can share one. "
        "Know each storage by its address, and leave out those that were there before the call.",
        "`torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is a context; it calls `pack` with every tensor saved, and what `pack` returns is kept "
        "in place of it. `tensor.untyped_storage()` has `.data_ptr()` and `.nbytes()`. `torch.autocast` has `enabled=`.",
        "Make the set of addresses of parameters, buffers and batch. In `pack`, note the size of the storage in a dictionary under its address, unless the address is "
        "in that set, and return the tensor itself. Run the model once inside of autocast and hooks, keep its result in a variable, and add up the dictionary's values.",
    ),
    diagnoses={
        "no-graph": Diagnosis(
            "{call} returned {got}; {want} is right. Nothing was saved: under `no_grad` or `inference_mode`, or with a model that is called outside of "
            "the hooks, there is nothing to count.",
            hint=2,
        ),
        "outputs-only": Diagnosis(
            "{call} returned {got}; {want} is right. That is the sum of what the modules *return*. Backward keeps other things: the last output is needed by nobody, "
            "a ReLU and the layer after it keep the same tensor, some layers keep their input, and copies of weights are nobody's output.",
            hint=1,
        ),
        "counts-parameters": Diagnosis(
            "{call} returned {got}; {want} is right. Parameters were counted. Backward needs them, so they are among the saved tensors, but they were there before "
            "the call: forward adds nothing by keeping them.",
            hint=1,
        ),
        "weights-as-views": Diagnosis(
            "{call} returned {got}; {want} is right. Some weights were counted. `Linear` saves its weight as `weight.t()`: another tensor object, no `Parameter`, of another shape, "
            "on the same storage. Compare storages, not objects.",
            hint=2,
        ),
        "counts-the-batch": Diagnosis(
            "{call} returned {got}; {want} is right. The batch itself was counted. The first layer saves it, but it was there before the call. (A 16-bit copy of it is new, and counts.)",
            hint=1,
        ),
        "counts-buffers": Diagnosis(
            "{call} returned {got}; {want} is right. Buffers of the model were counted, such as batch norm's running mean or a mask. They are saved, but they were there before. (`state_dict()` has not all of them: ask `buffers()`.)",
            hint=1,
        ),
        "casts-left-out": Diagnosis(
            "{call} returned {got}; {want} is right. The 16-bit copies are missing that autocast made of weights or of the batch. They are no activations in the "
            "narrow sense, but forward made them, and backward keeps them: they count.",
            hint=1,
        ),
        "storage-twice": Diagnosis(
            "{call} returned {got}; {want} is right. A storage was counted more than once. ReLU saves its output and the next layer its input, which is the same memory; "
            "so are two views of one tensor, even if they start at different places.",
            hint=1,
        ),
        "views-in-part": Diagnosis(
            "{call} returned {got}; {want} is right. Somewhere a tensor's own numbers were counted, and it is a view: a slice keeps the *whole* storage alive, and `expand` makes a "
            "small one look large. Memory is taken by storages.",
            hint=2,
        ),
        "numbers-not-bytes": Diagnosis(
            "{call} returned {got}; {want} is right. That is how many numbers there are; an FP32 number takes four bytes.",
            hint=2,
        ),
        "counts-the-result": Diagnosis(
            "{call} returned {got}; {want} is right. The model's result was added. Nothing in the model saves it: what holds it is your variable.",
            hint=1,
        ),
        "no-autocast": Diagnosis(
            "{call} returned {got}; {want} is right. That is what FP32 keeps: autocast was not on while the model ran, or for another kind of device than the batch is on.",
            hint=2,
        ),
        "half-of-fp32": Diagnosis(
            "{call} returned {got}; {want} is right. That is half of what FP32 keeps, and what a *model* in 16 bits keeps. Under autocast "
            "weights and batch stay in FP32, and their 16-bit copies come in addition.",
            hint=1,
        ),
        "eval-mode": Diagnosis(
            "{call} returned {got}; {want} is right. That is the number for eval mode, where dropout keeps no mask and batch norm no statistics of the batch. Take the model as it stands.",
            hint=1,
        ),
        "train-mode": Diagnosis(
            "{call} returned {got}; {want} is right. That is the number for train mode, and this model is in eval mode. Take it as it stands.",
            hint=1,
        ),
        "address-reused": Diagnosis(
            "{call} returned {got}; {want} is right, and you get it if nobody gives memory back meanwhile. You know storages by their address, but tensors died while you counted, and the next ones "
            "were given their addresses. `pack` must return the tensor, so that the graph keeps it; or put it into a list.",
            hint=2,
        ),
        "called-again": Diagnosis(
            "{call} called the model {got} times; right is {want}. Each call draws its masks anew and moves the statistics of batch norm.",
            hint=1,
        ),
        "other-dtype": Diagnosis(
            "{call} called the model under autocast of {got}; asked for was {want}. Here the bytes are the same. With other operators they would not be.",
            hint=1,
        ),
        "model-changed": Diagnosis(
            "{call} left the model with {got} as {place}, which was {want}. You were lent the model of somebody's training: count without converting it, switching its mode, or leaving gradients or hooks.",
        ),
    },
    why=(
        "Memory that backward needs is held by storages, and `saved_tensors_hooks` shows each tensor on its way there. What was there before (parameters, buffers, the batch) costs nothing more; "
        "what is shared is paid once. In 16 bits activations halve, but copies of weights come in addition: with a large batch the halves win, with a small batch and wide layers the copies do. "
        "This is why AMP can take *more* memory."
    ),
)

TRAINING = Exercise(
    id="8.2",
    title="Bytes per parameter",
    minutes=8,
    function="training_bytes_per_parameter",
    hints=(
        "Four questions for each regime: in which dtype are the model's own weights? Is there a second set of them for the optimizer? In which dtype is a gradient (that of its weight)? "
        "In which dtype is the optimizer's state (that of the tensors it steps on)?",
        "`torch.autocast` converts no weight: it makes copies and drops them before the step. An FP32 number takes 4 bytes, one in 16 bits 2. Adam keeps two numbers for each one it steps on.",
        "A dictionary from regime to the bytes of a weight; another from optimizer to its numbers per parameter. Masters are 4 bytes in one regime and 0 in the others. "
        "The state is so many numbers of the size of a master, if there is one, else of a weight.",
    ),
    diagnoses={
        "one-number": Diagnosis(
            "{call} returned {got}, one number. Asked for is a dictionary with four: weights, masters, gradients, state. Two regimes can have the same sum for different reasons."
        ),
        "wrong-keys": Diagnosis(
            "{call} returned a dictionary with the keys {got}; they are to be {want}, all four, also where nothing is kept: 0."
        ),
        "two-for-everything": Diagnosis(
            "{call} has {got} bytes for a weight, and so have all your regimes; here it is {want}. Only two regimes keep weights in 16 bits: those that convert the *model*. `torch.amp` does not.",
            hint=1,
        ),
        "autocast-converts-weights": Diagnosis(
            "{call}: for a weight you say {got} bytes; it is {want}. `torch.amp` converts no weight. `model.parameters()` are FP32 before, during and after; "
            "an operator in the region gets a copy.",
            hint=1,
        ),
        "copies-kept": Diagnosis(
            "{call}: for a weight you say {got} bytes; it is {want}. You count autocast's 16-bit copy with it. There is one during forward and backward, but the question is about the moment before "
            "the step: the region has ended, the graph is gone, and with them the copies.",
            hint=2,
        ),
        "wrong-weights": Diagnosis(
            "{call}: for a weight you say {got} bytes; it is {want}. The weights are FP32 unless the model itself was converted.",
            hint=1,
        ),
        "masters-under-autocast": Diagnosis(
            "{call}: for masters you say {got} bytes; it is {want}. Under `torch.amp` there is no second set of weights: the FP32 parameters *are* the masters, and the optimizer steps on them. "
            "That the sum may come out right makes it the most stubborn of all mistakes.",
            hint=2,
        ),
        "masters-forgotten": Diagnosis(
            "{call}: for masters you say {got} bytes; it is {want}. The model is FP16, and the optimizer keeps an FP32 copy of every weight (lesson 03).",
            hint=1,
        ),
        "masters-size": Diagnosis(
            "{call}: for masters you say {got} bytes; it is {want}. Masters are FP32, and there is one for each parameter.",
            hint=2,
        ),
        "masters-invented": Diagnosis(
            "{call}: for masters you say {got} bytes; it is {want}. In this regime the optimizer steps on the model's own weights.",
            hint=1,
        ),
        "autocast-gradients": Diagnosis(
            "{call}: for a gradient you say {got} bytes; it is {want}. Between operators gradients travel in 16 bits, but `weight.grad` has the dtype of `weight`, which is FP32 under `torch.amp`.",
            hint=1,
        ),
        "gradients-of-masters": Diagnosis(
            "{call}: for gradients you say {got} bytes; it is {want}. Backward writes the gradients of the *model's* weights, in FP16. The masters' gradients are made inside of the step, and gone after it.",
            hint=1,
        ),
        "wrong-gradients": Diagnosis(
            "{call}: for a gradient you say {got} bytes; it is {want}. `weight.grad` has the dtype of `weight`.",
            hint=1,
        ),
        "state-forgotten": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. Adam keeps a mean of the gradients and one of their squares for every parameter, SGD with momentum one number.",
            hint=2,
        ),
        "one-moment": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. Adam keeps *two* numbers per parameter: a mean of the gradients, and one of their squares.",
            hint=2,
        ),
        "sgd-keeps-nothing": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. Without momentum SGD needs nothing but the gradient.",
            hint=2,
        ),
        "state-of-masters": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. The optimizer steps on the masters, which are FP32, and so is its state.",
            hint=1,
        ),
        "state-always-fp32": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. PyTorch's optimizers make their state like the parameter they step on, and this one is BF16.",
            hint=1,
        ),
        "autocast-state": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. The optimizer steps on FP32 parameters, outside of autocast; its state is FP32.",
            hint=1,
        ),
        "wrong-state": Diagnosis(
            "{call}: for the optimizer's state you say {got} bytes; it is {want}. It is a number of numbers, each of the size of what the optimizer steps on.",
            hint=2,
        ),
    },
    why=(
        "With Adam three of the regimes come to 16 bytes per parameter, and each for its own reason: `torch.amp` saves nothing here, because its weights are FP32, and masters beside FP16 weights cost "
        "what the halves save. Only a model that is BF16 all through halves, and pays with its precision: steps that are too small are lost, as in lesson 02. What AMP saves are activations."
    ),
)

PADDING = Exercise(
    id="8.3",
    title="Pad to a multiple",
    minutes=4,
    function="pad_to_multiple",
    hints=(
        "How many numbers of this dtype fill 16 bytes? That is the multiple. Then round up, and leave alone what is a multiple already.",
        "`dtype.itemsize` is the number of bytes of one number. `//` rounds down; `math.ceil` of a quotient rounds up.",
        "Divide 16 by the itemsize to get the multiple. Divide n by it, rounding up (add the multiple less one before you divide), and multiply again.",
    ),
    diagnoses={
        "rounds-down": Diagnosis(
            "{call} returned {got}; {want} is right. It was rounded down: a layer of that size is too small for what it holds.",
            hint=2,
        ),
        "rounds-to-nearest": Diagnosis(
            "{call} returned {got}; {want} is right. It was rounded to the *nearest* multiple, which is below for some sizes. A layer can be padded, not cut.",
            hint=2,
        ),
        "only-what-is-missing": Diagnosis(
            "{call} returned {got}; {want} is right. That is what has to be *added*; the new size is asked for.",
            hint=1,
        ),
        "pieces": Diagnosis(
            "{call} returned {got}; {want} is right. That is the number of 16-byte pieces in a row; the size is asked for in numbers.",
            hint=1,
        ),
        "returns-bytes": Diagnosis(
            "{call} returned {got}; {want} is right. That is the length of the row in bytes; the size is asked for in numbers.",
            hint=1,
        ),
        "always-the-same": Diagnosis(
            "{call} returned {got}; {want} is right. The multiple was the same for all dtypes. Pieces of 16 bytes hold 8 numbers of 16 bits, but fewer or more of others.",
            hint=1,
        ),
        "sixteen-numbers": Diagnosis(
            "{call} returned {got}; {want} is right. You rounded up to 16 *numbers*; it is 16 *bytes* that count.",
            hint=1,
        ),
        "itemsize": Diagnosis(
            "{call} returned {got}; {want} is right. The multiple was the itemsize. It is the other way round: the wider a number, the fewer of them fill 16 bytes.",
            hint=1,
        ),
        "sixteen-times": Diagnosis(
            "{call} returned {got}; {want} is right. The multiple was 16 times the itemsize. 16 bytes are to be *divided* by it.",
            hint=1,
        ),
        "bits": Diagnosis(
            "{call} returned {got}; {want} is right. Bits and bytes were mixed up: `itemsize` is in bytes, and so is the piece of 16.",
            hint=2,
        ),
        "power-of-two": Diagnosis(
            "{call} returned {got}; {want} is right. That is the next power of two, which is far more than is needed.",
            hint=1,
        ),
        "adds-a-piece": Diagnosis(
            "{call} returned {got}; {want} is right. A whole piece was added to n: the sum is as much a multiple as n was.",
            hint=1,
        ),
        "pads-what-is-aligned": Diagnosis(
            "{call} returned {got}; {want} is right. This size is a multiple already: nothing is to be added.",
            hint=1,
        ),
        "some-dtypes": Diagnosis(
            "{call} returned {got}; {want} is right. A number of `{dtype}` takes {itemsize} bytes, so 16 bytes are {multiple} of them. For another dtype your multiple is right.",
            hint=2,
        ),
    },
    why=(
        "A kernel for Tensor Cores loads 16 bytes at a time, so the rows of a matrix should start at multiples of 16 bytes. Rounding up costs a few columns of zeros. "
        "Old versions of cuBLAS (before 11) and cuDNN (before 7.6.3) did not use Tensor Cores at all for other sizes; newer ones do, more slowly. On an A100, pieces of 128 bytes are better still."
    ),
)

SPEEDUP = Exercise(
    id="8.4",
    title="The speedup that can be",
    minutes=8,
    function="attainable_speedup",
    hints=(
        "An operator needs time for its arithmetic and time to move its bytes; both go on at once, so the longer one decides. Compute it for FP32 and for 16 bits, and compare.",
        "FLOP divided by FLOP/s is seconds, and so is bytes divided by bytes/s. In 16 bits the FLOP stay as they are, and the bytes halve. `max` takes the longer.",
        "For FP32: the larger of flops over `gpu.fp32` and bytes over `gpu.bandwidth`. For 16 bits the same with `gpu.fp16` and half of the bytes. Return the first divided by the second.",
    ),
    diagnoses={
        "peaks-only": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. That is the ratio of the two peaks. An operator that waits for memory does not get faster by faster arithmetic.",
            hint=1,
        ),
        "always-two": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. Half of the bytes are moved, but where arithmetic takes longer, the peaks decide.",
            hint=1,
        ),
        "bytes-stay": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. In both formats you move the same number of bytes. A number in 16 bits takes half.",
            hint=2,
        ),
        "bytes-of-16-bits": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You took the bytes for those of 16 bits, and twice as many in FP32. They are given as they are in FP32.",
            hint=2,
        ),
        "shorter-time": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You took the shorter of the two times. An operator has ended when both its arithmetic and its memory traffic are done.",
            hint=1,
        ),
        "times-added": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You added both times. In the roofline they go on at once: while some numbers are computed, the next are fetched.",
            hint=1,
        ),
        "smaller-gain": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You took the smaller of the two gains, everywhere. Each applies where its own time is the longer one.",
            hint=1,
        ),
        "larger-gain": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You took the larger of the two gains, everywhere. Each applies where its own time is the longer one.",
            hint=1,
        ),
        "one-side": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You looked in one format at what the operator waits for, and took it for both. It can wait for arithmetic in FP32 and for memory in 16 bits.",
            hint=1,
        ),
        "inverse": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. That is the time in 16 bits over the time in FP32: above 1 is to mean faster.",
            hint=2,
        ),
        "flops-halved": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You halved the FLOP as well. The product has as many multiplications in 16 bits; they are only faster.",
            hint=2,
        ),
        "from-tf32": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You compared with TF32. It is asked how much faster than FP32.",
            hint=2,
        ),
        "not-a-ratio": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. That is the time, or the FLOP per second, in 16 bits alone. How many times faster is it than in FP32?",
            hint=1,
        ),
        "memory-bound": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. This operator waits for memory in both formats. It moves half of the bytes in 16 bits, and no more than that can be gained.",
            hint=1,
        ),
        "rounded": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. You rounded it: return it as it is."
        ),
        "compute-bound": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. This operator waits for arithmetic in both formats: memory does not matter.",
            hint=1,
        ),
        "in-between": Diagnosis(
            "{call}: your speedup is {got}; {want} is right. This operator waits for one thing in FP32 and for the other in 16 bits. Compute each time by itself.",
            hint=1,
        ),
    },
    why=(
        "The roofline is two times and a maximum. Memory-bound operators (activations, norms, optimizers) gain a factor of two at most, from half of the bytes. Large matrix products gain the ratio of the peaks. "
        "Between the two ridges a product that was busy computing in FP32 begins to wait for memory: the faster the arithmetic, the more operators are memory-bound. It is a bound; what you get is measured."
    ),
)
EXERCISES = (KEPT, TRAINING, PADDING, SPEEDUP)

LESSON = Lesson(
    slug="08_what_amp_buys",
    title="What AMP buys",
    minutes=60,
    difficulty="medium",
    needs="lessons 03 and 06",
    exercises=EXERCISES,
)
