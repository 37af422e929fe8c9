"""Small pages for tests: how a cell and a page look, an old blank of a lesson and a new one."""

from amp_lab.course.pages.source import content_digest


def code(name, source, outputs=(), **metadata):
    return {
        "id": name,
        "cell_type": "code",
        "metadata": metadata,
        "execution_count": 3 if outputs else None,
        "outputs": list(outputs),
        "source": source.splitlines(keepends=True),
    }


def text(name, source, **metadata):
    return {
        "id": name,
        "cell_type": "markdown",
        "metadata": metadata,
        "source": source.splitlines(keepends=True),
    }


def stub(number, name="f", doc="Do it.", arguments="x"):
    source = f'def {name}({arguments}):\n    """{doc}"""\n    raise NotImplementedError'
    return code(f"stub-{number}-1", source)


def check(number, name="f"):
    return code(f"check-{number}", f'check("{number.replace("-", ".")}", {name})')


def built(cell):
    """Name a cell as the build does: after what it says."""
    return {**cell, "id": f"{content_digest(cell['cell_type'], ''.join(cell['source']))}-1"}


def page(*cells, **metadata):
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def edited(book, name, source, **more):
    return page(
        *(
            {**cell, "source": source.splitlines(keepends=True), **more} if cell["id"] == name else cell
            for cell in book["cells"]
        )
    )


def ids(book):
    return [cell["id"] for cell in book["cells"]]


def cell(book, name):
    (found,) = [cell for cell in book["cells"] if cell["id"] == name]
    return found


def source(cell):
    return "".join(cell.get("source", ""))


def sources(book):
    return [source(cell) for cell in book["cells"]]


ANSWER = "def f(x):\n    return 2 * x"
OLD = page(
    text("t1", "# Numbers in sixteen bits"),
    code("demo", "x = 1\nx + 1"),
    text("t2", "Write a function that doubles."),
    stub("1-1"),
    check("1-1"),
    text("t3", "And one that halves."),
    stub("1-2", "g"),
    check("1-2", "g"),
    text("end", "Takeaways"),
)
# What most updates are: one text reworded, one added.
NEW = page(
    text("t1", "# Numbers in sixteen bits"),
    code("demo", "x = 1\nx + 1"),
    text("t2b", "Write a function that doubles its argument."),
    stub("1-1"),
    check("1-1"),
    text("t3", "And one that halves."),
    text("t4", "Careful with odd numbers."),
    stub("1-2", "g"),
    check("1-2", "g"),
    text("end", "Takeaways"),
)
SOLVED = edited(OLD, "stub-1-1-1", ANSWER)
