"""Every error that `explain` knows is raised by PyTorch here, and explained."""

import inspect
import io
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console
from torch._utils import ExceptionWrapper

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.autocast.errors import Explanation, explain
from amp_lab.autocast.messages.catalog import ALL as KNOWN
from amp_lab.autocast.messages.known import find
from amp_lab.autocast.messages.raised import message_of
from amp_lab.autocast.messages.users_code import frames, is_users
from amp_lab.autocast.recording.places import _kind
from amp_lab.autocast.records import Source
from amp_lab.course import catalog
from amp_lab.course.lessons.l06 import given
from amp_lab.scaling import CallOrderError, DynamicLossScaler
from tests.autocast import faults
from tests.autocast.faults import ALL, MISMATCHES, PAIRS, Mismatch
from tests.autocast.messages import MESSAGES, Message

NAMES = {torch.float16: "FP16", torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64"}
ROWS = [
    pytest.param(row, a, b, id=f"{name}: {str(a)[6:]}, {str(b)[6:]}")
    for name, row in MISMATCHES.items()
    for a, b in PAIRS
    if row.only(a, b)
]


def raised_by(run: Callable[[], Any]) -> Exception:
    """The error that this raises, or the warning that it gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run()
        except Exception as error:
            return error
    raise AssertionError("PyTorch says nothing here any more")


@pytest.mark.parametrize(("row", "a", "b"), ROWS)
def test_two_dtypes_that_meet(row: Mismatch, a: torch.dtype, b: torch.dtype) -> None:
    error = raised_by(lambda: row.run(a, b))
    explanation = explain(error)
    assert explanation.id in ({row.id} if isinstance(row.id, str) else row.id), error
    if row.dtypes is not None:
        assert dict(explanation.dtypes) == row.dtypes(a, b), error
    assert all(NAMES[dtype] in explanation.happened for _, dtype in explanation.dtypes)
    assert not set("{}%") & set(explanation.happened + explanation.advice)  # all is filled in


@pytest.mark.parametrize("name", ALL)
def test_other_faults(name: str) -> None:
    expected, run = ALL[name]
    error = raised_by(run)
    explanation = explain(error)
    assert explanation.id == expected, error
    assert explanation.message == f"{type(error).__name__}: {error}".strip()
    assert not set("{}%") & set(explanation.happened + explanation.advice)  # all is filled in


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.text[:60])
def test_messages_met_elsewhere(message: Message) -> None:
    explanation = explain(message.text)
    assert explanation.id == message.id
    assert dict(explanation.dtypes) == message.dtypes


def test_nothing_is_known_that_was_never_met() -> None:
    """Each pattern finds a message of this PyTorch, or one that somebody met elsewhere."""
    errors = [raised_by(run) for _, run in ALL.values()]
    errors += [
        raised_by(lambda row=row, a=a, b=b: row.run(a, b)) for row, a, b in (each.values for each in ROWS)
    ]
    told = [(message_of(error), frames(error.__traceback__)) for error in errors]
    told += [(message.text, []) for message in MESSAGES]
    # Where PyTorch was built for CUDA and there is no GPU, optimizers fail before they meet two dtypes.
    in_adam = Source(
        "torch/optim/adam.py", 430, "_single_tensor_adam", "exp_avg.lerp_(grad, 1 - device_beta1)"
    )
    told += [("expected dtype float for `end` but got dtype c10::Half", [in_adam])]
    told += [(text, []) for text, _ in told]  # what is left to say where the line is not known
    met = {filled.known for text, passed in told if (filled := find(text, KNOWN, passed)) is not None}
    assert [known.pattern for known in KNOWN if known not in met] == []


def test_the_right_one_of_several_is_found() -> None:
    """No message is found by the patterns of two ids, but where the more special one stands first on purpose."""
    special = {
        ("unscale-not-implemented", "not-implemented"),
        ("target-dtype", "scalar-type"),
        ("scaler-without-cuda", "autocast-without-cuda"),
        ("target-dtype", "not-implemented"),
        ("dtype-as-text", "device-type"),
        ("devices", "conv-dtypes"),
        ("devices", "argument-types"),
        ("devices", "gradient-dtype"),
        ("complex-dtypes", "scalar-type"),
        # Calls of autocast and GradScaler, among all calls
        ("closure", "not-precision"),
        ("scaler-arguments", "not-precision"),
        ("unknown-keyword", "not-precision"),
        ("custom-function-device", "not-precision"),
        ("device-type", "not-precision"),
    }
    for text in [*(str(raised_by(run)) for _, run in ALL.values()), *(message.text for message in MESSAGES)]:
        ids = tuple(dict.fromkeys(known.id for known in KNOWN if known.search(text)))
        assert len(ids) <= 1 or ids in special, text


# Where


def fails_in_torch() -> None:
    torch.nn.Linear(3, 3)(torch.ones(2, 3).half())  # this line


def line_of(function: Callable[..., Any], mark: str) -> tuple[int, str]:
    lines, first = inspect.getsourcelines(function)
    at = next(at for at, line in enumerate(lines) if mark in line)
    return first + at, lines[at].strip()


def test_where_is_the_innermost_line_outside_of_torch() -> None:
    where = explain(raised_by(fails_in_torch)).where
    assert where is not None
    line, text = line_of(fails_in_torch, "# this line")
    assert (where.line, where.text, where.function) == (line, text, "fails_in_torch")
    assert where.file.endswith("test_errors.py")


def test_where_is_not_in_pythons_library() -> None:
    where = explain(raised_by(faults.copied_in_iteration)).where
    assert where is not None
    assert where.text == "copy.deepcopy(scaler)"


def test_where_a_custom_backward_fails() -> None:
    where = explain(raised_by(faults.custom_function)).where
    assert where is not None
    assert where.function == "backward"


def test_another_error_in_a_custom_backward_stays_what_it_is() -> None:
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.half().masked_fill(gradient > 0, -1e9)

    error = raised_by(lambda: Masked.apply(torch.ones(2, requires_grad=True)).sum().backward())
    assert explain(error).id == "value-overflow"


def test_an_installed_package_is_named_with_the_line_that_called_it(tmp_path: Any) -> None:
    package = tmp_path / "site-packages" / "models" / "net.py"
    package.parent.mkdir(parents=True)
    package.write_text("def forward(torch):\n    torch.ones(2, 2).half() @ torch.ones(2, 2)\n")
    namespace: dict[str, Any] = {}
    exec(compile(package.read_text(), str(package), "exec"), namespace)
    explanation = explain(raised_by(lambda: namespace["forward"](torch)))  # called here
    assert explanation.where is not None
    assert explanation.called is not None
    assert explanation.where.file == str(package)
    assert explanation.where.text == "torch.ones(2, 2).half() @ torch.ones(2, 2)"
    assert "# called here" in explanation.called.text
    assert "Called from: " in str(explanation)


def test_x_rays_and_explanations_agree_on_whose_a_file_is() -> None:
    stdlib = inspect.getfile(inspect)
    files = {
        torch.nn.functional.__file__: False,
        inspect.getfile(explain): False,
        given.__file__: True,  # a lesson's model, whose lines its reader sees
        catalog.__file__: False,
        stdlib: False,
        "<frozen importlib._bootstrap>": False,
        pytest.__file__: True,  # installed
        "/home/me/model.py": True,
        __file__: True,
    }
    for file, theirs in files.items():
        assert is_users(file) is theirs, file
        assert (_kind(file, "forward") == "user") is theirs, file


def test_code_without_a_file() -> None:
    code = compile("import torch\ntorch.ones(2, 2).half() @ torch.ones(2, 2)", "<typed>", "exec")
    where = explain(raised_by(lambda: exec(code, {}))).where
    assert where is not None
    assert (where.file, where.line) == ("<typed>", 2)
    assert "<typed>, line 2" in str(explain(raised_by(lambda: exec(code, {}))))


def test_mat1_and_mat2_are_explained_where_there_may_be_a_linear_layer() -> None:
    a, b = torch.ones(3, 3).half(), torch.ones(3, 3)
    explained = "In a Linear layer, mat1 is the input and mat2 the weight."
    for product, in_linear in (
        (lambda: a @ b, False),
        (lambda: torch.mm(a, b), False),
        (lambda: torch.nn.Linear(3, 3, bias=False)(a), True),
        (lambda: torch.nn.functional.linear(a, b), True),
    ):
        explanation = explain(raised_by(product))
        assert explanation.id == "matmul-dtypes"
        assert (explained in explanation.happened) == in_linear
    assert explained in explain("mat1 and mat2 must have the same dtype, but got Half and Float").happened
    added = explain("self and mat2 must have the same dtype, but got Half and Float").happened
    assert added.endswith("In a Linear layer, self is the bias and mat2 the weight.")


def test_a_notebooks_cell_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    file = shell.compile.cache("1 + 1", 7)
    code = compile("import torch\n\ntorch.ones(2, 2).half() @ torch.ones(2, 2)", file, "exec")
    assert "Where: Cell In[7], line 3" in str(explain(raised_by(lambda: exec(code, {}))))


def test_a_cell_of_another_kernel() -> None:
    code = compile("torch.ones(2, 2).half() @ torch.ones(2, 2)", "/tmp/ipykernel_12/34.py", "exec")
    explanation = explain(raised_by(lambda: exec(code, {"torch": torch})))
    assert "Where: a notebook's cell, line 1" in str(explanation)


# What may be given


def test_the_text_of_a_traceback() -> None:
    error = raised_by(fails_in_torch)
    copied = explain("".join(traceback.format_exception(error)))
    assert copied == explain(error)


def test_the_traceback_of_a_custom_backward() -> None:
    error = raised_by(faults.custom_function)
    assert explain("".join(traceback.format_exception(error))) == explain(error)


def test_a_traceback_from_another_machine() -> None:
    copied = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    loss = model(x)
  File "/home/me/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float
"""
    explanation = explain(copied)
    assert explanation.id == "matmul-dtypes"
    assert (
        explanation.message == "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float"
    )
    assert str(explanation).count("/home/me/train.py, line 12, in main: loss = model(x)") == 1


def test_pythons_library_on_another_machine() -> None:
    copied = """Traceback (most recent call last):
  File "/home/me/train.py", line 30, in save
    kept = copy.deepcopy(scaler)
  File "/usr/lib/python3.12/copy.py", line 151, in deepcopy
    rv = reductor(4)
  File "/home/me/venv/lib/python3.12/site-packages/torch/amp/grad_scaler.py", line 660, in __getstate__
    assert len(self._per_optimizer_states) == 0, (
AssertionError: A GradScaler instance may only be pickled at the beginning of an iteration
"""
    where = explain(copied).where
    assert where is not None
    assert (where.file, where.line, where.text) == ("/home/me/train.py", 30, "kept = copy.deepcopy(scaler)")


def test_a_kept_warning() -> None:
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("always")
        torch.autocast("cpu", torch.float64)
    explanation = explain(kept[0])
    assert explanation.id == "autocast-dtype"
    assert explanation.message.startswith("UserWarning: ")


def test_a_wrapped_error() -> None:
    def run() -> None:
        try:
            fails_in_torch()
        except RuntimeError as error:
            raise ValueError("the model failed") from error

    explanation = explain(raised_by(run))
    assert explanation.id == "matmul-dtypes"
    assert explanation.where is not None
    assert explanation.where.function == "fails_in_torch"


def test_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_exc", None, raising=False)
    monkeypatch.setattr(sys, "last_value", raised_by(fails_in_torch), raising=False)
    assert explain().id == "matmul-dtypes"
    monkeypatch.setattr(sys, "last_value", None)
    with pytest.raises(ValueError, match="no error yet"):
        explain()


@pytest.mark.parametrize("given", ["", "  \n"])
def test_an_empty_text(given: str) -> None:
    with pytest.raises(ValueError, match="the text is empty"):
        explain(given)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def test_an_error_that_cannot_be_read() -> None:
    explanation = explain(Unreadable())
    assert explanation.id == "unknown"
    assert "Unreadable: (its text cannot be read: __str__ raised ValueError)" in str(explanation)


# Several errors


def test_an_error_while_an_error_is_handled() -> None:
    def run() -> None:
        try:
            fails_in_torch()
        except RuntimeError:
            {}["weights"]

    error = raised_by(run)
    explanation = explain(error)
    assert explanation.id == "matmul-dtypes"
    assert explanation.also.startswith(
        "While it was handled, another error was raised: KeyError: 'weights' ("
    )
    assert "Also: While it was handled" in str(explanation)
    assert explain("".join(traceback.format_exception(error))) == explanation


def test_the_error_that_was_handled_is_named_too() -> None:
    def run() -> None:
        try:
            {}["weights"]
        except KeyError:
            fails_in_torch()

    error = raised_by(run)
    explanation = explain(error)
    assert explanation.id == "matmul-dtypes"
    assert explanation.also.startswith("It was raised while another error was handled: KeyError: 'weights' (")
    assert explain("".join(traceback.format_exception(error))) == explanation


def test_a_group_of_errors() -> None:
    def run() -> None:
        raise ExceptionGroup("two failed", [KeyError("x"), raised_by(fails_in_torch)])

    error = raised_by(run)
    assert explain(error).id == "matmul-dtypes"
    assert explain(error).also.startswith("It was reported as ExceptionGroup: two failed")
    assert explain("".join(traceback.format_exception(error))).id == "matmul-dtypes"


def test_a_worker_of_a_data_loader() -> None:
    def run() -> None:
        try:
            torch.ones(2, 2).half() @ torch.ones(2, 2)  # in a worker
        except RuntimeError:
            sent = ExceptionWrapper(where="in DataLoader worker process 0")  # as the worker sends it
        sent.reraise()

    error = raised_by(run)
    for explanation in (explain(error), explain("".join(traceback.format_exception(error)))):
        assert explanation.id == "matmul-dtypes"
        assert explanation.message.startswith("RuntimeError: expected m")
        assert explanation.where is not None
        assert "# in a worker" in explanation.where.text
        assert "Caught RuntimeError in DataLoader worker process 0" in explanation.also


def test_errors_without_an_end() -> None:
    error: Exception = RuntimeError("mat1 and mat2 must have the same dtype")
    for number in range(3000):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    assert explain(error).id == "unknown"  # the cause is too far away
    error.__cause__ = error
    assert explain(error).id == "unknown"


@pytest.mark.parametrize("given", [3, RuntimeError, ["text"]])
def test_no_error(given: Any) -> None:
    with pytest.raises(TypeError, match="give it the exception"):
        explain(given)


# What is not known


def test_an_unknown_error_is_said_to_be_one() -> None:
    def run() -> None:
        raise RuntimeError("not as round as the moon is")

    explanation = explain(raised_by(run))
    assert explanation.id == "unknown"
    assert not explanation.known
    assert "as the moon is" in str(explanation)
    assert "none of the errors of mixed precision" in str(explanation)
    assert "without mixed precision" in explanation.advice
    assert explanation.where is not None


def test_an_error_about_something_else_is_said_to_be_one() -> None:
    explanation = explain(raised_by(faults.shapes))
    assert not explanation.known
    assert "no error of mixed precision: it is about shapes" in explanation.happened
    assert "enabled=False" not in explanation.advice
    assert "shapes cannot be multiplied" in str(explanation)
    assert explanation.where is not None


def test_a_warning_that_is_not_known_says_not_that_something_failed() -> None:
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("always")
        warnings.warn("the moon is full", stacklevel=1)
    for warning in (kept[0], UserWarning("the moon is full"), "train.py:3: UserWarning: the moon is full"):
        explanation = explain(warning)
        assert explanation.id == "unknown"
        assert "This is a warning" in explanation.happened
        assert "Run the step again" not in explanation.advice


def test_other_peoples_errors_are_not_taken_for_known_ones() -> None:
    for error in (
        ValueError("step"),
        KeyError("scale"),
        RuntimeError(),
        AssertionError("dtype"),
        KeyboardInterrupt(),
    ):
        assert not explain(error).known


def test_a_shape_that_changed_in_a_checkpoint_is_not_autocasts_fault() -> None:
    sizes = iter((2, 3))

    def block(x: torch.Tensor) -> torch.Tensor:
        return x.expand(next(sizes), 3).sin()

    def run() -> None:
        x = torch.ones(1, 3).requires_grad_()
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()

    assert explain(raised_by(run)).id == "unknown"


def test_amp_labs_own_errors_speak_for_themselves() -> None:
    def run() -> None:
        model = torch.nn.Linear(3, 1)
        DynamicLossScaler().step(torch.optim.SGD(model.parameters(), 0.1))

    error = raised_by(run)
    assert isinstance(error, CallOrderError)
    explanation = explain(error)
    assert explanation.id == "amp-lab"
    wrong, _, advice = str(error).partition(". ")
    assert wrong in explanation.happened
    assert explanation.advice == advice
    assert str(explanation).count("scaler.scale(loss).backward()") == 1  # nothing is said twice
    assert explanation.where is not None
    assert explanation.where.function == "run"


def test_an_error_that_amp_lab_raises_of_a_usual_class() -> None:
    explanation = explain(raised_by(lambda: DynamicLossScaler("cuda")))
    assert explanation.id == "amp-lab"
    assert "first argument must be the first scale" in explanation.happened
    assert "leave out the device" in explanation.advice


def test_an_error_of_pytorch_in_a_kernel_of_amp_labs_is_pytorchs() -> None:
    def run() -> None:
        with tensor_cores():
            torch.ones(2, 3).half() @ torch.ones(2, 3).half()

    error = raised_by(run)
    last = frames(error.__traceback__)[-1].file.replace("\\", "/")
    assert "/amp_lab/" in last  # the emulated kernel asked PyTorch
    assert explain(error).id == "not-precision"
    assert "".join(traceback.format_exception(error)).count("amp_lab") > 0
    assert explain("".join(traceback.format_exception(error))).id == "not-precision"


def test_the_text_of_an_error_of_amp_labs() -> None:
    for run in (
        lambda: DynamicLossScaler("cuda"),
        lambda: DynamicLossScaler().step(torch.optim.SGD([torch.ones(1)], 0.1)),
    ):
        error = raised_by(run)
        assert explain("".join(traceback.format_exception(error))) == explain(error)


# The advice fits the dtypes


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (torch.float16, torch.float32, "only inside its region"),
        (torch.float64, torch.float32, "leaves FP64 alone"),
        (torch.float16, torch.float64, "leaves FP64 alone"),
        (torch.float16, torch.bfloat16, "one of the two 16-bit types"),
        (torch.int64, torch.float32, "floating-point tensors only"),
        (torch.complex64, torch.float32, "leaves complex numbers alone"),
        (torch.float8_e4m3fn, torch.float32, "write .float() on the FP8 E4M3 tensor"),
    ],
)
def test_the_cure_fits(a: torch.dtype, b: torch.dtype, said: str) -> None:
    ones = torch.ones(2, 2)
    assert said in explain(raised_by(lambda: ones.to(a) @ ones.to(b))).advice


