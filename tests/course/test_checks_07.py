"""What the checks of lesson 07 lean on: right loops, scenes in which things happen, logs that show their faults.

What is right is computed here without autocast and without a scaler, in FP64.
"""

import itertools
import math
import re

import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab import watch
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.verdict import Correct, Wrong
from amp_lab.course.lessons.l07 import (
    accumulating,
    clipping,
    logs,
    penalising,
    scheduling,
    sharing,
    stepping,
    tree,
    verdicts,
)
from amp_lab.course.lessons.l07.scenes import Bench, Scene
from amp_lab.watching.rules import RULES
from tests.course.answers import l07

pytestmark = pytest.mark.long


def true_weights(scene, loss_of, max_norm=None):
    """Return the weights after each step of `scene`, trained in FP64; a step that should overflow is left out."""
    bench = Bench(scene)
    net = bench.net.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=scene.rate(), momentum=0.9)
    weights = []
    for number, letter in enumerate(scene.plan):
        inputs, targets = scene.batch(number)
        optimizer.zero_grad()
        loss_of(net, inputs.double(), targets.double()).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        if letter == "c":
            optimizer.step()
        weights.append(torch.nn.utils.parameters_to_vector(net.parameters()).detach())
    return weights


def mean_square(scene):
    return lambda net, inputs, targets: scene.size * (net(inputs) - targets).square().mean()


def weights_with(step, bench):
    weights = []
    for number in range(len(bench.scene.plan)):
        torch.manual_seed(number)
        step(*bench.arguments(number))
        weights.append(torch.nn.utils.parameters_to_vector(bench.net.parameters()).detach().double())
    return weights


def expect_near(got, want, share=0.02):
    start = want[0]
    for one, other in zip(got, want, strict=True):
        moved = (want[-1] - start).abs().max()
        assert (one - other).abs().max() <= share * moved


PLAIN = [
    scene
    for scene in stepping.SCENES
    if scene.optimizer == "SGD" and scene.net == "plain" and scene.stale is None
]


@pytest.mark.parametrize("scene", PLAIN)
def test_the_right_step_is_that_of_the_true_gradients(scene):
    expect_near(weights_with(stepping.right, Bench(scene)), true_weights(scene, mean_square(scene)))


@pytest.mark.parametrize(
    ("scene", "max_norm"), [each for each in clipping.SCENES if each[0].optimizer == "SGD"]
)
def test_the_right_clipped_step_is_that_of_the_true_gradients(scene, max_norm):
    if scene.net != "plain":
        return
    bench = clipping.ClippingBench(scene, max_norm)
    want = true_weights(scene, mean_square(scene), max_norm)
    expect_near(weights_with(clipping.step_with(), bench), want)


def penalised(scene, weight):
    def loss_of(net, inputs, targets):
        loss = mean_square(scene)(net, inputs, targets)
        grads = torch.autograd.grad(loss, [*net.parameters()], create_graph=True)
        return loss + weight * torch.cat([grad.flatten() for grad in grads]).norm()

    return loss_of


@pytest.mark.parametrize("scale", [2.0**4, 2.0**8, 2.0**11, 2.0**14])
def test_the_right_penalty_is_that_of_the_true_gradients_at_every_scale(scale):
    scene = Scene("cccc", scale=scale)
    bench = penalising.PenalisingBench(scene, 0.5)
    want = true_weights(scene, penalised(scene, 0.5))
    expect_near(weights_with(penalising.step_with(), bench), want, 0.03)
    without = true_weights(scene, mean_square(scene))
    assert (without[-1] - want[-1]).abs().max() > 0.2 * (want[-1] - want[0]).abs().max()


def all_scenes():
    yield from ((Bench(scene), stepping.right) for scene in stepping.SCENES)
    yield from (
        (clipping.ClippingBench(scene, limit), clipping.step_with()) for scene, limit in clipping.SCENES
    )
    yield from (
        (accumulating.AccumulatingBench(scene, sizes, limit), accumulating.step_with())
        for scene, sizes, limit in accumulating.SCENES
    )
    yield from ((sharing.SharingBench(scene), sharing.step_with()) for scene in sharing.SCENES)
    yield from ((scheduling.SchedulingBench(scene), scheduling.right) for scene in scheduling.SCENES)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_letters_say_which_steps_overflow_and_the_watcher_has_nothing_to_say():
    skipped = clean = grown = 0
    for bench, right in all_scenes():
        with watch(bench.models, bench.all_optimizers, bench.scaler) as seen:
            for number, letter in enumerate(bench.scene.plan):
                before = bench.scaler.get_scale()
                right(*bench.arguments(number))
                after = bench.scaler.get_scale()
                assert (after < before) is (letter != "c"), (bench.scene, number)
                skipped, clean = skipped + (after < before), clean + (after == before)
                grown += after > before
        assert [each.id for each in seen.report().diagnoses] == [], bench.scene
        for net in bench.models:
            assert all(each.isfinite().all() for each in net.parameters())
    assert min(skipped, clean, grown) > 15


def test_the_loss_of_the_small_scene_needs_its_scale():
    scene = next(each for each in stepping.SCENES if each.size < 1)
    bench = Bench(scene)
    inputs, targets = scene.batch(0)
    with torch.autocast(inputs.device.type, torch.float16):
        loss = scene.loss_function(bench.net(inputs), targets)
    parameters = [*bench.net.parameters()]
    unscaled = torch.autograd.grad(loss, parameters, retain_graph=True)
    scaled = torch.autograd.grad(bench.scaler.scale(loss), parameters)
    zeros = [
        torch.cat([each.flatten() == 0 for each in grads]).float().mean() for grads in (unscaled, scaled)
    ]
    assert zeros[0] > 0.5
    assert zeros[1] == 0


