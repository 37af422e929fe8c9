"""Gradients averaged in 16 bits, beside the mean in FP64."""

import copy
import math
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.workers import run_ranks

UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8}
INF, NAN = math.inf, math.nan


class Given(nn.Module):
    """Parameters whose gradients are what is given to it: that of x·p is x."""

    def __init__(self, sizes, dtype=torch.float32):
        super().__init__()
        self.parts = nn.ParameterList(torch.ones(size, dtype=dtype) for size in sizes)

    def forward(self, gradients):
        pairs = zip(self.parts, gradients, strict=True)
        # Elements one by one: a sum of products with an infinity would be one itself, and its gradients are not.
        return torch.cat([part * gradient for part, gradient in pairs])


def on_ranks(function, ranks, *args):
    """Return what a function returns on so many ranks; a failure of one of them fails the test."""
    outcomes = run_ranks(function, ranks, *args)
    assert all(each.ended == "returned" for each in outcomes), "\n".join(
        each.error + each.traceback for each in outcomes
    )
    return [each.value for each in outcomes]


def averaged(gradients, dtype, hook=None, width=torch.float32, **settings):
    """Return the gradients that DDP makes of these, one tensor for each parameter."""
    model = DistributedDataParallel(Given([len(each) for each in gradients], width), **settings)
    if hook is not None:
        model.register_comm_hook(None, hook)
    else:
        compress_gradients(model, dtype)
    for _ in range(2):  # DDP orders its buckets anew after the first
        model.zero_grad()
        outputs = model(gradients)
        outputs.backward(torch.ones_like(outputs))
    return [part.grad for part in model.module.parts]


def values(sizes, rank, low, high, seed=0):
    """Return random gradients of one rank, of magnitudes from 2**low to 2**high, with zeros among them."""
    dice = torch.Generator().manual_seed(1000 * seed + rank)
    made = []
    for size in sizes:
        powers = torch.rand(size, generator=dice) * (high - low) + low
        signs = torch.randint(-1, 2, (size,), generator=dice)
        made.append(signs * torch.exp2(powers.double()).float())
    return made


def bound(parts, largest, dtype):
    """Return how far an element of the mean may lie from FP64's, given all ranks' elements (ranks, elements)."""
    ranks = len(parts)
    relative = 1.01 * ranks * UNIT[dtype] * parts.abs().mean(0)
    below = ranks * 2.0**-38 * largest if dtype == "fp16" else ranks * 2.0**-134  # BF16's subnormals
    return relative + below + ranks * 2.0**-149  # FP32's own smallest steps


def everyone(tensor):
    """Return the tensors of all ranks, as (ranks, elements) in FP64."""
    each = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(each, tensor)
    return torch.stack(each).double()


# Magnitudes as powers of two: usual ones; beyond FP16 above; below it; FP32's subnormals; nearly all that FP32 has.
RANGES = [(-10, 3), (10, 40), (-60, -30), (-149, -120), (-100, 126.9)]
SIZES = {"one bucket": [1000], "several": [400_000, 70, 300_000, 1]}


def accurate(rank):
    """Compare with FP64 for all ranges, on this rank; return how much of its bound the largest error takes."""
    worst = {}
    for name, sizes in SIZES.items():
        for low, high in RANGES:
            mine = values(sizes, rank, low, high)
            for dtype in UNIT:
                got = averaged(mine, dtype, bucket_cap_mb=1)
                parts = [everyone(each) for each in mine]
                largest = max(each.abs().max() for each in parts)
                for part, each in zip(parts, got, strict=True):
                    assert each.dtype == torch.float32
                    assert bool((everyone(each) == each).all()), "ranks differ"
                    error = (each.double() - part.mean(0)).abs() / bound(part, largest, dtype)
                    key = dtype, name, low
                    worst[key] = max(worst.get(key, 0.0), error.nan_to_num(0.0).max().item())
    return worst


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_mean_is_as_near_to_fp64_s_as_is_promised(ranks):
    for worst in on_ranks(accurate, ranks):
        assert all(share <= 1 for share in worst.values()), worst
        assert max(worst.values()) > 0.5  # the bound is no barn door


