"""What the checks of lesson 07 lean on: right loops, scenes in which things happen, logs that show their faults.

What is right is computed here without autocast and without a scaler, in FP64.
"""

import itertools
import math
import re

import pytest
import torch
import torch.utils.checkpoint
from matplotlib import pyplot as plt
from matplotlib.text import Text

from amp_lab import watch
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.verdict import Correct, Wrong
from amp_lab.course.lessons.l07 import (
    accumulating,
    clipping,
    logs,
    penalising,
    runs,
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
        about_data = verdicts._OF_THE_DATA if {"n", "i"} & {*bench.scene.plan} else ()
        assert {each.id for each in seen.report().diagnoses} <= {*about_data}, bench.scene
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
    ("exercise", "step"),
    [
        (stepping.SCENES, lambda scene: (Bench(scene), stepping.right)),
        (sharing.SCENES, lambda scene: (sharing.SharingBench(scene), sharing.step_with())),
        (
            [scene for scene, _, _ in accumulating.SCENES],
            lambda scene: (
                next(
                    accumulating.AccumulatingBench(*each) for each in accumulating.SCENES if each[0] == scene
                ),
                accumulating.step_with(),
            ),
        ),
    ],
)
def test_what_is_left_in_the_gradients_shows(exercise, step):
    shown = []
    for scene in exercise:
        if scene.stale is not None and math.isfinite(scene.stale):
            shown.append("stale")
        if scene.scale == 2.0:
            (bench, right), (other, same) = step(scene), step(scene)
            for each in other.all_optimizers:
                each.zero_grad = lambda set_to_none=True: None
            want, got = weights_with_all(right, bench), weights_with_all(same, other)
            assert (got - want).abs().max() > 0.1 * want.abs().max()
            shown.append("left over")
    assert {*shown} == {"stale", "left over"}


def weights_with_all(step, bench):
    for number in range(len(bench.scene.plan)):
        step(*bench.arguments(number))
    return torch.cat([each.detach().flatten() for net in bench.models for each in net.parameters()])


def test_some_norms_are_just_above_their_limit():
    shares = []
    for scene, limit in clipping.SCENES:
        bench = clipping.ClippingBench(scene, limit)
        shares += [float(norm) / limit for norm in norms_with(clipping.step_with(), bench)]
    assert any(1.05 < share < 1.2 for share in shares)
    assert any(0.5 < share < 1 for share in shares)


def norms_with(step, bench):
    return [step(*bench.arguments(number)) for number in range(len(bench.scene.plan))]


def test_the_network_notes_its_passes_and_not_what_is_computed_again():
    bench = Bench(stepping.SCENES[0])
    model, _, _, loss_function, inputs, targets = bench.arguments(0)
    outputs = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
    loss_function(outputs, targets).backward()
    assert [(each.name, each.size) for each in bench.calls] == [("forward", len(inputs)), ("backward", 0)]


def test_the_network_can_be_differentiated_as_a_function():
    bench = Bench(stepping.SCENES[0])
    model, _, _, loss_function, inputs, targets = bench.arguments(0)

    def loss_of(parameters):
        return loss_function(torch.func.functional_call(model, parameters, (inputs,)), targets)

    parameters = {name: each.detach() for name, each in model.named_parameters()}
    grads = torch.func.grad(loss_of)(parameters)
    loss_function(model(inputs), targets).backward()
    for name, each in model.named_parameters():
        torch.testing.assert_close(grads[name], each.grad)


@pytest.mark.parametrize(
    ("exercise", "answer", "words"),
    [
        ("7.1", l07.leaves_when_it_overflows, "whose gradients overflow"),
        ("7.1", l07.looks_away_when_the_loss_is_not_finite, "whose inputs hold a NaN"),
        ("7.2", l07.clips_no_infinite_loss, "whose inputs hold a NaN"),
        ("7.3", l07.accumulates_and_leaves_when_it_overflows, "whose gradients overflow"),
        ("7.4", l07.shares_no_infinite_loss, "whose inputs hold a NaN"),
        ("7.4", l07.copies_the_scaler_for_the_head, "other than the one that was passed"),
        ("7.4", l07.unscales_the_head_and_steps_directly, "Nobody looks for an overflow"),
        ("7.3", l07.accumulates_over_finite_ones, "were not cleared"),
        ("7.2", l07.unscales_before_there_is_anything, "before the backward pass"),
        ("7.2", l07.updates_before_it_clips, "came before any"),
    ],
)
def test_a_sentence_says_what_happened(exercise, answer, words):
    verdict = grade(exercise, answer)
    assert isinstance(verdict, Wrong)
    assert words in verdict.sentence


