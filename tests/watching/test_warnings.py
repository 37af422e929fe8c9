"""Warnings of PyTorch's name the same line of the user's code with a watch as without, and come as often."""

import sys
import warnings
from collections import Counter

import pytest
import torch
from torch import nn

from amp_lab.watching.watch import watch


def scheduler_before_optimizer(model, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        scheduler.step()


def epoch_given(model, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    for epoch in range(3):
        scheduler.step(epoch)


def scaler_without_its_device(model, optimizer):
    for _ in range(3):
        torch.amp.GradScaler("cuda")


def the_old_scaler(model, optimizer):
    for _ in range(3):
        torch.cuda.amp.GradScaler(enabled=False)


def region_without_its_device(model, optimizer):
    for _ in range(3):
        with torch.autocast("cuda"):
            pass


def of_the_users_own_hook(model, optimizer):
    def warn(*args):
        warnings.warn("of a hook", UserWarning, stacklevel=1)

    handle = model.register_forward_hook(warn)
    for _ in range(3):
        model(torch.ones(1, 2))
    handle.remove()


WARNED = [
    scheduler_before_optimizer,
    epoch_given,
    scaler_without_its_device,
    the_old_scaler,
    region_without_its_device,
    of_the_users_own_hook,
]


def shown(loop, which, *, watched):
    """Return where the warnings of a loop were said to come from, how often each, under a filter."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    vars(sys.modules[__name__]).pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(which)
        if watched:
            with watch(model, optimizer):
                loop(model, optimizer)
        else:
            loop(model, optimizer)
    return Counter((each.filename, each.lineno, each.category, str(each.message)) for each in caught)


@pytest.mark.skipif(torch.cuda.is_available(), reason="some of them are about a GPU that is not there")
@pytest.mark.parametrize("which", ["always", "default"])
@pytest.mark.parametrize("loop", WARNED, ids=lambda loop: loop.__name__)
def test_a_warning_names_the_users_line(loop, which):
    alone = shown(loop, which, watched=False)
    assert alone, "PyTorch no longer warns: another example is needed"
    assert any(file == __file__ for file, *_ in alone) or loop is region_without_its_device, alone
    assert shown(loop, which, watched=True) == alone


def test_a_level_above_the_stack():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with watch(nn.Linear(2, 1), optimizer), pytest.warns(UserWarning, match="far out") as caught:
        warnings.warn("far out", UserWarning, stacklevel=10_000)
    assert caught[0].filename != __file__


def test_a_filter_by_module_still_finds_the_users():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.filterwarnings("always", module=__name__.replace(".", r"\."))
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, optimizer):
            scheduler_before_optimizer(model, optimizer)
    assert caught


def test_a_compiled_function_may_warn():
    @torch.compile(backend="eager")
    def double(x):
        warnings.warn("while it is compiled", UserWarning, stacklevel=2)
        return 2 * x

    model = nn.Linear(2, 1)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert double(torch.ones(1)).item() == 2