def spoilt(rank):
    """Return where the mean is not finite, if a few elements are not, each on one rank."""
    mine = values([500, 300], rank, -10, 20)
    mine[0][7], mine[0][8], mine[1][9] = (INF, 1.0, NAN) if rank == 0 else (1.0, -INF, 1.0)
    places = {}
    for dtype in UNIT:
        got = averaged(mine, dtype)
        places[dtype] = [(~part.isfinite()).nonzero().flatten().tolist() for part in got]
        places[dtype] += [got[0][7].item(), got[0][8].item()]
        (got,) = averaged([torch.tensor([NAN, 1e30]) if rank == 0 else torch.ones(2)], dtype)
        places[dtype] += [got.isfinite().tolist()]  # NaN tells nothing of how large the others are
    (got,) = averaged([torch.tensor([NAN if rank == 0 else 1.0, 2.0**88, 1.0, 2.0**92])], "fp16")
    places["beside NaN"] = got[1:].tolist()
    return places


def test_infinity_and_nan_on_one_rank_are_there_on_all_in_their_places_only():
    for places in on_ranks(spoilt, 2):
        assert places.pop("beside NaN") == [0.0, 0.0, 2.0**92]
        assert places == {dtype: [[7, 8], [9], INF, -INF, [False, True]] for dtype in UNIT}


def zeros(rank):
    """Return the largest gradients where this rank has none, and where no rank has any."""
    tiny = torch.full((50,), 2.0**-80 * rank)
    return {
        dtype: [averaged([part], dtype)[0].max().item() for part in (tiny, torch.zeros(50))] for dtype in UNIT
    }


def test_zeros_hide_no_small_gradients_of_others():
    for largest in on_ranks(zeros, 2):
        assert largest == {dtype: [2.0**-81, 0.0] for dtype in UNIT}


def beyond_fp16(rank):
    """Return the largest gradients beyond FP16's range and below it, with PyTorch's hook and with ours."""
    parts = torch.full((10,), 131071.0), torch.full((10,), 1e-9)  # just below a power of two, on both ranks
    hook = default_hooks.fp16_compress_hook
    return [
        [averaged([part], "none", hook)[0].max().item() for part in parts],
        [averaged([part], "fp16")[0].max().item() for part in parts],
    ]


def test_what_the_cast_alone_makes_infinite_or_zero_stays_what_it_is():
    for theirs, (large, small) in on_ranks(beyond_fp16, 2):
        assert theirs == [INF, 0.0]
        assert (large, small) == (pytest.approx(131071, rel=2**-10), pytest.approx(1e-9, rel=2**-10))


def exact(rank):
    """Return whether what only rank 0 has comes to all, and what becomes of a large negative number."""
    eleven_digits = torch.arange(1024, 2048) / 1024
    return (
        torch.equal(averaged([eleven_digits * (rank == 0)], "fp16")[0], eleven_digits / 3),
        averaged([torch.tensor([-(2.0**20), 2.0**-3])], "fp16")[0].tolist(),
    )


def test_a_scale_that_is_a_power_of_two_costs_no_digits():
    """FP16 has eleven binary digits. On three ranks the scale is divided by four."""
    assert on_ranks(exact, 3) == [(True, [-(2.0**20), 2.0**-3])] * 3


def skipping(rank, dtype):
    """Train with a loss scale in FP16, an overflow on a random rank in every third step; return scales and weights."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)))
    compress_gradients(model, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
    dice = torch.Generator().manual_seed(rank)
    which = torch.Generator().manual_seed(5)
    scales, losses = [], []
    for step in range(30):
        inputs, targets = torch.randn(16, 4, generator=dice), torch.randn(16, 1, generator=dice)
        unlucky = int(torch.randint(2, (), generator=which))
        factor = 1e30 if step % 3 == 2 and unlucky == rank else 1.0
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        loss = nn.functional.mse_loss(outputs.float(), targets) * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    return scales, weights.tolist()


@pytest.mark.parametrize("dtype", UNIT)
def test_all_ranks_skip_together_and_stay_the_same(dtype):
    (scales, weights), other = on_ranks(skipping, 2, dtype)
    assert (scales, weights) == other
    assert all(map(math.isfinite, weights))
    skipped = sum(after < before for before, after in zip([2.0**20, *scales], scales, strict=False))
    assert skipped >= 10


def settings(rank):
    """Average the same gradients under DDP's other settings; return how many ways there are."""
    mine = values([300, 200], rank, -3, 3)
    expected = averaged(mine, "fp16")
    ways = {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}
    for way in ways:
        got = averaged(mine, "fp16", **way)
        assert all(map(torch.equal, got, expected)), way

    group = dist.new_group([0, 1], backend="gloo")
    assert all(map(torch.equal, averaged(mine, "fp16", process_group=group), expected))

    model = DistributedDataParallel(Given([300, 200]))
    compress_gradients(model, "fp16")
    halves = [[part / 4 for part in mine], [part * 3 / 4 for part in mine]]
    with model.no_sync():
        model(halves[0]).sum().backward()
    model(halves[1]).sum().backward()
    for part, each in zip(model.module.parts, expected, strict=True):
        torch.testing.assert_close(part.grad, each, rtol=2**-10, atol=1e-6)

    for dtype in UNIT:
        got = averaged([torch.ones(0), torch.ones(3)], dtype, bucket_cap_mb=1e-6)
        assert [part.tolist() for part in got] == [[], [1.0] * 3]

    for width in (torch.float16, torch.bfloat16, torch.float64):
        model = DistributedDataParallel(Given([3], width))
        compress_gradients(model, "fp16")
        outputs = model([torch.full((3,), 2.0 + 2 * rank, dtype=width)])
        outputs.backward(torch.ones_like(outputs))
        assert model.module.parts[0].grad.tolist() == [3.0] * 3
        assert model.module.parts[0].grad.dtype == width

    # What is 16 bits wide goes as it is: in the other dtype, or under a scale, it would come back as something else.
    narrow = {torch.float16: [1 + 2.0**-10, INF, 2.0**-23], torch.bfloat16: [1e30, 1e-30]}
    for width, given in narrow.items():
        for dtype in UNIT:
            (got,) = averaged([torch.tensor(given, dtype=width)], dtype, width=width)
            assert got.tolist() == torch.tensor(given, dtype=width).tolist(), (width, dtype)
    return len(ways)


