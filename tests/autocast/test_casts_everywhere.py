"""CUDA's policy on CPU tensors under the rest of PyTorch: cached weights, gradients, recurrent nets, compilers."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from amp_lab.autocast.emulate import CudaAutocast, cuda_autocast, tensor_cores

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def emulated():
    with cuda_autocast(), tensor_cores(always=True):
        yield
        assert torch._C._len_torch_dispatch_stack() == 0
        assert not torch.is_autocast_enabled("cpu")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight(*shape):
    return nn.Parameter(draw(*shape, seed=1))


class Copies(TorchDispatchMode):
    """Counts the copies to another dtype that are made of FP32 tensors of one shape."""

    def __init__(self, *shape):
        super().__init__()
        self.shape, self.count = shape, 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if (
            function is torch.ops.aten._to_copy.default
            and args[0].shape == self.shape
            and args[0].dtype == FP32
        ):
            self.count += 1
        return function(*args, **(kwargs or {}))


def plain(use):
    w = weight(4, 4)
    return [use(w), use(w)]


def in_two_regions(use):
    w = weight(4, 4)
    with torch.autocast("cpu", FP16):
        use(w)
    with torch.autocast("cpu", FP16):
        return [use(w)]


def after_two_regions(use):
    w = weight(4, 4)
    with torch.autocast("cpu", enabled=False), torch.autocast("cpu", FP16):
        use(w)
    return [use(w)]  # the outermost region is not over yet


def cleared(use):
    w = weight(4, 4)
    use(w)
    torch.clear_autocast_cache()
    return [use(w)]


def changed(use):
    w = weight(4, 4)
    use(w)
    with torch.no_grad():
        w.zero_()
    return [use(w)]  # the old copy


def under_no_grad(use):
    w = weight(4, 4)
    with torch.no_grad():
        use(w)
    return [use(w)]


def under_inference_mode(use):
    w = weight(4, 4)
    with torch.inference_mode():
        use(w)
    return [use(w)]


def without_cache(use):
    w = weight(4, 4)
    with torch.autocast("cpu", FP16, cache_enabled=False):
        return [use(w), use(w)]


def of_a_view(use):
    w = weight(4, 4)
    return [use(w[:]), use(w.t())]


def of_a_leaf_view(use):
    w = weight(4, 4).detach()[:].requires_grad_()
    return [use(w), use(w)]


def of_a_result(use):
    w = weight(4, 4) * 2
    return [use(w), use(w)]


def of_no_weight(use):
    w = weight(4, 4).detach()
    return [use(w), use(w)]


def in_a_bf16_region_inside(use):
    w = weight(4, 4)
    with torch.autocast("cpu", BF16):
        return [use(w), use(w)]


STORIES = [
    plain,
    in_two_regions,
    after_two_regions,
    cleared,
    changed,
    under_no_grad,
    under_inference_mode,
    without_cache,
    of_a_view,
    of_a_leaf_view,
    of_a_result,
    of_no_weight,
    in_a_bf16_region_inside,
]
VECTOR = draw(4)
# The same product by PyTorch's own C++ kernel and by kernels of the emulation.
OWN = lambda w: torch.mm(w, VECTOR[:, None])[:, 0]  # noqa: E731
USES = {
    "mv": lambda w: torch.mv(w, VECTOR),
    "einsum": lambda w: torch.einsum("ij,j->i", w, VECTOR),
    "multi_dot": lambda w: torch.linalg.multi_dot([w, VECTOR[:, None]])[:, 0],
}


def told(story, use):
    """How many copies were made, and what came out: values, dtype, whether it requires grad, the weight's gradient."""
    with torch.autocast("cpu", FP16), Copies(4, 4) as copies:
        results = story(use)
    return copies.count, [(each.tolist(), each.dtype, each.requires_grad) for each in results]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_weights_are_cached_as_pytorchs_own_kernels_do(story, use):
    assert told(story, use) == told(story, OWN)


def test_these_stories_tell_caches_apart():
    counts = {story.__name__: told(story, OWN)[0] for story in STORIES}
    assert (counts["plain"], counts["cleared"], counts["without_cache"], counts["of_no_weight"]) == (
        1,
        2,
        2,
        2,
    )