@pytest.mark.parametrize("answer", [l07.scales_two_times, l07.cleans_gradients, l07.steps_with_a_closure])
def test_no_sentence_calls_the_order_right_beside_a_watcher_that_knows_better(answer):
    verdict = grade("7.1", answer)
    assert "The watcher says" in verdict.sentence
    assert "looks right" not in verdict.sentence


def test_an_optimizer_that_is_none_is_refused_in_the_words_of_the_scaler():
    def steps_a_method(model, optimizer, scaler, loss_function, inputs, targets):
        loss = l07.backward(model, optimizer, scaler, loss_function, inputs, targets)
        scaler.step(optimizer.step)
        scaler.update()
        return loss

    verdict = grade("7.1", steps_a_method)
    assert "param_groups" in verdict.text
    assert "number" not in verdict.text


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
    return runs.logs()[run]


def at(run, step):
    return log(run)[step - 1]


def skips(run):
    return [entry.step for entry in log(run) if entry.skipped]


def test_every_run_has_its_own_fault_and_two_faults_have_no_run():
    assert [*runs.TRUTH] == [*"ABCDEF"]
    assert len(set(runs.TRUTH.values())) == 6
    assert len(set(runs.FAULTS) - set(runs.TRUTH.values())) == 2


def test_steps_count_from_one():
    assert all([entry.step for entry in log(run)] == [*range(1, runs.STEPS + 1)] for run in runs.TRUTH)


def test_nothing_is_put_on_the_optimizer_and_no_warning_comes_through(recwarn):
    runs.logs.cache_clear()
    assert len(runs.logs()) == 6
    assert not recwarn.list


def test_run_a_is_healthy():
    run = log("A")
    assert skips("A")[:8] == [*range(1, 9)]
    assert not at("A", 9).skipped
    assert len(skips("A")) == 10  # "two more"
    for step in skips("A")[8:]:
        assert at("A", step).scale > at("A", step - 1).scale
    rates = [entry.rate for entry in run]
    assert all((later == entry.rate) is entry.skipped for entry, later in zip(run, rates[1:], strict=False))
    assert run[-1].loss < run[0].loss / 5


def test_run_b_keeps_an_infinity():
    first = skips("B")[0]
    assert skips("B") == [*range(first, runs.STEPS + 1)]
    assert all(math.isfinite(entry.loss) for entry in log("B"))
    assert at("B", first).scale > at("B", first - 1).scale
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
    assert 1000 < run[0].norm < 20000
    assert max(entry.norm for entry in run) > 20000


def test_run_d_overflows_in_the_forward_pass():
    finite = [math.isfinite(entry.loss) for entry in log("D")]
    assert finite == [True] * 24 + [False] * (runs.STEPS - 24)
    assert skips("D") == [*range(25, runs.STEPS + 1)]


def test_run_e_schedules_skipped_steps():
    assert skips("E")[:8] == [*range(1, 9)]
    rates = [entry.rate for entry in log("E")]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert at("E", 9).rate < at("A", 9).rate * 0.7


def test_run_f_begins_anew_in_the_middle():
    assert at("F", 37).scale == 65536.0
    assert at("F", 37).scale / at("F", 36).scale > 4
    assert skips("F")[:3] == [37, 38, 39]
    assert not at("F", 40).skipped


def test_the_faults_that_have_no_run_can_be_ruled_out():
    """No scale grows in two steps in a row; no scale is 1 all the time, as without scaling."""
    assert set(runs.FAULTS) - set(runs.TRUTH.values()) == {"r", "v"}
    for run in runs.TRUTH:
        scales = [entry.scale for entry in log(run)]
        assert not any(
            one < two < three for one, two, three in zip(scales, scales[1:], scales[2:], strict=False)
        )
        assert max(scales) > 1


def test_the_answer_is_told_by_nothing_but_the_logs():
    text = logs.fault_list()
    assert all(f"- **{letter}**: {words}" in text for letter, words in runs.FAULTS.items())
    table = logs.log_table("F")
    assert len(table.splitlines()) == runs.STEPS + 1
    assert table.splitlines()[1].split()[0] == "1"
    assert table.count("skipped") == len(skips("F"))
    assert "2^16" in table.splitlines()[37]


