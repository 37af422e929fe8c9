"""What the checks of lesson 10 lean on: programs that hang or do not, payloads, files and processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from amp_lab.course.judging import launched
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.guard import Contained
from amp_lab.course.judging.launched import launch
from amp_lab.course.judging.verdict import Correct, NotAttempted, Raised, Stopped, Wrong
from amp_lab.course.lessons.l10 import paying, scenes
from amp_lab.course.lessons.l10.deadlocks import PROGRAMS
from amp_lab.course.lessons.l10.stepping import how_it_ended
from amp_lab.train.distributed.workers import Outcome, run_ranks
from tests.course.answers import l10

QUIET_S = 1.5


def forward(model, inputs, targets):
    with torch.autocast("cpu", torch.float16):
        return nn.functional.mse_loss(model(inputs).float(), targets)


def batches_of(letter, rank):
    """Return what program `letter` says of the batches of a rank."""
    draw = torch.Generator().manual_seed(rank)
    count = {"B": (5, 4), "E": (4, 3)}.get(letter, (5, 5))[rank]
    batches = [(torch.randn(4, 3, generator=draw), torch.randn(4, 2, generator=draw)) for _ in range(count)]
    if letter == "C" and rank == 1:
        batches[1][0][0, 0] = 6e4
    if letter == "D" and rank == 1:
        batches[1][0][0, 0] = torch.nan
    if letter in "GH":
        batches = [
            (inputs, torch.full((4, 2), 2.0 + rank - number)) for number, (inputs, _) in enumerate(batches)
        ]
    return batches


def run_program(stage, letter, folder):
    """Run one program of exercise 10.5 on this rank, as it stands on the page; return the scale at the end."""
    rank = stage.rank
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    if letter in "GH":
        with torch.no_grad():
            model.weight.zero_(), model.bias.zero_()
    made = []

    def step(inputs, targets):
        optimizer.zero_grad()
        made.append(None)
        if letter == "I" and rank == 1 and len(made) == 2:
            raise RuntimeError("out of memory")
        loss = forward(ddp, inputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    batches = batches_of(letter, rank)
    given = {"ranks": 2, "time": time, "path": f"{folder}/model.pt", "dev_batch": batches[0]}
    names = globals() | locals() | given
    stage.run(exec, compile(PROGRAMS[letter].code, letter, "exec"), names)
    return scaler.get_scale(), len(made)


@pytest.mark.parametrize("letter", PROGRAMS)
def test_program_hangs_or_does_not_as_it_is_said(letter, tmp_path):
    reports = launch(run_program, (letter, str(tmp_path)), 2, "", QUIET_S)
    ended = sorted(report.ended for report in reports)
    assert ended == (["returned", "waits"] if PROGRAMS[letter].hangs else ["returned", "returned"]), reports
    if letter == "C":
        assert [report.value[0] for report in reports] == [512.0, 512.0]  # both have skipped one step
    if letter == "H":
        assert len({report.value[1] for report in reports}) == 1
        assert reports[0].value[1] < 5  # they have left the loop, together


def count_bytes(rank, number):
    """Return how many bytes DDP hands to all-reduce in one step of a case."""
    case = paying.CASES[number]
    model = paying.model_of(case)
    ddp, handed = DistributedDataParallel(model), []
    hooks = {
        torch.float16: default_hooks.fp16_compress_hook,
        torch.bfloat16: default_hooks.bf16_compress_hook,
    }

    def compressed(bucket):
        buffer = bucket.buffer() if case.compression is None else bucket.buffer().to(case.compression)
        handed.append(buffer.nbytes)
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]).div_(2))

    assert set(hooks) >= {case.compression} - {None}
    ddp.register_comm_hook(None, lambda _state, bucket: compressed(bucket))
    first = next(model.parameters())
    inputs = torch.randn(4, first.shape[1], dtype=torch.float32 if case.autocast else first.dtype)
    with torch.autocast("cpu", case.autocast or torch.bfloat16, enabled=case.autocast is not None):
        outputs = ddp(inputs)
    outputs.float().sum().backward()
    return sum(handed)


@pytest.mark.parametrize(
    "number",
    [number for number, case in enumerate(paying.CASES) if case.ranks == 2 and "FP64" not in case.model],
)
def test_payload_is_what_ddp_hands_in(number):
    first, second = run_ranks(lambda rank: count_bytes(rank, number), 2)
    assert first.ended == second.ended == "returned", first.traceback
    assert first.value == second.value == paying.payload(paying.CASES[number])


def test_right_steps_are_those_of_all_samples_at_once():
    scene = scenes.SCENES[1]
    model = scenes.make_model(scene).double()
    for number, (weights, _) in enumerate(scenes.expected(scene)):
        pairs = [pair for rank in range(scenes.RANKS) for pair in scene.window(number, rank)]
        inputs, targets = (torch.cat(each).double() for each in zip(*pairs, strict=True))
        gradients = torch.autograd.grad((model(inputs) - targets).square().mean(), list(model.parameters()))
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.data -= 0.05 * gradient
        for name, each in model.named_parameters():
            torch.testing.assert_close(weights[name].double(), each.detach(), rtol=0.02, atol=1e-3)


def write(tmp_path, code):
    path = tmp_path / "train_ddp.py"
    path.write_text(code, encoding="utf-8")
    return path


AT_THE_TOP = {
    "no Python": ("def train(:\n", Raised, "SyntaxError"),
    "an error": ("import torch\n1 / 0\n", Raised, "ZeroDivisionError: division by zero (line 2: `1 / 0`)"),
    "exit": ("import sys\nsys.exit(3)\n", Stopped, "exit()"),
    "input": ("input('which? ')\n", Stopped, "keyboard"),
    "sleep": ("import time\ntime.sleep(600)\n", Wrong, "time.sleep(600)"),
    "an endless loop": ("while True:\n    pass\n", Stopped, "still running after 10 seconds"),
    "the stub": ("def train(*_, **__):\n    raise NotImplementedError\n", NotAttempted, ""),
}


@pytest.mark.parametrize("what", AT_THE_TOP)
def test_file_that_does_something_else_is_told_of(what, tmp_path):
    code, outcome, words = AT_THE_TOP[what]
    verdict = grade("10.1", write(tmp_path, code))
    assert type(verdict) is outcome, verdict.text
    assert words in verdict.text


def burn(stage):
    """Wait for a process that computes for twice as long as a rank may be quiet."""
    code = f"import time\nwhile time.process_time() < {2 * QUIET_S}: pass"
    stage.run(subprocess.run, [sys.executable, "-c", code], check=True)


def test_rank_whose_child_computes_is_not_idle():
    (report,) = launch(burn, (), 1, "", QUIET_S)
    assert report.ended in ("returned", "failed"), (
        report
    )  # "failed": a slow machine has reached the guard's limit


def come_late(stage):
    """Let rank 0 sleep for longer than it may be quiet, while the other waits for it."""
    stage.run(lambda: (stage.rank == 0 and time.sleep(1.5 * QUIET_S), dist.barrier()))


def sleep_often(stage):
    """Sleep for longer than ranks may, with a little work, and an exchange, between naps."""
    for _ in range(12):
        stage.run(
            lambda: (time.sleep(QUIET_S / 3), torch.ones(300, 300) @ torch.ones(300, 300), dist.barrier())
        )


@pytest.mark.parametrize("play", [come_late, sleep_often])
def test_rank_that_sleeps_and_comes_back_is_waited_for(play):
    assert [report.words for report in launch(play, (), 2, "", QUIET_S)] == [
        "rank 0 has gone on",
        "rank 1 has gone on",
    ]


def never_come(stage):
    """Let rank 0 sleep for ever."""
    stage.run(lambda: (stage.rank == 0 and time.sleep(99), dist.barrier()))


def wait_for_work(stage):
    """Let rank 1 wait for the answer to what it has sent, which rank 0 never will."""
    stage.run(lambda: stage.rank and dist.all_reduce(torch.ones(2), async_op=True).wait())


def test_rank_that_sleeps_for_ever_stands_still_and_the_other_waits():
    zero, one = launch(never_come, (), 2, "", QUIET_S)
    assert (zero.ended, zero.talks, one.ended, one.talks) == ("waits", False, "waits", True)
    assert how_it_ended([zero, one]) == "stands-still"


def test_rank_that_waits_for_its_own_work_waits_for_others():
    zero, one = launch(wait_for_work, (), 2, "", QUIET_S)
    assert (zero.ended, one.ended, one.talks) == ("returned", "waits", True)
    assert how_it_ended([zero, one]) == "waits"


def test_code_that_nothing_could_stop_is_told_of_as_such(tmp_path, monkeypatch):
    def never_end(_function, ranks, setting, *_, **__):
        for rank in range(ranks):
            Path(setting.folder, f"begun {rank}").touch()
        return [Outcome(rank, "timed out", None, "", "", "", 17.0) for rank in range(ranks)]

    monkeypatch.setattr("amp_lab.course.judging.ask.warm_up", lambda: None)
    monkeypatch.setattr(launched, "run_ranks", never_end)
    verdict = grade("10.1", write(tmp_path, l10.RIGHT))
    assert type(verdict) is Stopped, verdict.text
    assert "still running after 17 seconds" in verdict.text


def test_script_that_is_too_slow_for_a_second_run_was_right_the_first_time(tmp_path, monkeypatch):
    real = Ask.on_ranks

    def on_ranks(ask, *args, shown=True, **kwargs):
        if not shown:
            raise Contained("timeout", "too slow")
        return real(ask, *args, **kwargs)

    monkeypatch.setattr(Ask, "on_ranks", on_ranks)
    assert type(grade("10.1", write(tmp_path, l10.RIGHT))) is Correct


def test_error_before_the_nan_is_told_as_it_is(tmp_path):
    made = tmp_path / "made"
    line = (
        f"    if int(os.environ['RANK']) == 0:\n        os.mkdir({str(made)!r})\n    dist.init_process_group("
    )
    verdict = grade("10.1", write(tmp_path, l10.changed(("    dist.init_process_group(", line))))
    assert type(verdict) is Raised, verdict.text  # the second run finds the folder of the first
    assert "FileExistsError" in verdict.text


def test_processes_that_cannot_begin_are_no_verdict(tmp_path, monkeypatch):
    def die(*_, **__):
        return [Outcome(rank, "died", None, "", "", "AttributeError: no 'other'", 0.0) for rank in range(2)]

    monkeypatch.setattr(launched, "run_ranks", die)
    with pytest.raises(RuntimeError, match=r"(?s)Restart the kernel.*no 'other'"):
        grade("10.1", write(tmp_path, l10.RIGHT))


def test_flood_of_output_is_cut_and_shown_once(tmp_path):
    code = l10.changed(
        ("    dist.init_process_group(", "    print('lorem ipsum ' * 100_000)\n    dist.init_process_group(")
    )
    verdict = grade("10.1", write(tmp_path, code))
    assert type(verdict) is Correct, verdict.text
    assert verdict.notes[0].printed.count("lorem") < 400


@pytest.mark.parametrize(
    ("answer", "diagnosis"), [(len, "not-a-file"), ("no/such/file.py", "no-such-file"), (3, "not-a-file")]
)
def test_answer_that_is_no_file(answer, diagnosis):
    verdict = grade("10.1", answer)
    assert type(verdict) is Wrong
    assert verdict.diagnosis == diagnosis
    assert verdict.text


def test_no_process_is_left_of_a_script_that_hangs(tmp_path):
    note = tmp_path / "processes"
    note.mkdir()
    line = f"    open(r'{note}/' + str(os.getpid()), 'w').close()\n    dist.init_process_group("
    code = l10.changed(
        ("    dist.init_process_group(", line),
        ("    dist.destroy", "    dist.get_rank() or dist.barrier()\n    dist.destroy"),
    )
    verdict = grade("10.1", write(tmp_path, code))
    assert type(verdict) is Wrong, verdict.text
    assert verdict.diagnosis == "waits"
    assert "rank 0 waits (line " in verdict.text
    pids = [int(path.name) for path in note.iterdir()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_file_of_the_page_is_found_from_its_folder(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    write(tmp_path / "scratch", l10.RIGHT)
    monkeypatch.chdir(tmp_path)
    assert type(grade("10.1", "scratch/train_ddp.py")) is Correct
    assert type(grade("10.1", Path("scratch", "train_ddp.py"))) is Correct
