"""Code that makes PyTorch raise the errors and warnings that `explain` knows, each in a line or two.

Every row names the explanations that it may get. The error itself is nowhere written down: PyTorch is asked.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
# Both orders of each pair, so that left and right cannot be confused.
PAIRS = [(HALF, FP32), (FP32, HALF), (BF16, FP32), (FP32, BF16), (HALF, BF16), (FP32, FP64), (FP64, HALF)]


class Mismatch(NamedTuple):
    """Code in which two dtypes meet. `dtypes`: what the explanation must call which, for given a and b."""

    id: str | set[str]
    run: Callable[[torch.dtype, torch.dtype], Any]
    dtypes: Callable[[torch.dtype, torch.dtype], dict[str, torch.dtype]] | None = None
    only: Callable[[torch.dtype, torch.dtype], bool] = lambda a, b: True


def ones(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def put(target: torch.Tensor, where: Any, values: torch.Tensor) -> None:
    target[where] = values


def assign(a: torch.dtype, b: torch.dtype) -> None:
    nn.Parameter(ones(2, dtype=a)).grad = ones(2, dtype=b)


def hooked(a: torch.dtype, b: torch.dtype) -> None:
    middle = ones(2, dtype=a).requires_grad_() * 2
    middle.register_hook(lambda gradient: gradient.to(b))
    middle.sum().backward()


def zero() -> torch.Tensor:
    return torch.tensor([0])


def convolved_by_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN convolves in this dtype on this CPU. Where it does not, PyTorch words its errors otherwise."""
    if dtype is HALF:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is BF16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


