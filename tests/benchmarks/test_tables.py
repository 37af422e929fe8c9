"""The table of what was measured, and the one that the README quotes."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import COMPARISONS, main
from benchmarks.finding import Finding
from benchmarks.results import FOLDER, keep
from benchmarks.tables import BEGIN, END, newest, put_into, table

ROOT = Path(__file__).parents[2]


def stored(folder, date, name, device="cpu: A CPU", number=1.5):
    """Write the file of one finding, as if measured then and there."""
    path = keep(name, "a command", [Finding(f"of {date}", number, 2.0)], folder=folder)
    content = json.loads(path.read_text(encoding="utf-8")) | {"date": date, "device": device}
    path.unlink()
    machine = device.split(": ")[1].lower().replace(" ", "-")
    (folder / f"{date}_{name}_{machine}.json").write_text(json.dumps(content), encoding="utf-8")


def test_the_newest_of_each_comparison_and_machine_counts_in_the_order_of_the_list(tmp_path):
    stored(tmp_path, "2026-02-01", "a")
    stored(tmp_path, "2026-01-01", "a")
    stored(tmp_path, "2025-12-31", "b")
    stored(tmp_path, "2026-03-01", "c")
    stored(tmp_path, "2025-01-01", "a", device="cuda: A GPU")
    found = newest(tmp_path, ["b", "a"])
    assert [(each["what"], each["date"], each["device"]) for each in found] == [
        ("b", "2025-12-31", "cpu: A CPU"),
        ("a", "2026-02-01", "cpu: A CPU"),
        ("a", "2025-01-01", "cuda: A GPU"),
        ("c", "2026-03-01", "cpu: A CPU"),
    ]


def test_each_finding_has_its_row_and_the_date_stands_at_the_first(tmp_path):
    findings = [
        Finding("ours | theirs", 1.0421, 1.05, 0.017),
        Finding("ours ÷ slow", 1.06, 1.05, 0.017),
        Finding("ours ÷ fast", 1.3, 1.05, 0.017),
        Finding("memory", 12345.0, unit="MiB"),
    ]
    content = json.loads(keep("x", "a command", findings, folder=tmp_path).read_text(encoding="utf-8"))
    content |= {"date": "2026-01-01", "device": "cuda: A GPU", "torch": "2.13.0"}
    head, line, *rows = table([content]).splitlines()
    assert head.count("|") == line.count("|") == 6
    assert rows == [
        r"| `x` | ours \| theirs | 1.042 ± 0.017 × | 1.05 | 2026-01-01, A GPU, PyTorch 2.13.0 |",
        "|  | ours ÷ slow | 1.060 ± 0.017 × | 1.05, met within ± |  |",
        "|  | ours ÷ fast | 1.300 ± 0.017 × | 1.05, **missed** |  |",
        "|  | memory | 12,345 MiB |  |  |",
    ]


def test_the_table_is_put_between_its_marks_again_and_again(tmp_path):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}old\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        put_into(file, "new\ntable")
        assert file.read_text(encoding="utf-8") == f"before\n{BEGIN}new\ntable\n{END}\nafter\n"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="must have a line <!-- python -m benchmarks --table"):
        put_into(file, "new")
    assert file.read_text(encoding="utf-8") == "nothing"


def test_the_readme_quotes_the_table():
    """If not: `python -m benchmarks --table --into README.md`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN + table(newest(FOLDER, COMPARISONS)) + "\n" + END in readme


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "xray"], "takes no names"),
        (["--table", "--quick"], "no --quick"),
        (["--into", "README.md"], "goes with --table"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_the_table_and_nothing_else(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--table"])
    assert main() == 0
    assert capsys.readouterr().out == table(newest(FOLDER, COMPARISONS)) + "\n"


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"what": "xray"}', b"\xff\xfe"], ids=repr)
def test_a_damaged_file_is_named(content, tmp_path, monkeypatch, capsys):
    stored(tmp_path, "2026-01-01", "xray")
    (tmp_path / "2026-01-02_xray_a-cpu.json").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--table", "--results", str(tmp_path)])
    assert main() == 2
    said = capsys.readouterr()
    assert "2026-01-02_xray_a-cpu.json is no result of a benchmark" in said.err
    assert not said.out


@pytest.mark.parametrize("content", [None, "without marks"])
def test_a_file_without_a_place_for_the_table_is_named(content, tmp_path, monkeypatch, capsys):
    file = tmp_path / "README.md"
    if content:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--table", "--into", str(file)])
    assert main() == 2
    assert "README.md" in capsys.readouterr().err


def test_results_that_are_no_folder_are_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for arguments, said in (
        (["xray", "--results", str(tmp_path / "file")], "this is a file"),
        (["--table", "--results", str(tmp_path / "nothing")], "no such folder"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert said in capsys.readouterr().err
