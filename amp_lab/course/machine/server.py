"""How the course starts JupyterLab: in the learner's workspace, for this machine alone, without news.

Nothing is written into the user's own Jupyter settings. The course's defaults lie in `jupyter/labconfig`
beside this file; what a user has set for themselves still wins over them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_DEFAULTS = Path(__file__).with_name("jupyter")


def command(folder: Path, page: str, more: Sequence[str] = ()) -> list[str]:
    """Return the command line that opens a page of `folder` in JupyterLab, with `more` of its arguments."""
    return [
        # -P: a `random.py` in the current folder is not to be imported by the server.
        *(sys.executable, "-P", "-m", "jupyterlab"),
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1",
        f"--LabApp.default_url=/lab/tree/{page}",
        # What is left to read is the address, and what went wrong.
        "--Application.log_level=ERROR",
        # What the page and its kernel say to each other is encrypted, where the installed Jupyter can do it.
        "--KernelManager.transport_encryption=auto",
        # Ctrl+C stops the server at once; it would ask first, and go on if the answer takes five seconds.
        "--ServerApp.answer_yes=True",
        # Jupyter refuses root without it; in a container there is often no other user.
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *more,
    ]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for that command, made from one's own."""
    config = filter(None, [str(_DEFAULTS), own.get("JUPYTER_CONFIG_PATH")])
    return {
        **own,
        # JupyterLab's terminal finds `amp-lab`, and `!pip` in a cell the right pip.
        "PATH": os.pathsep.join(filter(None, [str(Path(sys.executable).parent), own.get("PATH")])),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(config),
        # Threads that wait for each other sleep instead of spinning. With anything else running beside them, the
        # small networks of the lessons were some 20 times slower without this.
        "OMP_WAIT_POLICY": own.get("OMP_WAIT_POLICY", "passive"),
        # The kernel `python3` is this environment's, even if the user has one of that name elsewhere.
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
