"""torch.compile under autocast."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import regression

SECTION = "torch.compile"


@wrong(
    "compiled-backward-in-region",
    "compiled under an outer region: its backward is autocast, too",
    shows=lambda lost: lost > 0,
)
def compiled_under_a_region(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 8)

        def forward(self, x):
            h = torch.relu(self.body(x))
            with autocast("cpu", enabled=False):
                return self.head(h.float())

    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    with watch(compiled, opt, scaler):
        for x, _ in regression(4):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = 20 * compiled(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return 16 - torch.tensor(scaler.get_scale()).log2().item()
