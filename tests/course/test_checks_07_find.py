"""What exercise 7.9 expects, derived without `find_overflow`: by trial of the scales, by hooks, and from FP32."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.verdict import Correct, Wrong
from amp_lab.course.lessons.l07 import faulty, finding
from amp_lab.course.lessons.l07.untouched import first_change

LIMIT = torch.finfo(torch.float16).max
SCALES = [2.0**each for each in range(16, -25, -1)]
each_case = pytest.mark.parametrize("case", finding.CASES, ids=lambda case: f"{case.layers} {case.kinds}")
breaking = [case for case in finding.CASES if case.want is not None]


def finite_at(model, batch, scale, device="cpu"):
    """Whether the loss and all gradients are finite in FP16 autocast."""
    inputs, targets = (each.to(device) for each in batch)
    with torch.autocast(device, torch.float16):
        loss = faulty.squared_error(model.to(device)(inputs), targets)
    grads = torch.autograd.grad(scale * loss, [*model.parameters()])
    return bool(loss.isfinite()), all(bool(each.isfinite().all()) for each in grads)


def cure(case, number, device="cpu"):
    model, batch = case.model(), case.batches()[number]
    return next((scale for scale in SCALES if all(finite_at(model, batch, scale, device))), None)


class Operators(TorchFunctionMode):
    """Notes of each operator the module it stands in, and what it made; of each result the gradient, too."""

    def __init__(self, model):
        super().__init__()
        self.inside, self.made, self.grads = [], [], []
        for name, each in model.named_modules():
            each.register_forward_pre_hook(lambda *_, name=name: self.inside.append(name))
            each.register_forward_hook(lambda *_: (self.inside.pop(), None)[1])

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and self.inside:
            self.made.append((self.inside[-1], result.detach()))
            if result.requires_grad:
                name = self.inside[-1]
                result.register_hook(lambda grad: self.grads.append((name, grad)) or None)
        return result


def followed(case, number, enabled):
    """Run a batch at a scale of 1, in FP16 autocast or in FP32; return the operators, the loss, and the gradients."""
    model, (inputs, targets) = case.model(), case.batches()[number]
    with Operators(model) as seen, torch.autocast("cpu", torch.float16, enabled=enabled):
        loss = faulty.squared_error(model(inputs), targets)
    grads = torch.autograd.grad(loss, [*model.parameters()])
    names = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
    return seen, loss.detach(), list(zip(names, grads, strict=True))


def largest(named):
    """Return the largest absolute value of each name, in the order in which the names come."""
    found = {}
    for name, value in named:
        found[name] = max(found.get(name, 0.0), float(value.abs().max()))
    return found


@each_case
def test_the_expected_batch_is_the_first_that_no_scale_of_one_or_more_cures(case):
    cures = [cure(case, number) for number in range(len(case.kinds))]
    broken = [number for number, scale in enumerate(cures) if scale is None or scale < 1]
    assert broken[:1] == ([] if case.want is None else [case.want.number])
    if case.want is not None:
        assert cures[case.want.number] == case.want.scale
        finite, _ = finite_at(case.model(), case.batches()[case.want.number], 1.0)
        assert case.want.phase == ("backward" if finite else "forward")


@each_case
def test_what_is_passed_over_is_so_with_a_margin_of_two(case):
    last = len(case.kinds) if case.want is None else case.want.number
    assert last == 0 or case.kinds[:last].strip("."), "nothing but healthy batches comes before it"
    for number in range(last):
        seen, loss, grads = followed(case, number, enabled=False)
        assert loss.isfinite()
        sizes = largest([*seen.made, *seen.grads, *grads])
        assert max(sizes.values()) < LIMIT / 2, f"batch {number}: {sizes}"
        assert (cure(case, number) or 0) >= 2


@pytest.mark.parametrize("case", [case for case in breaking if case.want.phase == "forward"], ids=str)
def test_a_forward_pass_breaks_in_that_module_with_a_margin_of_two(case):
    seen, _, _ = followed(case, case.want.number, enabled=False)
    too_large = [name for name, value in seen.made if value.abs().max() > LIMIT / 2]
    assert too_large[0] == case.want.module
    first = next(value for _, value in seen.made if value.abs().max() > LIMIT / 2)
    assert 2 * LIMIT < first.abs().max() < math.inf
    in_fp16, loss, _ = followed(case, case.want.number, enabled=True)
    broken = [name for name, value in in_fp16.made if not value.isfinite().all()]
    assert broken[0] == case.want.module
    assert not loss.isfinite()


@pytest.mark.parametrize("case", [case for case in breaking if case.want.scale is not None], ids=str)
def test_gradients_pass_the_limit_in_that_module_alone_with_a_margin(case):
    seen, _, grads = followed(case, case.want.number, enabled=False)
    sizes = largest([*seen.made, *seen.grads, *(each for each in grads if each[0] != case.want.module)])
    assert max(sizes.values()) < LIMIT / 2, sizes
    true = largest(grads)[case.want.module]
    assert true > 2 * LIMIT
    # Of two neighbouring powers of two, one is too large and one is not: the square root of 2 is the most there is.
    assert case.want.scale * true < LIMIT / 1.35
    assert 2 * case.want.scale * true > LIMIT * 1.35


@pytest.mark.parametrize(
    "case", [case for case in breaking if case.want.phase == "backward" and case.want.scale is None], ids=str
)
@pytest.mark.parametrize("enabled", [True, False], ids=["FP16", "FP32"])
def test_the_derivative_that_is_nan_is_so_in_fp32_and_made_in_that_module(case, enabled):
    model, (inputs, targets) = case.model(), case.batches()[case.want.number]
    makes_it, asked = [], []

    def look(name, into, out):
        asked.append(name)
        fine = all(each.isfinite().all() for each in out if each is not None)
        if fine and not all(each.isfinite().all() for each in into if each is not None):
            makes_it.append(name)

    parts = [
        name
        for name, each in model.named_modules()
        if name and not isinstance(each, nn.Sequential | faulty.Block)
    ]
    for name in parts:
        model.get_submodule(name).register_full_backward_hook(
            lambda _, into, out, name=name: look(name, into, out)
        )
    with torch.autocast("cpu", torch.float16, enabled=enabled):
        loss = faulty.squared_error(model(inputs.requires_grad_()), targets)
    loss.backward()
    assert loss.isfinite()
    assert set(asked) == set(parts)
    assert makes_it == [case.want.module]


def test_no_part_of_the_answer_is_the_same_everywhere():
    wants = [case.want for case in breaking]
    for part in ("number", "module", "phase", "scale"):
        assert len({getattr(want, part) for want in wants}) > 1, part
    for phase in ("forward", "backward"):  # nor does a pass tell the kind of module
        ends = {want.module.rpartition(".")[2] for want in wants if want.phase == phase}
        assert len(ends) > 1, phase
    assert len({want.scale for want in wants if want.scale is not None}) > 1
    assert any(case.want is None for case in finding.CASES)


@each_case
def test_a_case_is_the_same_each_time_and_leaves_the_generator_alone(case):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model, batches = case.model(), case.batches()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again = case.model()
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert len(batches) == len(case.kinds)
    for one, other in zip(itertools.chain(*batches), itertools.chain(*case.batches()), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == torch.float32


def test_another_seed_gives_other_numbers():
    assert not torch.equal(faulty.Patient(seed=0).embed.weight, faulty.Patient(seed=1).embed.weight)
    assert not torch.equal(faulty.batch(".", 0)[0], faulty.batch(".", 1)[0])
    inputs = [each for each, _ in faulty.batches("...", 3)]
    assert not torch.equal(inputs[0], inputs[1])


def test_an_unknown_kind_of_batch_is_refused():
    with pytest.raises(ValueError, match="no batch is of kind 'x': choose one of"):
        faulty.batch("x")


CHANGES = {
    "other numbers in `embed.weight`": lambda model: model.embed.weight.data.add_(1),
    "`embed.weight` as `torch.float16`": lambda model: model.half(),
    "`embed.weight` as `meta`": lambda model: model.to("meta"),
    "a gradient in `head.bias.grad`": lambda model: setattr(model.head.bias, "grad", torch.zeros(1)),
    "`requires_grad` = `False` in `head.bias`": lambda model: model.head.bias.requires_grad_(False),
    "a hook on `embed.weight`": lambda model: model.embed.weight.register_hook(lambda grad: None),
    "a hook on `head.bias`": lambda model: model.head.bias.register_post_accumulate_grad_hook(print),
    "`training` = `False` in the outermost module": lambda model: model.eval(),
    "`training` = `False` in `layers.1`": lambda model: model.layers[1].eval(),
    "a hook on the outermost module": lambda model: model.register_forward_hook(print),
    "a hook on `layers`": lambda model: model.layers.register_forward_pre_hook(print),
    "a hook on `head`": lambda model: model.head.register_full_backward_hook(print),
    "a hook on `embed`": lambda model: model.embed.register_full_backward_pre_hook(print),
    "another `forward` in `head`": lambda model: setattr(model.head, "forward", abs),
    "other modules": lambda model: model.layers.append(nn.ReLU()),
    "no `head.bias`": lambda model: setattr(model.head, "bias", None),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_is_left_in_a_model_is_named(words):
    model = faulty.Patient()
    assert first_change(model, faulty.Patient()) is None
    CHANGES[words](model)
    assert first_change(model, faulty.Patient()) == words


def test_a_hook_that_was_removed_is_no_change():
    model = faulty.Patient()
    for handle in (
        model.register_forward_hook(print),
        model.head.bias.register_hook(print),
        model.head.bias.register_post_accumulate_grad_hook(print),
    ):
        handle.remove()
    assert first_change(model, faulty.Patient()) is None


def told(*said):
    """Return the verdict on an answer that knows all that is expected, but says `said` of the first network."""
    answers = iter([said, *(case.want for case in finding.CASES[1:])])
    return grade("7.9", lambda model, loss_fn, batches: next(answers))


def test_numbers_of_numpy_are_as_good():
    assert type(told(np.int64(2), "layers.1.attn", "forward", None)) is Correct
    wants = [case.want and tuple(case.want) for case in finding.CASES]
    wants[1] = (np.int32(2), *wants[1][1:3], np.float16(wants[1][3]))
    answers = iter(wants)
    assert type(grade("7.9", lambda model, loss_fn, batches: next(answers))) is Correct


class Agrees(str):
    """A string that says it is equal to all others."""

    __hash__ = str.__hash__
    __eq__ = lambda self, other: True  # noqa: E731
    __ne__ = lambda self, other: False  # noqa: E731


class Refuses(tuple):
    def __iter__(self):
        raise RuntimeError("not to be unpacked")


def test_what_a_class_says_of_itself_is_not_believed():
    assert told(2, Agrees("x"), "forward", None).diagnosis == "no-such-module"
    assert told(2, "layers.1.attn", Agrees("x"), None).diagnosis == "no-such-phase"
    verdict = grade("7.9", lambda model, loss_fn, batches: Refuses((0, "", "forward", None)))
    assert type(verdict) is Wrong
    assert verdict.diagnosis == "blames-healthy"


@pytest.mark.parametrize(
    "scale", [0, -2.0, 0.3, 3, math.nan, math.inf, 10**400, True, "0.25", 1j, np.float64(0.3)]
)
def test_what_is_no_power_of_two_is_no_scale(scale):
    verdict = told(2, "layers.1.attn", "forward", scale)
    assert verdict.diagnosis == "no-such-scale"
    assert "a power of two" in verdict.text


@pytest.mark.parametrize("scale", [1, 2, 2.0**16, 2.0**-24, 2.0**-140, 2.0**127])
def test_a_power_of_two_is_tried(scale):
    assert told(2, "layers.1.attn", "forward", scale).diagnosis == "no-cure-forward"


def test_no_sentence_tells_the_right_module():
    for module in ("", "layers", "layers.1", "layers.1.attn.out", "head", "nowhere", None):
        verdict = told(2, module, "forward", None)
        assert type(verdict) is Wrong
        assert "'layers.1.attn'" not in verdict.text, verdict.text


def test_the_check_computes_in_one_thread_and_puts_the_number_back():
    seen = []

    def answer(model, loss_fn, batches):
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        grade("7.9", answer)
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
