"""What the checks of lesson 09 lean on: right steps, machines, files, and claims about code, proved by running it."""

import contextlib
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from amp_lab.course.judging.exercise import grade
from amp_lab.course.lessons.l09 import claims, evaluating, faulty_steps, machines, reviewed, text
from amp_lab.course.lessons.l09.choosing import right as right_choice
from amp_lab.course.lessons.l09.runs import Bench, Scene, mean_square, scenes
from amp_lab.course.lessons.l09.strangers import RAN, Hostile, says_gpu
from amp_lab.course.lessons.l09.watching_files import Watched
from amp_lab.device import describe_device
from amp_lab.device.facts import CpuFacts
from amp_lab.train.precision import choose
from tests.course.answers import l09


def play(scene):
    """Make all steps of a scene; return the bench and which steps were refused."""
    bench, refused = Bench(scene), []
    for number in range(len(scene.plan)):
        with contextlib.suppress(FloatingPointError):
            faulty_steps.right(*bench.arguments(number))
            continue
        refused.append(number)
    return bench, refused


# 9.1


@pytest.mark.parametrize(
    "scene", [each for each in scenes() if set(each.plan) == {"c"} and each.max_norm > 1]
)
def test_right_step_is_that_of_the_whole_batch_in_fp64(scene):
    bench, _ = play(scene)
    other = Bench(scene)
    net = other.net.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for number in range(len(scene.plan)):
        inputs, targets = map(torch.cat, zip(*scene.window(number), strict=True))
        optimizer.zero_grad()
        (net(inputs.double()) - targets.double()).square().mean().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.8
    for got, want in zip(bench.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0.02, atol=3e-3)


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: f"{scene.plan}-{scene.precision}")
def test_what_happens_in_a_scene_is_what_its_plan_says(scene):
    bench, refused = play(scene)
    noticed = "ni" if scene.precision == "FP16" else "nig"
    assert refused == [number for number, letter in enumerate(scene.plan) if letter in noticed]
    assert bench.scheduler.last_epoch == scene.plan.count("c")
    scale, clean = 2.0**10, 0
    for letter in scene.plan:
        clean = clean + 1 if letter == "c" else 0 if letter in "og" else clean
        scale *= 0.5 if letter in "og" else 2.0 if clean == scene.interval else 1.0
        clean = 0 if clean == scene.interval else clean
    assert bench.scaler.get_scale() == (scale if scene.precision == "FP16" else 1.0)
    assert all(each.isfinite().all() for each in bench.net.parameters())


def test_scenes_tell_every_kind_of_trouble_in_fp16_and_without():
    assert {letter for each in scenes() if each.precision == "FP16" for letter in each.plan} == set("cogni")
    assert {letter for each in scenes() if each.precision == "FP32" for letter in each.plan} == set("cgni")
    assert {each.precision for each in scenes()} == {"FP32", "FP16", "BF16"}


def test_an_infinite_loss_is_infinite_in_fp32():
    scene = Scene("i")
    inputs, targets = scene.window(0)[0]
    assert mean_square(Bench(scene).net(inputs), targets).isinf()


# 9.2


@pytest.mark.parametrize(
    ("kind", "facts"), [(kind, facts) for kind, found in machines.FACTS.items() for facts in found]
)
def test_auto_is_what_the_trainer_takes(kind, facts):
    here = describe_device("cpu").facts
    if isinstance(facts, CpuFacts):
        asked = replace(here, device=kind, cpu=facts, gpu=None)
    else:
        asked = replace(here, device=f"{kind}:0", gpu=facts)
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    dtype, scaled = right_choice(machines.machine_of(kind, facts), "auto")
    assert names[dtype] == choose(asked)
    assert scaled is (names[dtype] == "fp16")


def test_machines_are_of_every_kind():
    found = {(each.type, each.bf16) for each in machines.MACHINES}
    assert found >= {("cuda", "tensor cores"), ("cuda", "emulated"), ("cuda", "matrix units")}
    assert found >= {("cpu", "matrix units"), ("cpu", "vector units"), ("cpu", "emulated")}


# 9.3


def test_a_file_that_names_a_gpu_needs_map_location(tmp_path):
    with says_gpu():
        torch.save(torch.ones(2), tmp_path / "gpu.pt")
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "gpu.pt", weights_only=True)
    assert torch.load(tmp_path / "gpu.pt", map_location="cpu", weights_only=True).tolist() == [1, 1]


