"""Fixes as diffs of the user's own lines, and words where that is not certain."""

import ast
import shutil
import subprocess
from dataclasses import replace

import pytest

from amp_lab.watching.recording import events as seen
from amp_lab.watching.report.fixes import Change, change_of
from amp_lab.watching.rules.rule import Fix
from tests.watching.report_runs import FILE, LOOP, NAMES, clipped, file, line, run, stepped

UNSCALE = ("{scaler}.unscale_({optimizer})",)


def change(fix: Fix, text: str = LOOP, *others: seen.Event) -> Change:
    with file(text):
        return change_of(run(fix.event, *others), fix)


def patched(diff: str, text: str, tmp_path) -> str:
    """Apply a diff with `patch`, which knows nothing of how it was made."""
    if shutil.which("patch") is None:
        pytest.skip("there is no program `patch`")
    (tmp_path / "code.py").write_text(text)
    subprocess.run(
        ["patch", "-s", "-p0", "code.py"],
        input=diff,
        text=True,
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    after = (tmp_path / "code.py").read_text()
    ast.parse(after)
    return after


def lines(found: Change) -> list[str]:
    return [line for hunk in found.hunks for line in hunk.lines]


def test_a_line_is_inserted_before_with_the_users_names_and_indentation(tmp_path):
    found = change(Fix(clipped(), insert=UNSCALE, say="Call unscale_ of {scaler} first."))
    assert lines(found) == [
        "         grad_scaler.scale(loss).backward()",
        "+        grad_scaler.unscale_(opt)",
        "         torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper",
    ]
    assert found.words == "Call unscale_ of grad_scaler first."
    assert found.hunks[0].where.line == 6
    assert found.hunks[0].has(line("clip_grad_norm_"))
    assert not found.hunks[0].has(line("zero_grad"))
    expected = LOOP.replace("        torch.nn", "        grad_scaler.unscale_(opt)\n        torch.nn")
    assert patched(found.diff, LOOP, tmp_path) == expected


def test_a_line_is_inserted_after(tmp_path):
    found = change(Fix(stepped(), insert=("print(1)", "print(2)"), place="after"))
    expected = LOOP.replace("step(opt)\n", "step(opt)\n        print(1)\n        print(2)\n")
    assert patched(found.diff, LOOP, tmp_path) == expected


def test_a_line_is_taken_out(tmp_path):
    found = change(Fix(clipped(), remove=("{line}",)))
    assert patched(found.diff, LOOP, tmp_path) == "".join(
        each for each in LOOP.splitlines(True) if "clip" not in each
    )


def test_a_line_is_moved(tmp_path):
    moved = Fix(stepped(), insert=("{moved}",))
    found = change(Fix(clipped(), remove=("{line}",), also=(moved,)))
    clip = next(each for each in LOOP.splitlines(True) if "clip" in each)
    step = next(each for each in LOOP.splitlines(True) if "step" in each)
    assert found == Change("")  # it stood there already: nothing is to be changed
    found = change(Fix(stepped(), remove=("{line}",), also=(replace(moved, event=clipped()),)))
    assert patched(found.diff, LOOP, tmp_path) == LOOP.replace(clip + step, step + clip)


def test_a_comment_goes_where_its_line_goes(tmp_path):
    found = change(
        Fix(clipped(), remove=("{line}",), also=(Fix(stepped(), insert=("{moved}",), place="after"),))
    )
    after = patched(found.diff, LOOP, tmp_path)
    assert after.index("step(opt)\n") < after.index("1.0)  # as in the paper\n") < after.index("update()")
    found = change(Fix(clipped(), remove=("{line}",), insert=("if big:", "    {line}", "norm = {line}")))
    assert [each[9:] for each in lines(found) if each[0] == "+"] == [
        "if big:",
        "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper",
        "norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ]


def test_a_text_of_many_lines_is_not_moved():
    text = LOOP.replace(
        "1.0)",
        """1.0, '\'\'a
    b\'\'')""",
    )
    for also in ((), (Fix(stepped(where=line("step(opt)", text)), insert=("{moved}",), place="after"),)):
        insert = () if also else ("if a:", "    {line}")
        fix = Fix(
            clipped(where=line("clip_grad", text)), remove=("{line}",), insert=insert, also=also, say="W"
        )
        assert change(fix, text) == Change("W")


def test_a_line_is_put_into_a_block(tmp_path):
    found = change(Fix(stepped(), remove=("{line}",), insert=("if finite:", "    {line}", "    count += 1")))
    before = "        grad_scaler.step(opt)\n"
    after = "        if finite:\n            grad_scaler.step(opt)\n            count += 1\n"
    assert patched(found.diff, LOOP, tmp_path) == LOOP.replace(before, after)


def test_an_insert_of_several_lines_in_one_text(tmp_path):
    found = change(
        Fix(stepped(), insert=("if {scaler}.get_scale() < 1:\n    raise RuntimeError",), place="after")
    )
    assert "+        if grad_scaler.get_scale() < 1:" in lines(found)
    assert "+            raise RuntimeError" in lines(found)
    patched(found.diff, LOOP, tmp_path)


def test_code_is_looked_for_in_the_function_however_it_is_written(tmp_path):
    fix = Fix(stepped(), remove=("{scaler}.scale( loss ).backward()",), insert=("loss.backward()",))
    expected = LOOP.replace("grad_scaler.scale(loss).backward()", "loss.backward()")
    assert patched(change(fix).diff, LOOP, tmp_path) == expected


def test_the_nearest_of_several_is_taken(tmp_path):
    text = LOOP + "\n\ndef other(opt):\n    opt.zero_grad()\n"
    fix = Fix(
        stepped(), remove=("{optimizer}.zero_grad()",), insert=("{optimizer}.zero_grad(set_to_none=True)",)
    )
    after = patched(change(fix, text).diff, text, tmp_path)
    assert after == text.replace("zero_grad()", "zero_grad(set_to_none=True)", 1)
    text = LOOP + "        opt.zero_grad()\n"
    after = patched(change(fix, text).diff, text, tmp_path)
    assert after == LOOP + "        opt.zero_grad(set_to_none=True)\n"


def test_an_expression_in_the_line_is_replaced_by_another(tmp_path):
    text = LOOP.replace("batches:", "batches:  # ein größerer Schritt", 1).replace(
        'torch.autocast("cpu", dtype=torch.float16)', 'torch.autocast("cpü",   dtype=torch.float16)'
    )
    entered = seen.RegionEntered(
        step=1, where=line("autocast", text), region=1, device_type="cuda", dtype=None, enabled=True
    )
    fix = Fix(entered, remove=("torch.float16",), insert=("torch.bfloat16",))
    assert patched(change(fix, text).diff, text, tmp_path) == text.replace("float16", "bfloat16")


def test_a_comment_stays_with_what_replaces_its_line(tmp_path):
    found = change(Fix(clipped(), remove=("{line}",), insert=("clip({model}, 1.0)",)))
    assert "clip(net, 1.0)  # as in the paper\n" in patched(found.diff, LOOP, tmp_path)


def test_a_call_of_many_lines(tmp_path):
    text = LOOP.replace(
        "_(net.parameters(), 1.0)", "_(\n            net.parameters(),\n            1.0,\n        )"
    )
    middle = line("            1.0,", text)
    for where in (line("clip_grad_norm_", text), middle):
        after = patched(change(Fix(clipped(where=where), insert=UNSCALE), text).diff, text, tmp_path)
        assert after == text.replace(
            "        torch.nn.", "        grad_scaler.unscale_(opt)\n        torch.nn."
        )
    in_block = Fix(clipped(where=middle), remove=("{line}",), insert=("if big:", "    {line}"))
    after = patched(change(in_block, text).diff, text, tmp_path)
    assert (
        "        if big:\n            torch.nn.utils.clip_grad_norm_(\n                net.parameters(),\n"
        in after
    )


OVER_PARAMETERS = LOOP.replace(
    "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper\n",
    "        for p in net.parameters():\n            if p.requires_grad:\n                p.grad.mul_(0.5)\n",
)


def over_parameters(text: str = OVER_PARAMETERS) -> seen.Clipped:
    return clipped(where=line("p.grad.mul_", text))


def test_the_loop_around_a_line_is_replaced_with_it(tmp_path):
    fix = Fix(over_parameters(), remove=("{loop}",), insert=UNSCALE)
    before, after = OVER_PARAMETERS.split("        for p in")[0], "        grad_scaler.step(opt)\n"
    after += OVER_PARAMETERS.split(after)[1]
    expected = f"{before}        grad_scaler.unscale_(opt)\n{after}"
    assert patched(change(fix, OVER_PARAMETERS).diff, OVER_PARAMETERS, tmp_path) == expected
    # Another line in the loop needs it: nothing may be put there that would run for each parameter.
    text = OVER_PARAMETERS.replace(
        "                p.grad", "                print(p)\n                p.grad"
    )
    found = change(replace(fix, event=over_parameters(text)), text)
    assert (found.diff, found.code) == ("", ("grad_scaler.unscale_(opt)",))


def test_lines_are_put_before_the_loop_over_parameters_and_not_before_that_over_batches(tmp_path):
    fix = Fix(over_parameters(), insert=UNSCALE, place="before loop")
    expected = OVER_PARAMETERS.replace("        for p", "        grad_scaler.unscale_(opt)\n        for p")
    assert patched(change(fix, OVER_PARAMETERS).diff, OVER_PARAMETERS, tmp_path) == expected
    text = LOOP.replace(
        "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)", "log(x, net.weight.grad.norm())"
    )
    fix = replace(fix, event=clipped(where=line("log(x", text)))
    expected = text.replace("        log(x", "        grad_scaler.unscale_(opt)\n        log(x")
    assert patched(change(fix, text).diff, text, tmp_path) == expected


def test_a_name_or_a_constant_is_not_shown_without_the_line_it_belongs_to():
    fix = Fix(clipped(), remove=("'cuda'",), insert=("'cpu'",), say="Give it the model's device.")
    assert change(fix).code == ()
    assert change(replace(fix, insert=("go()",))).code == ("go()",)


def test_tabs(tmp_path):
    text = LOOP.replace("    ", "\t")
    fix = Fix(stepped(where=line("step(opt)", text)), insert=("if a:", "    b()"), place="after")
    assert "\t\tif a:\n\t\t\tb()\n" in patched(change(fix, text).diff, text, tmp_path)


def test_a_last_line_without_an_end(tmp_path):
    text = "loss.backward()\nscaler.step(opt)"
    where = line("step(opt)", text, function="<module>")
    fix = Fix(stepped(where=where), insert=("scaler.update()",), place="after")
    assert patched(change(fix, text).diff, text, tmp_path) == text + "\nscaler.update()"
    fix = Fix(stepped(where=where), remove=("{line}",), insert=("scaler.step(other)",))
    assert patched(change(fix, text).diff, text, tmp_path) == "loss.backward()\nscaler.step(other)"


def test_two_files_get_a_diff_each(tmp_path):
    other = "/somewhere/sched.py"
    text = "def after(sched):\n    sched.step()\n"
    there = seen.Scheduled(
        step=1,
        where=line("step()", text, other, "after"),
        scheduler=0,
        kind="StepLR",
        optimizer=0,
        before=(),
        after=(),
    )
    with file(text, other):
        found = change(
            Fix(there, remove=("{line}",), insert=("pass",), also=(Fix(stepped(), insert=("{moved}",)),))
        )
    assert [hunk.where.file for hunk in found.hunks] == [other, FILE]
    assert found.diff.count("--- ") == 2
    assert "+        sched.step()" in lines(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss.backward(); grad_scaler.step(opt)\n", "step(opt)"),  # two statements
        ("if ready: grad_scaler.step(opt)\n", "step(opt)"),
        ("do = lambda: grad_scaler.step(opt)\n", "step(opt)"),
        ("[grad_scaler.step(opt) for opt in opts]\n", "step(opt)"),
        ("while grad_scaler.step(opt):\n    pass\n", "step(opt)"),
        ("if a:\n    b()\nelif grad_scaler.step(opt):\n    c()\n", "step(opt)"),
        ("%time grad_scaler.step(opt)\n", "step(opt)"),  # no Python
        ("def broken(:\n    grad_scaler.step(opt)\n", "step(opt)"),
        ("print('''\ngrad_scaler.step(opt)'''); 1\n", "step(opt)"),
    ],
)
def test_where_a_line_cannot_be_put_there_are_words_and_the_code(text, words):
    found = change(Fix(stepped(where=line(words, text)), insert=UNSCALE, say="Do it."), text)
    assert found == Change("Do it.", code=("grad_scaler.unscale_(opt)",))


@pytest.mark.parametrize("text", ["return scaler.step(opt)", "raise scaler.step(opt)"])
def test_nothing_is_put_behind_what_leaves(text):
    code = f"def f():\n    {text}\n"
    assert change(Fix(stepped(where=line("step", code)), insert=("a()",), place="after"), code).diff == ""
    assert change(Fix(stepped(where=line("step", code)), insert=("a()",)), code).diff != ""


def test_code_that_would_not_parse_is_not_proposed():
    code = "for x in xs:\n    scaler.step(opt)\n"
    found = change(Fix(stepped(where=line("step", code)), remove=("{line}",), say="Take it out."), code)
    assert found == Change("Take it out.")
    found = change(Fix(stepped(), insert=("this is no code",), say="Words."))
    assert found == Change("Words.")


@pytest.mark.parametrize(
    "remove",
    ["no code at all", "a(); b()", "with torch.autocast():", "something_else()", "torch.bfloat16", ""],
)
def test_what_is_not_there_is_not_replaced(remove):
    assert change(Fix(stepped(), remove=(remove,), insert=("b()",), say="W")) == Change("W", code=("b()",))


def test_a_file_that_is_gone_or_was_changed_or_never_was():
    fix = Fix(clipped(), insert=UNSCALE, say="Words.")
    expected = Change("Words.", code=("grad_scaler.unscale_(opt)",))
    assert change_of(run(), fix) == expected
    assert change(fix, "# a new first line\n" + LOOP) == expected
    no_line = replace(clipped(), where=None)
    assert change(replace(fix, event=no_line)) == expected
    at_a_prompt = replace(clipped(), where=replace(line("clip"), file="<stdin>"))
    assert change(replace(fix, event=at_a_prompt)) == expected


def test_a_line_that_cannot_be_shown_without_its_file_is_not_half_shown():
    moved = Fix(clipped(), remove=("{line}",), also=(Fix(stepped(), insert=("{moved}",)),), say="Move it.")
    assert change_of(run(), moved) == Change("Move it.")


def test_overlapping_changes_are_words():
    fix = Fix(clipped(), remove=("{line}",), also=(Fix(clipped(), remove=("{line}",)),), say="W")
    assert change(fix) == Change("W")


def named(event: seen.Event, *others: seen.Event) -> str:
    text = "def train():\n    go()\n"
    where = line("go()", text)
    event = replace(event, where=where if event.where == line("step(opt)") else event.where)
    fix = Fix(event, insert=("{scaler}({optimizer}, {optimizer 1}, {model}, {loss})",))
    with file(text):
        return change_of(run(event, *others), fix).hunks[0].lines[1].strip("+ ")


def test_names_come_from_the_frame_then_from_events_beside_it_then_are_the_plain_words():
    assert named(stepped()) == "grad_scaler(opt, optimizer_1, net, loss)"
    several = (("scaler", "s"), ("optimizer 0", "a"), ("optimizer 1", "b"))
    assert named(stepped(names=several)) == "s(a, b, model, loss)"
    assert named(stepped(names=several, optimizer=1)) == "s(b, b, model, loss)"
    beside = stepped(where=replace(line("step(opt)"), line=1), names=NAMES)
    assert named(stepped(names=()), beside) == "grad_scaler(opt, optimizer_1, net, loss)"
    elsewhere = replace(beside, where=replace(line("step(opt)"), function="other"))
    assert named(stepped(names=()), elsewhere) == "scaler(optimizer, optimizer_1, model, loss)"


@pytest.mark.parametrize(
    ("event", "code", "expected"),
    [
        (stepped(names=()), "self.amp.step(self.opts[0])", "self.amp(self.opts[0])"),
        (stepped(), "self.amp.step(self.opts[0])", "self.amp(self.opts[0])"),
        (stepped(names=(), scaler=None), "self.opts['g'].step()", "scaler(self.opts['g'])"),
        (
            seen.Updated(scaler=0, before=None, after=None),
            "self.amp.update()",
            "self.amp(optimizer)",
        ),
    ],
)
def test_names_are_read_off_the_line(event, code, expected):
    event = replace(event, where=line(code, code, function="<module>"))
    fix = Fix(event, insert=("{scaler}({optimizer})",))
    found = change(fix, code + "\n")
    assert f"+{expected}" in lines(found)


def test_braces_of_the_code_itself_stay():
    found = change(Fix(stepped(), insert=('log({"a": {scaler}.get_scale(), "{b}": f"{loss_value}"})',)))
    assert '+        log({"a": grad_scaler.get_scale(), "{b}": f"{loss_value}"})' in lines(found)