@pytest.mark.parametrize(
    ("run", "said", "advised"),
    [
        (faults.bytes_of_a_thousand, "uint8 holds whole numbers from 0 to 255", "torch.iinfo"),
        (faults.mask_of_integers, "to 9,223,372,036,854,775,807", "torch.iinfo"),
        (faults.full_of_integers, "to 2,147,483,647", "torch.iinfo"),
        (faults.fp32_of_1e39, "the largest number of FP32 is about 3.4e+38", "torch.finfo"),
        (faults.fp8_of_a_thousand, "the largest number of FP8 E4M3 is 448", "scale"),
        (faults.clamp, "the largest number of FP16 is 65504", "torch.finfo"),
        (faults.targets_of_integers, "BCEWithLogitsLoss", "target.float()"),
        (faults.dropout_of_integers, "Dropout", "x.float()"),
        (faults.divided_in_place, "write its result", "target.float()"),
        (faults.complex_in_place, "complex result", "z.real"),
        (faults.swapped_cross_entropy, "was given whole ones", "are they swapped?"),
        (faults.loss_of_integers, "was given whole ones", "target.float()"),
        (faults.random_integers, "Random numbers", "torch.randint"),
        (faults.normal_integers, "Random numbers", "torch.randint"),
        (faults.bits_of_fp32, "no kernel of bitwise_and_cpu", "x.long()"),
        (faults.softmax_of_complex, "not for complex numbers", "view_as_real"),
        (faults.sum_of_fp8, "for FP8", "torch.bfloat16"),
        (faults.cholesky, "no kernel", "in FP32"),
        (faults.half_as_text, "'half'", "torch.float16"),
        (faults.autocast_changed_before_recomputing, "not in the same state", "cuda_autocast()"),
        (faults.forgotten_device, "different devices", "x.to(device)"),
        (faults.misspelled_dtype, "dtyp", "device_type, dtype"),
    ],
)
def test_text_and_advice_fit(run: Callable[[], Any], said: str, advised: str) -> None:
    explanation = explain(raised_by(run))
    assert said in explanation.happened
    assert advised in explanation.advice


