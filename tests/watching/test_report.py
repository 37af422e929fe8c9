"""The report: what it says, and how it is asked."""

import ast
import json

import pytest

from amp_lab.watching.recording.run import Run
from amp_lab.watching.report import Report, diagnose, rules_table
from amp_lab.watching.rules import RULES
from amp_lab.watching.rules.rule import Finding, Fix, Severity
from tests.watching.report_runs import (
    backward,
    clipped,
    failing,
    file,
    line,
    raised,
    rule,
    run,
    stepped,
)


def sick(*more: object, **facts: object) -> Report:
    """Return a report on clipping too early, with a consequence, a risk and a note."""
    clips = [clipped(step) for step in range(1, 201)]
    fix = Fix(clips[0], insert=("{scaler}.unscale_({optimizer})",), say="Call unscale_ before clipping.")
    values = {"norm that clip saw": clips[0].norm, "loss scale": 1024.0, "nothing": None}
    rules = [
        rule("a-note", Finding("A note.", ()), severity=Severity.NOTE),
        rule("slow", Finding("The loss decreases slowly.", (stepped(5), stepped(6)))),
        rule("clip", Finding("The norm was 2,937 in step 1.", tuple(clips), values, fix), explains=("slow",)),
        rule("a-risk", Finding("It may go wrong.", (stepped(2),)), severity=Severity.RISK),
    ]
    with file():
        return diagnose(run(*clips, *more, **facts), rules)


def test_a_report_is_a_collection_of_root_causes():
    report = sick()
    assert report.ids == ("clip", "a-risk", "a-note")
    assert tuple(report) == report.diagnoses
    assert len(report) == 3
    assert [each.id for each in report.all] == ["clip", "slow", "a-risk", "a-note"]
    assert report["clip"] is report.diagnoses[0]
    assert report["slow"] is report["clip"].consequences[0]
    assert "slow" in report
    assert "other" not in report
    with pytest.raises(
        KeyError, match="no diagnosis 'other' in this report; found was clip, slow, a-risk, a-note"
    ):
        report["other"]
    with pytest.raises(KeyError, match="found was nothing"):
        diagnose(run(), [])["other"]


def test_a_diagnosis_has_what_the_rule_found():
    clip = sick()["clip"]
    assert clip.severity == Severity.WRONG
    assert clip.sentence == "The norm was 2,937 in step 1."
    assert clip.evidence == ("steps 1 to 200, every one", "norm that clip saw: 2,937", "loss scale: 1,024")
    assert clip.steps == tuple(range(1, 201))
    assert clip.where == line("clip_grad_norm_")
    assert clip.fix.words == "Call unscale_ before clipping."
    assert "+        grad_scaler.unscale_(opt)\n" in clip.fix.diff
    assert clip.title == "The title of clip"
    assert clip.why == "Why clip is wrong."
    assert (clip.wrong, clip.right) == ("step()", "good_step()")


def test_the_docstring_of_a_rule_is_taken_apart():
    doc = """Why.

    More on why,
    in two lines.

    Wrong:
        for x in batches:
            a()

        b()

    Wrong, with two optimizers:
        c()

    Right:
        d()

    The end.
    """
    report = diagnose(run(), [rule("x", Finding("X.", ()), doc=doc)])
    assert report["x"].why == "Why.\n\nMore on why,\nin two lines.\n\nThe end."
    assert report["x"].wrong == "for x in batches:\n    a()\n\nb()"
    assert report["x"].right == "d()"


@pytest.mark.parametrize("id", RULES)
def test_every_rule_says_why_and_shows_both_loops(id):
    (told,) = diagnose(run(), [rule(id, Finding("X.", ()), doc=RULES[id].look.__doc__)])
    assert len(told.why) > 20
    assert "Wrong" not in told.why
    for loop in (told.wrong, told.right):
        ast.parse(loop)


@pytest.mark.parametrize(
    ("steps", "kept", "words"),
    [
        (range(1, 11), range(1, 11), "steps 1 to 10, every one"),
        ([1, 2, 9, 10], [1, 2, 9, 10], "steps 1, 2, 9 and 10, every one of the 4 looked at"),
        ([3], range(1, 11), "step 3"),
        ([2, 4], range(1, 11), "steps 2 and 4"),
    ],
)
def test_steps_are_told_briefly(steps, kept, words):
    found = rule("x", Finding("X.", tuple(map(stepped, steps))))
    report = diagnose(run(steps=10, kept_steps=frozenset(kept)), [found])
    assert report["x"].evidence == (words,)


