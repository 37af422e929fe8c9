"""What the page of lesson 07 says beyond what its cells show."""

import math
import warnings

import pytest
import torch
from torch import nn


def set_up(init_scale=1024.0, **settings):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale, **settings)


def backward(net, scaler, factor=1.0):
    scaler.scale(factor * net(torch.ones(2, 4)).sum()).backward()


def test_a_backward_pass_without_scale_is_refused_at_first_and_silent_later():
    net, opt, scaler = set_up()
    net(torch.ones(2, 4)).sum().backward()
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.step(opt)
    net, opt, scaler = set_up()
    backward(net, scaler)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    before = net.weight.detach().clone()
    net(torch.ones(2, 4)).sum().backward()
    gradient = net.weight.grad.clone()
    scaler.step(opt)
    assert torch.allclose(before - net.weight, 0.1 * gradient / 1024, rtol=1e-2)


def test_the_warning_about_a_scheduler_comes_only_if_the_first_step_was_skipped():
    def warned(skipped):
        net, opt, scaler = set_up()
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 10)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(4):
                opt.zero_grad()
                backward(net, scaler, math.inf if step == skipped else 1.0)
                scaler.step(opt)
                scaler.update()
                scheduler.step()
        return any("lr_scheduler.step()" in str(each.message) for each in caught)

    assert [warned(skipped) for skipped in (0, 1, 2, None)] == [True, False, False, False]


def test_two_updates_in_a_step_count_two_clean_steps():
    net, _, scaler = set_up(growth_interval=2)
    opts = [torch.optim.SGD([each], lr=0.1) for each in net.parameters()]
    backward(net, scaler)
    for opt in opts:
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() == 2048


def test_clipping_infinite_gradients_makes_nan_and_the_step_is_skipped_all_the_same():
    net, opt, scaler = set_up()
    before = net.weight.detach().clone()
    backward(net, scaler)
    net.weight.grad[0, 0] = math.inf
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    assert norm.isinf()
    assert net.weight.grad.isnan().any()
    scaler.step(opt)
    scaler.update()
    assert torch.equal(net.weight, before)
    assert scaler.get_scale() == 512


def test_a_state_is_five_numbers_and_a_disabled_scaler_has_none():
    state = torch.amp.GradScaler("cpu").state_dict()
    assert len(state) == 5
    assert all(type(each) in (int, float) for each in state.values())
    assert torch.amp.GradScaler("cpu", enabled=False).state_dict() == {}


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_left_from_before_count_a_scaleth_after_a_step(fused):
    """`step` divides `.grad` in place, so what was left of it counts 1/scale in the next step; a fused one, too."""
    net, _, scaler = set_up()
    opt = torch.optim.SGD(net.parameters(), lr=0.0, fused=fused)
    for _ in range(2):
        backward(net, scaler)
        scaler.step(opt)
        scaler.update()
    alone = torch.full((1, 4), 2.0)
    assert torch.allclose(net.weight.grad, alone * (1 + 1 / 1024), rtol=1e-6)


def test_a_grad_scaler_without_a_device_disables_itself_where_there_is_no_cuda():
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.amp.GradScaler()
    assert not scaler.is_enabled()


def test_bf16_has_the_range_of_fp32():
    assert torch.finfo(torch.bfloat16).tiny == torch.finfo(torch.float32).tiny
