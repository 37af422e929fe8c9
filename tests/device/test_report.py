"""Three ways to show a report."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from amp_lab.device import DeviceFacts
from tests.device.machines import facts, nvidia, report, scenarios


class Rows(HTMLParser):
    """The texts of table rows and list items."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("tr", "li"):
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if not self.rows[-1]:
            self.rows[-1].append("")
        self.rows[-1][-1] += data


@pytest.mark.parametrize("known", scenarios())
def test_text_html_and_dict_say_the_same(known: DeviceFacts) -> None:
    shown = report(replace(known, warnings=("PyTorch said <this> & that.",)))
    text = " ".join(str(shown).split())
    plain = shown.as_dict()
    rows = Rows(shown._repr_html_()).rows
    for name, entry in plain["formats"].items():
        assert f"{name} {entry['kind']} {entry['meaning']}" in text
        assert [name, entry["kind"], entry["meaning"]] in rows
    for note in plain["notes"]:
        assert f"Note {note}" in text
        assert [note] in rows
    for label, value in (row for row in rows if len(row) == 2):
        assert f"{label} {value}" in text
    assert plain["name"] in text
    assert max(map(len, str(shown).splitlines())) <= 100
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_html_escapes_and_leaves_colours_to_the_theme() -> None:
    shown = report(facts(nvidia("<script>alert(1)</script> & Co")))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert not re.search(r"color|background|#[0-9a-f]{3}", shown)


def test_autocast_without_a_known_default() -> None:
    known = facts(amp=replace(facts().amp, default_dtype=None))
    assert "takes float16 and bfloat16, by default unknown" in str(report(known))


def test_support_of_an_unknown_format() -> None:
    with pytest.raises(KeyError, match="FP4"):
        report(facts()).support("FP4")