def test_ok_and_worst():
    assert sick().worst == Severity.WRONG
    assert not sick().ok
    assert diagnose(run(), []).ok
    assert diagnose(run(), []).worst is None
    note, risk = (rule("x", Finding("X.", ()), severity=each) for each in (Severity.NOTE, Severity.RISK))
    assert diagnose(run(), [note]).ok
    assert not diagnose(run(), [risk]).ok
    assert not diagnose(run(steps=0), []).ok
    with pytest.raises(TypeError, match=r"ask report\.ok"):
        bool(diagnose(run(), []))


def test_the_severity_of_a_finding_goes_before_the_rules():
    report = diagnose(run(), [rule("x", Finding("X.", (), severity=Severity.RISK))])
    assert report["x"].severity == Severity.RISK


def test_a_rule_that_fails_does_not_take_the_report_down(monkeypatch):
    rules = [failing(ZeroDivisionError("by\nzero")), rule("x", Finding("X.", ()))]
    with pytest.raises(ZeroDivisionError):  # in tests it does
        diagnose(run(), rules)
    monkeypatch.delenv("AMP_LAB_STRICT_RULES")
    report = diagnose(run(), rules)
    assert report.ids == ("x",)
    assert report.failed == (("failing", "ZeroDivisionError: by zero"),)
    said = "Could not be judged: failing (its rule failed with ZeroDivisionError: by zero)."
    assert said in str(report)
    assert said in report._repr_html_()
    assert not diagnose(run(), rules[:1]).ok


def test_a_rule_that_fails_late_keeps_what_it_had_found(monkeypatch):
    monkeypatch.delenv("AMP_LAB_STRICT_RULES")
    first = rule("x", Finding("X.", ()))

    def look(seen: Run):
        yield from first.look(seen)
        raise ValueError("late")

    report = diagnose(run(), [type(first)("x", Severity.WRONG, "X", look, frozenset())])
    assert report.ids == ("x",)
    assert report.failed == (("x", "ValueError: late"),)


BF16 = "Got unsupported ScalarType BFloat16"


def test_an_exception_about_precision_that_no_rule_explains():
    report = diagnose(run(raised(3, "TypeError", BF16, "numpy-bfloat16")))
    assert report.ids == ("raised",)
    assert report["raised"].sentence.startswith("NumPy has no BFloat16")
    assert report["raised"].evidence[1] == f"error: TypeError: {BF16}"
    assert report["raised"].fix.words
    assert report.ended is None
    note = report.note()
    assert note.startswith("amp_lab.watch: NumPy has no BFloat16")
    assert "where: /somewhere/train.py:8, in train: grad_scaler.step(opt)" in note


def test_an_exception_that_another_rule_explains_is_its_consequence():
    refused = stepped(3, raised=True)
    twice = rule("step-twice", Finding("step() was called twice.", (stepped(2), refused)))
    report = diagnose(run(refused, raised(3, "TypeError", BF16, "numpy-bfloat16")), [twice, RULES["raised"]])
    assert report.ids == ("step-twice",)
    assert [each.id for each in report["step-twice"].consequences] == ["raised"]
    assert report.note().startswith("amp_lab.watch: step() was called twice. (step-twice)")


@pytest.mark.parametrize(("kind", "message"), [("KeyboardInterrupt", ""), ("ValueError", "my own: <b>")])
@pytest.mark.parametrize("explained", ["unknown", "not-precision", ""])
def test_an_exception_of_the_users_own_is_no_diagnosis(kind, message, explained):
    report = diagnose(run(raised(3, kind, message, explained)))
    assert report.ids == ()
    assert report.note() is None
    said = f"The run ended with {kind}{f': {message}' if message else ''} (/somewhere/train.py:8, in train)."
    assert said in str(report)
    assert "Nothing wrong was found" in str(report)


def test_an_exception_of_amp_lab_itself_says_what_to_do():
    message = "scaler.step: it was called twice. In each iteration: scale, step, update. If broken off, begin again."
    report = diagnose(run(raised(1, "CallOrderError", message, "amp-lab")))
    assert report["raised"].sentence == "amp_lab raised CallOrderError: scaler.step: it was called twice."
    assert report["raised"].fix.words == "In each iteration: scale, step, update. If broken off, begin again."


