"""The ladder: rungs that a device has, and reasons for the others."""

import json
import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode

from amp_lab.device import describe_device
from amp_lab.train.measure import Ladder, ladder
from amp_lab.train.measuring import compilers, ladders, rungs

SMALL = {"width": 8, "depth": 1, "batch_size": 1, "tokens": 2, "rounds": 2}


@pytest.fixture(scope="module")
def climbed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield ladder("cpu", **SMALL)
    torch.set_num_threads(threads)


def test_a_cpu_has_all_rungs_but_tf32_and_the_compiler(climbed):
    measured = [each.name for each in climbed.rungs if each.speedup is not None]
    best = {"bf16": "BF16 autocast", "fp32": "FP32"}[rungs.choose(describe_device("cpu").facts)]
    assert measured == ["FP32", "FP16 autocast", "BF16 autocast", f"{best} + fused AdamW"]
    reasons = {each.name: each.why_not for each in climbed.rungs if each.speedup is None}
    assert "compute capability 8.0" in reasons["TF32"]
    assert "compile=True" in reasons[f"{best} + fused AdamW + torch.compile"]
    assert climbed.rungs[0].speedup == 1.0
    for each in climbed.rungs:
        if each.seconds is not None:
            assert each.spread[0] <= each.seconds <= each.spread[1]
            assert each.speedup == pytest.approx(climbed.rungs[0].seconds / each.seconds)


def test_it_is_stored_as_json_and_read_again(climbed):
    assert Ladder.from_dict(json.loads(json.dumps(climbed.as_dict()))) == climbed
    with pytest.raises(ValueError, match="no stored ladder"):
        Ladder.from_dict({"rungs": [{"name": "x"}]})


def test_it_can_be_read(climbed):
    text = str(climbed)
    assert "1 encoder layer of width 8, batch 1 × 2 tokens" in text
    assert "not measured: TF32 is for NVIDIA GPUs" in text
    assert max(map(len, text.splitlines())) <= 104  # else JupyterLab breaks the lines
    axes = climbed.plot().axes[0]
    assert len(axes.get_yticklabels()) == len(climbed.rungs)
    assert climbed.date in axes.get_title()


def test_every_rung_multiplies_in_its_own_precision():
    class Products(TorchFunctionMode):
        def __init__(self):
            self.dtypes = set()

        def __torch_function__(self, function, types, arguments=(), named=None):
            result = function(*arguments, **(named or {}))
            if function is torch.nn.functional.linear:
                self.dtypes.add(result.dtype)
            return result

    facts, cpu = describe_device("cpu").facts, torch.device("cpu")
    found = {}
    for way in rungs.ways(facts, cpu, False):
        if not way.why_not:
            step = rungs.step_of(way, rungs.Size(8, 1, 1, 2), cpu, 0)
            with Products() as products:
                step()
            found[way.precision] = products.dtypes
    assert found == {"fp32": {torch.float32}, "fp16": {torch.float16}, "bf16": {torch.bfloat16}}


def test_only_the_upper_rungs_have_a_fused_optimizer(monkeypatch):
    made, real = [], torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda *given, fused, **named: made.append(fused) or real(*given, **named)
    )
    *ways, compiled = rungs.ways(describe_device("cpu").facts, torch.device("cpu"), True)
    for way in ways:
        rungs.step_of(way, rungs.Size(8, 1, 1, 2), torch.device("cpu"), 0)
    assert made == [None] * 4 + [True]
    assert compiled.fused


def test_the_switches_are_turned_for_each_rung_and_put_back(monkeypatch):
    order = []
    real = ladders.fp32_products

    def noting(precision):
        order.append(precision)
        return real(precision)

    monkeypatch.setattr(ladders, "fp32_products", noting)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with ladders._switching() as switch:
            switch("fp32")
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            switch("tf32")
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
            switch("bf16")
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert order == ["fp32", "tf32", "fp32"]


def test_a_rung_that_fails_says_why(monkeypatch):
    real = ladders.step_of

    def failing(way, *arguments):
        if way.precision != "fp16":
            return real(way, *arguments)

        def step():
            raise RuntimeError('"addmm" not implemented for Half\nand more')

        return step

    monkeypatch.setattr(ladders, "step_of", failing)
    (rung,) = (each for each in ladder("cpu", **SMALL).rungs if each.name == "FP16 autocast")
    assert rung.speedup is None
    assert rung.why_not == 'RuntimeError: "addmm" not implemented for Half'


@pytest.mark.parametrize("wrong", [{"width": 0}, {"rounds": 1.5}, {"depth": True}, {"seed": "x"}])
def test_sizes_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"whole number"):
        ladder("cpu", **SMALL | wrong)


def test_compilers_are_looked_for_without_being_tried(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compilers.why_no_compile(cpu) == "there is no compiler (CXX=no-such-compiler)"
    monkeypatch.setenv("CXX", sys.executable)  # any program that is there
    monkeypatch.setattr(compilers.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python are missing" in compilers.why_no_compile(cpu)
    (tmp_path / "Python.h").touch()
    assert compilers.why_no_compile(cpu) == ""
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
    assert "Triton" in compilers.why_no_compile(torch.device("cuda"))
    assert "not tried on 'mps'" in compilers.why_no_compile(torch.device("mps"))


def test_the_ladders_fp32_is_fp32_whatever_is_around(monkeypatch):
    seen, real = {}, ladders.step_of

    def noting(way, *arguments):
        step = real(way, *arguments)
        cells = dict(
            zip(step.__code__.co_freevars, (each.cell_contents for each in step.__closure__), strict=True)
        )

        def noted():
            step()
            weights = list(cells["run"].parameters())
            seen[way.precision] = {each.dtype for each in weights} | {each.grad.dtype for each in weights}
            seen[way.precision, "autocast"] = torch.is_autocast_enabled("cpu")
            seen[way.precision, "scale"] = cells["scaler"].get_scale()

        return noted

    monkeypatch.setattr(ladders, "step_of", noting)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu"):
            climbed = ladder("cpu", width=200, depth=1, batch_size=1, tokens=2, rounds=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert "width 200" in climbed.model
    assert seen["fp32"] == seen["fp16"] == {torch.float32}
    assert not seen["fp32", "autocast"], "backward would compute in 16 bits"
    assert seen["fp16", "scale"] == 256.0, "no step was skipped"


@pytest.mark.parametrize(
    "change",
    [{"more": 1}, {"rungs": []}, {"rungs": None}, {"noise": "x"}, {"rungs": [{"name": "FP32"}]}],
    ids=str,
)
def test_what_is_no_ladder_of_this_version_is_refused(climbed, change):
    with pytest.raises(ValueError, match="no stored ladder, or one of another version"):
        Ladder.from_dict(climbed.as_dict() | change)


@pytest.mark.parametrize("change", [{"spread": [1, 2, 3]}, {"seconds": None}, {"speedup": "x"}], ids=str)
def test_a_rung_is_measured_or_not(climbed, change):
    stored = climbed.as_dict()
    with pytest.raises(ValueError, match="no stored ladder"):
        Ladder.from_dict(stored | {"rungs": [stored["rungs"][0] | change]})


@pytest.mark.parametrize("device", ["gpu", 3.5])
def test_a_device_that_is_none(device):
    with pytest.raises(ValueError, match="no device of PyTorch"):
        ladder(device, **SMALL)
