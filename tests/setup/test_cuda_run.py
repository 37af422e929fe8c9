"""tools/cuda.py without a GPU: it refuses; and with small parts in place of the real ones it keeps its books right."""

import contextlib
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import psutil
import pytest
import torch

from tools import cuda

ROOT = Path(__file__).parents[2]

FILES = {
    "test_passing.py": """
        def test_one(): pass
        def test_two(): pass
    """,
    "test_failing.py": """
        import pytest
        def test_right(): pass
        def test_wrong(): assert 1 == 2
        @pytest.mark.skip(reason="not here")
        def test_skipped(): pass
    """,
    "test_only_skips.py": """
        import pytest
        @pytest.mark.skip(reason="not here")
        def test_skipped(): pass
    """,
    # The child leads a session of its own, as a Jupyter kernel does.
    "hanging.py": """
        import pathlib, subprocess, sys
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, start_new_session=True)
        pathlib.Path("child.pid").write_text(str(child.pid))
        print("hanging now", flush=True)
        child.wait()
    """,
}


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch):
    """Spare each small pytest the seconds that nbval and others take to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        lines = [line.removeprefix("        ") for line in text.splitlines()]
        (tmp_path / name).write_text("\n".join(lines))
    return tmp_path


def small(name):
    return cuda.Part(name, (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"test_{name}.py"), 30)


def counts(outcome):
    return outcome.passed, outcome.failed, outcome.skipped


def test_passing(folder):
    outcome = cuda.run(small("passing"), 30, folder)
    assert (outcome.fault, outcome.return_code, counts(outcome)) == ("", 0, (2, 0, 0))
    assert "2 passed" in outcome.output_tail


def test_failing(folder):
    outcome = cuda.run(small("failing"), 30, folder)
    assert (outcome.fault, counts(outcome)) == ("failed with return code 1", (1, 1, 1))
    assert "assert 1 == 2" in outcome.output_tail


def test_skipping_everything_is_a_failure(folder):
    outcome = cuda.run(small("only_skips"), 30, folder)
    assert (outcome.fault, outcome.return_code, counts(outcome)) == (
        "failed: no test was executed",
        0,
        (0, 0, 1),
    )


def test_finding_no_test_is_a_failure(folder):
    outcome = cuda.run(small("missing"), 30, folder)
    assert outcome.fault == "failed with return code 4"


def test_hanging_is_killed_with_all_its_children(folder):
    part = cuda.Part("hanging", (sys.executable, "hanging.py"), 30, is_pytest=False)
    outcome = cuda.run(part, 2, folder)
    assert (outcome.fault, outcome.return_code) == ("killed after 2 s", None)
    assert outcome.seconds < 20
    assert outcome.output_tail == "hanging now\n"
    assert gone(int((folder / "child.pid").read_text()))


def gone(pid):
    """Return whether a process has ended; nobody waits for an orphan here, so it may stay as a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_a_benchmark_needs_no_tests(folder):
    (folder / "bench_x.py").write_text("print('ratio 1.01')")
    part = cuda.Part("bench_x", (sys.executable, "bench_x.py"), 30, is_pytest=False)
    outcome = cuda.run(part, 30, folder)
    assert (outcome.fault, outcome.output_tail, counts(outcome)) == ("", "ratio 1.01\n", (None, None, None))


@pytest.mark.parametrize(("own", "expected"), [(None, "passive"), ("active", "active")])
def test_threads_wait_without_spinning_unless_the_user_decided(folder, monkeypatch, own, expected):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    command = (sys.executable, "-S", "-c", "import os; print(os.environ['OMP_WAIT_POLICY'])")
    assert cuda.run(cuda.Part("env", command, 30, is_pytest=False), 30, folder).output_tail == f"{expected}\n"


def test_nothing_is_started_when_the_time_is_over(folder):
    outcome = cuda.run(small("passing"), 0.5, folder)
    assert (outcome.fault, outcome.return_code) == ("not run: the time for the whole run is over", None)


