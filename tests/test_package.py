"""What `import amp_lab` gives, and what it costs."""

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import amp_lab

REPOSITORY = Path(__file__).parents[1]


def test_the_version_is_the_one_of_the_project():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert amp_lab.__version__ == project["version"]


@pytest.mark.parametrize("name", amp_lab.__all__)
def test_every_export_is_there(name):
    assert getattr(amp_lab, name) is not None
    assert name in dir(amp_lab)


def test_an_export_is_the_thing_itself():
    from amp_lab import describe_device
    from amp_lab.device import describe_device as itself

    assert describe_device is itself


def test_the_formats_are_a_submodule_that_comes_when_asked_for(monkeypatch):
    from amp_lab.formats import FP16

    monkeypatch.delattr(amp_lab, "formats")
    assert amp_lab.formats.FP16 is FP16
    from amp_lab import formats

    assert formats is sys.modules["amp_lab.formats"]


def test_no_export_hides_a_submodule():
    submodules = {module.name for module in pkgutil.iter_modules(amp_lab.__path__)}
    assert submodules, "no submodules were found"
    assert submodules & set(amp_lab.__all__) <= {"formats"}


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'amp_lab' has no attribute 'autocats'"):
        amp_lab.autocats  # noqa: B018


def test_import_alone_is_cheap():
    script = "import sys, amp_lab; dir(amp_lab); print({'torch', 'numpy', 'click'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
