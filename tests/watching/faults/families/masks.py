"""Models of sequences: masks in all their forms, tied weights, recurrent layers on both policies."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "masks and sequences"


class GPT(nn.Module):
    def __init__(self, v=23, d=16):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        self.pos = nn.Embedding(8, d)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 2, 32, 0.1, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(d, v, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        model = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return {"logits": self.head(self.enc(x, mask=model, is_causal=True))}


def by_word(o, t):
    return F.cross_entropy(o["logits"].flatten(0, 1), t.flatten())


def words():
    return torch.randint(0, 23, (3, 8)), torch.randint(0, 23, (3, 8))


@healthy("a GPT with tied weights and dropout", device_type="cpu")
def gpt_healthy():
    return Case(GPT(), by_word, words())


@healthy("the same with CUDA's policy")
def gpt_cuda_healthy():
    return Case(GPT(), by_word, words())


@fault(
    "forward-overflow",
    "logits of an embedding that is the head, too",
    phase="forward",
    ops=("linear", "matmul"),
    module="head",
    device_type="cpu",
)
def gpt_tied_logits():
    model = GPT()
    model.tok.weight.data.mul_(1e4)
    return Case(model, by_word, words())


@fault(
    "forward-overflow",
    "the same with CUDA's policy",
    phase="forward",
    ops=("linear", "matmul"),
    module="head",
)
def gpt_tied_logits_cuda():
    model = GPT()
    model.tok.weight.data.mul_(1e4)
    return Case(model, by_word, words())


@fault(
    "no-labels",
    "all labels are ignored",
    phase="forward",
    ops=("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss_forward"),
    device_type="cpu",
)
def gpt_all_ignored():
    a, t = words()
    return Case(GPT(), by_word, (a, torch.full_like(t, -100)))


@fault(
    "scale-too-large", "a sum over tokens instead of a mean", phase="backward", cures=True, device_type="cpu"
)
def gpt_sum_loss():
    return Case(
        GPT().eval(),
        lambda out, t: F.cross_entropy(out["logits"].flatten(0, 1), t.flatten(), reduction="sum"),
        words(),
    )


class PadAttn(nn.Module):
    """a -1e9 padding mask that is cast to FP16 by hand; one sequence is all padding"""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(9, 8, padding_idx=0)
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.out = nn.Linear(8, 9)

    def forward(self, i):
        x = self.emb(i)
        model = (i == 0)[:, None].float() * -1e9
        a = self.q(x) @ self.k(x).transpose(1, 2)
        return self.out((a + model.to(a.dtype)).softmax(-1) @ x.to(a.dtype))


@healthy("a mask of -1e9 that FP16 makes -inf", device_type="cpu")
def padattn_mask_inf_healthy():
    i = torch.randint(1, 9, (3, 5))
    i[0, 3:] = 0
    return Case(PadAttn(), lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()), (i, i.clone()))


@fault(
    "mask-overflow",
    "-1e9 for padding, cast to FP16, in a sequence of padding alone",
    phase="forward",
    ops=("softmax", "_softmax", "to", "_to_copy"),
    device_type="cpu",
    or_cause="cast-overflow",
)
def padattn_all_padding():
    i = torch.randint(1, 9, (3, 5))
    i[0, :] = 0
    return Case(PadAttn(), lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()), (i, i.clone()))


class MHA(nn.Module):
    def __init__(self, need=True):
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.att = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 3)
        self.need = need

    def forward(self, x, pad):
        h = self.inp(x)
        h, w = self.att(h, h, h, key_padding_mask=pad, need_weights=self.need)
        return self.fc(h).mean(1), w


def padded(full=False):
    p = torch.zeros(3, 5, dtype=torch.bool)
    p[1, 3:] = True
    p[2] = full
    return torch.randn(3, 5, 4), p, torch.arange(3)


@healthy("nn.MultiheadAttention with padding", device_type="cpu")
def mha_healthy():
    return Case(MHA(), lambda out, y: F.cross_entropy(out[0], y), padded())


@healthy("nn.MultiheadAttention without its weights", device_type="cpu")
def mha_sdpa_healthy():
    return Case(MHA(False), lambda out, y: F.cross_entropy(out[0], y), padded())


@fault(
    "mask-overflow",
    "nn.MultiheadAttention, and a sequence of padding alone",
    phase="forward",
    ops=("softmax", "_softmax", "multi_head_attention_forward"),
    module="att",
    device_type="cpu",
)
def mha_row_masked():
    return Case(MHA(), lambda out, y: F.cross_entropy(out[0], y), padded(True))


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.v = nn.Linear(8, 8)
        self.o = nn.Linear(8, 1)

    def forward(self, x):
        model = torch.full((6, 6), float("-inf")).triu(1)
        return self.o(
            F.scaled_dot_product_attention(
                self.q(x), self.k(x), self.v(x), attn_mask=model.to(self.q(x).dtype)
            )
        )


@healthy("a causal mask of -inf", device_type="cpu")
def sdpa_inf_mask_healthy():
    return Case(
        Causal(),
        lambda out, y: 0.01 * F.mse_loss(out.float(), y),
        (torch.randn(2, 6, 8), torch.randn(2, 6, 1)),
    )


@fault(
    "forward-overflow",
    "the values of attention leave FP16",
    phase="forward",
    ops=("scaled_dot_product_attention", "linear"),
    module="v",
    device_type="cpu",
    or_cause="cast-overflow",
)
def sdpa_values():
    model = Causal()
    model.v.weight.data.fill_(1e4)
    return Case(
        model, lambda out, y: F.mse_loss(out.float(), y), (torch.ones(2, 6, 8) * 3, torch.randn(2, 6, 1))
    )


class RNN(nn.Module):
    def __init__(self, cell=nn.LSTM):
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.rnn = cell(8, 8, batch_first=True)
        self.fc = nn.Linear(8, 11)

    def forward(self, i):
        h, _ = self.rnn(self.emb(i))
        return self.fc(h)


def by_token(out, t):
    return F.cross_entropy(out.flatten(0, 1), t.flatten())


def tokens():
    return torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 6))


@healthy("an LSTM")
def lstm_healthy():
    return Case(RNN(), by_token, tokens())


@healthy("a GRU", device_type="cpu")
def gru_healthy():
    return Case(RNN(nn.GRU), by_token, tokens())


@fault(
    "forward-overflow",
    "a head behind a GRU",
    phase="forward",
    ops=("linear",),
    module="fc",
    device_type="cpu",
)
def gru_head():
    model = RNN(nn.GRU)
    model.fc.weight.data.fill_(60000.0)
    model.rnn.bias_ih_l0.data.fill_(3.0)
    return Case(model, by_token, tokens())


@fault("forward-overflow", "a head behind an LSTM", phase="forward", ops=("linear",), module="fc")
def lstm_head():
    model = RNN()
    model.fc.weight.data.fill_(60000.0)
    model.rnn.bias_ih_l0.data.fill_(3.0)
    return Case(model, by_token, tokens())


@fault(
    "nan-in-weights",
    "an embedding that is NaN",
    phase="forward",
    ops=("gru", "embedding", "linear"),
    module="emb",
    device_type="cpu",
)
def gru_nan_embedding():
    model = RNN(nn.GRU)
    model.emb.weight.data[:] = float("nan")
    return Case(model, by_token, tokens())


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 4, bias=False)
        self.w.weight.data = torch.eye(4) * 6.0
        self.o = nn.Linear(4, 1)

    def forward(self, x):
        h = x
        for _ in range(8):
            h = self.w(h)
        return self.o(h)


@fault(
    "backward-overflow",
    "a recurrence whose derivative is 6 to the 8th",
    phase="backward",
    ops=("linear", "mm", "matmul"),
    module="w",
    cures=True,
    device_type="cpu",
)
def unrolled_explodes():  # the states are tiny, the derivative is 6^8 = 2e6
    return Case(
        Unrolled(),
        lambda out, y: (out.float() - y).pow(2).mean(),
        (torch.full((2, 4), 1e-5), torch.ones(2, 1) * 300),
    )


class Gat(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)
        self.o = nn.Linear(4, 2)

    def forward(self, x, adj):
        h = self.f(x).float()
        e = (h @ h.T).float()
        return self.o(e.masked_fill(~adj, float("-inf")).softmax(1) @ h.to(e.dtype))


@fault(
    "mask-overflow",
    "attention over the neighbours of a node that has none",
    phase="forward",
    ops=("softmax", "_softmax"),
    device_type="cpu",
)
def gat_isolated():
    adj = torch.eye(5, dtype=torch.bool)
    adj[3] = False
    return Case(Gat(), F.cross_entropy, (torch.randn(5, 4), adj, torch.arange(5) % 2))


@healthy("attention over neighbours", device_type="cpu")
def gat_healthy():
    return Case(
        Gat(), F.cross_entropy, (torch.randn(5, 4), torch.eye(5, dtype=torch.bool), torch.arange(5) % 2)
    )


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.o = nn.Linear(5, 2)

    def forward(self, x):
        return self.o(torch.einsum("bid,bjd->bij", self.q(x), self.k(x)).softmax(-1)).mean(1)


@fault(
    "forward-overflow", "scores of attention by einsum", phase="forward", ops=("einsum", "bmm"), module="1"
)
def einsum_scores_cuda():
    e = Einsum()
    e.q.weight.data.mul_(3e3)
    e.k.weight.data.mul_(3e3)
    return Case(nn.Sequential(nn.Identity(), e), F.cross_entropy, (torch.randn(2, 5, 8), torch.arange(2)))


@fault(
    "cast-overflow",
    "an embedding of a million",
    phase="forward",
    ops=("embedding", "linear"),
    module="1",
    device_type="cpu",
)
def embedding_grown():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    model[0].weight.data[3] = 1e6
    return Case(model, F.cross_entropy, (torch.tensor([0, 3, 1]), torch.tensor([0, 1, 0])))


@healthy("an embedding that forward shortens", device_type="cpu")
def max_norm_healthy():
    return Case(
        nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 2)),
        F.cross_entropy,
        (torch.arange(4), torch.arange(4) % 2),
    )
