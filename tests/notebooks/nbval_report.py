"""A pytest plugin: writes what became of each notebook cell that nbval ran, one JSON object a line.

pytest -p tests.notebooks.nbval_report --cell-report=cells.jsonl --nbval notebooks/*.ipynb
"""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--cell-report", type=Path, required=True, help="the file to write")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    # A kernel that does not start fails the setup of the first cell, which then has no call.
    if report.when == "call" or (report.when == "setup" and not report.passed):
        error = call.excinfo.value if call.excinfo else None
        record = {
            "notebook": item.path.name,
            "cell": item.cell.id,
            "outcome": report.outcome,
            "error": str(error or ""),
            "traceback": str(getattr(error, "inner_traceback", None) or ""),
        }
        with item.config.option.cell_report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    return report
