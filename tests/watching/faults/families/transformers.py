"""Encoders of transformers, with attention written by hand."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "transformer"
BATCH, TOKENS, WIDTH = 2, 6, 16
LOWEST_HALF = torch.finfo(torch.float16).min


class Attention(nn.Module):
    """One head. `mask` is True where attention is allowed, or numbers that are added to the scores."""

    def __init__(self, divided=True, dropout=0.0):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.divided = divided
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2))
        if self.divided:
            scores = scores / math.sqrt(WIDTH)
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, float("-inf"))
        elif mask is not None:
            scores = scores + mask.to(scores.dtype)
        return torch.matmul(self.dropout(scores.softmax(-1)), self.value(x))


class Block(nn.Module):
    """Attention and two linear layers, each with a residual sum."""

    def __init__(self, **settings):
        super().__init__()
        self.attention = Attention(**settings)
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, mask=None):
        x = x + self.attention(x, mask)
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Encoder(nn.Module):
    """Two blocks and a head for every token."""

    def __init__(self, **settings):
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block(**settings) for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x, mask=None):
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def vectors():
    return torch.randn(BATCH, TOKENS, WIDTH)


def labels():
    return torch.randint(0, 5, (BATCH, TOKENS))


def of_tokens(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def later_tokens_hidden():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().expand(BATCH, TOKENS, TOKENS)


@fault(
    "forward-overflow",
    "query · key of large vectors passes 65 504",
    ops=("matmul",),
    module="layers.1.attention",
    phase="forward",
)
def attention_scores():
    model = Encoder()
    attention = model.layers[1].attention
    with torch.no_grad():
        attention.query.bias.fill_(300.0)
        attention.key.bias.fill_(300.0)
    return Case(model, of_tokens, (vectors(), labels()))


@fault(
    "forward-overflow",
    "the residual sum of 40 000 and 40 000",
    ops=("add",),
    module="layers.0",
    phase="forward",
)
def residual_sum():
    model = Encoder()
    with torch.no_grad():
        model.layers[0].attention.value.bias.fill_(40_000.0)
        model.layers[0].narrow.bias.fill_(40_000.0)
    return Case(model, of_tokens, (vectors(), labels()))


@fault(
    "mask-overflow",
    "a text of padding alone: a row of scores that are all -inf",
    ops=("softmax",),
    module="layers.0.attention",
    phase="forward",
)
def row_masked_completely():
    mask = later_tokens_hidden().clone()
    mask[1] = False
    return Case(Encoder(), of_tokens, (vectors(), mask, labels()))


@fault(
    "mask-overflow",
    "numbers of -1e9 as a mask are -inf in FP16, and hide whole rows",
    or_cause="cast-overflow",  # which it is as well
    ops=("softmax", "to"),
    module="layers.0.attention",
    phase="forward",
)
def large_numbers_as_a_mask():
    mask = torch.zeros(BATCH, TOKENS, TOKENS)
    mask[1] = -1e9  # in FP32 an even softmax over the padding, which nobody reads
    return Case(Encoder(), of_tokens, (vectors(), mask, labels()))


def _weighed(output, target):
    return 3e6 * of_tokens(output, target)


@fault(
    "backward-overflow",
    "cross entropy, weighed by three million",
    ops=("cross_entropy", "to"),
    phase="backward",
    cures=True,
)
def weighed_cross_entropy():
    return Case(Encoder(), _weighed, (vectors(), labels()))


@fault(
    "scale-too-large",
    "activations of thousands: the gradient of the head's weights is their product with the gradient",
    ops=("linear",),
    module="head",
    phase="backward",
    cures=True,
)
def large_activations():
    model = Encoder()
    with torch.no_grad():
        model.layers[0].wide.weight.mul_(500.0)
        model.layers[0].wide.weight.sub_(model.layers[0].wide.weight.mean(1, keepdim=True))
    return Case(model, of_tokens, (vectors(), labels()))


def _ignoring(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


@fault("no-labels", "every label of the batch is -100", ops=("cross_entropy", "nll_loss"), phase="forward")
def all_labels_ignored():
    return Case(Encoder(), _ignoring, (vectors(), torch.full((BATCH, TOKENS), -100)))


@fault("nan-in-weights", "an infinite weight in a key", module="layers.1.attention.key", phase="forward")
def infinite_weight():
    model = Encoder()
    with torch.no_grad():
        model.layers[1].attention.key.weight[0, 0] = float("inf")
    return Case(model, of_tokens, (vectors(), labels()))


@healthy("attention without a mask")
def unmasked():
    return Case(Encoder(), of_tokens, (vectors(), labels()))


@healthy("a causal mask of -inf")
def causal():
    return Case(Encoder(), of_tokens, (vectors(), later_tokens_hidden(), labels()))


@healthy("a causal mask of -inf that is added")
def causal_added():
    mask = torch.zeros(BATCH, TOKENS, TOKENS).masked_fill(~later_tokens_hidden(), float("-inf"))
    return Case(Encoder(), of_tokens, (vectors(), mask, labels()))


@healthy("a causal mask of -1e9, which FP16 makes -inf, with a number left in every row")
def causal_with_large_numbers():
    mask = torch.zeros(BATCH, TOKENS, TOKENS).masked_fill(~later_tokens_hidden(), -1e9)
    return Case(Encoder(), of_tokens, (vectors(), mask, labels()))


@healthy("dropout in attention, and half of the labels ignored")
def dropout_and_ignored_labels():
    target = labels()
    target[:, ::2] = -100
    return Case(Encoder(dropout=0.3), _ignoring, (vectors(), later_tokens_hidden(), target))


@healthy("scores so large that softmax is saturated")
def saturated_attention():
    model = Encoder()
    with torch.no_grad():
        model.layers[0].attention.query.bias.fill_(30.0)
    return Case(model, of_tokens, (vectors(), labels()))