def test_a_hostile_file_runs_code_unless_it_is_refused(tmp_path):
    torch.save(Hostile(), tmp_path / "hostile.pt")
    RAN.clear()
    with pytest.raises(Exception, match="Weights only"):
        torch.load(tmp_path / "hostile.pt", weights_only=True)
    assert RAN == []
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert RAN == ["the code in the file ran"]


def test_the_watcher_of_files_puts_everything_back(tmp_path):
    before = torch.save, os.replace, os.fsync, shutil.copyfile
    with Watched(tmp_path / "run.pt", "save") as watched, pytest.raises(OSError, match="No space"):
        torch.save(torch.ones(1000), tmp_path / "run.pt")
    assert (torch.save, os.replace, os.fsync, shutil.copyfile) == before
    assert watched.failed
    torch.save(torch.ones(1000), tmp_path / "whole.pt")
    half, whole = ((tmp_path / name).stat().st_size for name in ("run.pt", "whole.pt"))
    assert 0.4 * whole < half < 0.6 * whole


def test_the_watcher_of_files_knows_when_bytes_were_brought_to_the_disk(tmp_path):
    path = tmp_path / "run.pt"
    for flushes in (False, True):
        with Watched(path) as watched, (tmp_path / "new").open("wb") as file:
            file.write(b"some bytes")
            if flushes:
                file.flush()
            os.fsync(file)
            file.flush()
            os.replace(tmp_path / "new", path)
        assert [each.synced for each in watched.moved] == [flushes]


# 9.4


def test_the_right_mean_is_that_of_all_samples_in_fp64():
    case = evaluating.Case((4, 4, 1), metrics=("error",), seed=1)
    model, data = evaluating._set_up(case)
    given = evaluating._arguments(case, model, data, evaluating.Looks())
    got = l09.one_by_one(*given)
    model.eval()
    inputs, targets = map(torch.cat, zip(*data, strict=True))
    with torch.no_grad():
        wrong = model.double()(inputs.double()) - targets.double()
    assert got["loss"] == pytest.approx(float(wrong.square().mean()), rel=1e-5)
    assert got["error"] == pytest.approx(float(wrong.abs().mean()), rel=1e-5)


def test_sums_in_16_bits_would_be_seen():
    case = next(each for each in evaluating.CASES if "largest" in each.metrics)
    model, data = evaluating._set_up(case)
    with torch.no_grad():
        squares = [(model.eval()(x).half() - y.half()).square() for x, y in data]
    assert any(each.isinf().any() for each in squares)


# 9.5: each claim, true or not, by running what it is about


class Sampler:
    def set_epoch(self, epoch):
        self.epoch = epoch


def make_trainer(*, use_amp=False, epochs=1, distributed=None):
    """Make a Trainer of the reviewed code, with a barrier that lets everybody pass; `distributed`: PyTorch's own."""
    names = {"torch": SimpleNamespace(**vars(torch))}
    names["torch"].distributed = distributed or SimpleNamespace(barrier=lambda: None)
    exec(reviewed.TRAINER, names)
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    args = SimpleNamespace(use_amp=use_amp, epochs=epochs, device="cpu")
    return names["Trainer"](args, model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.0))


def make_batches(count=2):
    return [(torch.full((2, 3), 1.0 + number), torch.zeros(2, 1)) for number in range(count)]


def claim_a():
    first, both = make_trainer(), make_trainer()
    first.train(make_batches()[1:], train_sampler=Sampler())
    both.train(make_batches(), train_sampler=Sampler())
    other = make_trainer()
    other.train(make_batches()[:1], train_sampler=Sampler())
    assert torch.equal(both.model.weight.grad, first.model.weight.grad + other.model.weight.grad)


def claim_b():
    scaler = torch.amp.GradScaler("cpu")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(1)).sum()).backward()
    scaler.step(optimizer)
    scaler.scale(model(torch.ones(1)).sum()).backward()
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)


def claim_c():
    for use_amp in (False, True):
        trainer = make_trainer(use_amp=use_amp, distributed=torch.distributed)
        with pytest.raises(ValueError, match="process group has not been initialized"):
            trainer.train(make_batches(), train_sampler=Sampler())


