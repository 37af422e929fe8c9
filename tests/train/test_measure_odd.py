"""Memory and operations of models that are not like those of a textbook, beside an independent count."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks

from amp_lab.train.measure import Counts, count_flops, memory_account
from amp_lab.train.measuring.counts import Row
from benchmarks import memory

FP32 = 4


@dataclass
class Result:
    """What a model returns that PyTorch's tree_leaves does not look into."""

    y: torch.Tensor


class Two(nn.Module):
    """Two layers, 64 numbers to 64."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 128), nn.Linear(128, 64)
        self.register_buffer("mean", torch.zeros(128))

    def forward(self, x):
        return Result(self.two(self.one(x).relu()))


class Averaged(Two):
    def forward(self, x):
        hidden = self.one(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)  # another tensor, in the buffer's place
        self.last = hidden.detach() * 2
        return Result(self.two(hidden))


class Branching(Two):
    def forward(self, x):
        hidden = self.one(x).relu()
        (hidden.tanh().exp() * hidden).sigmoid()  # for nothing
        return Result(self.two(hidden))


class Sparse(Two):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 64, sparse=True)

    def forward(self, x):
        return Result(self.two(self.one(self.words(x.argmax(1)))))


class Penalty(Two):
    def forward(self, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.one(x).square().sum(), x, create_graph=True)
        return Result(slope)


class Recurrent(Two):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(64, 64, batch_first=True)

    def forward(self, x):
        return Result(self.cells(x[None])[0][0])


def squares(result, target):
    return (result.y.float() - target).square().mean()


def step_of(model):
    return model, squares, (torch.randn(16, 64), torch.randn(16, 64))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["FP32", "BF16"])
@pytest.mark.parametrize("model", [Two, Averaged, Branching, Sparse, Penalty, Recurrent])
def test_the_account_agrees_with_the_profiler(model, dtype):
    case = memory.Case(
        lambda device: model(),
        lambda device: (torch.randn(16, 64), torch.randn(16, 64)),
        squares,
        lambda made: torch.optim.SGD(made.parameters(), lr=0.1),
    )
    # After forward, after backward, after the step. Before it, buffers that forward makes are not there yet.
    assert memory.accounted(case, "cpu", dtype)[1:] == memory.counted(case, "cpu", dtype)[1:]


def test_what_a_data_class_holds_is_a_result():
    one = memory_account(*step_of(Two())[:1], lambda result, _: result.y.sum(), (torch.randn(16, 64), None))
    assert one.activations == 16 * 128 * FP32, "what ReLU returns"
    assert one.outputs == 16 * 64 * FP32 + FP32


def test_a_buffer_that_is_replaced_counts_once():
    one = memory_account(*step_of(Averaged()))
    assert one.buffers == 128 * FP32 + 16 * 128 * FP32, "the mean, and what `last` keeps"
    plain = memory_account(*step_of(Two()))
    assert one.activations == plain.activations
    assert one.peak >= one.after_forward
    again = Averaged()
    again(torch.randn(16, 64))  # now there are both before forward, too
    assert memory_account(*step_of(again)).after_forward == one.after_forward


def test_what_a_failed_step_saved_is_not_kept():
    kept = []

    class Failing(Two):
        def forward(self, x):
            hidden = self.one(x).tanh()
            kept.append(weakref.ref(hidden.untyped_storage()))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        memory_account(*step_of(Failing()))
    gc.collect()
    assert kept[0]() is None


def test_the_peaks_operator_has_a_name():
    net = nn.Sequential(nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 4))
    one = memory_account(net, lambda y, _: y.sum(), (torch.randint(0, 1000, (4, 3)), None))
    # PyTorch 2.13 copies the sparse gradient, which is two tensors; 2.9 does not, and then `sum` is the last to add.
    assert one.moments.peak_operator in ("clone", "sum")


@pytest.mark.parametrize(
    ("dtype", "words"), [(torch.float16, "FP16"), (torch.float64, "FP64"), (torch.float32, "FP32")]
)
def test_the_title_is_of_the_weights_without_autocast(dtype, words):
    one = memory_account(
        nn.Linear(4, 2).to(dtype), lambda y, _: y.sum(), (torch.ones(3, 4, dtype=dtype), None)
    )
    assert one.what == f"{words}, without autocast"
    assert one.weights == 10 * dtype.itemsize


def test_gradients_of_inputs_count():
    x = torch.randn(3, 4, requires_grad=True)
    one = memory_account(nn.Linear(4, 2).requires_grad_(False), lambda y, _: y.sum(), (x, None))
    assert one.gradients == one.inputs == 3 * 4 * FP32
    assert x.grad is None


def test_it_can_be_asked_where_nothing_is_trained():
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    wanted = memory_account(model, lambda y, _: y.sum(), (x, None))
    with torch.inference_mode():
        assert memory_account(model, lambda y, _: y.sum(), (x, None)) == wanted
        assert count_flops(model, lambda y, _: y.sum(), (x, None)).flops == 2 * (2 * 3 * 4 * 2)


def test_the_optimizer_of_another_model_is_refused():
    other = torch.optim.Adam(nn.Linear(3, 3).parameters())
    with pytest.raises(ValueError, match="none of the model's parameters"):
        memory_account(*step_of(Two()), optimizer=other)


class Towers(nn.Module):
    """What ModuleTracker, and FlopCounterMode with it, has wrong in backward."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.top = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.words = nn.Embedding(10, 8)

    def forward(self, x, words):
        return self.top(self.left(x)) + self.right(x) + self.words(words)


PRODUCT = 2 * 4 * 8 * 8


