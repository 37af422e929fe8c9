"""An exercise that exists only in tests: double a tensor. It has every way to go wrong that an answer can have."""

import torch

from amp_lab.course.catalog import Diagnosis, Exercise
from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe

DOUBLE = Exercise(
    id="99.1",
    title="Twice as much",
    minutes=1,
    function="learner",
    hints=("Two of them.", "Addition.", "x plus x."),
    diagnoses={
        "squares": Diagnosis("{call} returned {got}: that is the square; {want} is twice the input.", hint=2)
    },
    why="Doubling changes only the exponent.",
)


def check_double(ask: Ask) -> None:
    x = torch.tensor([1.0, 3.0, -0.5], dtype=torch.float16)
    got = ask(x)
    if isinstance(got, torch.Tensor) and got.shape == x.shape and torch.equal(got, x * x):
        raise expect.Mistake("squares", call=ask.call, got=describe(got), want=describe(2 * x))
    expect.tensor(ask.call, got, 2 * x)


# What answers may return, and the sentence part that tells the learner: source of `learner`, diagnosis, words.
MISTAKES = {
    "None": (
        "def learner(x):\n    x + x",
        "returned-none",
        "returned `None` where a tensor of dtype `torch.float16`",
    ),
    "wrong dtype": (
        "def learner(x):\n    return 2 * x.float()",
        "wrong-dtype",
        "`torch.float32` where `torch.float16`",
    ),
    "wrong shape": ("def learner(x):\n    return (2 * x)[None]", "wrong-shape", "of shape (1, 3) where (3,)"),
    "broadcast": ("def learner(x):\n    return 2 * x[:1]", "wrong-shape", "of shape (1,) where (3,)"),
    "NaN": ("def learner(x):\n    return 2 * x * float('nan')", "not-finite", "nan"),
    "infinity": ("def learner(x):\n    return x * 60000 * 60000", "not-finite", "inf"),
    "wrong type": ("def learner(x):\n    return [2.0, 6.0, -1.0]", "wrong-type", "a `list`"),
    "wrong value": (
        "def learner(x):\n    return 2 * x + 1",
        "wrong-element",
        "3 of 3 values are wrong. The worst at index (0,) is 3.0; the right value is 2.0",
    ),
    "misconception": ("def learner(x):\n    return x * x", "squares", "the square"),
    "mutated input": (
        "def learner(x):\n    x *= 2\n    return x",
        "mutated-input",
        "argument 1 was tensor([1, 3, -0.5]",
    ),
}