def test_the_advice_lists_what_autocast_and_the_scaler_take() -> None:
    advice = explain(raised_by(faults.misspelled_dtype)).advice
    for made in (torch.autocast, torch.amp.GradScaler):
        for name in list(inspect.signature(made.__init__).parameters)[1:]:
            assert name in advice, name


def test_no_dtype_is_advised_that_is_not_there() -> None:
    explanation = explain(raised_by(faults.complex_product))
    assert "mat1 is complex64 and mat2 is FP32" in explanation.happened
    assert "16-bit" not in explanation.advice


def test_tensors_apart_are_said_to_be() -> None:
    told = explain(
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"
    )
    assert "the input on cuda and the weight on cpu" in told.happened
    assert "x.to(device)" in told.advice
    both = explain(
        "Input type (torch.cuda.HalfTensor) and weight type (torch.FloatTensor) should be the same"
    )
    assert both.id == "conv-dtypes"
    assert "the input on cuda and the weight on cpu" in both.happened


@pytest.mark.parametrize("keywords", [{}, {"cast_inputs": torch.float32}], ids=["", "cast_inputs"])
def test_the_cure_of_a_custom_function_cures(keywords: dict[str, Any]) -> None:
    original = faults._NotMadeForAutocast

    class Cured(torch.autograd.Function):
        forward = staticmethod(torch.amp.custom_fwd(original.forward, device_type="cpu", **keywords))
        backward = staticmethod(torch.amp.custom_bwd(original.backward, device_type="cpu"))

    advice = explain(raised_by(faults.custom_function)).advice
    assert all(word in advice for word in ("custom_fwd", "custom_bwd", *keywords))
    weight = torch.ones(3, 3).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        y = Cured.apply(torch.ones(2, 3), weight)
    assert y.dtype is (torch.float32 if keywords else torch.float16)
    y.sum().backward()
    assert weight.grad is not None


