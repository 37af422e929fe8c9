"""Running a command of `amp-lab` in this process."""

from click.testing import CliRunner

from amp_lab import cli


def run(*arguments, answer=None):
    return CliRunner().invoke(cli.main, arguments, input=answer, prog_name="amp-lab", catch_exceptions=False)