def test_a_first_layer_does_not_take_what_follows_in_backward():
    counts = count_flops(
        Towers(), lambda y, _: y.sum(), (torch.randn(4, 8), torch.randint(0, 10, (4,)), None)
    )
    assert counts.by_module == {
        "": 7 * PRODUCT,
        "left": 2 * PRODUCT,
        "right": 2 * PRODUCT,
        "top": 3 * PRODUCT,
    }


def test_modules_of_the_loss_are_not_taken_for_the_models():
    teacher = nn.Sequential(nn.Linear(8, 100), nn.Linear(100, 8)).requires_grad_(False)
    student = nn.Sequential(nn.Linear(8, 8))
    counts = count_flops(student, lambda y, _: (y - teacher(y)).sum(), (torch.randn(4, 8), None))
    assert counts.by_module["0"] == 2 * PRODUCT
    assert counts.by_module[""] == 2 * PRODUCT + 4 * (2 * 4 * 8 * 100)
    assert set(counts.by_module) == {"", "0"}


def test_keywords_inside_a_model_and_recomputed_blocks():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = nn.Linear(8, 8, bias=False)

        def forward(self, *, hidden):
            return self.product(hidden)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.randn(8, 8)), Inner()

        def forward(self, x):
            hidden = x @ self.weight
            return torch.utils.checkpoint.checkpoint(self.inner, hidden=hidden, use_reentrant=False)

    counts = count_flops(Outer(), lambda y, _: y.sum(), (torch.randn(4, 8), None))
    assert counts.by_module["inner"] == counts.by_module["inner.product"]
    assert counts.by_module["inner"] == 3 * PRODUCT  # what it recomputes ends before the product is taken
    assert counts.by_module[""] == counts.by_module["inner"] + 2 * PRODUCT


def test_a_gradient_penalty_is_counted():
    counts = count_flops(*step_of(Penalty()))
    product = 2 * 16 * 64 * 128
    assert (counts.forward.flops, counts.backward.flops) == (2 * product, 4 * product)


def test_hooks_are_gone_when_forward_or_backward_raises():
    class Interrupted(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 1

        @staticmethod
        def backward(context, gradient):
            raise KeyboardInterrupt

    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: each.clone() for name, each in net.state_dict().items()}
    found = len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)
    for measure in (memory_account, count_flops):
        for loss, error in (
            (lambda y, _: Interrupted.apply(y).sum(), KeyboardInterrupt),
            (F.mse_loss, Exception),
        ):
            with pytest.raises(error):
                measure(net, loss, (torch.randn(3, 4), None))
    assert (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)) == found
    assert not net._forward_hooks
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    assert net[0].weight.grad is None


def test_the_roof_has_room_for_the_twelve_operators_that_do_most():
    rows = [Row(f"op{each}", "forward", torch.float32, 1, 100 - each, 100) for each in range(14)]
    lines = Counts(tuple(rows), {}).plot("A100").axes[0].get_lines()
    assert [line.get_label() for line in lines[3:]] == [f"op{each}, forward" for each in range(12)]


def test_a_buffer_and_the_one_in_its_place_are_there_at_once():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.register_buffer("seen", torch.zeros(1000))

        def forward(self, x):
            self.seen = self.seen + 1
            return super().forward(x)

    one = memory_account(Counting(), lambda y, _: y.sum(), (torch.ones(2, 4), None))
    assert one.buffers == 1000 * FP32
    assert one.peak >= one.weights + one.inputs + 2 * 1000 * FP32


def test_complex_numbers_have_their_dtype():
    net = nn.Linear(8, 4, bias=False, dtype=torch.complex64)
    counts = count_flops(net, lambda y, _: y.abs().sum(), (torch.ones(2, 8, dtype=torch.complex64), None))
    assert {row.dtype for row in counts.forward.rows if row.flops} == {torch.complex64}


class Halved(torch.optim.Optimizer):
    """Keeps a setting in an attribute, and half a number for each parameter."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.dtype = torch.float16

    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["mean"] = each.grad.to(self.dtype)


def test_an_optimizer_with_attributes_of_its_own():
    net = nn.Linear(8, 4)
    one = memory_account(
        net, lambda y, _: y.sum(), (torch.ones(2, 8), None), optimizer=Halved(net.parameters())
    )
    assert one.optimizer_state == one.weights // 2


def test_what_adds_up_a_gradient_keeps_no_mark_of_a_count():
    """It lives on while somebody holds it, as DistributedDataParallel does."""
    net = nn.Linear(8, 4)
    adds = net.weight.expand_as(net.weight).grad_fn.next_functions[0][0]
    count_flops(net, lambda y, _: y.sum(), (torch.ones(2, 8), None))
    assert not adds.metadata


def test_one_row_for_each_dtype_under_the_roof():
    class Mixed(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                plain = super().forward(x)
            return plain + super().forward(x)

    counts = count_flops(
        Mixed(8, 8, bias=False), lambda y, _: y.float().sum(), (torch.randn(4, 8), None), dtype=torch.bfloat16
    )
    names = [line.get_label() for line in counts.plot("A100").axes[0].get_lines()[3:]]
    assert {"mm, forward, FP32", "mm, forward, BF16"} <= set(names)
    assert len(names) == len([row for row in counts.rows if row.flops]) == 4


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_scripted_model_is_counted_like_any_other():
    net, batch = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (torch.randn(3, 8), None)
    scripted = torch.jit.script(net)
    one, other = (memory_account(each, lambda y, _: y.sum(), batch) for each in (net, scripted))
    assert one.categories == other.categories


def test_a_nested_tensor_is_what_it_holds():
    values = [torch.randn(2, 8), torch.randn(3, 8)]
    nested = torch.nested.nested_tensor(values, layout=torch.jagged)
    one = memory_account(nn.Linear(8, 4), lambda y, _: y.values().sum(), (nested, None))
    assert one.inputs == 5 * 8 * FP32 + nested.offsets().nbytes