def claim_e():
    with pytest.raises(AttributeError, match="set_epoch"):
        make_trainer().train(make_batches())


def claim_f():
    sampler = DistributedSampler(range(100), num_replicas=2, rank=0, shuffle=True)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def claim_g():
    trainer = make_trainer(use_amp=True)
    trainer.train(make_batches(), train_sampler=Sampler())
    saved = {}
    trainer.save.__globals__["torch"].save = lambda state, path: saved.update(state)
    trainer.save("run.pt")
    assert saved.keys() == {"model", "optimizer"}
    assert not any(isinstance(each, torch.amp.GradScaler) for each in vars(trainer).values())


def claim_h():
    seen = []
    layer = nn.Linear(3, 1)
    with torch.autocast("cpu", torch.float16):
        outputs = layer(torch.ones(2, 3))
    outputs.register_hook(lambda grad: seen.append(grad.dtype))
    outputs.float().sum().backward()
    assert outputs.dtype == torch.float16
    assert seen == [torch.float16]


def claim_i():
    class Untouchable:
        def __iter__(self):
            raise AssertionError("somebody reads the dev loader")

    make_trainer(epochs=2).train(make_batches(), Untouchable(), Sampler())


def claim_j():
    assert torch.tensor(1e-44, dtype=torch.float32) > 0
    assert torch.tensor(1e-8, dtype=torch.float16) == 0


def claim_k():
    nothing = SimpleNamespace(init_process_group=lambda *_, **__: None, set_device=lambda rank: None)
    names = {
        "dist": nothing,
        "torch": SimpleNamespace(cuda=nothing),
        "model": nn.Linear(1, 1),
        "DistributedDataParallel": lambda model, device_ids: model,
        "__name__": "launch",
    }
    exec(reviewed.LAUNCH, names)
    with pytest.raises(UnboundLocalError, match="model"):
        names["worker"](0, 1)


def claim_l():
    assert "localhost:12345" in reviewed.LAUNCH
    first = torch.distributed.TCPStore("localhost", 0, 1, is_master=True)
    with pytest.raises(RuntimeError, match=r"address already in use|EADDRINUSE"):
        torch.distributed.TCPStore("localhost", first.port, 1, is_master=True)


def claim_m():
    norm = nn.BatchNorm1d(2)
    norm(torch.randn(8, 2))
    before = norm.running_mean.clone()
    norm.train()
    assert before.any()
    assert torch.equal(norm.running_mean, before)


def claim_n():
    own = torch.tensor([1.0, torch.inf])
    averaged = own.mean()  # what DDP leaves in `.grad` of every rank
    scales = []
    for _rank in own:
        weight = nn.Parameter(torch.ones(()))
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
        scaler.scale(weight * 1.0).backward()
        weight.grad = averaged.clone()
        scaler.step(optimizer)
        scaler.update()
        assert weight == 1
        scales.append(scaler.get_scale())
    assert scales == [2.0**15, 2.0**15]


PROOFS = {name[-1].upper(): proof for name, proof in list(globals().items()) if name.startswith("claim_")}


@pytest.mark.parametrize("letter", PROOFS)
def test_what_is_told_of_a_claim_is_so(letter):
    PROOFS[letter]()


def test_every_claim_is_proved_and_has_its_words():
    # D is about several processes: lesson 10 trains without a barrier, and all ranks keep the same weights.
    assert PROOFS.keys() == claims.CLAIMS.keys() - {"D"}
    assert {f"claim-{letter}" for letter in claims.CLAIMS} <= text.REVIEW.diagnoses.keys()
    assert set("ACEGIKL") == claims.TRUE
    assert all(
        f"**{letter}.** {claim.words}" in claims.claim_list() for letter, claim in claims.CLAIMS.items()
    )
    assert f"{['Six', 'Seven', 'Eight'][len(claims.TRUE) - 6]} claims are true" in text.REVIEW.hints[1]


@pytest.mark.parametrize("letters", ["", "ABCDEFGHIJKLMN", "ACEGIK", "ACEGIKLN"])
def test_the_review_tells_the_first_claim_that_is_judged_wrongly(letters):
    wrong = sorted(claims.TRUE ^ set(letters))
    assert grade("9.5", lambda: set(letters)).diagnosis == f"claim-{wrong[0]}"