def test_one_copy_serves_pytorchs_kernels_and_those_of_the_emulation():
    w = weight(4, 4)
    with torch.autocast("cpu", FP16), Copies(4, 4) as copies:
        results = [F.linear(VECTOR, w), torch.mv(w, VECTOR), torch.einsum("ij,j->i", w, VECTOR), w @ VECTOR]
        assert copies.count == 1
    # So their gradients meet in 16 bits: 40,000 + 40,000 is too much there.
    torch.autograd.backward(results[:2], [torch.full((4,), 4e4, dtype=FP16)] * 2)
    assert w.grad.dtype == FP32
    assert (w.grad.isinf() == (80_000 * VECTOR.abs() > 65_520)).all()
    assert w.grad.isinf().any()


def test_biases_and_filters_are_cached_too():
    bias, filters = weight(3), weight(3, 2, 3, 3)
    images = draw(1, 2, 5, 5)
    for shape in (bias.shape, filters.shape):
        with torch.autocast("cpu", FP16), Copies(*shape) as copies:
            for _ in range(3):
                torch.convolution(images, filters, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        assert copies.count == 1


def test_a_weight_that_the_cache_holds_in_another_dtype_is_as_wrong_as_in_pytorch():
    # PyTorch's cache does not ask which dtype it holds.
    w = weight(4, 4)
    for use in (OWN, USES["mv"]):
        with torch.autocast("cpu", FP16):
            with torch.autocast("cpu", BF16):
                use(w)
            with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
                use(w)


def test_fp64_integers_and_other_devices_are_left_alone():
    with torch.autocast("cpu", FP16):
        assert torch.mv(draw(4, 4).double(), VECTOR.double()).dtype == FP64
        assert (
            torch.mv(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)).dtype
            == torch.int64
        )
        assert torch.mv(draw(4, 4).bfloat16(), VECTOR.bfloat16()).dtype == FP16
        assert draw(4).double().exp().dtype == FP64
        # A call may mix devices: numbers on the CPU go with tensors elsewhere. Only the number goes to FP32 here.
        elsewhere = torch.empty(3, dtype=FP16, device="meta")
        assert torch.pow(elsewhere, torch.tensor(2.0, dtype=FP16)).dtype == FP16


def test_regions_nest():
    with torch.autocast("cpu", FP16):
        assert torch.mv(draw(4, 4), VECTOR).dtype == FP16
        with torch.autocast("cpu", BF16):
            assert torch.mv(draw(4, 4), VECTOR).dtype == BF16
        with torch.autocast("cpu", enabled=False):
            assert torch.mv(draw(4, 4), VECTOR).dtype == FP32
            assert VECTOR.half().exp().dtype == FP16
        assert VECTOR.half().exp().dtype == FP32
    with torch.autocast("cpu"):
        assert torch.mv(draw(4, 4), VECTOR).dtype == BF16  # the default for "cpu", not changed


# On CUDA, cuDNN computes whole recurrent networks in FP16.
RNNS = {
    "LSTM": lambda **more: nn.LSTM(3, 4, **more),
    "GRU": lambda **more: nn.GRU(3, 4, **more),
    "RNN": lambda **more: nn.RNN(3, 4, **more),
    "RNN with ReLU": lambda **more: nn.RNN(3, 4, nonlinearity="relu", **more),
}
FORMS = {
    "plain": {},
    "two layers both ways": {"num_layers": 2, "bidirectional": True},
    "batch first, no bias": {"batch_first": True, "bias": False},
}
SEQUENCES = draw(5, 2, 3)


def parts(result):
    """The tensors that a recurrent network returns, one after another; of a packed sequence, its data."""
    output, state = result
    output = output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output
    return [output, *(state if isinstance(state, tuple) else [state])]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", RNNS.values(), ids=RNNS)
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_whole_recurrent_networks_run_in_fp16(make, form, packed):
    network, half = make(**form), None
    half = copy.deepcopy(network).half()
    inputs = nn.utils.rnn.pack_sequence([draw(4, 3), draw(2, 3, seed=3)]) if packed else SEQUENCES
    with torch.autocast("cpu", FP16):
        results = parts(network(inputs))
    expected = parts(half(inputs.half() if not packed else inputs.to(FP16)))
    for result, by_hand in zip(results, expected, strict=True):
        assert result.dtype == FP16
        assert torch.equal(result, by_hand)
    results[0].float().square().sum().backward()
    expected[0].float().square().sum().backward()
    for ours, by_hand in zip(network.parameters(), half.parameters(), strict=True):
        assert ours.grad.dtype == FP32
        assert torch.equal(ours.grad, by_hand.grad.float())


