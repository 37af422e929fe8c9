"""From symptom to cause: the tree of lesson 07, drawn on one page."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.lettering import ink
from amp_lab.view.plots import COLOURS


class Leaf(NamedTuple):
    """A cause. `see`: which rules of the watcher find it, or which lesson explains it."""

    answer: str  # to the test before it
    cause: str
    see: str


class Symptom(NamedTuple):
    """What one sees, and the test that tells its causes apart."""

    seen: str
    test: str
    leaves: tuple[Leaf, ...]


TREE = (
    Symptom(
        "The loss is NaN\nor infinite",
        "Are the weights\nfinite?",
        (
            Leaf("no", "an infinite step has spoilt them", "`optimizer-step-instead`"),
            Leaf("yes; in FP32 NaN as well", "the data, or the loss: no matter of AMP", "`nan-in-data`"),
            Leaf(
                "yes; in FP32 it is finite",
                "an activation overflows in FP16",
                "`activation-overflows` · lesson 06",
            ),
        ),
    ),
    Symptom(
        "The scale sinks\nand sinks",
        "Is the loss finite?",
        (
            Leaf("no", "no scale can cure it: see above", "`loss-not-finite` · lesson 05"),
            Leaf(
                "yes; zeroing .grad helps",
                "infinite gradients stay in .grad",
                "`zero-grad-missing` `zero-grad-skipped`",
            ),
            Leaf("yes; zeroing does not help", "a derivative is infinite or NaN", "`nan-derivative`"),
        ),
    ),
    Symptom(
        "The loss stands still",
        "Are steps made?",
        (
            Leaf(
                "no, all are skipped",
                "infinite gradients stay in .grad",
                "`zero-grad-missing` `zero-grad-skipped`",
            ),
            Leaf("no, it is never called", "the step is missing", "`optimizer-never-stepped`"),
            Leaf(
                "yes; norm follows the scale", "gradients are clipped while scaled", "`clip-before-unscale`"
            ),
            Leaf(
                "yes; backward() gives zeros",
                "gradients are too small for FP16",
                "`fp16-without-scaler` · lesson 04",
            ),
            Leaf("yes; zeros only at the step", "gradients are cleared too early", "`zero-grad-before-step`"),
        ),
    ),
    Symptom(
        "The loss falls\ntoo slowly",
        "Is the learning rate\nas planned?",
        (
            Leaf("no, skipped steps move it", "the schedule waits for no step", "`scheduler-on-skip`"),
            Leaf(
                "no, micro-batches move it",
                "the schedule counts them as steps",
                "`scheduler-each-microbatch`",
            ),
            Leaf(
                "yes; norm follows the scale", "gradients are clipped while scaled", "`clip-before-unscale`"
            ),
        ),
    ),
    Symptom(
        "Some steps\nare skipped",
        "How does the\nscale move?",
        (
            Leaf("down at first, then not, or\nby 2 now and then", "nothing: that is healthy", "lesson 05"),
            Leaf("by 2, in 1 step of 5", "it grows too soon", "`scale-grows-too-fast`"),
            Leaf("not at all", "each step has a new scaler", "`scaler-in-loop`"),
            Leaf("down and down", "see above", "`scale-collapse`"),
        ),
    ),
    Symptom(
        "A resumed run\ndiffers",
        "What differs first?",
        (
            Leaf(
                "the scale jumps to 65,536",
                "the scaler is not in the file, or not loaded",
                "`scaler-not-saved` `scaler-not-restored`",
            ),
            Leaf("the size of the steps", "the optimizer is not in the file", "`optimizer-not-saved`"),
            Leaf("the learning rate", "the schedule is not loaded", "`scheduler-not-restored`"),
        ),
    ),
    Symptom(
        "RuntimeError\nabout a dtype",
        "Where is the line?",
        (
            Leaf("outside of the region", "an FP16 output is used there", "`output-outside-region`"),
            Leaf("inside", "autocast leaves that operation alone", "`amp_lab.explain` · lesson 06"),
        ),
    ),
    Symptom(
        "Loss as in FP32,\nbut slow",
        "Are outputs of\nlayers FP16?",
        (
            Leaf("no", "no region around the forward pass", "`scaler-without-autocast`"),
            Leaf(
                "yes; .item(), get_scale()\nin each step",
                "the GPU waits for Python to read",
                "`get-scale-each-step`",
            ),
            Leaf("yes; nothing is read", "layers are too small for Tensor Cores", "lesson 08"),
        ),
    ),
)
# Inches. As wide as a notebook shows it: letters stay as large as they are written here.
_WIDTH, _LEAF, _GAP, _TOP = 8.6, 0.36, 0.16, 0.4
_SYMPTOM, _TEST, _ANSWER, _CAUSE = 0.1, 1.68, 3.5, 5.52  # where the columns begin
_BOX: dict[str, Any] = {"boxstyle": "round,pad=0.35", "linewidth": 1.2}
_LINE: dict[str, Any] = {"color": "#999999", "linewidth": 1.0, "zorder": 0}


def draw_tree() -> Figure:
    """Draw the tree: symptoms on the left, then the test that tells their causes apart, then the causes."""
    leaves = sum(len(symptom.leaves) for symptom in TREE)
    height = _TOP + leaves * _LEAF + len(TREE) * _GAP
    figure = plt.figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.axis("off")
    heads = ("You see", "Test", "It says", "Cause, and the watcher's rule")
    for x, words in zip((_SYMPTOM, _TEST, _ANSWER, _CAUSE), heads, strict=True):
        axes.text(x, 0.15, words, fontsize=11, weight="bold", va="center")
    top = _TOP
    for symptom in TREE:
        _draw_symptom(axes, symptom, top)
        top += len(symptom.leaves) * _LEAF + _GAP
    return figure


def _draw_symptom(axes: Axes, symptom: Symptom, top: float) -> None:
    middle = top + len(symptom.leaves) * _LEAF / 2
    _box(axes, _SYMPTOM, middle, symptom.seen, COLOURS["orange"])
    _box(axes, _TEST, middle, symptom.test, COLOURS["blue"])
    fork = _ANSWER - 0.28
    axes.plot([_SYMPTOM + 0.5, fork], [middle, middle], **_LINE)
    for number, leaf in enumerate(symptom.leaves):
        y = top + (number + 0.5) * _LEAF
        axes.plot([fork, _ANSWER - 0.17, _ANSWER - 0.05], [middle, y, y], **_LINE)
        axes.text(_ANSWER, y, leaf.answer, fontsize=9.5, style="italic", va="center")
        healthy = leaf.cause.startswith("nothing")
        axes.text(
            _CAUSE,
            y - 0.08,
            leaf.cause,
            fontsize=9.5,
            va="center",
            color=COLOURS["green"] if healthy else ink(),
        )
        axes.text(_CAUSE, y + 0.08, leaf.see.replace("`", ""), fontsize=9, va="center", family="monospace")


def _box(axes: Axes, x: float, y: float, words: str, colour: str) -> None:
    axes.text(
        x,
        y,
        words,
        fontsize=9.5,
        va="center",
        bbox=_BOX | {"edgecolor": colour, "facecolor": rcParams["figure.facecolor"]},
    )