MISMATCHES: dict[str, Mismatch] = {
    "linear": Mismatch(
        "matmul-dtypes",
        lambda a, b: F.linear(ones(2, 3, dtype=a), ones(4, 3, dtype=b), ones(4, dtype=b)),
        lambda a, b: {"mat1": a, "mat2": b},
    ),
    "linear without a bias": Mismatch(
        "matmul-dtypes",
        lambda a, b: F.linear(ones(2, 3, dtype=a), ones(4, 3, dtype=b)),
        lambda a, b: {"mat1": a, "mat2": b},
    ),
    "@": Mismatch(
        "matmul-dtypes",
        lambda a, b: ones(2, 3, dtype=a) @ ones(3, 4, dtype=b),
        lambda a, b: {"mat1": a, "mat2": b},
    ),
    "MultiheadAttention": Mismatch(
        "matmul-dtypes",
        lambda a, b: nn.MultiheadAttention(4, 2, dtype=b)(*[ones(2, 1, 4, dtype=a)] * 3),
        lambda a, b: {"mat1": a, "mat2": b},
    ),
    "linear, bias alone": Mismatch(
        "addmm-dtypes",
        lambda a, b: F.linear(ones(2, 3, dtype=a), ones(4, 3, dtype=a), ones(4, dtype=b)),
        lambda a, b: {"self": b, "mat2": a},
    ),
    "addmm_": Mismatch(
        "addmm-dtypes",
        lambda a, b: ones(2, 4, dtype=a).addmm_(ones(2, 3, dtype=b), ones(3, 4, dtype=b)),
        lambda a, b: {"self": a, "mat2": b},
    ),
    "baddbmm": Mismatch(
        "addmm-dtypes",
        lambda a, b: torch.baddbmm(ones(1, 2, 4, dtype=a), ones(1, 2, 3, dtype=b), ones(1, 3, 4, dtype=b)),
        lambda a, b: {"input": a, "batch1": b, "batch2": b},
    ),
    "mv": Mismatch(
        {"matvec-dtypes", "scalar-type"},
        lambda a, b: ones(2, 3, dtype=a) @ ones(3, dtype=b),
    ),
    "dot": Mismatch(
        "dot-dtypes",
        lambda a, b: ones(3, dtype=a) @ ones(3, dtype=b),
        lambda a, b: {"the left vector": a, "the right vector": b},
    ),
    "tensordot": Mismatch(
        "tensordot-dtypes", lambda a, b: torch.tensordot(ones(2, 3, dtype=a), ones(3, 2, dtype=b), 1)
    ),
    "bilinear": Mismatch(
        "bilinear-dtypes",
        lambda a, b: F.bilinear(ones(2, 3, dtype=a), ones(2, 3, dtype=a), ones(4, 3, 3, dtype=b)),
        lambda a, b: {"input1": a, "input2": a, "weight": b},
    ),
    "bmm": Mismatch(
        "scalar-type",
        lambda a, b: torch.bmm(ones(1, 2, 3, dtype=a), ones(1, 3, 4, dtype=b)),
        lambda a, b: {"expected": a, "found": b},
    ),
    "einsum": Mismatch(
        "scalar-type",
        lambda a, b: torch.einsum("ij,jk->ik", ones(2, 3, dtype=a), ones(3, 4, dtype=b)),
        lambda a, b: {"expected": a, "found": b},
    ),
    "grid_sample": Mismatch(
        "scalar-type",
        lambda a, b: F.grid_sample(ones(1, 1, 3, 3, dtype=a), ones(1, 3, 3, 2, dtype=b), align_corners=False),
        lambda a, b: {"expected": a, "found": b},
    ),
    "cross_entropy, weight": Mismatch(
        "scalar-type",
        lambda a, b: F.cross_entropy(ones(2, 3, dtype=a), torch.tensor([0, 1]), ones(3, dtype=b)),
        lambda a, b: {"expected": a, "found": b},
    ),
    "linalg.cross": Mismatch(
        "scalar-type",
        lambda a, b: torch.linalg.cross(ones(2, 3, dtype=a), ones(2, 3, dtype=b)),
        lambda a, b: {"expected": a, "found": b},
    ),
    "conv2d": Mismatch(
        {"conv-dtypes", "scalar-type"},
        lambda a, b: F.conv2d(ones(1, 3, 5, 5, dtype=a), ones(4, 3, 3, 3, dtype=b)),
    ),
    "conv2d of FP16 or BF16": Mismatch(
        "conv-dtypes",
        lambda a, b: F.conv2d(ones(1, 3, 5, 5, dtype=a), ones(4, 3, 3, 3, dtype=b)),
        lambda a, b: {"the input": a, "the weight": b},
        only=lambda a, b: b is FP32 and convolved_by_onednn(a),
    ),
    "conv2d, bias": Mismatch(
        "conv-dtypes",
        lambda a, b: F.conv2d(ones(1, 3, 5, 5, dtype=a), ones(4, 3, 3, 3, dtype=a), ones(4, dtype=b)),
        lambda a, b: {"the input": a, "the bias": b},
    ),
    "attention": Mismatch(
        "attention-dtypes",
        lambda a, b: F.scaled_dot_product_attention(*(ones(1, 1, 2, 4, dtype=each) for each in (a, b, a))),
        lambda a, b: {"query": a, "key": b, "value": a},
    ),
    "attention, mask": Mismatch(
        "attention-mask-dtype",
        lambda a, b: F.scaled_dot_product_attention(
            *[ones(1, 1, 2, 4, dtype=a)] * 3, attn_mask=ones(2, 2, dtype=b)
        ),
        lambda a, b: {"attn_mask": b, "query": a},
        only=lambda a, b: b is not FP32,
    ),
    "LSTM": Mismatch(
        "rnn-dtypes",
        lambda a, b: nn.LSTM(3, 4, dtype=b)(ones(2, 1, 3, dtype=a)),
        lambda a, b: {"the input": a, "the weight": b},
    ),
    "GRUCell": Mismatch(
        "matmul-dtypes",
        lambda a, b: nn.GRUCell(3, 4, dtype=b)(ones(2, 3, dtype=a)),
        lambda a, b: {"mat1": a, "mat2": b},
    ),
    "x[index] = y": Mismatch(
        "index-put-dtypes",
        lambda a, b: put(ones(4, 3, dtype=a), zero(), ones(1, 3, dtype=b)),
        lambda a, b: {"the destination": a, "the source": b},
    ),
    "x[mask] = y": Mismatch(
        "index-put-dtypes",
        lambda a, b: put(ones(4, dtype=a), torch.ones(4, dtype=torch.bool), ones(4, dtype=b)),
        lambda a, b: {"the destination": a, "the source": b},
    ),
    "scatter_": Mismatch(
        "scatter-dtypes", lambda a, b: ones(4, dtype=a).scatter_(0, zero(), ones(1, dtype=b)), lambda a, b: {}
    ),
    "scatter_add": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).scatter_add(0, zero(), ones(1, dtype=b)),
        lambda a, b: {},
    ),
    "scatter_reduce": Mismatch(
        "scatter-dtypes", lambda a, b: ones(4, dtype=a).scatter_reduce(0, zero(), ones(1, dtype=b), "sum")
    ),
    "index_add": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).index_add(0, zero(), ones(1, dtype=b)),
        lambda a, b: {"self": a, "source": b},
    ),
    "index_reduce": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).index_reduce_(0, zero(), ones(1, dtype=b), "mean"),
        lambda a, b: {"self": a, "source": b},
    ),
    "index_copy": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).index_copy(0, zero(), ones(1, dtype=b)),
        lambda a, b: {"self": a, "source": b},
    ),
    "put_": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).put_(zero(), ones(1, dtype=b)),
        lambda a, b: {"self": a, "source": b},
    ),
    "masked_scatter": Mismatch(
        "scatter-dtypes",
        lambda a, b: ones(4, dtype=a).masked_scatter(torch.ones(4, dtype=torch.bool), ones(4, dtype=b)),
        lambda a, b: {"self": a, "source": b},
    ),
    "mm, out=": Mismatch(
        "out-dtype",
        lambda a, b: torch.mm(ones(2, 3, dtype=b), ones(3, 4, dtype=b), out=torch.empty(2, 4, dtype=a)),
        lambda a, b: {"the result": b, "out": a},
    ),
    "lerp": Mismatch(
        "lerp-dtypes",
        lambda a, b: torch.lerp(ones(3, dtype=a), ones(3, dtype=b), 0.5),
        lambda a, b: {"the tensor": a, "end": b},
    ),
    "lerp, weight": Mismatch(
        "lerp-dtypes",
        lambda a, b: torch.lerp(ones(3, dtype=a), ones(3, dtype=a), ones(3, dtype=b)),
        lambda a, b: {"the tensor": a, "weight": b},
    ),
    "BCE": Mismatch(
        "found-dtype",
        lambda a, b: F.binary_cross_entropy(ones(2, dtype=a), ones(2, dtype=b)),
        lambda a, b: {"found": b, "expected": a},
    ),
    "embedding_bag": Mismatch(
        "argument-types",
        lambda a, b: F.embedding_bag(
            zero(), ones(3, 4, dtype=a), zero(), mode="sum", per_sample_weights=ones(1, dtype=b)
        ),
        lambda a, b: {"weight": a, "per_sample_weights": b},
    ),
    "prelu": Mismatch(
        "prelu-dtypes",
        lambda a, b: F.prelu(ones(2, 3, dtype=a), ones(1, dtype=b)),
        lambda a, b: {"the input": a, "the weight": b},
    ),
    "layer_norm": Mismatch(
        "norm-dtypes",
        lambda a, b: F.layer_norm(ones(2, 3, dtype=a), (3,), ones(3, dtype=b), ones(3, dtype=b)),
        only=lambda a, b: a is FP32 and b in (HALF, BF16),
    ),
    "batch_norm": Mismatch(
        "norm-dtypes",
        lambda a, b: F.batch_norm(ones(2, 3, dtype=a), ones(3, dtype=b), ones(3, dtype=b)),
        only=lambda a, b: a is FP32 and b in (HALF, BF16),
    ),
    "linalg.solve": Mismatch(
        "linalg-dtypes",
        lambda a, b: torch.linalg.solve(torch.eye(2, dtype=a), ones(2, 2, dtype=b)),
        lambda a, b: {"A": a, "B": b},
    ),
    "assigned gradient": Mismatch(
        "gradient-dtype", assign, lambda a, b: {"the gradient": b, "the parameter": a}
    ),
    "hook": Mismatch("hook-dtype", hooked, lambda a, b: {"the gradient": a, "what the hook returned": b}),
    "complex": Mismatch(
        "complex-dtypes",
        lambda a, b: torch.complex(ones(2, dtype=a), ones(2, dtype=b)),
        only=lambda a, b: BF16 in (a, b),
    ),
}

