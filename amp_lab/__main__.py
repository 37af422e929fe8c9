"""`python -m amp_lab` is `amp-lab`, for when the folder of its script is not on PATH."""

from amp_lab.cli import main

if __name__ == "__main__":
    main(prog_name="amp-lab")
