"""Autocast as it is when Python starts, for tests of loops that leave it on."""

import torch


def reset_autocast():
    """Switch autocast off in this thread, with all regions left and no copies of weights kept."""
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_cache_enabled(True)
