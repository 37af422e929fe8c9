"""How a report looks: as text, in a notebook, with Rich; whatever is in it."""

import io
import math
import random
import re
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console

from amp_lab.autocast.records import Source
from amp_lab.watching.recording import events as seen
from amp_lab.watching.recording.later import Later
from amp_lab.watching.report import Report, diagnose, rules_table
from amp_lab.watching.rules.rule import Finding, Fix, Severity
from tests.watching.report_runs import NAMES, clipped, file, line, raised, rule, run, stepped

VOID = {"br", "col", "wbr"}


class Balanced(HTMLParser):
    """Reads HTML and fails where a tag is not closed, or one that we do not write is there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag in {
            *"style div p b code pre span details summary ul li table tbody tr td".split(),
            *VOID,
        }, tag
        assert all(name in ("style", "class") for name, _ in attrs), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


def read_html(page: str) -> str:
    reader = Balanced()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return " ".join("".join(reader.texts).split())


def with_rich(report: object, width: int, **options: object) -> str:
    written = io.StringIO()
    Console(file=written, width=width, **options).print(report)
    return written.getvalue()


NASTY = "<script>alert(1)</script> & [bold]x[/bold] \x1b[31m {scaler} %s `a < b` ünïcode 漢字"


def nasty() -> Report:
    where = Source("/some/<file>&.py", 7, "f<x>", f"step('{NASTY}')")
    events = (stepped(1, where=where), stepped(2, where=where))
    cause = rule(
        "cause",
        Finding(NASTY, events, {NASTY: NASTY}, Fix(events[0], insert=("a < b",), say=NASTY)),
        explains=("effect",),
        doc=f"{NASTY}\n\nWrong:\n    a < b\n\nRight:\n    a & b\n".replace("\x1b", ""),
    )
    effect = rule("effect", Finding(NASTY, events), severity=Severity.RISK)
    return diagnose(run(*events, raised(2, "ValueError", NASTY), notes=[NASTY]), [cause, effect])


def test_html_escapes_everything():
    page = nasty()._repr_html_()
    assert "<script>" not in page
    text = read_html(page)
    assert text.count("<script>alert(1)</script> &") >= 8
    assert "a < b" in text


def test_html_escapes_the_users_lines_and_the_loops():
    text = "a = b  # <i>\nscaler.step(opt)\nd = e  # </i>\n"
    fix = Fix(stepped(where=line("step", text)), insert=("g < h",))
    with file(text):
        report = diagnose(
            run(),
            [
                rule("x", Finding("X.", ()), doc="W.\n\nRight:\n    <i>\n"),
                rule("y", Finding("Y.", (), {}, fix)),
            ],
        )
    page = report._repr_html_()
    assert "<i>" not in page
    assert "</i>" not in page
    assert read_html(page).count("<i>") == 2


def test_html_of_a_diagnosis_and_of_the_table():
    assert "<script>alert(1)" in read_html(nasty()["cause"]._repr_html_())
    assert "rules." in read_html(rules_table()._repr_html_())


@pytest.mark.parametrize("width", [80, 120])
def test_rich_fits_into_the_terminal_and_takes_no_markup(width):
    written = with_rich(nasty(), width)
    assert all(len(each.rstrip()) <= width for each in written.split("\n"))
    assert " ".join(written.split()).count("[bold]x[/bold]") == 8
    assert "\x1b" not in written


def test_rich_colours_what_is_wrong_and_the_diff():
    fix = Fix(clipped(), remove=("{line}",), insert=("clip()",), say="Clip.")
    with file():
        report = diagnose(run(clipped()), [rule("clip", Finding("X.", (clipped(),), {}, fix))])
    written = with_rich(report, 100, force_terminal=True, color_system="standard")
    assert "\x1b[1;31mWRONG: \x1b[0m" in written
    assert re.search(r"\x1b\[32m\+ +clip\(\)", written)
    assert re.search(r"\x1b\[31m- +torch", written)
    assert "\x1b[1;32mNothing wrong" in with_rich(
        diagnose(run(), []), 100, force_terminal=True, color_system="standard"
    )


def test_text_is_at_most_92_columns_but_for_code():
    report = nasty()
    for shown in (str(report), report.full(), str(report["cause"])):
        for each in shown.split("\n"):
            assert len(each) <= 92 or "step('" in each
        assert "\x1b" not in shown
    assert report.full().count("so also: effect") == 1
    assert "    - effect: <script>" in str(report)
    assert "a & b" in report.full()


def test_a_report_as_text():
    clips = [clipped(step) for step in (1, 2, 3)]
    fix = Fix(clips[0], insert=("{scaler}.unscale_({optimizer})",), say="Call unscale_ before clipping.")
    found = Finding(
        "The norm was 2,937 in step 1: that is 2.87 times the loss scale.", tuple(clips), {"limit": 1.0}, fix
    )
    slow = rule("slow", Finding("The loss decreases slowly.", (stepped(3),)))
    with file():
        report = diagnose(run(steps=3), [rule("clip", found, explains=("slow",)), slow])
    assert (
        str(report)
        == """\
1 thing is wrong in 3 steps of Net, with AdamW and GradScaler. No step was skipped; the loss
scale was 65,536.

