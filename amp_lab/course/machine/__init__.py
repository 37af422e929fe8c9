"""JupyterLab and the set-up on this machine: `amp-lab lab` starts the `server`, `amp-lab doctor` asks for `health`."""