def test_recurrent_networks_in_other_dtypes():
    network, states = nn.LSTM(3, 4), (draw(1, 2, 4), draw(1, 2, 4))
    with torch.autocast("cpu", BF16):
        assert network(SEQUENCES, states)[0].dtype == FP16  # cuDNN's rule says FP16, not the region's dtype
        assert network(SEQUENCES.bfloat16())[0].dtype == BF16  # which cuDNN does not take
        with torch.backends.cudnn.flags(enabled=False):
            assert network(SEQUENCES)[0].dtype == BF16
        assert copy.deepcopy(network).double()(SEQUENCES.double())[0].dtype == FP64
    assert network(SEQUENCES)[0].dtype == FP32


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", "AutocastCUDA"),
    reason="only a CUDA build has cuDNN's autocast kernel; not compared: the dtype it casts a recurrent network to",
)
@pytest.mark.parametrize("region", [FP16, BF16])
def test_cudnns_own_kernel_casts_to_fp16_in_every_region(region):
    shapes = {"input": (5, 2, 3), "w_ih": (16, 3), "w_hh": (16, 4), "b_ih": (16,), "b_hh": (16,)}
    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), Copies(5, 2, 3) as copies:
        # With weights in FP16: casting them would need a GPU.
        given = {name: torch.empty(shape, device="cuda", dtype=FP16) for name, shape in shapes.items()}
        inputs, *weights = given.values()
        state = torch.empty(1, 2, 4, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", region)
        try:
            output = torch.ops.aten._cudnn_rnn(
                inputs.float(), weights, 4, None, state, state, 2, 4, 0, 1, False, 0.0, True, False, [], None
            )[0]
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
    assert copies.count == 1
    assert output.dtype == FP16


def test_weights_of_recurrent_networks_are_not_in_the_cache():
    network = nn.GRU(3, 4)
    with torch.autocast("cpu", FP16), Copies(12, 3) as copies:
        network(SEQUENCES)
        network(SEQUENCES)
    assert copies.count == 2


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind):
    cell = kind(3, 4)
    with torch.autocast("cpu", FP16):
        state = cell(SEQUENCES[0])
    for each in state if isinstance(state, tuple) else [state]:
        assert each.dtype == FP16


class Block(nn.Module):
    """Some of everything: products, norms, softmax, losses."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 8), nn.LayerNorm(8), weight(8, 4)

    def forward(self, inputs):
        hidden = self.norm(F.gelu(self.inner(inputs)))
        return torch.softmax(torch.einsum("bi,ij->bj", hidden, self.outer), -1)


def by_hand(block, inputs):
    """What the block computes by CUDA's policy, each cast written down, with no autocast."""
    half = F.linear(inputs.half(), block.inner.weight.half(), block.inner.bias.half())
    hidden = F.layer_norm(F.gelu(half).float(), (8,), block.norm.weight, block.norm.bias)
    return torch.softmax((hidden.half() @ block.outer.half()).float(), -1)


