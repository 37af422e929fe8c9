"""JupyterLab in a real browser, started as a learner starts it: through `amp-lab lab`."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[2]
ARTIFACTS = Path(__file__).parent / "artifacts"
SHOWN_PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
# As root Chromium has no sandbox; the rest keeps it from asking the outside world for anything.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The page in front has its kernel.
_READY = "window.jupyterapp.shell.currentWidget.sessionContext.ready"


def chromium() -> str:
    """Return the path of a Chromium; without one, skip here and fail in CI."""
    names = (os.environ.get("AMP_LAB_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no Chromium on PATH: install chromium, or name one in AMP_LAB_CHROMIUM"
        )
    return found


def fresh_course(folder: Path) -> Path:
    """Make a checkout in `folder` that shares the lessons but has a `work/` of its own."""
    for name in ("notebooks", "solutions", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@contextlib.contextmanager
def running_lab(course: Path, lesson: str = "00") -> Iterator[str]:
    """Start `amp-lab lab` at a lesson of a checkout; yield the address with its token, and stop it afterwards."""
    command = [sys.executable, "-m", "amp_lab", "lab", lesson, "--no-browser"]
    # Lets the test ask JupyterLab when it is ready, and run its commands, instead of clicking on menus.
    command += ["--", "--LabApp.expose_app_in_browser=True"]
    # A learner is neither pytest nor CI, which keep no records of success. Jupyter's own settings and the tabs of
    # the last visit are kept apart from the user's.
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_VERSION")},
        "AMP_LAB_COURSE": str(course),
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_DIR": str(course / "jupyter"),
        "IPYTHONDIR": str(course / "ipython"),
    }
    with subprocess.Popen(
        command,
        env=environment,
        cwd=course,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                if address := re.search(r"http://127\.0\.0\.1:\S+token=\w+", line):
                    yield address.group()
                    break
            else:
                pytest.fail(f"JupyterLab ended without an address:\n{''.join(said)}")
        finally:
            os.killpg(server.pid, signal.SIGINT)
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


@contextlib.contextmanager
def browser_page(address: str) -> Iterator[Page]:
    """Open an address in headless Chromium; yield the page."""
    executable = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGS)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.goto(address)
            page.wait_for_selector(f"{SHOWN_PANEL} .jp-Cell", timeout=90_000)
            page.evaluate("window.jupyterapp.restored")
            page.evaluate(_READY)
            yield page
        finally:
            browser.close()


def open_page(page: Page, path: str) -> None:
    """Open another notebook of the folder that JupyterLab shows; returns when its kernel is there."""
    page.evaluate(
        "async path => { await window.jupyterapp.commands.execute('docmanager:open', {path}); }", path
    )
    page.evaluate(_READY)
    page.wait_for_selector(f"{SHOWN_PANEL} .jp-Cell", timeout=90_000)


def run_all(page: Page) -> None:
    """Run → Run All Cells; returns when the kernel is done."""
    _command(page, "notebook:run-all-cells")


def run_cell(page: Page, cell: Locator) -> None:
    """Select a cell and run it; returns when the kernel is done."""
    cell.locator(".cm-content").click()
    _command(page, "notebook:run-cell")


def cell_with(page: Page, text: str) -> Locator:
    """Return the code cell whose source holds `text`."""
    return page.locator(f"{SHOWN_PANEL} .jp-CodeCell").filter(has=page.locator(".cm-content", has_text=text))


def shown(cell: Locator, words: str) -> str:
    """Return what a cell shows, on one line, as soon as `words` are in it."""
    cell.scroll_into_view_if_needed()  # JupyterLab draws what is far out of sight only when it is needed
    outputs = cell.locator(".jp-OutputArea-child")
    for _ in range(10):
        outputs.filter(has_text=words).first.wait_for(timeout=30_000)
        # JupyterLab draws again what is scrolled to: between two looks there may be nothing.
        if words in (said := " ".join(" ".join(outputs.all_inner_texts()).split())):
            return said
    raise AssertionError(f"{words!r} was shown and has gone")


def rewrite(page: Page, cell: Locator, code: str) -> None:
    """Replace a cell's text, as with the keyboard."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(code)


def show(cell: Locator, name: str) -> None:
    """Keep a picture of what a cell shows, also of what does not fit into the window."""
    ARTIFACTS.mkdir(exist_ok=True)
    cell.scroll_into_view_if_needed()
    cell.screenshot(path=ARTIFACTS / f"{name}.png")


def picture(page: Page, name: str) -> None:
    """Keep a screenshot for a human to look at."""
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png")


def _command(page: Page, name: str) -> None:
    page.evaluate(f"window.jupyterapp.commands.execute({name!r})")
