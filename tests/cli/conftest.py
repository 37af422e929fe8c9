"""A course to command, unless a file makes its own."""

import pytest

from amp_lab.course.learner import workspace
from tests.cli.start_here import PAGE, start_here


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A course of two lessons, in the catalog and on the disk."""
    return start_here(tmp_path, monkeypatch)


@pytest.fixture
def page(root):
    """A copy of the first lesson that was worked in."""
    workspace.copy_blanks(root)
    path = root / "work" / PAGE
    path.write_text(path.read_text().replace("NotImplementedError", "SystemExit"))
    return path