ALL: dict[str, tuple[str, Callable[[], Any]]] = {}


def fault(expected: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """List a function that raises the error, or gives the warning, of this explanation."""

    def listed(run: Callable[[], Any]) -> Callable[[], Any]:
        ALL[run.__name__] = (expected, run)
        return run

    return listed


def layer() -> tuple[nn.Linear, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")


def after_backward() -> tuple[torch.optim.Optimizer, torch.amp.GradScaler]:
    model, optimizer, scaler = layer()
    scaler.scale(model(ones(2, 3)).sum()).backward()
    return optimizer, scaler


@fault("matmul-dtypes")
def outside_the_region() -> None:
    model = nn.Linear(3, 3)
    with torch.autocast("cpu", torch.float16):
        features = model(ones(2, 3))
    model(features)


@fault("matmul-dtypes")
def region_switched_off() -> None:
    model = nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        features = model(ones(2, 3))
        with torch.autocast("cpu", enabled=False):
            model(features)


@fault("matmul-dtypes")
def fp64_in_a_region() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        nn.Linear(3, 3)(ones(2, 3, dtype=FP64))


@fault("matmul-dtypes")
def integers_into_a_layer() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        nn.Linear(3, 3)(torch.ones(2, 3, dtype=torch.int64))


@fault("scalar-type")
def image_of_bytes() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        F.conv2d(torch.ones(1, 3, 5, 5, dtype=torch.uint8), ones(4, 3, 3, 3))


class _NotMadeForAutocast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


@fault("custom-backward-dtypes")
def custom_function() -> None:
    weight = ones(3, 3).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        y = _NotMadeForAutocast.apply(ones(2, 3), weight)
    y.sum().backward()


@fault("value-overflow")
def masked_with_a_large_number() -> None:
    ones(2, dtype=HALF).masked_fill(torch.ones(2, dtype=torch.bool), -1e9)


@fault("value-overflow")
def masked_in_bf16() -> None:
    ones(2, dtype=BF16).masked_fill(torch.ones(2, dtype=torch.bool), -1e39)


@fault("value-overflow")
def masked_with_a_tensor() -> None:
    ones(2, dtype=HALF).masked_fill(torch.ones(2, dtype=torch.bool), torch.tensor(-1e9))


@fault("value-overflow")
def full() -> None:
    torch.full((2,), 1e9, dtype=HALF)


@fault("value-overflow")
def clamp() -> None:
    ones(2, dtype=HALF).clamp(max=1e9)


@fault("value-overflow")
def padding() -> None:
    F.pad(ones(2, 2, dtype=HALF), (1, 1), value=-1e9)


@fault("value-overflow")
def uniform() -> None:
    ones(2, dtype=HALF).uniform_(-1e9, 1e9)


@fault("target-dtype")
def floating_targets() -> None:
    F.cross_entropy(ones(2, 3), torch.tensor([0.0, 1.0]))


@fault("index-dtype")
def floating_index() -> None:
    torch.arange(3)[ones(2, dtype=HALF)]


@fault("index-dtype")
def floating_words() -> None:
    F.embedding(ones(3, dtype=HALF), ones(3, 3))


@fault("value-overflow")
def bytes_of_a_thousand() -> None:
    torch.zeros(2, dtype=torch.uint8).fill_(1000)


@fault("value-overflow")
def mask_of_integers() -> None:
    torch.zeros(2, dtype=torch.int64).masked_fill(torch.tensor([True, False]), -1e20)


@fault("value-overflow")
def full_of_integers() -> None:
    torch.full((2,), 1e20, dtype=torch.int32)


@fault("value-overflow")
def random_bytes() -> None:
    torch.zeros(2, dtype=torch.uint8).random_(0, 1000)


@fault("value-overflow")
def fp32_of_1e39() -> None:
    torch.zeros(2).fill_(1e39)


@fault("value-overflow")
def fp8_of_a_thousand() -> None:
    torch.zeros(2, dtype=torch.float8_e4m3fn).fill_(1000)


@fault("result-cast")
def targets_of_integers() -> None:
    F.binary_cross_entropy_with_logits(ones(3), torch.ones(3, dtype=torch.int64))


@fault("result-cast")
def dropout_of_integers() -> None:
    F.dropout(torch.tensor([1, 2]))


@fault("result-cast")
def complex_in_place() -> None:
    ones(2).mul_(torch.tensor(1j))


@fault("not-implemented")
def swapped_cross_entropy() -> None:
    F.cross_entropy(torch.tensor([0, 1]), ones(2))


@fault("not-implemented")
def loss_of_integers() -> None:
    F.mse_loss(torch.tensor([1]), torch.tensor([2]))


@fault("not-implemented")
def random_integers() -> None:
    torch.rand(2, dtype=torch.int64)


@fault("not-implemented")
def normal_integers() -> None:
    torch.randn(2, dtype=torch.int64)


@fault("not-implemented")
def bits_of_fp32() -> None:
    torch.bitwise_and(ones(2), ones(2))


@fault("not-implemented")
def softmax_of_complex() -> None:
    F.softmax(torch.ones(2, dtype=torch.complex64), 0)


@fault("not-implemented")
def sum_of_fp8() -> None:
    ones(2).to(torch.float8_e4m3fn) + ones(2).to(torch.float8_e4m3fn)


@fault("fp8-promotion")
def fp8_and_fp16() -> None:
    ones(2).to(torch.float8_e4m3fn) + ones(2, dtype=HALF)


@fault("whole-numbers")
def mean_of_integers() -> None:
    torch.tensor([1, 2]).mean()


@fault("whole-numbers")
def gradient_of_integers() -> None:
    torch.tensor([1, 2], requires_grad=True)


@fault("matmul-dtypes")
def complex_product() -> None:
    torch.ones(2, 2, dtype=torch.complex64) @ ones(2, 2)


@fault("matmul-dtypes")
def complex_layer() -> None:
    nn.Linear(2, 2)(torch.ones(2, 2, dtype=torch.complex64))


@fault("complex-dtypes")
def complex_of_two() -> None:
    torch.complex(ones(2), ones(2, dtype=HALF))


@fault("devices")
def forgotten_device() -> None:
    nn.Linear(3, 3)(torch.ones(2, 3, device="meta"))


@fault("result-cast")
def divided_in_place() -> None:
    x = torch.ones(2, dtype=torch.int64)
    x /= 2


@fault("not-implemented")
def cholesky() -> None:
    torch.linalg.cholesky(torch.eye(2, dtype=HALF))


@fault("not-implemented")
def inverse() -> None:
    torch.linalg.inv(torch.eye(2, dtype=HALF))


@fault("not-implemented")
def fourier() -> None:
    torch.fft.fft(ones(4, dtype=BF16))


@fault("not-implemented")
def as_complex() -> None:
    torch.view_as_complex(ones(4, 2, dtype=BF16))


@fault("quantile-dtype")
def quantile() -> None:
    ones(4, dtype=HALF).quantile(0.5)


@fault("quantile-dtype")
def quantile_of_another() -> None:
    torch.quantile(ones(4), torch.tensor([0.5], dtype=FP64))


@fault("bf16-numpy")
def to_numpy() -> None:
    ones(3, dtype=BF16).numpy()


@fault("unscale-fp16")
def halved_model() -> None:
    model, optimizer, scaler = layer()
    model.half()
    scaler.scale(model(ones(2, 3, dtype=HALF)).sum().float()).backward()
    scaler.step(optimizer)


@fault("scale-never-used")
def step_without_scale() -> None:
    model, optimizer, scaler = layer()
    model(ones(2, 3)).sum().backward()
    scaler.step(optimizer)


@fault("scale-never-used")
def unscale_without_scale() -> None:
    model, optimizer, scaler = layer()
    model(ones(2, 3)).sum().backward()
    scaler.unscale_(optimizer)


@fault("scale-never-used")
def update_without_scale() -> None:
    layer()[2].update()


@fault("update-without-step")
def plain_step() -> None:
    optimizer, scaler = after_backward()
    optimizer.step()
    scaler.update()


@fault("no-gradients")
def no_backward() -> None:
    model, optimizer, scaler = layer()
    scaler.scale(model(ones(2, 3)).sum())
    scaler.step(optimizer)


@fault("step-twice")
def step_twice() -> None:
    optimizer, scaler = after_backward()
    scaler.step(optimizer)
    scaler.step(optimizer)


@fault("unscale-twice")
def unscale_twice() -> None:
    optimizer, scaler = after_backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


@fault("unscale-after-step")
def unscale_after_step() -> None:
    optimizer, scaler = after_backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)


@fault("pickled-in-iteration")
def copied_in_iteration() -> None:
    optimizer, scaler = after_backward()
    scaler.unscale_(optimizer)
    copy.deepcopy(scaler)


@fault("empty-scaler-state")
def state_of_a_disabled_scaler() -> None:
    layer()[2].load_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())


