"""GANs with a penalty, a VAE, and losses that compare pairs."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "generative, contrastive"


class GAN(nn.Module):
    """Returns what the discriminator says of what was made, without and with a gradient for it, and of what is real."""

    def __init__(self):
        super().__init__()
        self.make = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6))
        self.judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, noise):
        made = self.make(noise)
        return self.judge(made.detach()), self.judge(made), noise


def gan_loss(says, real):
    return 0.02 * (F.softplus(says[0].float()).mean() + F.softplus(-says[1].float()).mean())


def gan_loss_by_hand(says, real):
    return -(1 - says[0].sigmoid()).log().mean() - says[1].sigmoid().log().mean()


def gan_loss_in_fp16(says, real):
    return F.softplus(says[0]).mean() + F.softplus(-says[1]).mean()


def noise():
    return torch.randn(3, 4), torch.randn(3, 6)


@healthy("both losses of a GAN", device_type="cpu")
def gan_healthy():
    return Case(GAN(), gan_loss, noise())


@fault(
    "eps-lost",
    "log(1 - sigmoid(x)), where FP16 rounds sigmoid(x) to 1",
    phase="forward",
    ops=("log",),
    device_type="cpu",
    or_cause="pole",
)
def gan_saturated():
    model = GAN()
    model.judge[2].bias.data.fill_(10.0)
    model.judge[2].weight.data.zero_()
    return Case(model, gan_loss_by_hand, noise())


@fault(
    "scale-too-large",
    "an FP16 loss, whose own gradient, the scale, is no FP16 number",
    phase="backward",
    cures=True,
    device_type="cpu",
)
def half_loss():
    return Case(GAN(), gan_loss_in_fp16, noise())


class Slope(nn.Module):
    """The gradient of a critic by its input, for a penalty: it takes a second backward pass."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        said = self.critic(x).float().sum()
        return torch.autograd.grad(said, x, create_graph=True)[0]


def penalty(slope, one):
    return ((torch.sqrt((slope * slope).sum(1)) - one) ** 2).mean()


@healthy("a gradient penalty", device_type="cpu")
def gan_penalty_healthy():
    return Case(Slope(), penalty, (torch.randn(3, 6), torch.ones(3)))


@fault(
    "nan-derivative",
    "a gradient penalty on a gradient that is 0",
    phase="backward",
    ops=("sqrt",),
    device_type="cpu",
)
def gan_penalty_sqrt0():
    model = Slope()
    model.critic[2].weight.data.zero_()
    return Case(model, penalty, (torch.randn(3, 6), torch.ones(3)))


@dataclasses.dataclass
class VOut:
    recon: object
    mu: object
    logvar: object


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Linear(6, 8)
        self.mu = nn.Linear(8, 2)
        self.lv = nn.Linear(8, 2)
        self.d = nn.Linear(2, 6)

    def forward(self, x):
        h = F.relu(self.e(x))
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.exp(0.5 * lv) * torch.randn_like(mu)
        return VOut(self.d(z), mu, lv)


def elbo(o, x):
    return F.mse_loss(o.recon.float(), x) - 0.5 * (1 + o.logvar - o.mu**2 - o.logvar.exp()).mean()


def vae(b=0.0):
    model = VAE()
    model.lv.bias.data.fill_(b)
    x = torch.rand(3, 6)
    return Case(model, elbo, (x, x))


@healthy("a VAE whose result is a dataclass", device_type="cpu")
def vae_healthy():
    model, loss, batch = vae()
    return Case(model, lambda out, x: 0.05 * loss(out, x), batch)


@fault("forward-overflow", "exp of a log-variance of 13", phase="forward", ops=("exp",), device_type="cpu")
def vae_exp():
    return vae(13.0)


@healthy("CUDA's policy computes exp in FP32")
def vae_cuda_healthy():
    model, loss, batch = vae(13.0)
    return Case(model, lambda out, x: 1e-9 * loss(out, x), batch)


@fault(
    "fp32-overflow",
    "exp of a log-variance of 120",
    phase="forward",
    ops=("exp", "mse_loss"),
    device_type="cpu",
)
def vae_exp_fp32():
    return vae(120.0)