def gradients(block, output):
    block.zero_grad()
    output.square().sum().backward()
    return [parameter.grad.clone() for parameter in block.parameters()]


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_forward_and_backward_are_what_casts_by_hand_give(inside):
    block, inputs = Block(), draw(6, 4)
    expected = by_hand(block, inputs)
    expected_gradients = gradients(block, expected)
    with torch.autocast("cpu", FP16):
        output = block(inputs)
        if inside:
            found = gradients(block, output)
    if not inside:
        found = gradients(block, output)
    assert torch.equal(output, expected)
    for ours, theirs in zip(found, expected_gradients, strict=True):
        assert ours.dtype == FP32
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant):
    block, inputs = Block(), draw(6, 4).requires_grad_()
    with torch.autocast("cpu", FP16):
        expected = gradients(block, block(inputs))
        output = checkpoint(block, inputs, use_reentrant=use_reentrant)
    assert output.dtype == FP32
    for ours, theirs in zip(gradients(block, output), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_custom_autograd_functions():
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, vector, matrix):
            ctx.save_for_backward(vector, matrix)
            seen.append(torch.mv(matrix, vector).dtype)
            return torch.mv(matrix, vector).exp()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            vector, matrix = ctx.saved_tensors
            seen.append(torch.mv(matrix.t(), gradient).dtype)
            return torch.mv(matrix.t(), gradient), torch.outer(gradient, vector)

    vector = draw(4).requires_grad_()
    with torch.autocast("cpu", FP16):
        output = Product.apply(vector, weight(4, 4))
    output.sum().backward()
    assert seen == [FP16, FP16]
    assert (output.dtype, vector.grad.dtype) == (FP32, FP32)


def test_fake_tensors():
    with FakeTensorMode(), torch.autocast("cpu", FP16):
        block, network = Block(), nn.LSTM(3, 4)
        output, (hidden, cell) = network(torch.empty(5, 2, 3))
        probabilities = block(torch.empty(6, 4))
        with Copies(4, 4) as copies:
            w = nn.Parameter(torch.empty(4, 4))
            results = [torch.mv(w, torch.empty(4)), torch.mm(w, torch.empty(4, 2))]
    assert [each.dtype for each in (output, hidden, cell, *results)] == [FP16] * 5
    assert probabilities.dtype == FP32
    assert copies.count == 1
    gradients(block, probabilities)
    assert {parameter.grad.dtype for parameter in block.parameters()} == {FP32}


def test_transforms_of_torch_func():
    w, vectors = draw(4, 4), draw(3, 4)

    def loss(w, vector):
        return F.mse_loss(torch.mv(w, vector), vector)

    def by_hand(w, vector):
        return F.mse_loss(torch.mv(w.half(), vector.half()).float(), vector)

    expected = torch.vmap(torch.func.grad(by_hand), (None, 0))(w, vectors)
    with torch.autocast("cpu", FP16):
        assert torch.vmap(torch.mv, (None, 0))(weight(4, 4), vectors).dtype == FP16
        found = torch.vmap(torch.func.grad(loss), (None, 0))(w, vectors)
        assert torch.func.functional_call(Block(), {"outer": draw(8, 4)}, (draw(6, 4),)).dtype == FP32
    assert found.dtype == FP32
    torch.testing.assert_close(found, expected)


def test_compiled_models_keep_what_they_were_compiled_with():
    block, inputs = Block(), draw(6, 4)
    torch.compiler.reset()
    compiled = torch.compile(block, backend="aot_eager")
    with torch.autocast("cpu", FP16):
        output = compiled(inputs)
        assert torch.equal(output, block(inputs))
        with _Off():
            assert block(inputs).dtype == FP16
            assert compiled(inputs).dtype == FP32
            torch.compiler.reset()
            assert compiled(inputs).dtype == FP16
    torch.compiler.reset()


class _Off:
    """CUDA's policy off for a while, inside the block that this file keeps on."""

    def __enter__(self):
        self.switch = CudaAutocast.switch
        self.blocks = list(self.switch._blocks)
        for block in self.blocks:
            self.switch.leave(block)

    def __exit__(self, *error):
        for block in self.blocks:
            self.switch.enter(block)


def test_a_block_inside_a_compiled_function_works_uncompiled():
    def function(tensor):
        with cuda_autocast(), torch.autocast("cpu", FP16):
            return tensor.half().exp()

    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.compile(function, backend="eager")(VECTOR).dtype == FP32
    torch.compiler.reset()


def test_what_a_cpu_cannot_compute_in_fp16_raises_pytorchs_error():
    with torch.autocast("cpu", FP16):
        with pytest.raises(RuntimeError, match=r"Half"):
            torch.fft.rfft(VECTOR.half())
        with pytest.raises(RuntimeError, match=r"Half"):
            F.avg_pool3d(draw(1, 1, 4, 4, 4).half(), 2)
