"""What the quiz of lesson 09 says of Trainers, tried."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.course.lessons.l09.machines import MACHINES
from amp_lab.course.lessons.l09.quiz import QUIZ
from amp_lab.train.data import digits
from amp_lab.train.models import digit_classifier


def right(question):
    return next(option.text for option in question.options if option.right)


def test_from_65536_down_to_1024():
    """A loss whose gradients fit into FP16 at 1,024, and at no scale above it."""
    weight = nn.Parameter(torch.ones(()))
    optimizer, scaler = torch.optim.SGD([weight], lr=1e-6), torch.amp.GradScaler("cpu")
    made = []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = (weight.half() * 60).float()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert "from 65,536 down" in right(QUIZ[0])
    assert (scaler.get_scale(), 20 - len(made)) == (1024.0, 6)


def gradient(loss, model):
    return torch.cat(
        [each.flatten() for each in torch.autograd.grad(loss, model.parameters(), retain_graph=True)]
    )


def test_a_window_with_two_micro_batches_of_four_is_half_a_mean_and_the_small_one_counts_four_times():
    model, (images, labels) = digit_classifier(), digits(60)
    losses = F.cross_entropy(model(images), labels, reduction="none")
    quarters = sum(each.mean() for each in losses.split((48, 12))) / 4
    weights = torch.ones(60)
    weights[48:] = 4
    half = (losses * weights).sum() / weights.sum() / 2
    assert right(QUIZ[1]).startswith("Half of a mean in which the 12 count four times")
    found, same, true = (gradient(loss, model) for loss in (quarters, half, losses.mean()))
    assert (found - same).norm() < 1e-4 * same.norm()
    assert (found - true).norm() > 0.1 * true.norm()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_that_was_not_written_to_its_end(tmp_path, share):
    path = tmp_path / "last.pt"
    torch.save(digit_classifier().state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "cannot be read" in right(QUIZ[2])
    with pytest.raises((RuntimeError, EOFError, OSError)):
        torch.load(path)


def test_dropout_and_the_order_of_batches_need_the_generators_states():
    def draws():
        return F.dropout(torch.ones(100)), torch.randperm(100)

    state = torch.get_rng_state()
    first, anew = draws(), draws()
    torch.set_rng_state(state)
    again = draws()
    assert "drawn anew" in right(QUIZ[3])
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, anew))


def test_a_file_keeps_all_bits(tmp_path):
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    torch.save(weights, tmp_path / "weights.pt")
    assert torch.equal(torch.load(tmp_path / "weights.pt"), weights)


def test_a_scalers_state_holds_its_count_of_clean_steps():
    scaler = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        scaler.scale(weight * 1.0).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 3


def test_runs_in_fp32_that_differ_only_in_the_seed_lie_further_apart_than_the_two_of_the_question():
    """As on the page, whose own cells show five; here three, and a larger step instead of five epochs."""
    images, labels = digits()
    ends = []
    for seed in range(3):
        model = digit_classifier(seed=seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(images[:1440]), labels[:1440]).backward()
            optimizer.step()
        ends.append(F.cross_entropy(model(images[1440:]), labels[1440:]).item())
    assert "spread over seeds" in right(QUIZ[4])
    assert max(ends) - min(ends) > 0.412 - 0.405


def test_a_t4_emulates_bf16_and_has_tensor_cores_for_fp16():
    t4 = next(machine for machine in MACHINES if machine.name == "T4")
    assert "emulated" in right(QUIZ[5])
    assert (t4.says_bf16, t4.bf16, t4.fp16) == (True, "emulated", "tensor cores")
    assert torch.tensor(0.99 * 2.0**-25).half() == 0
    assert math.log2(torch.finfo(torch.bfloat16).eps) == -7  # 8 significant bits
