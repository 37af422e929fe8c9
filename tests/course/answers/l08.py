"""Answers to the exercises of lesson 08."""

import collections
import contextlib
import copy
import math

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from tests.course.bank import Bank

activation_bytes = Bank("8.1")
training_bytes = Bank("8.2")
pad = Bank("8.3")
speedup = Bank("8.4")
BANKS = (activation_bytes, training_bytes, pad, speedup)


# 8.1 What forward keeps


def amp(batch, dtype):
    return torch.autocast(batch.device.type, dtype, enabled=dtype != torch.float32)


def saved(model, batch, dtype):
    """Return all saved tensors, kept."""
    tensors = []

    def pack(tensor):
        tensors.append(tensor)
        return tensor

    with amp(batch, dtype), saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    return tensors


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def there(*tensors):
    return {address(each) for each in tensors}


@activation_bytes.right
def notes_sizes_by_address(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    kept = {}

    def pack(tensor):
        if address(tensor) not in known:
            kept[address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with amp(batch, dtype), saved_tensors_hooks(pack, lambda tensor: tensor):
        _ = model(batch)
    return sum(kept.values())


@activation_bytes.right
def keeps_all_and_counts_afterwards(model, batch, dtype):
    every = {address(each): each.untyped_storage().nbytes() for each in saved(model, batch, dtype)}
    for each in [*model.parameters(), *model.buffers(), batch]:
        every.pop(address(each), None)
    return sum(every.values())


@activation_bytes.right
def returns_a_numpy_integer(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    storages = {address(each): each.untyped_storage() for each in saved(model, batch, dtype)}
    return np.array(
        [size.nbytes() for key, size in storages.items() if key not in known], dtype=np.int64
    ).sum()


@activation_bytes.right
def packs_by_name_and_unpacks(model, batch, dtype):
    table, seen, total = [], there(*model.parameters(), *model.buffers(), batch), 0

    def pack(tensor):
        nonlocal total
        table.append(tensor)
        if address(tensor) not in seen:
            seen.add(address(tensor))
            total += tensor.untyped_storage().nbytes()
        return len(table) - 1

    context = amp(batch, dtype) if dtype in (torch.float16, torch.bfloat16) else contextlib.nullcontext()
    with context, saved_tensors_hooks(pack, table.__getitem__):
        model(batch)
    return total


@activation_bytes.right
def by_the_storages_own_objects(model, batch, dtype):
    sizes = collections.OrderedDict()
    keep = []
    for each in saved(model, batch, dtype):
        storage = each.untyped_storage()
        keep.append(storage)
        sizes[storage._cdata] = storage.nbytes()
    for each in (*model.parameters(), *model.buffers(), batch):
        sizes[each.untyped_storage()._cdata] = 0
    return sum(sizes.values())


@activation_bytes.right
def under_autocast_without_a_special_case(model, batch, dtype):
    """For FP32, PyTorch warns that a CPU has no such autocast, and switches it off."""
    known = there(*model.parameters(), *model.buffers(), batch)
    kept = []
    hooks = saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor)
    with torch.autocast(device_type=batch.device.type, dtype=dtype), hooks:
        model(batch)
    return sum(
        {address(each): each.untyped_storage().size() for each in kept if address(each) not in known}.values()
    )


@activation_bytes.wrong("counts-parameters")
def counts_all_that_is_saved(model, batch, dtype):
    return sum(
        {address(each): each.untyped_storage().nbytes() for each in saved(model, batch, dtype)}.values()
    )


@activation_bytes.wrong("counts-parameters")
def counts_all_that_is_saved_as_often(model, batch, dtype):
    return sum(each.nbytes for each in saved(model, batch, dtype))


@activation_bytes.wrong("counts-parameters")
def leaves_out_only_the_batch(model, batch, dtype):
    tensors = [each for each in saved(model, batch, dtype) if address(each) != address(batch)]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("weights-as-views")
def leaves_out_what_is_a_parameter(model, batch, dtype):
    kept = {}
    for each in saved(model, batch, dtype):
        if not isinstance(each, nn.Parameter) and address(each) != address(batch):
            kept[address(each)] = each.untyped_storage().nbytes()
    return sum(kept.values())


@activation_bytes.wrong("weights-as-views")
def leaves_out_by_identity(model, batch, dtype):
    known = {id(each) for each in (*model.parameters(), *model.buffers(), batch)}
    tensors = [each for each in saved(model, batch, dtype) if id(each) not in known]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("counts-the-batch")
def leaves_out_only_what_the_model_has(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers())
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("counts-the-batch")
def leaves_out_only_parameters(model, batch, dtype):
    known = there(*model.parameters())
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("counts-buffers")
def forgets_buffers(model, batch, dtype):
    known = there(*model.parameters(), batch)
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("casts-left-out")
def leaves_out_what_has_the_shape_of_a_weight(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    shapes = {tuple(each.shape) for each in model.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    kept = {}
    for each in saved(model, batch, dtype):
        if address(each) not in known and tuple(each.shape) not in shapes:
            kept[address(each)] = each.untyped_storage().nbytes()
    return sum(kept.values())


@activation_bytes.wrong("casts-left-out")
def leaves_out_all_that_was_cast(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    shapes = {tuple(each.shape) for each in (*model.parameters(), batch)}
    shapes |= {shape[::-1] for shape in shapes if len(shape) == 2}
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    tensors = [each for each in tensors if tuple(each.shape) not in shapes]
    return sum({address(each): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("storage-twice")
def counts_each_time(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    total = 0

    def pack(tensor):
        nonlocal total
        if address(tensor) not in known:
            total += tensor.untyped_storage().nbytes()
        return tensor

    with amp(batch, dtype), saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(batch)
    del result
    return total


@activation_bytes.wrong("storage-twice")
def counts_numbers_each_time(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    return sum(each.nbytes for each in saved(model, batch, dtype) if address(each) not in known)


@activation_bytes.wrong("storage-twice")
def tells_by_where_a_tensor_begins(model, batch, dtype):
    known = {each.data_ptr() for each in (*model.parameters(), *model.buffers(), batch)}
    tensors = [each for each in saved(model, batch, dtype) if each.data_ptr() not in known]
    return sum({each.data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@activation_bytes.wrong("storage-twice")
def keeps_a_set_of_tensors(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    return sum(
        each.untyped_storage().nbytes()
        for each in set(saved(model, batch, dtype))
        if address(each) not in known
    )


@activation_bytes.wrong("views-in-part")
def counts_the_numbers_of_a_view(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    return sum({address(each): each.numel() * each.element_size() for each in tensors}.values())


@activation_bytes.wrong("views-in-part")
def counts_the_numbers_of_the_first_view(model, batch, dtype):
    seen, total = there(*model.parameters(), *model.buffers(), batch), 0
    for each in saved(model, batch, dtype):
        if address(each) not in seen:
            seen.add(address(each))
            total += each.nbytes
    return total


@activation_bytes.wrong("numbers-not-bytes")
def counts_numbers(model, batch, dtype):
    known = there(*model.parameters(), *model.buffers(), batch)
    tensors = [each for each in saved(model, batch, dtype) if address(each) not in known]
    return sum({address(each): each.numel() for each in tensors}.values())


def outputs_of(modules, model, batch, dtype):
    outputs = []
    hooks = [
        each.register_forward_hook(lambda module, args, output: outputs.append(output)) for each in modules
    ]
    with amp(batch, dtype):
        model(batch)
    for hook in hooks:
        hook.remove()
    return outputs


@activation_bytes.wrong("outputs-only")
def adds_the_outputs_of_layers(model, batch, dtype):
    leaves = [each for each in model.modules() if not list(each.children())]
    return sum(each.nbytes for each in outputs_of(leaves, model, batch, dtype))


@activation_bytes.wrong("outputs-only")
def adds_the_outputs_of_all_modules(model, batch, dtype):
    return sum(each.nbytes for each in outputs_of(model.modules(), model, batch, dtype))


@activation_bytes.wrong("counts-the-result")
def adds_the_result(model, batch, dtype):
    with amp(batch, dtype):
        result = model(batch)
    return notes_sizes_by_address(model, batch, dtype) + result.nbytes


@activation_bytes.wrong("no-graph")
def runs_without_gradients(model, batch, dtype):
    with torch.no_grad():
        return notes_sizes_by_address(model, batch, dtype)


@activation_bytes.wrong("no-graph")
def calls_the_model_outside(model, batch, dtype):
    kept = {}

    def pack(tensor):
        kept[address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with amp(batch, dtype):
        model(batch)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        pass
    return sum(kept.values())


@activation_bytes.wrong("called-again")
def warms_up(model, batch, dtype):
    notes_sizes_by_address(model, batch, dtype)
    return notes_sizes_by_address(model, batch, dtype)


@activation_bytes.wrong("other-dtype")
def bf16_for_both(model, batch, dtype):
    return notes_sizes_by_address(model, batch, dtype if dtype == torch.float32 else torch.bfloat16)


def counts_unless_in(known, model, batch, dtype):
    known = there(*known, batch)
    kept = {address(each): each.untyped_storage().nbytes() for each in saved(model, batch, dtype)}
    return sum(size for place, size in kept.items() if place not in known)


@activation_bytes.wrong("counts-buffers")
def trusts_the_state_dict(model, batch, dtype):
    return counts_unless_in(model.state_dict().values(), model, batch, dtype)


@activation_bytes.wrong("counts-parameters")
def knows_what_is_trained(model, batch, dtype):
    trained = [each for each in model.parameters() if each.requires_grad]
    return counts_unless_in([*trained, *model.buffers()], model, batch, dtype)


@activation_bytes.wrong("no-autocast")
def ignores_the_dtype(model, batch, dtype):
    return notes_sizes_by_address(model, batch, torch.float32)


@activation_bytes.wrong("no-autocast")
def for_cuda_always(model, batch, dtype):
    with torch.autocast("cuda", dtype, enabled=torch.cuda.is_available()):
        return notes_sizes_by_address(model, batch, torch.float32)


@activation_bytes.wrong("half-of-fp32")
def halves_fp32(model, batch, dtype):
    return notes_sizes_by_address(model, batch, torch.float32) * dtype.itemsize // 4


@activation_bytes.wrong("half-of-fp32")
def converts_a_copy(model, batch, dtype):
    return notes_sizes_by_address(copy.deepcopy(model).to(dtype), batch.to(dtype), torch.float32)


@activation_bytes.wrong("model-changed")
def converts_the_model(model, batch, dtype):
    return notes_sizes_by_address(model.to(dtype), batch.to(dtype), torch.float32)


@activation_bytes.wrong("model-changed")
def switches_to_eval(model, batch, dtype):
    return notes_sizes_by_address(model.eval(), batch, dtype)


@activation_bytes.wrong("model-changed")
def goes_backward(model, batch, dtype):
    with amp(batch, dtype):
        model(batch).float().sum().backward()
    return notes_sizes_by_address(model, batch, dtype)


@activation_bytes.wrong("model-changed")
def leaves_its_hooks(model, batch, dtype):
    outputs = []
    for each in model.modules():
        each.register_forward_hook(lambda module, args, output: outputs.append(output))
    with amp(batch, dtype):
        model(batch)
    return sum({address(each): each.untyped_storage().nbytes() for each in outputs}.values())


@activation_bytes.wrong("eval-mode")
def counts_in_eval_mode(model, batch, dtype):
    return notes_sizes_by_address(copy.deepcopy(model).eval(), batch, dtype)


@activation_bytes.wrong("train-mode")
def counts_in_train_mode(model, batch, dtype):
    return notes_sizes_by_address(copy.deepcopy(model).train(), batch, dtype)


@activation_bytes.wrong("address-reused")
def lets_tensors_die(model, batch, dtype):
    known, kept = there(*model.parameters(), *model.buffers(), batch), {}

    def pack(tensor):
        if address(tensor) not in known:
            kept[address(tensor)] = tensor.untyped_storage().nbytes()

    with amp(batch, dtype), saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    return sum(kept.values())


@activation_bytes.wrong("wrong-type")
def in_kib(model, batch, dtype):
    return notes_sizes_by_address(model, batch, dtype) / 1024


@activation_bytes.wrong("returned-none")
def prints_it(model, batch, dtype):
    print(notes_sizes_by_address(model, batch, dtype))


# 8.2 Bytes per parameter


def account(weights, masters, gradients, state):
    return {"weights": weights, "masters": masters, "gradients": gradients, "state": state}


def numbers(optimizer):
    return {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]


def weight(regime):
    return 4 if regime in ("fp32", "autocast") else 2


@training_bytes.right
def by_rules(regime, optimizer):
    masters = 4 * (regime == "masters")
    return account(weight(regime), masters, weight(regime), numbers(optimizer) * max(masters, weight(regime)))


@training_bytes.right
def by_a_table(regime, optimizer):
    table = {
        "fp32": (4, 0, 4, 4),
        "autocast": (4, 0, 4, 4),
        "masters": (2, 4, 2, 4),
        "bf16": (2, 0, 2, 2),
    }
    *kept, each = table[regime]
    return dict(
        zip(("weights", "masters", "gradients", "state"), [*kept, each * numbers(optimizer)], strict=True)
    )


@training_bytes.right
def by_dtypes(regime, optimizer):
    model = {
        "fp32": torch.float32,
        "autocast": torch.float32,
        "masters": torch.float16,
        "bf16": torch.bfloat16,
    }
    stepped = torch.float32 if regime == "masters" else model[regime]
    kept = (
        ["exp_avg", "exp_avg_sq"] if optimizer == "adam" else ["momentum_buffer"] * (optimizer == "momentum")
    )
    return {
        "state": sum(stepped.itemsize for _ in kept),
        "gradients": model[regime].itemsize,
        "weights": np.int64(model[regime].itemsize),
        "masters": stepped.itemsize if stepped != model[regime] else 0,
    }


@training_bytes.right
def by_building_it(regime, optimizer):
    """Measures, on one layer."""
    model = nn.Linear(64, 64, bias=False)
    if regime in ("masters", "bf16"):
        model.to(torch.bfloat16 if regime == "bf16" else torch.float16)
    weights = list(model.parameters())
    stepped = [each.detach().float() for each in weights] if regime == "masters" else weights
    make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "momentum": torch.optim.SGD}[optimizer]
    step = make(stepped, lr=0.1, **({"momentum": 0.9} if optimizer == "momentum" else {}))
    for each, other in zip(weights, stepped, strict=True):
        each.grad = torch.ones_like(each)
        other.grad = torch.ones_like(other)
    step.step()
    state = [value for each in step.state.values() for value in each.values() if torch.is_tensor(value)]
    return {
        "weights": weights[0].nbytes // 4096,
        "masters": stepped[0].nbytes // 4096 if stepped[0] is not weights[0] else 0,
        "gradients": weights[0].grad.nbytes // 4096,
        "state": sum(each.nbytes for each in state if each.numel() > 1) // 4096,
    }


@training_bytes.wrong("one-number")
def sums_up(regime, optimizer):
    return sum(by_rules(regime, optimizer).values())


@training_bytes.wrong("wrong-keys")
def leaves_out_what_is_not_there(regime, optimizer):
    return {key: value for key, value in by_rules(regime, optimizer).items() if value}


@training_bytes.wrong("wrong-keys")
def names_it_otherwise(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "optimizer": kept.pop("state")}


@training_bytes.wrong("two-for-everything")
def everything_in_half(regime, optimizer):
    return account(2, 0, 2, 2 * numbers(optimizer))


@training_bytes.wrong("two-for-everything")
def half_with_fp32_state(regime, optimizer):
    return account(2, 4 if regime != "bf16" else 0, 2, 4 * numbers(optimizer))


@training_bytes.wrong("autocast-converts-weights")
def amp_is_half_with_masters(regime, optimizer):
    return by_rules("masters" if regime == "autocast" else regime, optimizer)


@training_bytes.wrong("autocast-converts-weights")
def amp_is_half(regime, optimizer):
    return account(2, 0, 2, 8) if regime == "autocast" else by_rules(regime, optimizer)


@training_bytes.wrong("copies-kept")
def counts_the_copy(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "weights": 6} if regime == "autocast" else kept


@training_bytes.wrong("wrong-weights")
def bf16_is_like_fp32(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "weights": 4} if regime == "bf16" else kept


@training_bytes.wrong("masters-under-autocast")
def amp_keeps_masters(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "masters": 4} if regime == "autocast" else kept


@training_bytes.wrong("masters-under-autocast")
def amp_keeps_half_masters(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "masters": 2} if regime == "autocast" else kept


@training_bytes.wrong("masters-forgotten")
def no_masters(regime, optimizer):
    return {**by_rules(regime, optimizer), "masters": 0}


@training_bytes.wrong("masters-size")
def masters_in_half(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "masters": kept["masters"] // 2}


@training_bytes.wrong("masters-invented")
def weights_are_masters(regime, optimizer):
    return {**by_rules(regime, optimizer), "masters": 4}


@training_bytes.wrong("masters-invented")
def bf16_has_masters(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "masters": 4} if regime == "bf16" else kept


@training_bytes.wrong("autocast-gradients")
def gradients_in_half(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "gradients": 2} if regime == "autocast" else kept


@training_bytes.wrong("gradients-of-masters")
def gradients_in_fp32(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "gradients": 4} if regime == "masters" else kept


@training_bytes.wrong("gradients-of-masters")
def gradients_of_both(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "gradients": 6} if regime == "masters" else kept


@training_bytes.wrong("wrong-gradients")
def gradients_always_fp32(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "gradients": 4} if regime == "bf16" else kept


@training_bytes.wrong("wrong-gradients")
def gradients_set_to_none(regime, optimizer):
    return {**by_rules(regime, optimizer), "gradients": 0}


@training_bytes.wrong("state-forgotten")
def no_state(regime, optimizer):
    return {**by_rules(regime, optimizer), "state": 0}


@training_bytes.wrong("state-forgotten")
def momentum_forgotten(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "state": 0} if optimizer == "momentum" else kept


@training_bytes.wrong("one-moment")
def one_moment(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "state": kept["state"] // 2} if optimizer == "adam" else kept


@training_bytes.wrong("sgd-keeps-nothing")
def sgd_with_momentum(regime, optimizer):
    return by_rules(regime, "momentum" if optimizer == "sgd" else optimizer)


@training_bytes.wrong("state-of-masters")
def state_like_the_weights(regime, optimizer):
    return {**by_rules(regime, optimizer), "state": numbers(optimizer) * weight(regime)}


@training_bytes.wrong("state-always-fp32")
def state_in_fp32(regime, optimizer):
    return {**by_rules(regime, optimizer), "state": numbers(optimizer) * 4}


@training_bytes.wrong("autocast-state")
def amp_halves_the_state(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "state": kept["state"] // 2} if regime == "autocast" else kept


@training_bytes.wrong("wrong-state")
def counts_the_step(regime, optimizer):
    kept = by_rules(regime, optimizer)
    return {**kept, "state": 12} if optimizer == "adam" else kept


@training_bytes.wrong("wrong-type")
def returns_a_list(regime, optimizer):
    return list(by_rules(regime, optimizer).values())


@training_bytes.wrong("wrong-type")
def in_floats(regime, optimizer):
    return {key: value / 1 for key, value in by_rules(regime, optimizer).items()}


@training_bytes.wrong("returned-none")
def returns_nothing(regime, optimizer):
    by_rules(regime, optimizer)


# 8.3 Pad to a multiple


@pad.right
def with_floor_division(n, dtype):
    multiple = 16 // dtype.itemsize
    return (n + multiple - 1) // multiple * multiple


@pad.right
def with_ceil(n, dtype):
    return math.ceil(n / (16 // dtype.itemsize)) * (16 // dtype.itemsize)


@pad.right
def with_a_remainder(n, dtype):
    rest = n * dtype.itemsize % 16
    return n if rest == 0 else n + (16 - rest) // dtype.itemsize


@pad.right
def one_by_one(n, dtype):
    while n * torch.tensor([], dtype=dtype).element_size() % 16:
        n += 1
    return n


@pad.right
def with_bits(n, dtype):
    mask = 128 // (8 * dtype.itemsize) - 1
    return n + mask & ~mask


@pad.wrong("rounds-down")
def down(n, dtype):
    multiple = 16 // dtype.itemsize
    return n // multiple * multiple


@pad.wrong("rounds-to-nearest")
def nearest(n, dtype):
    multiple = 16 // dtype.itemsize
    return multiple * round(n / multiple)


@pad.wrong("only-what-is-missing")
def missing(n, dtype):
    return -n % (16 // dtype.itemsize)


@pad.wrong("pieces")
def counts_pieces(n, dtype):
    return math.ceil(n * dtype.itemsize / 16)


@pad.wrong("returns-bytes")
def in_bytes(n, dtype):
    return math.ceil(n * dtype.itemsize / 16) * 16


@pad.wrong("always-the-same")
def always_eight(n, dtype):
    return (n + 7) // 8 * 8


@pad.wrong("always-the-same")
def always_64(n, dtype):
    return (n + 63) // 64 * 64


@pad.wrong("sixteen-numbers")
def sixteen(n, dtype):
    return math.ceil(n / 16) * 16


@pad.wrong("itemsize")
def by_itemsize(n, dtype):
    return math.ceil(n / dtype.itemsize) * dtype.itemsize


@pad.wrong("sixteen-times")
def sixteen_times(n, dtype):
    multiple = 16 * dtype.itemsize
    return (n + multiple - 1) // multiple * multiple


@pad.wrong("bits")
def itemsize_in_bits(n, dtype):
    multiple = 128 // dtype.itemsize
    return (n + multiple - 1) // multiple * multiple


@pad.wrong("power-of-two")
def power_of_two(n, dtype):
    return 2 ** math.ceil(math.log2(n))


@pad.wrong("adds-a-piece")
def adds_a_multiple(n, dtype):
    return n + 16 // dtype.itemsize


@pad.wrong("pads-what-is-aligned")
def pads_always(n, dtype):
    multiple = 16 // dtype.itemsize
    return n + multiple - n % multiple


@pad.wrong("pads-what-is-aligned")
def next_one(n, dtype):
    multiple = 16 // dtype.itemsize
    return (n // multiple + 1) * multiple


@pad.wrong("some-dtypes")
def only_two_sizes(n, dtype):
    multiple = 8 if dtype in (torch.float16, torch.bfloat16) else 4
    return (n + multiple - 1) // multiple * multiple


@pad.wrong("some-dtypes")
def bf16_forgotten(n, dtype):
    multiple = {torch.float16: 8, torch.float32: 4, torch.float64: 2}.get(dtype, 16)
    return (n + multiple - 1) // multiple * multiple


@pad.wrong("wrong-type")
def as_float(n, dtype):
    return np.ceil(n / (16 / dtype.itemsize)) * (16 / dtype.itemsize)


# 8.4 The speedup that can be


@speedup.right
def two_times(flops, bytes_fp32, gpu):
    before = max(flops / gpu.fp32, bytes_fp32 / gpu.bandwidth)
    return before / max(flops / gpu.fp16, bytes_fp32 / (2 * gpu.bandwidth))


@speedup.right
def by_intensity(flops, bytes_fp32, gpu):
    intensity = flops / bytes_fp32
    attainable = [
        min(gpu.fp32, intensity * gpu.bandwidth),
        min(gpu.fp16, 2 * intensity * gpu.bandwidth),
    ]
    return attainable[1] / attainable[0]


@speedup.right
def case_by_case(flops, bytes_fp32, gpu):
    seconds = {}
    for kind, moved in (("fp32", bytes_fp32), ("fp16", bytes_fp32 / 2)):
        ridge = gpu.peak(kind) / gpu.bandwidth
        seconds[kind] = flops / gpu.peak(kind) if flops / moved > ridge else moved / gpu.bandwidth
    return seconds["fp32"] / seconds["fp16"]


@speedup.right
def with_numpy(flops, bytes_fp32, gpu):
    times = np.array([[flops, flops], [bytes_fp32, bytes_fp32 / 2]], dtype=np.float64)
    times /= np.array([[gpu.fp32, gpu.fp16], [gpu.bandwidth, gpu.bandwidth]])
    one, other = times.max(axis=0)
    return one / other


@speedup.wrong("peaks-only")
def ratio_of_peaks(flops, bytes_fp32, gpu):
    return gpu.fp16 / gpu.fp32


@speedup.wrong("always-two")
def doubles(flops, bytes_fp32, gpu):
    return 2


@speedup.wrong("bytes-stay")
def same_bytes(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return max(flops / gpu.fp32, moved) / max(flops / gpu.fp16, moved)


@speedup.wrong("bytes-of-16-bits")
def doubles_the_bytes(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return max(flops / gpu.fp32, 2 * moved) / max(flops / gpu.fp16, moved)


@speedup.wrong("shorter-time")
def the_shorter(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return min(flops / gpu.fp32, moved) / min(flops / gpu.fp16, moved / 2)


@speedup.wrong("times-added")
def one_after_the_other(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return (flops / gpu.fp32 + moved) / (flops / gpu.fp16 + moved / 2)


@speedup.wrong("smaller-gain")
def the_smaller_gain(flops, bytes_fp32, gpu):
    return min(2, gpu.fp16 / gpu.fp32)


@speedup.wrong("larger-gain")
def the_larger_gain(flops, bytes_fp32, gpu):
    return max(2, gpu.fp16 / gpu.fp32)


@speedup.wrong("one-side")
def judged_in_fp32(flops, bytes_fp32, gpu):
    memory_bound = flops / gpu.fp32 < bytes_fp32 / gpu.bandwidth
    return 2 if memory_bound else gpu.fp16 / gpu.fp32


@speedup.wrong("one-side")
def judged_in_fp16(flops, bytes_fp32, gpu):
    memory_bound = flops / gpu.fp16 < bytes_fp32 / 2 / gpu.bandwidth
    return 2 if memory_bound else gpu.fp16 / gpu.fp32


@speedup.wrong("inverse")
def upside_down(flops, bytes_fp32, gpu):
    return 1 / two_times(flops, bytes_fp32, gpu)


@speedup.wrong("flops-halved")
def halves_all(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return max(flops / gpu.fp32, moved) / max(flops / 2 / gpu.fp16, moved / 2)


@speedup.wrong("from-tf32")
def over_tf32(flops, bytes_fp32, gpu):
    moved = bytes_fp32 / gpu.bandwidth
    return max(flops / gpu.tf32, moved) / max(flops / gpu.fp16, moved / 2)


@speedup.wrong("not-a-ratio")
def seconds_in_half(flops, bytes_fp32, gpu):
    return max(flops / gpu.fp16, bytes_fp32 / 2 / gpu.bandwidth)


@speedup.wrong("not-a-ratio")
def attainable_flops(flops, bytes_fp32, gpu):
    return min(gpu.fp16, flops / (bytes_fp32 / 2) * gpu.bandwidth)


@speedup.wrong("memory-bound")
def never_slower(flops, bytes_fp32, gpu):
    return two_times(flops, bytes_fp32, gpu) if flops / bytes_fp32 > 2 else 1


@speedup.wrong("compute-bound")
def capped_at_two(flops, bytes_fp32, gpu):
    return min(2.0, two_times(flops, bytes_fp32, gpu))


@speedup.wrong("in-between")
def middle_of_both(flops, bytes_fp32, gpu):
    one, other = judged_in_fp32(flops, bytes_fp32, gpu), judged_in_fp16(flops, bytes_fp32, gpu)
    return (one + other) / 2


@speedup.right
def in_fp32(flops, bytes_fp32, gpu):
    slow = torch.tensor([flops / gpu.fp32, bytes_fp32 / gpu.bandwidth]).max()
    fast = torch.tensor([flops / gpu.fp16, bytes_fp32 / 2 / gpu.bandwidth]).max()
    return (slow / fast).item()


@speedup.wrong("rounded")
def to_two_places(flops, bytes_fp32, gpu):
    return round(in_fp32(flops, bytes_fp32, gpu), 2)


@speedup.wrong("wrong-type")
def as_a_tensor(flops, bytes_fp32, gpu):
    times = torch.tensor([flops / gpu.fp32, bytes_fp32 / gpu.bandwidth], dtype=torch.float64).max()
    return times / max(flops / gpu.fp16, bytes_fp32 / 2 / gpu.bandwidth)