@pytest.mark.parametrize(
    ("exercise", "answer", "said"),
    [
        ("7.1", l07.clears_if_not_skipped, "zero-grad-skipped"),
        ("7.2", l07.clips_before_unscaling, "clip-before-unscale"),
        ("7.3", l07.unscales_and_clips_in_the_loop, "unscale-each-micro-batch"),
        ("7.4", l07.updates_after_each, "update-between-optimizers"),
        ("7.5", l07.moves_always, "scheduler-on-skip"),
        ("7.6", l07.penalises_scaled_gradients, "penalty-of-scaled"),
    ],
)
def test_a_diagnosis_quotes_the_watcher(exercise, answer, said, monkeypatch):
    found = []

    def remember(trial):
        found.append(real(trial))
        return found[-1]

    real = verdicts.first_words
    monkeypatch.setattr(verdicts, "first_words", remember)
    verdict = grade(exercise, answer)
    assert isinstance(verdict, Wrong)
    assert found[-1].id == said
    assert found[-1].sentence in verdict.sentence


def test_a_right_answer_passes_if_the_watcher_is_wrong(monkeypatch):
    monkeypatch.setattr("amp_lab.course.lessons.l07.trials.watch", None)
    assert isinstance(grade("7.1", l07.as_documented), Correct)


def test_rules_that_are_named_exist():
    named = {*verdicts._RULES, *clipping._RULES, *accumulating._RULES, *sharing._RULES}
    seen = " ".join(leaf.see for symptom in tree.TREE for leaf in symptom.leaves)
    named |= set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", seen))
    assert len(named) > 25
    assert named <= RULES.keys()


# The logs of 7.8, and what its sentences say of them.


def log(run):
    return logs.logs()[run]


def skips(run):
    return [entry.step for entry in log(run) if entry.skipped]


def test_every_run_has_its_own_fault_and_two_faults_have_no_run():
    assert [*logs.TRUTH] == [*"ABCDEF"]
    assert len(set(logs.TRUTH.values())) == 6
    assert len(set(logs.FAULTS) - set(logs.TRUTH.values())) == 2


def test_run_a_is_healthy():
    run = log("A")
    assert skips("A")[:8] == [*range(8)]
    assert not run[8].skipped
    for step in skips("A")[8:]:
        assert run[step].scale > run[step - 1].scale
    assert len(skips("A")) > 8
    rates = [entry.rate for entry in run]
    assert all((rates[step + 1] == rates[step]) is run[step].skipped for step in range(len(run) - 1))
    assert run[-1].loss < run[0].loss / 5


def test_run_b_keeps_an_infinity():
    first = skips("B")[0]
    assert skips("B") == [*range(first, logs.STEPS)]
    assert all(math.isfinite(entry.loss) for entry in log("B"))
    assert log("B")[first].scale > log("B")[first - 1].scale
    assert log("B")[-1].scale < 2.0**-8


def test_run_c_clips_scaled_gradients():
    run = log("C")
    assert skips("C") == []
    grown = [step for step in range(1, len(run)) if run[step].scale > run[step - 1].scale]
    assert len(grown) >= 2
    for step in grown:
        ratio = sum(entry.norm for entry in run[step : step + 6]) / sum(
            entry.norm for entry in run[step - 6 : step]
        )
        assert 1.5 < ratio < 2.7
    assert run[-1].loss > run[0].loss / 2
    assert max(entry.norm for entry in run) > 10000


def test_run_d_overflows_in_the_forward_pass():
    finite = [math.isfinite(entry.loss) for entry in log("D")]
    assert finite == [True] * 24 + [False] * (logs.STEPS - 24)
    assert skips("D") == [*range(24, logs.STEPS)]


def test_run_e_schedules_skipped_steps():
    assert skips("E")[:8] == [*range(8)]
    rates = [entry.rate for entry in log("E")]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert log("E")[8].rate < log("A")[8].rate * 0.7


def test_run_f_begins_anew_in_the_middle():
    run = log("F")
    assert run[36].scale == 65536.0
    assert run[36].scale / run[35].scale > 4
    assert skips("F")[:3] == [36, 37, 38]
    assert skips("F")[0] == 36


def test_the_answer_is_told_by_nothing_but_the_logs():
    text = logs.fault_list()
    assert all(f"- **{letter}**: {words}" in text for letter, words in logs.FAULTS.items())
    table = logs.log_table("F")
    assert len(table.splitlines()) == logs.STEPS + 1
    assert table.count("skipped") == len(skips("F"))
    assert "2^16" in table.splitlines()[37]


def test_logs_and_tree_are_drawn():
    for figure, panels in ((logs.draw_logs(), 24), (logs.draw_logs("C"), 4), (tree.draw_tree(), 1)):
        assert len(figure.axes) == panels
        figure.canvas.draw()
        plt.close(figure)


def test_no_two_words_of_the_tree_touch():
    figure = tree.draw_tree()
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])
    edge = figure.bbox
    assert all(edge.x0 <= box.x0 and box.x1 <= edge.x1 and edge.y0 <= box.y0 for box in boxes)
    plt.close(figure)
