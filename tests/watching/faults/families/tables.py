"""Models of graphs and of tables: sums over neighbours, bags of embeddings, features and weights that are large."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "graphs and tables"


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="mean")
        self.bottom = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, i, off, dense):
        return self.top(torch.cat([self.bag(i, off), self.bottom(dense)], 1)).squeeze(1)


def visits(d=None):
    return (
        torch.randint(0, 50, (10,)),
        torch.tensor([0, 3, 3, 7]),
        torch.rand(4, 3) if d is None else d,
        torch.tensor([0.0, 1, 0, 1]),
    )


@healthy("a recommender with an EmbeddingBag, one bag of which is empty", device_type="cpu")
def rec_healthy():
    return Case(Rec(), F.binary_cross_entropy_with_logits, visits())


@fault(
    "cast-overflow",
    "a price of 120,000 as a feature",
    phase="forward",
    ops=("linear",),
    module="bottom.0",
    device_type="cpu",
)
def rec_price():
    d = torch.rand(4, 3)
    d[2, 1] = 120000.0
    return Case(Rec(), F.binary_cross_entropy_with_logits, visits(d))


@fault(
    "nan-in-targets",
    "a label that is NaN",
    phase="forward",
    ops=("binary_cross_entropy_with_logits",),
    device_type="cpu",
)
def rec_nan_label():
    b = visits()
    b[-1][1] = float("nan")
    return Case(Rec(), F.binary_cross_entropy_with_logits, b)


class LogRec(Rec):
    def forward(self, i, off, dense):
        return super().forward(i, off, dense.log())


@fault("pole", "the log of a feature that is 0", phase="forward", ops=("log",), device_type="cpu")
def rec_log0():
    d = torch.rand(4, 3) + 0.1
    d[0, 0] = 0
    return Case(LogRec(), F.binary_cross_entropy_with_logits, visits(d))


@fault("scale-too-large", "a pos_weight of 5,000", phase="backward", cures=True, device_type="cpu")
def rec_pos_weight():
    return Case(
        Rec(),
        lambda out, y: F.binary_cross_entropy_with_logits(out, y, pos_weight=torch.tensor(5000.0)),
        visits(),
    )


class Graph(nn.Module):
    def __init__(self, mode="add"):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)
        self.mode = mode

    def forward(self, x, src, dst):
        h = self.lin(x)
        z = torch.zeros_like(h)
        if self.mode == "scatter":
            h = z.scatter_add(0, dst[:, None].expand(-1, 4), h[src])
        else:
            h = z.index_add(0, dst, h[src])
        if self.mode == "mean":
            deg = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
            h = h * (1 / deg)[:, None].to(h.dtype)
        return self.out(h)


def graph(n=6, e=12):
    return torch.randn(n, 4), torch.randint(0, n, (e,)), torch.arange(e) % n, torch.arange(n) % 2


@healthy("messages by index_add", device_type="cpu")
def graph_healthy():
    return Case(Graph(), F.cross_entropy, graph())


@healthy("messages by scatter_add", device_type="cpu")
def graph_scatter_healthy():
    return Case(Graph("scatter"), F.cross_entropy, graph())


def hub(mode):
    model = Graph(mode)
    model.lin.bias.data.fill_(3000.0)
    x, s, d, y = graph(6, 40)
    return Case(model, F.cross_entropy, (x, s, torch.zeros_like(d), y))


@fault(
    "forward-overflow",
    "a node that sums 40 messages, by index_add",
    phase="forward",
    ops=("index_add",),
    device_type="cpu",
)
def graph_hub():
    return hub("add")


@fault(
    "forward-overflow",
    "a node that sums 40 messages, by scatter_add",
    phase="forward",
    ops=("scatter_add",),
    device_type="cpu",
)
def graph_hub_scatter():
    return hub("scatter")


@fault(
    "pole",
    "a mean over the messages of a node that gets none",
    phase="forward",
    ops=("reciprocal", "div", "__rtruediv__", "__truediv__", "rdiv"),
    device_type="cpu",
)
def graph_isolated():
    x, s, d, y = graph()
    return Case(Graph("mean"), F.cross_entropy, (x, s, d.clamp(max=4), y))


class Dist(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(3, 3)

    def forward(self, x):
        h = self.f(x).float()
        d = h[:, None] - h[None]
        return torch.sqrt((d * d).sum(-1))


@fault(
    "nan-derivative",
    "the distance of a point from itself",
    phase="backward",
    ops=("sqrt",),
    device_type="cpu",
)
def dist_sqrt0():
    return Case(Dist(), lambda out, y: F.huber_loss(out, y), (torch.randn(4, 3), torch.ones(4, 4)))


class CDist(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(3, 3)

    def forward(self, x):
        h = self.f(x).float()
        return torch.cdist(h, h)


@healthy("cdist, whose derivative at 0 is 0", device_type="cpu")
def cdist_healthy():
    return Case(CDist(), lambda out, y: F.huber_loss(out, y), (torch.randn(4, 3), torch.ones(4, 4)))


class BNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.o = nn.Linear(4, 2)

    def forward(self, x):
        return self.o(self.bn(self.f(x)))


def samples():
    return (torch.randn(3, 4), torch.tensor([0, 1, 0]))


@fault(
    "nan-in-weights",
    "running statistics that are NaN",
    phase="forward",
    ops=("batch_norm", "native_batch_norm"),
    module="bn",
    device_type="cpu",
)
def bn_nan_buffer():
    model = BNet().eval()
    model.bn.running_var[1] = float("nan")
    return Case(model, F.cross_entropy, samples())


@healthy("BatchNorm in eval mode", device_type="cpu")
def bn_eval_healthy():
    return Case(BNet().eval(), F.cross_entropy, samples())


@fault("nan-in-data", "an infinite feature", phase="forward", ops=("linear",), module="f", device_type="cpu")
def inf_data():
    x, y = samples()
    x[0, 0] = float("inf")
    return Case(BNet(), F.cross_entropy, (x, y))


@fault(
    "forward-overflow",
    "a factor that is multiplied in place",
    phase="forward",
    ops=("mul_", "mul", "__imul__"),
    module="1",
    device_type="cpu",
)
def inplace_gain():
    class Gain(nn.Module):
        def forward(self, x):
            return x.mul_(1e5)

    return Case(
        nn.Sequential(nn.Linear(4, 4), Gain(), nn.Linear(4, 2)),
        F.cross_entropy,
        (torch.randn(3, 4) + 3, torch.tensor([0, 1, 0])),
    )


@fault(
    "cast-overflow",
    "a weight of 70,000 is cast",
    phase="forward",
    ops=("linear",),
    module="2",
    device_type="cpu",
)
def weight_past_limit():  # a weight of 7e4, which is fine in FP32, is cast to inf
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].weight.data[0, 0] = 7e4
    model[0].bias.data.fill_(2.0)
    return Case(model, F.cross_entropy, samples())
