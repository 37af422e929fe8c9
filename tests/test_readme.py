"""What the README says holds: its example runs, its tables tell of the lessons and commands that there are."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from amp_lab import cli, formats
from amp_lab.course import catalog

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

# In its first life, rank 1 dies in the second epoch.
KILLED_ONCE = """
import os, pathlib, signal
from torch.optim.optimizer import register_optimizer_step_post_hook
made = []
def die(*_):
    made.append(1)
    if len(made) == 30:
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    register_optimizer_step_post_hook(die)
"""


def rows(heading):
    """Return the cells of each row of the table whose first line begins with `heading`."""
    table = README[README.index(f"\n{heading}") :].split("\n\n")[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_example_runs_and_shows_what_fp16_loses(capsys):
    example = EXAMPLES[0]
    assert len(example.strip().splitlines()) <= 10
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "PyTorch" in printed  # the report on this machine
    lost = dict(re.findall(r"(\S+(?: E5M2)?): +(\d+)% become zero", printed))
    assert lost.keys() == {"FP16", "BF16", "FP8 E5M2"}
    # P(|1e-7 z| <= 2^-25) = 0.234; BF16 reaches down to 9.2e-41; to FP8 all of it is zero.
    assert 21 <= int(lost["FP16"]) <= 26
    assert (lost["BF16"], lost["FP8 E5M2"]) == ("0", "100")
    for fmt in (formats.FP16, formats.BF16, formats.FP8_E5M2):
        assert f"numbers near 1 are {fmt.limits.eps:.2g} apart" in printed


def test_the_example_of_a_loop_skips_first_and_steps_then(capsys):
    example = EXAMPLES[1]
    torch.manual_seed(0)
    exec(compile(example, "README.md", "exec"), {})
    first, *others, history = re.findall(
        r"^(?:skipped|stepped|History).*", capsys.readouterr().out, re.MULTILINE
    )
    assert first.startswith("skipped at loss scale 16,777,216")
    assert "infinit" in first
    assert others[-1].startswith("stepped at loss scale")
    assert history.startswith("History: 10 steps")


def test_the_example_of_an_x_ray_shows_casts_and_explains_an_error(capsys):
    example = EXAMPLES[2]
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for name in ("linear1", "scaled_dot_product_attention", "layer_norm", "FP32→FP16"):
        assert name in printed
    what_happened = printed.split("What happened")[1]
    assert "mat1" in what_happened
    assert "FP16" in what_happened


def test_the_example_of_the_watcher_finds_what_its_comment_says(capsys, tmp_path):
    assert len(EXAMPLES) == 8
    script = tmp_path / "train.py"
    script.write_text(EXAMPLES[3], encoding="utf-8")
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    assert "WRONG: clip-before-unscale" in printed
    assert "train.py:13" in printed
    assert re.search(r"^ *\+ +scaler\.unscale_\(optimizer\)$", printed, re.MULTILINE)


def test_the_example_of_an_overflow_names_the_operator(capsys):
    torch.manual_seed(0)
    exec(compile(EXAMPLES[4], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("forward-overflow")
    assert "matmul in 1" in printed
    assert "no loss scale makes this batch finite" in printed


def test_the_example_of_the_trainer_goes_on_when_it_is_run_again(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(EXAMPLES[5], "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("History: 120 steps; after 5 epochs")
    losses = names["history"].losses
    assert losses[-1] < 0.5 * losses[0]
    names = {}
    exec(compile(EXAMPLES[5].replace("epochs=5", "epochs=6"), "README.md", "exec"), names)
    assert names["history"].losses[:120] == losses
    assert len(names["history"].losses) == 144


def test_the_example_of_several_processes_ends_well_under_torchrun_though_one_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(KILLED_ONCE + EXAMPLES[6], encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", *torchrun, "train.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "killed").exists()
    # One rank speaks. 1,497 samples are 24 batches of 32 on each of two ranks, in each epoch.
    (history,) = re.findall("^History: .*", ended.stdout, re.MULTILINE)
    assert history.startswith("History: 120 steps; after 5 epochs")


def test_the_example_of_measuring_shows_what_autocast_halves(capsys):
    exec(compile(EXAMPLES[7], "README.md", "exec"), {})
    fp32, fp16 = capsys.readouterr().out.split("Memory of a training step in FP16")
    size = r"^ *{} +([\d.]+) MiB"

    def mib(name, account):
        return float(re.search(size.format(name), account, re.MULTILINE)[1])

    assert mib("weights", fp16) == mib("weights", fp32)
    assert mib("optimizer state", fp16) == mib("optimizer state", fp32)
    assert 0.5 < mib("activations", fp16) / mib("activations", fp32) < 0.8
    assert mib("casts of weights", fp16) > 1


def test_the_map_of_lessons_is_the_catalogue():
    told = {lesson: (time, needs) for lesson, _, time, needs in rows("| lesson |")}
    assert told == {
        f"{lesson.number} {lesson.title}": (f"{lesson.minutes} min", lesson.needs)
        for lesson in catalog.lessons()
    }


def test_every_command_is_told_of_and_every_one_told_of_exists():
    named = set(re.findall(r"amp-lab ([a-z]+)", README))
    assert named == set(cli.main.commands)


def test_every_link_leads_somewhere():
    targets = re.findall(r"\]\(([^)]+)\)", README)
    anchors = {
        re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-")
        for line in README.splitlines()
        if line[:3] == "## "
    }
    local = [target for target in targets if not target.startswith("https://")]
    assert len(local) >= 4
    for target in local:
        assert target[1:] in anchors if target.startswith("#") else (ROOT / target).is_file(), target


def test_the_targets_of_make_that_it_names_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make (\w+)|\$ make (\w+)", README)):
        assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("number", [lesson.number for lesson in catalog.lessons()])
def test_the_pictures_words_for_those_who_cannot_see_it_name_the_ready_lessons(number):
    (words,) = re.findall(r"!\[(.*?)\]\(course\.svg\)", README)
    assert number in words.partition("Lesson")[2]