WRONG: clip
  The norm was 2,937 in step 1: that is 2.87 times the loss scale.
  seen   steps 1 to 3, every one; limit: 1
  where  /somewhere/train.py:7, in train:
         torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper
  fix    Call unscale_ before clipping.
                  grad_scaler.scale(loss).backward()
         +        grad_scaler.unscale_(opt)
                  torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper
  so also
    - slow: The loss decreases slowly.

report.full() says why, with a right loop for each, and shows all evidence."""
    )
    assert (
        str(report["slow"])
        == """\
WRONG: slow
  The loss decreases slowly.
  seen   step 3
  where  /somewhere/train.py:8, in train: grad_scaler.step(opt)
  why    Why slow is wrong.
  wrong  step()
  right  good_step()"""
    )


def test_a_change_in_another_place_says_where():
    fix = Fix(clipped(), insert=("a()",), say="Do a first.")
    with file():
        report = diagnose(run(), [rule("x", Finding("X.", (stepped(where=line("zero_grad")),), {}, fix))])
    assert "\n         @@ /somewhere/train.py:6 @@\n" in str(report)
    assert "@@ /somewhere/train.py:6 @@" in read_html(report._repr_html_())
    assert "@@ /somewhere/train.py:6 @@" in with_rich(report, 100)


# Whatever is in a run and in what a rule finds, a report is plain words.
BAD = re.compile(
    r"object at 0x|\bNone\b|\bnan\b|\binf\b|<class|Later\(|torch\.float|tensor\(|Gradients\.|Source\("
)
VALUES = (
    None, 0, -0.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 2**70, True, "text", "", torch.float16, object(),
    Later(float, math.nan), Later(bool, False), torch.tensor(math.inf), torch.zeros(3), seen.Gradients.SCALED,
    (1, None), [], {2, 1}, {"a": 1}, len, Source("f.py", 3, "g", "h()"), b"bytes", 1 + 2j, Severity.NOTE,
    RuntimeError("x"),
)  # fmt: skip
PLACES = (
    None,
    line("step(opt)"),
    Source("<stdin>", 1, "<module>", ""),
    Source("", 0, "", ""),
    Source("/gone.py", 10**6, "<lambda>", "f = lambda: None if a else b"),
    Source("/somewhere/train.py", 3, "train", "another text"),
)


def finding(dice: random.Random) -> Finding:
    def event() -> seen.Event:
        where, step = dice.choice(PLACES), dice.randint(0, 9)
        names = dice.choice([NAMES, (), (("optimizer 1", "self.opts['a']"),)])
        kind = dice.choice([seen.Event, seen.Raised, seen.Noticed])
        more = {
            seen.Raised: {
                "kind": "E",
                "message": dice.choice(["", "m"]),
                "explained": dice.choice(["", "numpy", "amp-lab"]),
            },
            seen.Noticed: {"what": "x", "values": {"v": dice.choice(VALUES)}},
        }.get(kind, {})
        return kind(step=step, number=dice.randint(0, 99), where=where, names=names, **more)

    def fix(depth: int = 0) -> Fix:
        code = [
            "{line}",
            "{moved}",
            "{scaler}.unscale_({optimizer 1})",
            "if a:\n    {line}",
            "(",
            "",
            "{loss}",
            "a; b",
        ]
        return Fix(
            event(),
            tuple(dice.choices(code, k=dice.randint(0, 2))),
            tuple(dice.choices(code, k=dice.randint(0, 2))),
            dice.choice(["before", "after"]),
            dice.choice(["", "Do it."]),
            tuple(fix(depth + 1) for _ in range(dice.randint(0, 2))) if depth < 2 else (),
        )

    return Finding(
        dice.choice(["It is wrong.", "", "x" * 3000]),
        tuple(event() for _ in range(dice.randint(0, 9))),
        {f"value {number}": value for number, value in enumerate(dice.choices(VALUES, k=dice.randint(0, 6)))},
        dice.choice([None, fix()]),
        dice.choice([None, *Severity]),
    )


@pytest.mark.parametrize("seed", range(150))
def test_random_findings_are_told_in_plain_words(seed):
    dice = random.Random(seed)
    ids = [f"rule-{number}" for number in range(dice.randint(1, 6))]
    rules = [
        rule(
            id,
            *(finding(dice) for _ in range(dice.randint(0, 2))),
            explains=tuple(dice.sample(ids, dice.randint(0, len(ids)))),
        )
        for id in ids
    ]
    events = [event for each in rules for found in each.look(run()) for event in found.events]
    facts = {
        "skips": dice.choice([[], [1], [1, 2, 9]]),
        "scales": dice.choice([[], [(1, math.nan)], [(1, 0.0), (2, math.inf)]]),
        "scalers": dice.choice([[], run().scalers]),
        "notes": dice.choice([[], ["a note"]]),
    }
    with file():
        report = diagnose(run(*events, steps=dice.choice([0, 1, 9]), **facts), rules)
    told = [
        str(report),
        report.full(),
        read_html(report._repr_html_()),
        with_rich(report, 80),
        report.note() or "",
    ]
    told += [
        part
        for each in report.all
        for part in (each.sentence, *each.evidence, each.fix.words if each.fix else "")
    ]
    for text in told:
        assert not BAD.search(text.replace("lambda: None if", "")), text
    report.to_json()