def test_a_note_is_at_most_six_lines():
    event = raised(1, "TypeError", BF16, "numpy")
    fix = Fix(clipped(), insert=tuple(f"do({number})" for number in range(20)), say="Do it. " * 100)
    cause = rule("cause", Finding("It was wrong. " * 100, (clipped(1),), {}, fix), explains=("raised",))
    with file():
        note = diagnose(run(event), [cause, RULES["raised"]]).note()
    assert 3 <= len(note.split("\n")) <= 6
    assert max(map(len, note.split("\n"))) < 300
    fix = Fix(clipped(), insert=("a()",), say="Do it.")
    short = rule("cause", Finding("It was wrong.", (clipped(1),), {}, fix), explains=("raised",))
    with file():
        assert diagnose(run(event), [short, RULES["raised"]]).note() == (
            "amp_lab.watch: It was wrong. (cause)\n"
            "  where: /somewhere/train.py:7, in train: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
            "  # as in the paper\n"
            "  fix:   Do it.\n"
            "      grad_scaler.scale(loss).backward()\n"
            "    + a()"
        )


def test_a_healthy_run_says_what_was_seen():
    losses = [backward(step) for step in range(1, 35)]
    report = diagnose(run(*losses, scales=[(1, 32768.0), (2, 16384.0)], skips=[1, 2]), [])
    assert " ".join(str(report).split()) == (
        "Nothing wrong was found in 200 steps of Net, with AdamW and GradScaler. "
        "2 steps were skipped (1 and 2), at loss scales from 65,536 to 32,768; the loss scale ended at 16,384. "
        "The losses were finite in all 34 steps that were looked at."
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "No step was skipped; the loss scale was 65,536."),
        ({"scales": [(100, 131072.0)]}, "No step was skipped; the loss scale ended at 131,072."),
        ({"skips": [1], "scales": [(1, 32768.0)]}, "1 step was skipped (1), at a loss scale of 65,536; "),
        (
            {"skips": [1, 5], "scales": [(1, 8.0), (4, 65536.0), (5, 8.0)]},
            "(1 and 5), at a loss scale of 65,536; ",
        ),
        ({"skips": list(range(1, 201))}, "200 steps were skipped (all of them), "),
        ({"scalers": []}, "200 steps of Net, with AdamW, without a scaler. "),
        ({"models": [], "optimizers": [], "scalers": []}, "in 200 steps. "),
        ({"notes": ["the model is compiled."]}, "\nNot watched: the model is compiled."),
    ],
)
def test_what_was_seen(facts, words):
    assert words in str(diagnose(run(backward(1), **facts), [])).replace("\n", " ").replace(
        " Not w", "\nNot w"
    )


def test_losses_that_were_not_finite_are_named():
    losses = [backward(step, finite=step != 2) for step in (1, 2, 3)]
    assert "The loss was infinite or NaN in step 2." in str(diagnose(run(*losses, steps=3), []))
    assert "All losses were finite." in str(diagnose(run(backward(1), steps=1), []))


def test_without_a_step_the_report_says_what_was_seen_instead():
    said = " ".join(str(diagnose(run(steps=0, counts={"Forward": 3, "Backward": 1}), [])).split())
    assert "Nothing wrong" not in said
    assert "No training step was seen" in said
    assert "Seen were 3 forward passes and 1 backward pass." in said
    assert "Nor was the model called." in str(diagnose(run(steps=0), [])).replace("\n", " ")


def test_the_verdict_counts():
    assert str(sick()).startswith("1 thing is wrong, 1 is a risk and 1 is worth knowing in 200 steps of Net,")
    two = [rule(each, Finding("X.", ())) for each in "ab"]
    assert str(diagnose(run(), two)).startswith("2 things are wrong in 200 steps of Net,")


def test_json():
    report = sick(skips=[1], scales=[(1, float("inf"))], steps=200)
    told = json.loads(report.to_json())
    assert told == report.as_dict()
    assert told["ok"] is False
    assert told["worst"] == "WRONG"
    assert told["scales"] == [[1, "infinite"]]
    assert [each["id"] for each in told["diagnoses"]] == ["clip", "a-risk", "a-note"]
    clip = told["diagnoses"][0]
    assert clip["where"]["line"] == 7
    assert clip["fix"]["diff"] == report["clip"].fix.diff
    assert clip["consequences"][0]["id"] == "slow"
    assert "\n" not in report.to_json()
    healthy = json.loads(diagnose(run(), []).to_json())
    assert healthy["ok"] is True
    assert healthy["worst"] is None


def test_the_table_of_rules():
    table = rules_table()
    assert [each.id for each in table.rows] == [
        each.id for rules in table.families().values() for each in rules
    ]
    assert {each.id for each in table.rows} == set(RULES)
    shown, page = str(table), table._repr_html_()
    for each in table.rows:
        assert f"{each.severity:<6} {each.id} " in shown
        assert f"<code>{each.id}</code>" in page
    assert all(len(each) <= 92 for each in shown.split("\n"))
    assert f"{len(RULES)} rules" in shown
