"""The memory account: against PyTorch's profiler, and in the cases in which an account is easily wrong."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_lab.train.measure import memory_account, plot_accounts
from amp_lab.train.measuring.ledger import Ledger
from amp_lab.train.measuring.module_names import ModuleNames
from benchmarks import memory

FP32, HALF = 4, 2


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def account(model, x, *, loss=None, **settings):
    return memory_account(
        model, loss or (lambda output, _: output.float().square().mean()), (x, None), **settings
    )


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=["FP32", "FP16"])
@pytest.mark.parametrize("case", ["transformer", "convolutions"])
def test_it_agrees_with_the_profiler_to_the_byte(case, dtype):
    made = memory.transformer(64, 1) if case == "transformer" else memory.convolutions(8, 8)
    assert memory.accounted(made, "cpu", dtype) == memory.counted(made, "cpu", dtype)


def test_a_weight_is_no_activation_and_neither_is_the_input():
    one = account(nn.Linear(32, 8, bias=False), torch.randn(16, 32))
    assert (one.weights, one.inputs) == (32 * 8 * FP32, 16 * 32 * FP32)
    # The output, 16 x 8, is saved by square, and the loss keeps nothing.
    assert one.activations == 16 * 8 * FP32
    assert one.gradients == one.weights


def test_a_view_that_is_saved_twice_counts_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x):
            y = x * self.weight
            return torch.dot(y, y.view(8, 8).t().flatten().sin()) + torch.dot(
                y.view(4, 16)[0], y.view(4, 16)[1]
            )

    one = account(Twice(), torch.randn(64), loss=lambda output, _: output)
    # y, which three products save, as a whole and in parts; what flatten copied, which sin saves; the sine.
    assert one.activations == 3 * 64 * FP32


def test_a_small_part_that_is_saved_keeps_the_whole_storage():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000))

        def forward(self, x):
            return (x * self.weight)[:10].exp()

    one = account(Part(), torch.randn(1000), loss=lambda output, _: output.sum())
    assert one.activations == 10 * FP32, "exp saves its result only"
    squared = account(Part(), torch.randn(1000), loss=lambda output, _: output.square().sum())
    assert squared.activations == 10 * FP32


def test_in_place_operators_make_no_storage():
    def net(inplace):
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace), nn.Linear(32, 4))

    x = torch.randn(8, 16)
    kept, apart = account(net(True), x), account(net(False), x)
    assert kept.activations == apart.activations == (8 * 32 + 8 * 4) * FP32
    assert apart.peak >= kept.peak


@pytest.mark.parametrize(("dtype", "size"), [(None, FP32), (torch.float16, HALF), (torch.bfloat16, HALF)])
def test_casts_of_weights_are_no_activations(dtype, size):
    net = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False))
    one = account(net, torch.randn(4, 16), dtype=dtype, device_type="cuda")
    second, first = 32 * 8 * HALF, 16 * 32 * HALF
    # The first weight's copy is for nobody's gradient: only autocast's cache keeps it.
    assert (one.cached_casts, one.casts_freed) == ((0, 0) if dtype is None else (second, first))
    between, output = 4 * 32, 4 * 8
    copied = 0 if dtype is None else 4 * 16 * HALF  # the input in 16 bits
    assert one.activations == between * size + output * FP32 + copied
    assert one.weights == one.gradients == (16 * 32 + 32 * 8) * FP32


def test_a_weight_that_is_used_twice_has_one_cast_and_a_tied_one_is_one_weight():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    one = account(Tied(), torch.randn(4, 16), dtype=torch.float16, device_type="cuda")
    assert one.weights == one.gradients == 16 * 16 * FP32
    assert (one.cached_casts, one.casts_freed) == (16 * 16 * HALF, 0)


def test_a_frozen_weight_has_neither_gradient_nor_state():
    net = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 4, bias=False))
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    one = account(net, torch.randn(8, 16), optimizer=optimizer)
    assert one.weights == (16 * 16 + 16 * 4) * FP32
    assert one.gradients == one.optimizer_state == 16 * 4 * FP32


def test_averages_of_batchnorm_are_buffers_and_stay_as_they_are():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
    before = copy.deepcopy(net.state_dict())
    one = account(net, torch.randn(32, 8))
    assert one.buffers == 2 * 16 * FP32 + 8  # the number of batches is an int64
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    net.eval()
    assert account(net, torch.randn(32, 8)).buffers == one.buffers


def test_softmax_and_the_loss_keep_fp32_under_cudas_autocast():
    net = nn.Sequential(nn.Linear(16, 64, bias=False), nn.Softmax(-1))
    one = account(
        net,
        torch.randn(8, 16),
        dtype=torch.float16,
        device_type="cuda",
        loss=lambda output, _: output.square().mean(),
    )
    of_softmax = [row for row in one.activation_rows if row.operator == "_softmax"]
    assert [(row.dtype, row.bytes, row.module) for row in of_softmax] == [(torch.float32, 8 * 64 * FP32, "1")]
    assert set(one.activations_by_dtype) == {torch.float32, torch.float16}


def test_dropout_keeps_its_mask_and_random_numbers_are_put_back():
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    plain, dropping = account(net[:1], torch.ones(4, 8)), account(net, torch.ones(4, 8))
    assert torch.equal(torch.rand(4), wanted)
    assert dropping.activations > plain.activations
    assert account(net.eval(), torch.ones(4, 8)).activations == plain.activations


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_block_that_is_recomputed_keeps_its_input_only(reentrant):
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
            self.block = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)])
            self.recompute = True

        def forward(self, x):
            x = self.first(x)
            x = checkpoint(self.block, x, use_reentrant=reentrant) if self.recompute else self.block(x)
            return self.last(x)

    net = Recomputed()
    less = account(net, torch.randn(32, 8))
    net.recompute = False
    more = account(net, torch.randn(32, 8))
    assert (
        more.activations - less.activations == 5 * 32 * 16 * FP32
    )  # six results of tanh, less the block's input
    assert more.gradients == less.gradients


def test_attention_in_one_kernel_keeps_no_scores():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48, bias=False)

        def forward(self, x):
            return F.scaled_dot_product_attention(
                *self.qkv(x).unflatten(-1, (1, 48)).transpose(1, 2).chunk(3, -1)
            )

    x = torch.randn(2, 256, 16)
    one = account(Attention(), x, dtype=torch.bfloat16)
    scores = 2 * 256 * 256
    assert one.activations < scores * HALF
    # q, k and v are one storage; the result; the logarithm of the sum, in FP32; the copy of x; the loss's FP32 copy.
    expected = (3 + 1) * x.numel() * HALF + 2 * 256 * FP32 + x.numel() * HALF + x.numel() * FP32
    assert one.activations == expected


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 0),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 1),
        (lambda parameters: torch.optim.Adam(parameters), 2),
        (lambda parameters: torch.optim.Adam(parameters, foreach=True), 2),
        (lambda parameters: torch.optim.AdamW(parameters, fused=True), 2),
        (lambda parameters: torch.optim.AdamW(parameters, amsgrad=True), 3),
        (lambda parameters: torch.optim.Adagrad(parameters), 1),
        (lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5), 2),
    ],
)
def test_the_state_before_the_first_step_is_what_it_is_after_it(make, numbers):
    net, x = nn.Linear(100, 10), torch.randn(4, 100)
    optimizer = make(net.parameters())
    before = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = account(net, x, optimizer=optimizer)
    assert torch.equal(net.weight, before[0]["weight"])
    assert str(optimizer.state_dict()) == str(before[1])
    assert net.weight.grad is None
    net(x).square().mean().backward()
    optimizer.step()
    assert account(net, x, optimizer=optimizer).optimizer_state == expected.optimizer_state
    counters = sum(
        each.nbytes for state in optimizer.state.values() for name, each in state.items() if name == "step"
    )
    assert expected.optimizer_state == numbers * expected.weights + counters


def test_gradients_and_hooks_are_left_as_they_were():
    net, x = nn.Linear(8, 2), torch.randn(4, 8)
    net.weight.grad = torch.full_like(net.weight, 7.0)
    kept = net.weight.grad
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    one = account(net, x, optimizer=optimizer)
    assert net.weight.grad is kept
    assert torch.all(kept == 7.0)
    assert net.bias.grad is None
    assert one.gradients == one.weights
    assert not calls


def test_what_is_kept_by_hand_is_seen_too():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.result = x.exp()  # past save_for_backward, and so past hooks
            return context.result * 1.0

        @staticmethod
        def backward(context, gradient):
            return gradient * context.result

    class Net(nn.Linear):
        def forward(self, x):
            return Exp.apply(super().forward(x))

    one = account(Net(8, 100), torch.randn(4, 8), loss=lambda output, _: output.sum())
    assert one.activations == 4 * 100 * FP32
    assert one.outputs == 4 * 100 * FP32 + FP32  # the result that sum does not need, and the loss


def test_the_ledger_forgets_a_storage_that_dies():
    """Else the next one at its address would pass for saved."""
    with Ledger("cpu", (), (), ModuleNames({})) as ledger:
        kept, gone = torch.ones(8).exp(), torch.ones(8).exp()
        ledger.save(kept), ledger.save(gone)
        assert len(ledger.saved) == 2
        del gone
    assert ledger.saved == {kept.untyped_storage().data_ptr(): 32}


def test_moments_and_sum():
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)), torch.randn(128, 64)
    one = account(net, x, optimizer=torch.optim.Adam(net.parameters()))
    there = one.weights + one.optimizer_state + one.inputs + one.buffers
    assert one.after_forward == there + one.activations + one.cached_casts + one.outputs
    assert one.after_backward == there + one.gradients + 128 * FP32 + FP32  # output and loss
    assert max(one.after_forward, one.after_backward) <= one.peak
    assert one.total == sum(one.categories.values())
    assert sum(row.bytes for row in one.activation_rows) == one.activations


def test_it_can_be_read():
    net = nn.Linear(1024, 256, bias=False)
    one = account(net, torch.randn(2, 1024), dtype=torch.float16, device_type="cuda")
    text = str(one)
    assert "FP16 autocast of CUDA, emulated on the CPU" in text
    assert "weights                  1 MiB" in text
    assert "512 KiB that end with the region" in text
    assert "<table>" in one._repr_html_()
    figure = plot_accounts({"FP32": account(net, torch.randn(2, 1024)), "FP16": one})
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == ["FP32", "FP16"]


def test_batches_of_other_kinds():
    class Named(nn.Linear):
        def forward(self, x):
            return {"loss": super().forward(x).square().mean()}

    one = memory_account(Named(8, 2), None, {"x": torch.randn(4, 8)})
    assert one.inputs == 4 * 8 * FP32
    assert (
        memory_account(nn.Linear(8, 2), lambda y: y.square().mean(), torch.randn(4, 8)).inputs == 4 * 8 * FP32
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": 3}, "one of torch.optim"),
        ({"dtype": torch.float64}, "autocast's are"),
        ({"loss_fn": lambda output, _: output}, "must be one number"),
        ({"loss_fn": lambda output, _: 1.0}, "must be a tensor"),
        ({"loss_fn": lambda output, _: output.detach().sum()}, "nothing is trained"),
        ({"batch": 3}, "batch is a tuple"),
        ({"device_type": "tpu"}, "device_type"),
        ({"model": nn.Linear}, "the class Linear itself"),
    ],
)
def test_bad_input(change, message):
    good = {
        "model": nn.Linear(8, 2),
        "loss_fn": lambda output, _: output.sum(),
        "batch": (torch.ones(4, 8), None),
    }
    with pytest.raises((TypeError, ValueError), match=message):
        memory_account(**good | change)


def test_an_optimizer_that_needs_a_closure_is_named():
    net = nn.Linear(8, 2)
    with pytest.raises(TypeError, match="LBFGS cannot step without a closure"):
        account(net, torch.ones(4, 8), optimizer=torch.optim.LBFGS(net.parameters()))
