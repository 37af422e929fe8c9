"""Several models, optimizers or scalers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.func import functional_call

from tests.watching.loops.collection import right
from tests.watching.loops.data import regression

SECTION = "Several models and optimizers"


def _players():
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    return generator, discriminator


@right("GAN: two optimizers, one scaler, one update()")
def gan_with_one_scaler(watch):
    generator, discriminator = _players()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([generator, discriminator], [opt_g, opt_d], scaler):
        for real, _ in regression():
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            opt_d.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                fake = generator(torch.randn(len(real), 4))
                loss_d = F.binary_cross_entropy_with_logits(discriminator(real), ones)
                loss_d = loss_d + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            opt_g.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()


@right("GAN: two optimizers, two scalers")
def gan_with_two_scalers(watch):
    generator, discriminator = _players()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    scaler_g, scaler_d = GradScaler("cpu", init_scale=1024.0), GradScaler("cpu", init_scale=512.0)
    with watch([generator, discriminator], [opt_g, opt_d]):
        for real, _ in regression():
            opt_d.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                fake = generator(torch.randn(len(real), 4))
                loss_d = (
                    F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
                )
            scaler_d.scale(loss_d).backward()
            scaler_d.step(opt_d)
            scaler_d.update()
            opt_g.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss_g = F.softplus(-discriminator(fake)).mean()
            scaler_g.scale(loss_g).backward()
            scaler_g.step(opt_g)
            scaler_g.update()


@right("GAN: one scaler, update() after each player's own step")
def gan_with_an_update_for_each(watch):
    generator, discriminator = _players()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([generator, discriminator], [opt_g, opt_d], scaler):
        for real, _ in regression():
            opt_d.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                fake = generator(torch.randn(len(real), 4))
                loss_d = (
                    F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
                )
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            scaler.update()
            opt_g.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss_g = F.softplus(-discriminator(fake)).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()


@right("WGAN-GP in BF16: n_critic = 3, penalty of the critic's gradient at its input")
def wgan_gp(watch):
    generator, critic = _players()
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    with watch([generator, critic], [opt_g, opt_c]):
        for step, (real, _) in enumerate(regression(9)):
            with autocast("cpu", dtype=torch.bfloat16):
                fake = generator(torch.randn(len(real), 4))
                loss = critic(fake.detach()).mean() - critic(real).mean()
            share = torch.rand(len(real), 1)
            between = (share * real + (1 - share) * fake.detach().float()).requires_grad_()
            (grad,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = loss + 10 * (grad.norm(dim=1) - 1).pow(2).mean()
            opt_c.zero_grad()
            loss.backward()
            opt_c.step()
            if step % 3 == 2:
                opt_g.zero_grad()
                with autocast("cpu", dtype=torch.bfloat16):
                    loss = -critic(generator(torch.randn(len(real), 4))).mean()
                loss.backward()
                opt_g.step()


@right("n_critic in FP16 with one scaler")
def n_critic(watch):
    generator, critic = _players()
    opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([generator, critic], [opt_g, opt_c], scaler):
        for step, (real, _) in enumerate(regression(9)):
            opt_c.zero_grad()
            with autocast("cpu", dtype=torch.float16), torch.no_grad():
                fake = generator(torch.randn(len(real), 4))
            with autocast("cpu", dtype=torch.float16):
                loss = critic(fake).mean() - critic(real).mean()
            scaler.scale(loss).backward()
            scaler.step(opt_c)
            scaler.update()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
            if step % 3 == 2:
                opt_g.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = -critic(generator(torch.randn(len(real), 4))).mean()
                scaler.scale(loss).backward()
                scaler.step(opt_g)
                scaler.update()


@right("two optimizers for two parts of one model, both unscaled and clipped together")
def two_parts(watch):
    body, head = nn.Linear(6, 8), nn.Linear(8, 1)
    model = nn.Sequential(body, nn.ReLU(), head)
    opt_body = torch.optim.SGD(body.parameters(), lr=1e-2)
    opt_head = torch.optim.AdamW(head.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(model, [opt_body, opt_head], scaler):
        for x, y in regression():
            for opt in (opt_body, opt_head):
                opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            for opt in (opt_body, opt_head):
                scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for opt in (opt_body, opt_head):
                scaler.step(opt)
            scaler.update()


@right("teacher and student, the teacher without gradients")
def distilled(watch):
    teacher, student = nn.Linear(6, 3).eval().requires_grad_(False), nn.Linear(6, 3)
    opt = torch.optim.Adam(student.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(student, opt, scaler):
        for x, _ in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                with torch.no_grad():
                    wanted = teacher(x).softmax(dim=-1)
                loss = F.kl_div(F.log_softmax(student(x), dim=-1), wanted.float(), reduction="batchmean")
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("actor and critic of reinforcement learning, with a target network")
def actor_critic(watch):
    actor, critic, target = nn.Linear(6, 2), nn.Linear(8, 1), nn.Linear(8, 1).requires_grad_(False)
    target.load_state_dict(critic.state_dict())
    opt_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    with watch([actor, critic], [opt_actor, opt_critic]):
        for step in range(8):
            state, following, reward = torch.randn(8, 6), torch.randn(8, 6), torch.randn(8, 1)
            with torch.no_grad():
                value = reward + 0.99 * target(torch.cat([following, actor(following)], dim=-1))
            with autocast("cpu", dtype=torch.bfloat16):
                action = torch.randn(8, 2)
                loss = F.mse_loss(critic(torch.cat([state, action], dim=-1)), value)
            opt_critic.zero_grad()
            loss.backward()
            opt_critic.step()
            if step % 2:
                with autocast("cpu", dtype=torch.bfloat16):
                    loss = -critic(torch.cat([state, torch.tanh(actor(state))], dim=-1)).mean()
                opt_actor.zero_grad()
                loss.backward()
                opt_actor.step()
                with torch.no_grad():
                    for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                        slow.lerp_(fast, 0.005)


@right("policy gradient: several epochs over the same rollout")
def policy_gradient(watch):
    policy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(policy, opt, scaler):
        for states, rewards in regression(3):
            with torch.no_grad():
                old = F.log_softmax(policy(states), dim=-1)
                actions = torch.distributions.Categorical(logits=old).sample()[:, None]
            for _ in range(3):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    new = F.log_softmax(policy(states).float(), dim=-1)
                    ratio = (new - old).gather(1, actions).exp()
                    loss = -torch.minimum(ratio * rewards, ratio.clamp(0.8, 1.2) * rewards).mean()
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                scaler.step(opt)
                scaler.update()


@right("meta-learning with functional_call, in FP32")
def meta_learning(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with watch(net, opt):
        for x, y in regression():
            weights = dict(net.named_parameters())
            inner = F.mse_loss(functional_call(net, weights, (x[:4],)), y[:4])
            grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            adapted = {
                name: weight - 0.01 * grad
                for (name, weight), grad in zip(weights.items(), grads, strict=True)
            }
            loss = F.mse_loss(functional_call(net, adapted, (x[4:],)), y[4:])
            opt.zero_grad()
            loss.backward()
            opt.step()


@right("two models trained side by side, each with its optimizer and its own watch")
def side_by_side(watch):
    first, second = nn.Linear(6, 1), nn.Linear(6, 1)
    opt_a, opt_b = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(first, opt_a, scaler), watch(second, opt_b):
        for x, y in regression():
            opt_a.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(first(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt_a)
            scaler.update()
            opt_b.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(second(x), y)
            loss.backward()
            opt_b.step()
