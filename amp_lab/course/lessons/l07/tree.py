"""From symptom to cause: the tree of lesson 07, drawn on one page."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.plots import COLOURS


class Leaf(NamedTuple):
    """A cause. `see`: which rules of the watcher find it, or which lesson explains it."""

    answer: str  # to the test above it
    cause: str
    see: str


class Symptom(NamedTuple):
    """What one sees, and the test that tells its causes apart."""

    seen: str
    test: str
    leaves: tuple[Leaf, ...]


TREE = (
    Symptom(
        "The loss is NaN or infinite",
        "Is it so in FP32, too?",
        (
            Leaf("yes", "data, learning rate, the model", "no matter of AMP"),
            Leaf("no, from the first step", "an activation overflows in FP16", "`activation-overflows` · 06"),
            Leaf("no, later", "weights spoilt by an infinite step", "`optimizer-step-instead`"),
        ),
    ),
    Symptom(
        "The scale sinks and sinks",
        "Is the loss finite?",
        (
            Leaf("no", "no scale can cure it: see above", "`loss-not-finite` · 05"),
            Leaf("yes", "infinite gradients stay in .grad", "`zero-grad-skipped`"),
        ),
    ),
    Symptom(
        "The loss stands still",
        "Which steps are made?",
        (
            Leaf("none, all are skipped", "the scale is not adapted", "`update-missing`"),
            Leaf("all", "gradients are 0 in FP16", "`fp16-without-scaler` · 04"),
            Leaf("all, with no gradients", "cleared before the step", "`zero-grad-before-step`"),
        ),
    ),
    Symptom(
        "The loss falls too slowly",
        "Norm follows the scale?",
        (
            Leaf("yes", "clipped while scaled", "`clip-before-unscale`"),
            Leaf("no", "learning rate fell in skipped steps", "`scheduler-on-skip`"),
        ),
    ),
    Symptom(
        "Some steps are skipped",
        "How many?",
        (
            Leaf("the first, then 1 in 2,000", "nothing: that is healthy", "lesson 05"),
            Leaf("more than 1 in 5", "the scale grows too soon", "`scale-grows-too-fast`"),
        ),
    ),
    Symptom(
        "A resumed run differs",
        "What differs first?",
        (
            Leaf("the scale: it jumps", "the scaler was not saved", "`scaler-not-saved`"),
            Leaf("the size of the steps", "the optimizer was not saved", "`optimizer-not-saved`"),
        ),
    ),
    Symptom(
        "RuntimeError about a dtype",
        "Where is the line?",
        (
            Leaf("outside of the region", "an FP16 output is used there", "`output-outside-region`"),
            Leaf("inside", "what autocast leaves alone", "lesson 06 · `amp_lab.explain`"),
        ),
    ),
    Symptom(
        "Loss as in FP32, but slow",
        "Does the GPU wait?",
        (
            Leaf("yes, for the host", "a number is read in each step", "`get-scale-each-step`"),
            Leaf("no", "too small for Tensor Cores", "lesson 08"),
        ),
    ),
)
# Where the columns begin, in parts of the width, and how wide their boxes are.
_SYMPTOM, _TEST, _ANSWER, _CAUSE, _SEE = 0.0, 0.26, 0.505, 0.66, 0.9
_BOX: dict[str, Any] = {"boxstyle": "round,pad=0.35", "linewidth": 1.2}


def draw_tree() -> Figure:
    """Draw the tree: symptoms on the left, then the test that tells their causes apart, then the causes."""
    rows = sum(len(symptom.leaves) for symptom in TREE)
    figure, axes = plt.subplots(figsize=(12, 0.46 * (rows + 2)), layout="constrained")
    axes.set(xlim=(-0.01, 1.11), ylim=(rows + len(TREE) * 0.35, -1.0))
    axes.axis("off")
    for x, words in zip(
        (_SYMPTOM, _TEST, _CAUSE, _SEE),
        ("You see", "Test", "Cause", "The watcher's rule, or the lesson"),
        strict=True,
    ):
        axes.text(x, -0.75, words, fontsize=11, weight="bold", va="center")
    top = 0.0
    for symptom in TREE:
        _draw_symptom(axes, symptom, top)
        top += len(symptom.leaves) + 0.35
    return figure


def _draw_symptom(axes: Axes, symptom: Symptom, top: float) -> None:
    middle = top + (len(symptom.leaves) - 1) / 2
    _box(axes, _SYMPTOM, middle, symptom.seen, COLOURS["orange"])
    _box(axes, _TEST, middle, symptom.test, COLOURS["blue"])
    start = _ANSWER - 0.02
    axes.plot([_SYMPTOM + 0.05, start - 0.02], [middle, middle], color="#999999", linewidth=1.0, zorder=0)
    for number, leaf in enumerate(symptom.leaves):
        y = top + number
        axes.plot(
            [start - 0.02, start, _ANSWER - 0.004], [middle, y, y], color="#999999", linewidth=1.0, zorder=0
        )
        axes.text(_ANSWER, y, leaf.answer, fontsize=9, style="italic", va="center")
        healthy = leaf.cause.startswith("nothing")
        axes.text(
            _CAUSE, y, leaf.cause, fontsize=9, va="center", color=COLOURS["green"] if healthy else "black"
        )
        axes.text(
            _SEE, y, leaf.see.replace("`", ""), fontsize=8.5, va="center", color="#444444", family="monospace"
        )


def _box(axes: Axes, x: float, y: float, words: str, colour: str) -> None:
    axes.text(x, y, words, fontsize=9.5, va="center", bbox=_BOX | {"facecolor": "white", "edgecolor": colour})
