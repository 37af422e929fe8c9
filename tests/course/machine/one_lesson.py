"""A checkout with one lesson and a copy of it, for `amp-lab doctor` to look at."""

from importlib import metadata

from amp_lab.course import catalog
from amp_lab.course.learner import workspace
from amp_lab.course.pages import cells
from tests.course.pages.sample_pages import OLD

SLUG = "01_formats"


def one_lesson(root, monkeypatch):
    """Make it in the folder `root`, and have it taken for the course."""
    monkeypatch.setattr(catalog, "lessons", lambda: (catalog.Lesson(SLUG, "Formats", 40, "easy", "-", ()),))
    monkeypatch.setenv("AMP_LAB_COURSE", str(root))
    for name in ("solutions", "notebooks"):
        (root / name).mkdir()
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["click>=8.1"]\n')
    (root / "requirements.lock").write_text(f"# pins\nclick=={metadata.version('click')}\n")
    (root / "notebooks" / f"{SLUG}.ipynb").write_bytes(cells.dump(OLD))
    workspace.copy_blanks(root)
    return root