@pytest.mark.parametrize("show", [logs.draw_logs, logs.log_table])
@pytest.mark.parametrize("run", ["G", "a", 1])
def test_a_run_that_is_not_there_is_refused_in_words(show, run):
    with pytest.raises(ValueError, match="the runs are A, B, C, D, E, F"):
        show(run)


def test_logs_and_tree_are_drawn_as_wide_as_a_notebook():
    for figure, panels in ((logs.draw_logs(), 24), (logs.draw_logs("C"), 4), (tree.draw_tree(), 1)):
        assert len(figure.axes) == panels
        assert figure.get_figwidth() <= 8.6
        figure.canvas.draw()
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert min(sizes) >= 9
        plt.close(figure)


def test_every_number_of_a_log_is_in_its_panel_or_at_the_edge():
    figure = logs.draw_logs()
    for number, letter in enumerate(runs.TRUTH):
        panels = figure.axes[4 * number : 4 * number + 4]
        for axes, name in zip(panels, ("loss", "scale", "norm", "rate"), strict=True):
            curve, crosses, edge = axes.lines
            values = [getattr(entry, name) for entry in log(letter)]
            low, high = axes.get_ylim()
            assert len(crosses.get_xdata()) == len(skips(letter))
            assert len(edge.get_xdata()) == sum(not math.isfinite(value) for value in values)
            assert len(curve.get_xdata()) == runs.STEPS
            beyond = [value for value in values if math.isfinite(value) and not low < value < high]
            assert not beyond or (name == "scale" and max(beyond) <= low)
            assert any("in step 60: 2" in text.get_text() for text in axes.texts) is bool(beyond)
    assert "skipped step" in [text.get_text() for text in figure.legends[0].get_texts()]
    plt.close(figure)


def test_no_two_words_of_the_tree_touch():
    figure = tree.draw_tree()
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])
    edge = figure.bbox
    assert all(edge.x0 <= box.x0 and box.x1 <= edge.x1 and edge.y0 <= box.y0 for box in boxes)
    plt.close(figure)


def leaves_that_name(symptom, rule):
    """Return what the tree answers to the test of a symptom where `rule` is behind it."""
    (branch,) = (each for each in tree.TREE if each.seen.replace("\n", " ") == symptom)
    return [leaf.answer for leaf in branch.leaves if f"`{rule}`" in leaf.see]


def watched(answer, bench):
    """Let a loop train; return the watcher's root, the losses of its last steps, and how many steps were skipped."""
    skipped = []
    with watch(bench.models, bench.all_optimizers, bench.scaler) as seen:
        for number in range(len(bench.scene.plan)):
            before = bench.scaler.get_scale()
            answer(*bench.arguments(number))
            skipped.append(bench.scaler.get_scale() < before)
    return [each.id for each in seen.report().diagnoses], skipped


@pytest.mark.parametrize("loop", ["never clears", "clears if not skipped"])
def test_the_tree_finds_patient_one(loop):
    def never_clears(model, optimizer, scaler, loss_function, inputs, targets):
        with torch.autocast(inputs.device.type, torch.float16):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    answer = never_clears if loop == "never clears" else l07.clears_if_not_skipped
    (root,), skipped = watched(answer, Bench(Scene("ccocccccc")))
    assert skipped == [False, False] + [True] * 7  # it stands still, and the scale sinks
    assert leaves_that_name("The loss stands still", root) == ["no, all are skipped"]
    assert leaves_that_name("The scale sinks and sinks", root) == ["yes; zeroing .grad helps"]


def test_the_tree_finds_patient_two():
    bench = clipping.ClippingBench(Scene("cccccc"), 0.5)
    (root,), skipped = watched(l07.clips_before_unscaling, bench)
    assert not any(skipped)
    assert leaves_that_name("The loss stands still", root) == ["yes; norm follows the scale"]


def test_the_tree_sends_nobody_to_what_pytorch_refuses():
    assert "update-missing" not in " ".join(leaf.see for symptom in tree.TREE for leaf in symptom.leaves)
    (root,), _ = watched(l07.moves_always, scheduling.SchedulingBench(Scene("coccoc")))
    assert leaves_that_name("The loss falls too slowly", root) == ["no, skipped steps move it"]
