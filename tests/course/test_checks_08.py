"""What the checks of lesson 08 rest on: that their answers are true, and that their cases show what they should."""

import pytest
import torch
from torch import nn

from amp_lab.course.lessons.l08 import counting, kept, padding, scenes, speedup, training
from amp_lab.train.measure import memory_account

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
SCENES = [*scenes.PLAIN, *scenes.LOWER, *scenes.SHARED, *scenes.STANDING]
TABLE = [(regime, optimizer) for regime in training.REGIMES for optimizer in training.OPTIMIZERS]
each_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: f"{scene.words} {scene.dtype}")


# 8.1


def _case(scene):
    (case,) = scenes.cases([scene])
    return case


def _find(words, dtype):
    return next(each for each in SCENES if each.words.startswith(words) and each.dtype == dtype)


def test_what_is_kept_by_hand():
    """Batch 5 x 6, hidden 8, weights 8 x 6 and 4 x 8."""
    hidden, batch, weight = 5 * 8, 5 * 6, 4 * 8
    assert counting.right(*_case(_find("Linear(6, 8) → ReLU → Linear(8, 4)", FP32))) == 4 * hidden
    assert counting.right(*_case(_find("Linear(6, 8) → ReLU → Linear(8, 4)", FP16))) == 2 * (
        hidden + batch + weight
    )
    # Six squares keep what goes in and what comes out, which is what goes into the next.
    assert counting.right(*_case(_find("Linear(6, 8) → six squares", FP32))) == 4 * 7 * hidden
    # A slice of two columns keeps all eight; each row's mean keeps one number, however often it is repeated.
    assert counting.right(*_case(_find("Linear(6, 8) → the square", FP32))) == 4 * hidden
    assert counting.right(*_case(_find("Linear(6, 8), each row", FP16))) == 2 * (hidden + batch + 5)


def test_wide_layers_keep_more_in_16_bits():
    assert counting.right(*_case(_find("Linear(6, 64)", BF16))) > 1.5 * counting.right(
        *_case(_find("Linear(6, 64)", FP32))
    )


@each_scene
def test_the_account_of_measure_agrees(scene):
    """Activations and cached casts together are what the exercise asks for; this loss keeps nothing."""
    model, batch, dtype = _case(scene)
    want = counting.right(model, batch, dtype)
    account = memory_account(
        model,
        lambda output, target: output.sum(),
        (batch, torch.zeros(5)),
        dtype=None if dtype == FP32 else dtype,
    )
    assert account.activations + account.cached_casts == want


@each_scene
def test_no_activation_has_the_shape_of_a_weight(scene):
    """So who leaves out casts by their shape leaves out nothing else."""
    model, batch, _ = _case(scene)
    shapes = {tuple(each.shape) for each in model.parameters() if each.dim() > 1}
    outputs = []
    for module in model.modules():
        module.register_forward_hook(lambda module, given, output: outputs.append(output.shape))
    model(batch)
    assert not shapes & {tuple(shape[::step]) for shape in outputs for step in (1, -1)}


def test_every_combination_of_faults_is_wrong_somewhere():
    cases = [(case, counting.right(*case)) for scene in SCENES for case in scenes.cases([scene])]
    for name, count in counting.combinations():
        assert any(count(*case) != want for case, want in cases), name


def test_memory_of_the_pool_is_given_out_again_only_when_nobody_holds_it():
    pool = scenes.Pool()
    first, second = pool.take(torch.Size([2, 3])), pool.take(torch.Size([2, 3]))
    view, address = second[0], second.data_ptr()
    assert first.data_ptr() != address
    del second
    assert pool.take(torch.Size([2, 3])).data_ptr() not in (address, first.data_ptr())
    del view
    addresses = {pool.take(torch.Size([2, 3])).data_ptr() for _ in range(4)}
    assert len(addresses) == 1
    assert first.data_ptr() not in addresses


def test_the_square_of_the_pool_has_the_right_gradient():
    model = scenes._Squares(scenes.Pool())
    x = torch.tensor([0.5, -2.0, 3.0], requires_grad=True)
    model(x).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


# 8.2


