"""Which files hide a module from a page."""

import sys

from amp_lab.course.checking import shadows


def test_files_and_packages_with_the_name_of_a_module_of_python_or_an_installed_one(tmp_path, monkeypatch):
    hiding = ["amp_lab.py", "ipykernel_launcher.py", "numpy.py", "token.py", "torch.py", "types.py"]
    for name in (*hiding, "mine.py", "types.txt", "random", "my-types.py", "torch.ipynb"):
        (tmp_path / name).touch()
    for name in ("json", "data", "html"):
        (tmp_path / name).mkdir()
    for name in ("json", "data"):
        (tmp_path / name / "__init__.py").touch()
    # A program that was started here finds them itself: that does not make them installed.
    monkeypatch.setattr(sys, "path", [str(tmp_path / "."), *sys.path])
    assert shadows.hiding(tmp_path) == sorted([*hiding, "json/"])


def test_a_folder_without_code_is_no_module(tmp_path, monkeypatch):
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    (elsewhere / "plots").mkdir(parents=True)
    (work / "plots.py").touch()
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    assert shadows.hiding(work) == []
    (elsewhere / "plots" / "__init__.py").touch()
    assert shadows.hiding(work) == ["plots.py"]
