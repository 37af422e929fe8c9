"""A course of two lessons without text of their own, whose blanks and copies a test replaces."""

from amp_lab.course import catalog
from amp_lab.course.pages import cells
from tests.course.pages.sample_pages import OLD


def exercise(name, minutes):
    return catalog.Exercise(name, f"Title of {name}", minutes, "f", ("idea", "call", "code"), {}, "because")


LESSONS = (
    catalog.Lesson(
        "01_formats", "Number formats", 40, "easy", "-", (exercise("1.1", 5), exercise("1.2", 10))
    ),
    catalog.Lesson("02_casts", "Casts — and what they cost you", 90, "easy", "-", (exercise("2.1", 5),)),
)


def two_lessons(root, monkeypatch):
    """Make it in the folder `root`, and have it taken for the course."""
    monkeypatch.setattr(catalog, "lessons", lambda: LESSONS)
    monkeypatch.setenv("AMP_LAB_COURSE", str(root))
    monkeypatch.setenv("COLUMNS", "80")
    (root / "pyproject.toml").touch()
    (root / "solutions").mkdir()
    (root / "notebooks").mkdir()
    for lesson in LESSONS:
        (root / "notebooks" / f"{lesson.slug}.ipynb").write_bytes(cells.dump(OLD))
    return root


def save(root, notebook, slug="01_formats"):
    (root / "work" / f"{slug}.ipynb").write_bytes(cells.dump(notebook))


def publish(root, notebook, slug="01_formats"):
    (root / "notebooks" / f"{slug}.ipynb").write_bytes(cells.dump(notebook))