@fault("closure")
def closure() -> None:
    optimizer, scaler = after_backward()
    scaler.step(optimizer, closure=lambda: 0)


@fault("closure")
def no_closure() -> None:
    model, _, scaler = layer()
    scaler.scale(model(ones(2, 3)).sum()).backward()
    scaler.step(torch.optim.LBFGS(model.parameters()))


@fault("scaler-arguments")
def step_of_nothing() -> None:
    layer()[2].step()  # type: ignore[call-arg]


@fault("scaler-arguments")
def called_scaler() -> None:
    layer()[2](ones(1))  # type: ignore[operator]


@fault("scaler-arguments")
def backward_of_the_scaler() -> None:
    layer()[2].backward(ones(1))  # type: ignore[attr-defined]


@fault("scaler-arguments")
def unscaled_parameters() -> None:
    optimizer, scaler = after_backward()
    scaler.unscale_(optimizer.param_groups[0]["params"])


@fault("scaler-factors")
def growth_of_one() -> None:
    torch.amp.GradScaler("cpu", growth_factor=1.0)


@fault("scaler-factors")
def backoff_of_one() -> None:
    torch.amp.GradScaler("cpu", backoff_factor=1.0)


@fault("backward-of-a-number")
def backward_of_an_item() -> None:
    model, _, scaler = layer()
    scaler.scale(model(ones(2, 3)).sum()).item().backward()  # type: ignore[attr-defined]