def test_it_goes_with_ddp_s_other_settings():
    assert on_ranks(settings, 2) == [3, 3]


def refusals(rank):
    """Return what is said of calls that cannot be right, and what a copy of a compressed model has."""
    network = nn.Linear(2, 1)
    model = DistributedDataParallel(network)

    def said(model, dtype):
        try:
            compress_gradients(model, dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    words = {"bare": said(network, "fp16"), "dtype": said(model, "fp8"), "none": said(model, "none")}
    words |= {"first": said(model, "bf16"), "second": said(model, "fp16")}
    for name, copied in (("deepcopy", copy.deepcopy(model)), ("pickle", pickle.loads(pickle.dumps(model)))):
        inputs = torch.tensor([[1 + 2.0**-20, 1.0]])
        copied(inputs).sum().backward()
        assert copied.module.weight.grad[0, 0] == 1 + 2.0**-20, "the copy has no hook"
        words[name] = said(copied, "fp16")
    words["other"] = said(DistributedDataParallel(nn.Linear(2, 1)), "fp16" if rank else "none")
    all_reduce = dist.all_reduce

    def lacking(tensor, *args, **kwargs):
        if tensor.dtype == torch.bfloat16:
            raise RuntimeError("Invalid scalar type")
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = lacking
    words["backend"] = said(DistributedDataParallel(nn.Linear(2, 1)), "bf16")

    def lost(tensor, *args, **kwargs):
        raise RuntimeError("[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")

    dist.all_reduce = lost
    words["lost"] = said(DistributedDataParallel(nn.Linear(2, 1)), "bf16")
    try:
        DistributedDataParallel(nn.Linear(2, 1)).register_comm_hook(None, default_hooks.bf16_compress_hook)
        words["theirs"] = "nothing"
    except TypeError as error:
        words["theirs"] = str(error)
    return words


def test_what_cannot_be_is_refused_with_what_to_do_instead():
    for words in on_ranks(refusals, 2):
        assert "wrap the model first, compress_gradients(DistributedDataParallel(model))" in words["bare"]
        assert words["bare"].startswith("TypeError: compress_gradients(a Linear)")
        assert (
            words["dtype"]
            == "ValueError: compress_gradients(dtype='fp8'): it is one of 'fp16', 'bf16' or 'none'"
        )
        assert words["none"] == words["first"] == words["deepcopy"] == words["pickle"] == "nothing"
        assert words["second"].startswith(
            "RuntimeError: compress_gradients: this DistributedDataParallel has a"
        )
        assert "gloo does not add such numbers on cpu: take the other of" in words["backend"]
        assert "(Invalid scalar type)" in words["backend"]
        assert words["backend"].startswith("LaunchError: "), "a RuntimeError would be taken for a lost one"
        assert words["lost"].startswith("RuntimeError: [/src/gloo/")
        assert words["other"] == (
            "RanksDiffer: dtype of compress_gradients must be the same on all ranks, and is 'none' on rank 0, "
            "'fp16' on rank 1: start all with the same script, data and arguments"
        )
        if (
            torch.version.cuda is None
        ):  # PyTorch's own looks at how PyTorch was built, whatever the backend is
            assert "BF16 all reduce communication hook required CUDA" in words["theirs"]
