"""How JupyterLab is started: its arguments and its environment."""

import os
import sys
from pathlib import Path

from amp_lab.course.machine import server

PAGE = "00_start_here.ipynb"


def test_root_is_allowed_only_to_root(monkeypatch):
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert ("--allow-root" in server.command(Path("work"), PAGE)) == (user == 0)


def test_the_users_own_jupyter_configuration_is_kept():
    own = {"JUPYTER_CONFIG_PATH": "/mine", "HOME": "/home/me"}
    made = server.environment(own)
    ours, mine = made["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert (Path(ours) / "labconfig" / "default_setting_overrides.json").is_file()
    assert mine == "/mine"
    assert made["HOME"] == "/home/me"
    assert own == {"JUPYTER_CONFIG_PATH": "/mine", "HOME": "/home/me"}
    assert server.environment({})["JUPYTER_CONFIG_PATH"] == ours


def test_threads_wait_without_spinning_unless_the_user_decided():
    assert server.environment({})["OMP_WAIT_POLICY"] == "passive"
    assert server.environment({"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"


def test_a_terminal_in_jupyterlab_finds_amp_lab():
    home = str(Path(sys.executable).parent)
    assert server.environment({"PATH": "/usr/bin"})["PATH"] == os.pathsep.join([home, "/usr/bin"])
    assert server.environment({})["PATH"] == home