def _built(regime, optimizer):
    """Train one layer for a step, run backward once more, and return what is there and the tensors that hold it."""
    model = nn.Linear(32, 64, bias=False)
    model = {"masters": model.half, "bf16": model.bfloat16}.get(regime, model.float)()
    masters = [each.detach().float() for each in model.parameters()] if regime == "masters" else []
    stepped = masters or list(model.parameters())
    made = torch.optim.Adam(stepped) if optimizer == "adam" else None
    made = made or torch.optim.SGD(stepped, lr=0.1, momentum=0.9 if optimizer == "momentum" else 0.0)
    x = torch.randn(5, 32).to(torch.float32 if regime in ("fp32", "autocast") else model.weight.dtype)
    for step in range(2):
        made.zero_grad()
        model.zero_grad()
        with torch.autocast("cpu", FP16, enabled=regime == "autocast"):
            loss = model(x).float().square().mean()
        loss.backward()
        if step == 0:
            for master, each in zip(masters, model.parameters(), strict=regime == "masters"):
                master.grad = each.grad.float()
            made.step()
    state = [value for values in made.state.values() for value in values.values() if torch.is_tensor(value)]
    return {
        "weights": [model.weight],
        "masters": masters,
        "gradients": [model.weight.grad] + [each.grad for each in masters if each.grad is not None],
        "state": [value for value in state if value.dim() > 0],
    }


@pytest.mark.parametrize(("regime", "optimizer"), TABLE)
def test_the_table_is_what_training_keeps(regime, optimizer):
    tensors = _built(regime, optimizer)
    got = {key: sum(each.nbytes for each in some) / (32 * 64) for key, some in tensors.items()}
    assert got == training.right(regime, optimizer)


def test_sums_that_the_page_names():
    assert [sum(training.right(regime, "adam").values()) for regime in training.REGIMES] == [16, 16, 16, 8]


# 8.3

PADDED = [case for region in padding.REGIONS for case in region.cases]


@pytest.mark.parametrize(("n", "dtype"), PADDED, ids=str)
def test_padded_rows_are_the_shortest_of_whole_pieces(n, dtype):
    size = padding.right(n, dtype)
    assert size >= n
    assert [each for each in range(n, size + 1) if each * dtype.itemsize % 16 == 0] == [size]


def test_multiples_are_those_of_the_guide():
    multiples = [padding.multiple_of(dtype) for dtype in (FP16, BF16, FP32, torch.int8, torch.float64)]
    assert multiples == [8, 8, 4, 16, 2]


def test_first_sizes_tell_every_multiple_apart():
    sizes = [
        tuple(padding._up(n, multiple) for n, _ in padding.REGIONS[0].cases)
        for multiple in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    assert len(set(sizes)) == len(sizes)
    for n, dtype in padding.REGIONS[0].cases:
        for multiple in {2, 4, 8, 16} - {padding.multiple_of(dtype)}:
            same_dtype = [each for each, other in padding.REGIONS[0].cases if other == dtype]
            assert any(padding._up(each, multiple) != padding.right(each, dtype) for each in same_dtype), n


# 8.4


def test_each_gpu_is_asked_for_all_three_kinds():
    kinds = {}
    for case in speedup.CASES:
        kinds.setdefault(case[2].name, set()).add(frozenset(speedup.bounds(*case)))
    assert len(kinds) == 4
    for found in kinds.values():
        assert len(found) == 3


@pytest.mark.parametrize("case", speedup.CASES, ids=lambda case: f"{case[2].name} {case[0]:.3g}")
def test_a_speedup_lies_between_two_and_the_ratio_of_the_peaks(case):
    ratio = case[2].fp16 / case[2].fp32
    got, bounds = speedup.right(*case), speedup.bounds(*case)
    ends = sorted((2.0, ratio))
    if bounds == ("memory", "memory"):
        assert got == 2.0
    elif bounds == ("arithmetic", "arithmetic"):
        assert got == pytest.approx(ratio)
    else:
        assert 1.01 * ends[0] < got < 0.99 * ends[1]


def test_16_bits_can_be_slower():
    assert min(speedup.right(*case) for case in speedup.CASES) < 0.1


@pytest.mark.parametrize(
    "case", [case for some, _ in kept.REGIONS for case in scenes.cases(some)], ids=lambda case: case[0].words
)
def test_calls_are_shown_in_full(case):
    call = scenes.in_words(*case)
    assert len(call) < 220
    assert "Sequential" not in call
