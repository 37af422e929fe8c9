"""Language models: an embedding, a layer, and logits for every word."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "language model"
BATCH, TOKENS, WORDS, WIDTH = 2, 6, 20, 16
RARE = WORDS - 1  # a word that one batch of 200 has


class Language(nn.Module):
    """Logits (batch, tokens, words) for tokens (batch, tokens)."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(F.gelu(self.layer(self.words(tokens))))


class Tied(Language):
    """Logits by the words' own vectors."""

    def forward(self, tokens):
        return torch.matmul(self.words(tokens), self.words.weight.t())


class Capped(Language):
    """The probabilities themselves, with exp in place."""

    def forward(self, tokens):
        odds = super().forward(tokens).exp_()
        return odds / odds.sum(-1, keepdim=True)


def texts():
    return torch.randint(0, RARE, (BATCH, TOKENS))


def of_tokens(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


@fault(
    "forward-overflow",
    "vectors of words of 200, multiplied with each other",
    ops=("matmul",),
    module="",
    phase="forward",
)
def tied_logits():
    model = Tied()
    with torch.no_grad():
        model.words.weight.mul_(200.0)
    return Case(model, of_tokens, (texts(), texts()))


@fault(
    "forward-overflow",
    "exp_ in place stays in FP16: exp(12) is above 65 504",
    ops=("exp_", "exp"),
    module="",
    phase="forward",
)
def exp_in_place():
    model = Capped()
    with torch.no_grad():
        model.head.bias[:2] = 12.0
    return Case(model, of_tokens, (texts(), texts()))


@fault(
    "forward-overflow", "CPU autocast leaves exp in FP16", ops=("exp",), phase="forward", device_type="cpu"
)
def exp_on_cpu():
    def by_hand(output, target):
        odds = output.exp()
        chosen = odds.gather(-1, target.unsqueeze(-1))
        return (odds.sum(-1, keepdim=True) / chosen).float().log().mean()

    model = Language()
    with torch.no_grad():
        model.head.bias[:2] = 12.0
    return Case(model, by_hand, (texts(), texts()))


def _with_squared_logits(output, target):
    return of_tokens(output, target) + 1e-4 * (output * output).mean()


@fault("forward-overflow", "a penalty on logits of 300, squared in FP16", ops=("mul",), phase="forward")
def squared_logits():
    model = Language()
    with torch.no_grad():
        model.head.bias[:3] = 300.0
    return Case(model, _with_squared_logits, (texts(), texts()))


def rare_batches(count=200):
    """Batches of which one, and only one, has the rare word."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        found = [(texts(), texts()) for _ in range(count)]
    found[137][0][1, 2] = RARE
    return found


def model_with_a_rare_word():
    model = Language()
    with torch.no_grad():
        model.words.weight[RARE] = 60_000.0  # never trained, and from a broken file
        model.layer.weight.abs_()
    return model


@fault(
    "forward-overflow",
    "one batch of 200 has a word whose vector is too large",
    ops=("linear",),
    module="layer",
    phase="forward",
)
def one_batch_of_200():
    return Case(model_with_a_rare_word(), of_tokens, rare_batches()[137])


@fault("nan-in-weights", "the vector of one word is NaN", module="words", phase="forward")
def nan_in_an_embedding():
    model = Language()
    with torch.no_grad():
        model.words.weight[3] = float("nan")
    tokens = texts()
    tokens[0, 0] = 3
    return Case(model, of_tokens, (tokens, texts()))


def _likelihood(output, target):
    chosen = output.float().softmax(-1).gather(-1, target.unsqueeze(-1))
    return -chosen.log().mean()


@fault("pole", "the log of a probability of exactly 0", ops=("log",), phase="forward")
def log_of_a_probability():
    model = Language()
    with torch.no_grad():
        model.head.bias[0] = 200.0
    return Case(model, _likelihood, (texts(), texts().clamp_min(1)))


def _safe_likelihood(output, target):
    chosen = output.softmax(-1).half().gather(-1, target.unsqueeze(-1))
    return -(chosen + 1e-8).log().mean()


@fault("eps-lost", "log(p + 1e-8) of probabilities in FP16", ops=("log",), phase="forward")
def eps_in_a_log():
    model = Language()
    with torch.no_grad():
        model.head.bias[0] = 200.0
    return Case(model, _safe_likelihood, (texts(), texts().clamp_min(1)))


def _perplexity(output, target):
    return of_tokens(output, target).exp()


@fault("fp32-overflow", "perplexity of a loss of 300: exp(300)", ops=("exp",), phase="forward")
def perplexity():
    model = Language()
    with torch.no_grad():
        model.head.bias[0] = 300.0
    return Case(model, _perplexity, (texts(), texts().clamp_min(1)))


@fault(
    "no-labels",
    "a text that is padding only: every label is ignored",
    ops=("cross_entropy", "nll_loss"),
    phase="forward",
)
def padding_only():
    def ignoring(output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)

    return Case(Language(), ignoring, (texts(), torch.zeros(BATCH, TOKENS, dtype=torch.long)))


def _summed(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum") * 100


@fault(
    "scale-too-large",
    "a sum over tokens, times 100",
    ops=("cross_entropy", "to"),
    phase="backward",
    cures=True,
)
def sum_over_tokens():
    return Case(Language(), _summed, (texts(), texts()))


@healthy("next words")
def next_words():
    return Case(Language(), of_tokens, (texts(), texts()))


@healthy("tied vectors")
def tied():
    model = Tied()
    with torch.no_grad():
        model.words.weight.mul_(0.1)
    return Case(model, of_tokens, (texts(), texts()))


@healthy("one of the 199 other batches")
def another_batch():
    return Case(model_with_a_rare_word(), of_tokens, rare_batches()[0])


@healthy("a padding word, with half of the labels ignored")
def half_ignored():
    target = texts()
    target[:, ::2] = -100
    return Case(Language(), of_tokens, (texts(), target))
