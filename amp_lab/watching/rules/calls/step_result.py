"""What `scaler.step` returns, taken for an answer that it does not give."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from amp_lab.watching.recording.events import Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.report.source import Code, code_of
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import by_line, in_steps, steps_of


@rule(
    "step-result-read",
    Severity.WRONG,
    title="step() is asked whether it stepped",
    explains=("scheduler-on-skip", "scheduler-never-stepped", "average-on-skip", "counter-on-skip"),
)
def step_result_read(run: Run) -> Iterator[Finding]:
    """A condition on what `scaler.step(optimizer)` returns.

    It returns what the optimizer returns, which is None without a closure, and None where it skipped the step: the
    condition has the same outcome in every step.

    Wrong:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            stepped = scaler.step(optimizer)
            scaler.update()
            if stepped:
                scheduler.step()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()
    """
    for line in by_line(event for event in run.of(Stepped) if _returns_none(run, event)):
        condition = _condition(line[0])
        if condition is None:
            continue
        steps = steps_of(line)
        yield Finding(
            f"`{condition}` asks what scaler.step() returned, which was None in {in_steps(steps)}, as it is "
            "in every step, "
            "taken or skipped.",
            tuple(line),
            fix=Fix(
                line[0],
                say="Ask the scale: keep scaler.get_scale() from before update(); a scale that sank tells of a skip.",
            ),
        )


def _returns_none(run: Run, event: Stepped) -> bool:
    """Whether it is known that this call returned None: torch's scaler, one of torch's optimizers, no closure."""
    if event.scaler is None or event.closure or event.raised or event.where is None:
        return False
    scaler, optimizer = run.scalers[event.scaler].kind, run.optimizers[event.optimizer].kind
    return scaler == torch.amp.GradScaler.__name__ and hasattr(torch.optim, optimizer)


def _condition(event: Stepped) -> str | None:
    """Return the condition that the call decides, as it is written: the call's own, or that of a name it "
    "was given."""
    code = code_of(event.where) if event.where else None
    if code is None or event.where is None:
        return None
    line = event.where.line
    for scope in _scopes(code, line):
        names = {_name_of_result(node, line) for node in ast.walk(scope)} - {None}
        for node in ast.walk(scope):
            if isinstance(node, ast.If | ast.While | ast.IfExp) and _asks(node.test, names, line):
                return (
                    ast.unparse(node.test) if isinstance(node, ast.IfExp) else f"if {ast.unparse(node.test)}"
                )
    return None


def _scopes(code: Code, line: int) -> list[ast.AST]:
    """Return the innermost function around a line, or the module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    inner = [e for e in code.nodes if isinstance(e, kinds) and e.lineno <= line <= (e.end_lineno or 0)]
    return [inner[-1] if inner else code.tree]


def _name_of_result(node: ast.AST, line: int) -> str | None:
    if isinstance(node, ast.Assign) and _is_step(node.value, line) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _asks(test: ast.expr, names: set[str | None], line: int) -> bool:
    """Whether a condition is the result itself, or `not` of it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    return _is_step(test, line) or (isinstance(test, ast.Name) and test.id in names)


def _is_step(node: ast.AST, line: int) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "step" and node.lineno <= line <= (node.end_lineno or node.lineno)