class Proj(nn.Module):
    def __init__(self, norm=True, t=0.1):
        super().__init__()
        self.f = nn.Linear(6, 8, bias=False)
        self.norm, self.t = norm, t

    def forward(self, x):
        z = self.f(x)
        z = F.normalize(z, dim=1) if self.norm else z
        return (z @ z.T) / self.t


@healthy("a contrastive loss", device_type="cpu")
def nce_healthy():
    return Case(
        Proj(), lambda out, y: 0.01 * F.cross_entropy(out, y), (torch.randn(5, 6), torch.arange(5).roll(1))
    )


@fault(
    "forward-overflow",
    "scores divided by a temperature of 1e-4",
    phase="forward",
    ops=("div", "__truediv__", "true_divide"),
    device_type="cpu",
)
def nce_temperature():
    model = Proj(False, 1e-4)
    model.f.weight.data.fill_(1.0)
    return Case(model, F.cross_entropy, (torch.rand(5, 6) + 0.5, torch.arange(5).roll(1)))


@fault(
    "eps-lost",
    "a row of 0 is normalised: FP16 makes 0 of normalize's eps",
    phase="forward",
    ops=("normalize", "div"),
    device_type="cpu",
)
def nce_zero_row():
    x = torch.randn(5, 6)
    x[2] = 0
    return Case(Proj(), F.cross_entropy, (x, torch.arange(5).roll(1)))


def supcon(o, y):
    same = (y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)
    lp = o.float() - torch.logsumexp(o.float(), 1, keepdim=True)
    return -((lp * same).sum(1) / same.sum(1)).mean()


@fault(
    "no-labels",
    "a mean over the positives of a sample that has none",
    phase="forward",
    ops=("div", "__truediv__"),
    device_type="cpu",
    or_cause="pole",
)
def supcon_lonely():
    return Case(Proj(), supcon, (torch.randn(5, 6), torch.tensor([0, 0, 1, 1, 2])))


@healthy("a supervised contrastive loss", device_type="cpu")
def supcon_healthy():
    return Case(Proj(), lambda out, y: 0.01 * supcon(out, y), (torch.randn(4, 6), torch.tensor([0, 0, 1, 1])))


@fault(
    "scale-too-large",
    "gradients of a contrastive loss at 2^16",
    phase="backward",
    cures=True,
    device_type="cpu",
)
def nce_scale():
    return Case(Proj(), F.cross_entropy, (torch.randn(5, 6), torch.arange(5).roll(1)))


class Clip(nn.Module):
    def __init__(self, t):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(4, 8)
        self.t = nn.Parameter(torch.tensor(t))

    def forward(self, x):
        return self.t.exp() * (F.normalize(self.a(x), dim=1) @ F.normalize(self.b(x), dim=1).T)


@fault(
    "forward-overflow",
    "a learned temperature of exp(14)",
    phase="forward",
    ops=("mul", "__mul__"),
    device_type="cpu",
)
def clip_temperature():
    model = Clip(14.0)
    model.b = model.a
    return Case(model, lambda out, y: F.cross_entropy(out.float(), y), (torch.randn(3, 4), torch.arange(3)))


@healthy("a learned temperature", device_type="cpu")
def clip_healthy():
    return Case(
        Clip(1.0), lambda out, y: 0.1 * F.cross_entropy(out.float(), y), (torch.randn(3, 4), torch.arange(3))
    )


def supcon_masked(o, y):
    eye = torch.eye(len(y), dtype=torch.bool)
    lp = o.float().masked_fill(eye, float("-inf")).log_softmax(1)
    return -(lp * ((y[:, None] == y[None]) & ~eye)).sum(1).mean()


@fault(
    "pole",
    "-inf on the diagonal, which is then multiplied by 0",
    phase="forward",
    ops=("mul",),
    device_type="cpu",
    given=True,
)
def supcon_inf_diagonal():
    return Case(Proj(), supcon_masked, (torch.randn(4, 6), torch.tensor([0, 0, 1, 1])))  # 0 * -inf