def test_a_warning_about_an_old_name_is_placed_in_the_users_line() -> None:
    where = explain(raised_by(faults.old_autocast)).where
    assert where is not None
    assert where.text == "torch.cuda.amp.autocast()"


LONG = {
    "letters": "a",
    "words": "mat1 and mat2 ",
    "lines": "\n    x",
    "places": '  File "a.py", line 1, in f\n    x\n',
    "types": "expected scalar type ",
    "dots": "a.",
    "quotes": '"',
    "devices": "Expected one of cpu, cuda, ",
    "metadata": "Recomputed values for the following tensors have different metadata ",
    "spaces": " x",
    "tracebacks": "Traceback (most recent call last):\n",
}


@pytest.mark.parametrize("name", LONG)
def test_a_text_of_a_million_letters(name: str) -> None:
    """None takes longer than a moment: nothing here grows with the square of the text."""
    explanation = explain(LONG[name] * (1_000_000 // len(LONG[name])))
    assert not explanation.known
    assert len(str(explanation)) < 2000


def test_patterns_begin_with_what_is_fixed() -> None:
    """A pattern that begins with any number of letters looks at each letter of a text again and again."""
    anything = r"(?:\[[^\]]*\]|\\[wWsSdD]|\.|%T)(?:[*+]|\{\d+,\})"
    # At the beginning, or where the first group has another way to begin.
    unbounded = re.compile(rf"^(?:\(\?P<\w+>|\(\?:|\()*{anything}|^\(\?:[^()]*\|(?:\(\?P<\w+>)?{anything}")
    assert [known.pattern for known in KNOWN if unbounded.match(known.pattern)] == []
    for such in (
        r"(?:(?P<op>[\w.]+): Low precision)",
        r"(?P<op>\w*): Expected",
        r"(?:Unsupported|(?P<it>\w+) is)",
    ):
        assert unbounded.match(such)


def test_a_long_message_is_cut() -> None:
    explanation = explain(raised_by(faults.autocast_changed_before_recomputing))
    assert len(explanation.message) > 1000
    assert len(str(explanation)) < 1500


# How it looks


@pytest.fixture
def explanation() -> Explanation:
    return explain(raised_by(fails_in_torch))


def test_text(explanation: Explanation) -> None:
    lines = str(explanation).splitlines()
    assert lines[0].startswith("What happened: A matrix product")
    assert any(line.startswith("Where: ") for line in lines)
    assert any(line.startswith("What to do: ") for line in lines)
    assert any(line.startswith("The message: RuntimeError: ") for line in lines)
    assert max(map(len, lines)) <= 100
    assert repr(explanation) == str(explanation)


def test_html_is_escaped() -> None:
    html = explain("<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_rich(explanation: Explanation) -> None:
    screen = io.StringIO()
    Console(file=screen, width=200).print(explanation)
    assert "What to do: " in screen.getvalue()
    assert explanation.message in screen.getvalue()


def test_rich_takes_no_message_for_markup() -> None:
    screen = io.StringIO()
    Console(file=screen, width=200).print(explain("[bold] wants [/red]"))
    assert "[bold] wants [/red]" in screen.getvalue()