def test_the_file_is_whole_after_each_part(folder, monkeypatch, capsys):
    written = []
    write = cuda.write_json

    def write_and_read(path, content):
        write(path, content)
        written.append(json.loads(path.read_text()))

    monkeypatch.setattr(cuda, "write_json", write_and_read)
    assert cuda.run_all([small("passing"), small("failing")], folder / "results", folder) is False
    first, last = written
    assert ([part["name"] for part in first["parts"]], first["complete"]) == (["passing"], False)
    assert ([part["name"] for part in last["parts"]], last["complete"]) == (["passing", "failing"], True)
    assert last["machine"]["facts"]["torch"]["version"] == last["versions"]["torch"] == torch.__version__
    (file,) = (folder / "results").iterdir()
    printed = capsys.readouterr().out
    assert "passing: ok, 2 passed, 0 failed, 0 skipped" in printed
    assert "assert 1 == 2" in printed
    assert str(file) in printed


def test_a_run_without_fault_succeeds(folder, monkeypatch):
    monkeypatch.setattr(cuda, "refusal", lambda: "")
    monkeypatch.setattr(cuda, "parts", lambda *_: [small("passing")])
    monkeypatch.setattr(cuda, "ROOT", folder)
    assert cuda.main(["--results", str(folder / "results")]) == 0


def test_a_machine_that_cannot_be_described_still_runs_its_parts(folder, monkeypatch, capsys):
    monkeypatch.setattr("amp_lab.device.describe_device", lambda: 1 / 0)
    assert cuda.run_all([small("passing")], folder / "results", folder) is False
    (file,) = (folder / "results").iterdir()
    record = json.loads(file.read_text())
    assert "ZeroDivisionError" in record["machine"]["error"]
    assert record["parts"][0]["passed"] == 2


def test_without_cuda_nothing_is_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "run_all", lambda *_: pytest.fail("something was run"))
    assert cuda.main(["--results", str(tmp_path / "results")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"nothing was run: PyTorch {torch.__version__} sees no CUDA device\n"
    assert list(tmp_path.iterdir()) == []


def test_a_reason_that_pytorch_gives_is_passed_on(monkeypatch):
    def warn():
        warnings.warn("the driver is too old\nsee the manual", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", warn)
    assert cuda.refusal().endswith("sees no CUDA device; the driver is too old")


def test_make_cuda_makes_no_venv(tmp_path):
    """From the command line, with CUDA hidden, so that it ends at once on every machine."""
    command = ["make", "cuda", f"PYTHON={sys.executable}", f"RESULTS={tmp_path / 'the results'}"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    ours, makes = done.stderr.splitlines()
    assert ours.startswith("nothing was run: PyTorch ")
    assert re.match(r"make(\[\d+\])?: \*\*\* \[", makes)  # [1]: under a `make test`
    assert list(tmp_path.iterdir()) == []


def test_the_real_parts_fit_into_eight_minutes():
    parts = cuda.parts(ROOT, ROOT)
    assert [part.name for part in parts] == ["tests", "notebooks", "benchmarks"]
    assert cuda.WHOLE_RUN_S < 8 * 60
    assert sum(part.limit_s for part in parts) <= cuda.WHOLE_RUN_S


def test_its_benchmarks_exist_and_write_beside_the_other_results(tmp_path):
    *_, last = cuda.parts(ROOT, tmp_path)
    command = [*last.command, "--quick", "--help"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert set(cuda.BENCHMARKS) <= set(re.findall(r"\w+", told))
    assert last.command[-2:] == ("--results", str(tmp_path))


def test_a_package_named_cuda_is_not_hidden_by_the_script(tmp_path):
    """NVIDIA's Python package is called `cuda`, as this script would be, and PyTorch's CUDA builds import it."""
    for name, text in {"cuda": "", "torch": "import cuda\nraise ImportError(cuda.__file__)"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    command = [sys.executable, "tools/cuda.py", "--results", str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    expected = tmp_path / "cuda" / "__init__.py"
    assert done.stderr == f"nothing was run: {sys.executable} cannot import PyTorch ({expected})\n"