@fault("autocast-not-called")
def region_not_called() -> None:
    with torch.autocast:  # type: ignore[attr-defined]
        pass


@fault("unknown-keyword")
def misspelled_dtype() -> None:
    torch.autocast("cpu", dtyp=HALF)  # type: ignore[call-arg]


@fault("unknown-keyword")
def misspelled_scale() -> None:
    torch.amp.GradScaler("cpu", init=2.0)  # type: ignore[call-arg]


@fault("unknown-keyword")
def device_type_of_an_old_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.amp.autocast(device_type="cuda")  # type: ignore[call-arg]


@fault("dtype-as-text")
def half_as_text() -> None:
    ones(2).to("half")


@fault("dtype-as-text")
def float16_as_text() -> None:
    nn.Linear(2, 2).to("float16")


@fault("dtype-as-text")
def short_name() -> None:
    torch.fp16  # noqa: B018


@fault("scale-no-tensor")
def scaled_number() -> None:
    layer()[2].scale(1.0)


@fault("scheduler-first")
def scheduler_after_a_skipped_step() -> None:
    model, optimizer, scaler = layer()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler.scale(model(ones(2, 3) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


@fault("bce-refused")
def bce() -> None:
    # The real kernel of CUDA's autocast runs without a GPU, on a fake tensor.
    probability = torch.empty(3, device="meta")
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode() as mode:
            fake = FakeTensor(mode, probability, torch.device("cuda"))
            F.binary_cross_entropy(fake, fake)
    finally:
        torch.set_autocast_enabled("cuda", False)


@fault("two-halves")
def fp16_in_a_bf16_region() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        torch.cat([ones(3, dtype=HALF), ones(3)])


@fault("two-halves")
def bf16_in_an_fp16_region() -> None:
    with torch.autocast("cpu", torch.float16):
        torch.cat([ones(3, dtype=BF16), ones(3)])


@fault("custom-function-device")
def custom_fwd_without_device() -> None:
    torch.amp.custom_fwd(lambda ctx, x: x)


@fault("custom-function-device")
def custom_bwd_without_device() -> None:
    torch.amp.custom_bwd(lambda ctx, x: x)


@fault("device-type")
def custom_fwd_with_a_device() -> None:
    torch.amp.custom_fwd(lambda ctx, x: x, device_type=torch.device("cpu"))


@fault("device-type")
def dtype_first() -> None:
    torch.autocast(torch.float16)


@fault("device-type")
def no_device_type() -> None:
    torch.autocast()


@fault("device-type")
def no_such_device_type() -> None:
    torch.autocast("gpu")


@fault("device-type")
def device_type_without_a_dtype() -> None:
    torch.autocast("meta")


@fault("autocast-dtype")
def fp64_region() -> None:
    torch.autocast("cpu", torch.float64)


@fault("autocast-dtype")
def fp32_region() -> None:
    torch.autocast("cpu", torch.float32)


@fault("old-name")
def old_autocast() -> None:
    torch.cuda.amp.autocast()


@fault("old-name")
def old_scaler() -> None:
    torch.cpu.amp.GradScaler()


@fault("old-name")
def old_custom_fwd() -> None:
    torch.cuda.amp.custom_fwd(lambda ctx, x: x)


@fault("old-name")
def old_question() -> None:
    torch.is_autocast_cpu_enabled()


@fault("old-name")
def old_dtype() -> None:
    torch.set_autocast_cpu_dtype(torch.bfloat16)


if (
    torch.cuda.is_available() or not torch.backends.cuda.is_built()
):  # else an optimizer fails, looking for a GPU

    @fault("optimizer-state-dtype")
    def model_cast_after_a_step() -> None:
        parameter = nn.Parameter(ones(2))
        optimizer = torch.optim.Adam([parameter])
        parameter.grad = ones(2)
        optimizer.step()
        parameter.data = parameter.data.half()
        parameter.grad = ones(2, dtype=HALF)
        optimizer.step()


if not torch.cuda.is_available():

    @fault("autocast-without-cuda")
    def cuda_region() -> None:
        torch.autocast("cuda")

    @fault("scaler-without-cuda")
    def cuda_scaler() -> None:
        torch.amp.GradScaler()


@fault("checkpoint-dtypes")
def autocast_changed_before_recomputing() -> None:
    model, dtypes = nn.Linear(3, 3), iter((torch.bfloat16, torch.float16))

    def block(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", next(dtypes)):
            return model(x).sin()

    checkpoint(block, ones(2, 3).requires_grad_(), use_reentrant=False).sum().backward()


@fault("nan-in-backward")
def anomaly() -> None:
    x = torch.zeros(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            (x.sqrt() * 0).sum().backward()


@fault("clip-nonfinite")
def clipping() -> None:
    parameter = nn.Parameter(ones(2))
    parameter.grad = ones(2) * float("inf")
    nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


@fault("probabilities-nan")
def sampling() -> None:
    torch.multinomial(torch.softmax(ones(3, dtype=HALF) * float("-inf"), 0), 1)


@fault("not-precision")
def shapes() -> None:
    ones(2, 3) @ ones(2, 3)


@fault("not-precision")
def word_beyond_the_table() -> None:
    F.embedding(torch.tensor([7]), ones(3, 3))


@fault("not-precision")
def no_input() -> None:
    nn.Linear(2, 2)()


@fault("not-precision")
def backward_twice() -> None:
    loss = ones(2).requires_grad_().square().sum()
    loss.backward()
    loss.backward()


@fault("not-precision")
def another_models_state() -> None:
    nn.Linear(2, 2).load_state_dict(nn.Linear(2, 3, bias=False).state_dict())


@fault("not-precision")
def no_such_name() -> None:
    nowhere  # type: ignore[name-defined]  # noqa: B018, F821
