"""Models with recurrent layers, checkpointing, islands, compilation; loops in classes and generators."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast, custom_bwd, custom_fwd
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Models and styles"


def _train(watch, net, data, loss_fn=F.mse_loss, scale=1024.0):
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=scale)
    with watch(net, opt, scaler):
        for x, y in data:
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = loss_fn(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("gradient checkpointing, both kinds")
def checkpointed(watch):
    class Net(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.reentrant = reentrant
            self.first, self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = self.first(x)
            h = checkpoint(lambda h: torch.relu(self.body(h)), h, use_reentrant=self.reentrant)
            return self.head(h)

    for reentrant in (False, True):
        _train(watch, Net(reentrant), regression())


@right("the whole model is checkpointed, in BF16")
def checkpointed_as_a_whole(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(checkpoint(net, x, use_reentrant=False), labels)
            loss.backward()
            opt.step()


@right("islands of FP32 in FP16, and an FP16 region in one of them")
def islands(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.middle, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = torch.relu(self.body(x))
            with autocast("cpu", enabled=False):
                h = self.middle(h.float())
                with autocast("cpu", dtype=torch.float16):
                    h = torch.relu(self.middle(h))
                h = F.layer_norm(h.float(), (8,))
            return self.head(h)

    _train(watch, Net(), regression())


@right("autocast inside the model, as a decorator of forward")
def decorated_forward(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

        @autocast("cpu", dtype=torch.float16)
        def forward(self, x):
            return self.layers(x)

    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            loss = F.cross_entropy(net(x).float(), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("a function decorated with autocast returns the loss")
def decorated_loss(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)

    @autocast("cpu", dtype=torch.float16)
    def loss_of(x, labels):
        return F.cross_entropy(net(x), labels)

    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            scaler.scale(loss_of(x, labels)).backward()
            scaler.step(opt)
            scaler.update()


@right("one region object, made once and entered in each step")
def one_region_object(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    region = autocast("cpu", dtype=torch.bfloat16)
    with watch(net, opt):
        for x, labels in labelled():
            with region:
                loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()
            opt.zero_grad()


@right("everything of one step inside the region, without an island")
def step_inside_the_region(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()


@right("a custom autograd.Function with custom_fwd and custom_bwd")
def custom_function(watch):
    class MatMul(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 1))

        def forward(self, x):
            return MatMul.apply(x, self.weight)

    _train(watch, Net(), regression())


@right("torch.compile(backend='eager')")
def compiled(watch):
    net = torch.compile(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), backend="eager")
    _train(watch, net, regression())


@right("a GRU over chunks of a sequence, with the state detached")
def recurrent(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x, state=None):
            out, state = self.gru(x, state)
            return self.head(out), state

    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for _ in range(2):
            state = None
            for x in torch.randn(4, 12, 3).chunk(3, dim=1):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    out, state = net(x, state)
                    loss = F.mse_loss(out, x.sum(dim=-1, keepdim=True))
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                state = state.detach()


@right("BatchNorm and Dropout, images in channels_last")
def images(watch):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 2)
    ).to(memory_format=torch.channels_last)
    data = [(torch.randn(4, 1, 6, 6), torch.randint(0, 2, (4,))) for _ in range(4)]
    _train(watch, net, data, F.cross_entropy)


@right("attention with a mask of FP16's smallest number, scores divided first")
def attention(watch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 1)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = (q / 8**0.5) @ k.transpose(-1, -2)
            future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
            h = scores.softmax(dim=-1) @ v
            h = h + F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            return self.out(F.normalize(h.float(), dim=-1))

    _train(watch, Attention(), regression())


@right("a mask of -inf where no row is masked completely")
def attention_with_infinities(watch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.into, self.out = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(len(x))
            return self.out(self.layer(self.into(x)[None], src_mask=mask, is_causal=True)[0])

    _train(watch, Attention(), regression())


@right("a class in the style of Lightning")
def module_with_hooks(watch):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

        def training_step(self, batch, index):
            x, labels = batch
            return {"loss": F.cross_entropy(self.net(x), labels), "index": index}

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Trainer:
        def __init__(self, module):
            self.module, self.optimizer = module, module.configure_optimizers()
            self.scaler = GradScaler("cpu", init_scale=1024.0)
            self.logged = {}

        def run(self, loader):
            for index, batch in enumerate(loader):
                with autocast("cpu", dtype=torch.float16):
                    out = self.module.training_step(batch, index)
                self.logged.setdefault("loss", []).append(out["loss"].detach())
                self.optimizer.zero_grad()
                self.scaler.scale(out["loss"]).backward()
                self.before_step()
                self.scaler.step(self.optimizer)
                self.scaler.update()

        def before_step(self):
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)

    trainer = Trainer(Module())
    with watch(trainer.module, trainer.optimizer, trainer.scaler):
        trainer.run(labelled())


@right("a generator drives the loop")
def generator_driven(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)

    def steps():
        for x, y in regression():
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            yield loss
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()

    with watch(net, opt, scaler):
        for loss in steps():
            scaler.scale(loss).backward()


@right("a DataLoader, and a subclass of GradScaler")
def subclassed_scaler(watch):
    class Scaler(GradScaler):
        def __call__(self, loss, optimizer, parameters):
            self.scale(loss).backward()
            self.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            self.step(optimizer)
            self.update()
            return norm

    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = Scaler("cpu", init_scale=1024.0)
    loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=8, shuffle=True)
    with watch(net, opt, scaler):
        for _ in range(2):
            for x, y in loader:
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler(loss, opt, list(net.parameters()))


@right("triplets: the model is called three times before one backward pass")
def triplets(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, _ in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                anchor, near, far = net(x), net(x + 0.01), net(x.flip(0))
                loss = F.triplet_margin_loss(anchor.float(), near.float(), far.float())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("a vector loss, scaled as a list with another")
def losses_in_a_list(watch):
    net = nn.Linear(6, 2)
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression(outputs=2):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(x)
                losses = [F.mse_loss(out[:, i], y[:, i]) for i in range(2)]
            torch.autograd.backward(scaler.scale(losses))
            scaler.step(opt)
            scaler.update()


@right("the region ends before the loss, which is computed in FP32")
def loss_in_float32(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = F.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("labels and positions as integers, counters and means in FP32")
def metrics_in_float32(watch):
    net = nn.Sequential(nn.Embedding(3000, 4), nn.Flatten(), nn.Linear(8, 3))
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    total, right_answers = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    with watch(net, opt, scaler):
        for _ in range(6):
            items, labels = torch.randint(0, 3000, (8, 2)), torch.randint(0, 3, (8,))
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(items)
                loss = F.cross_entropy(out, labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.detach()
            right_answers += (out.argmax(dim=-1) == labels).sum()
