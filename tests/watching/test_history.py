"""What is kept of a run is bounded, and what is kept is what rules need."""

import gc

import pytest
import torch
from torch import nn

from amp_lab.watching.recording import history
from amp_lab.watching.recording.events import RegionLeft, Stepped, Updated
from amp_lab.watching.recording.history import Ends, History
from amp_lab.watching.recording.readings import Readings
from amp_lab.watching.watch import watch


def fields(**more):
    return {"where": None, "names": (), "main": True, "autocast": None, "regions": (), "step": 1, **more}


def test_the_first_and_the_last_of_many():
    ends = Ends(6)
    for number in range(100):
        ends.append(number)
    assert list(ends) == [0, 1, 2, 97, 98, 99]
    assert ends.latest == 99


def steps_of(kept, total, courses=lambda step: 0):
    for step in range(1, total + 1):
        kept.add(RegionLeft, fields(step=step, region=step, raised=bool(courses(step))))
        kept.begin_step(step + 1)


def test_first_and_last_steps_and_those_that_went_another_way():
    kept = History()
    steps_of(kept, 500, courses=lambda step: step == 250)
    expected = {*range(1, history.FIRST_STEPS + 1), 250, *range(501 - history.LAST_STEPS, 501)}
    assert kept.kept_steps() == expected
    assert [event.step for event in kept.events()] == sorted(expected)
    assert kept.counts == {"RegionLeft": 500}


def test_many_steps_that_all_went_another_way_are_not_all_kept():
    kept = History()
    for step in range(1, 1001):
        for _ in range(step % 200):
            kept.add(RegionLeft, fields(step=step, region=step))
        kept.begin_step(step + 1)
    assert len(kept.events()) <= history.MOST_EVENTS
    assert 1000 in kept.kept_steps()


def test_a_step_without_end_is_bounded_and_is_not_called_complete():
    kept = History()
    for region in range(3 * history.MOST_IN_A_STEP):
        kept.add(RegionLeft, fields(region=region))
    assert len(kept.events()) == history.MOST_IN_A_STEP
    assert kept.kept_steps() == frozenset()
    assert kept.counts["RegionLeft"] == 3 * history.MOST_IN_A_STEP


def test_numbers_go_on_over_events_that_were_not_kept():
    kept = History()
    steps_of(kept, 100)
    assert [event.number for event in kept.events()] == sorted(kept.kept_steps())


def test_readings_come_in_order_whether_on_a_device_or_not():
    told = []
    readings = Readings(lambda step, value: told.append((step, value)))
    readings.add(1, 5.0)
    assert told == [(1, 5.0)]
    for step in range(2, 900):
        readings.add(step, torch.tensor(float(step)) if step % 2 else float(step))
    assert len(told) < 898  # the last parcel waits
    readings.read()
    assert told == [(1, 5.0), *((step, float(step)) for step in range(2, 900))]


def a_loop():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    x = torch.randn(2, 4)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, optimizer, scaler, step


@pytest.mark.long
def test_memory_does_not_grow_over_five_thousand_steps():
    model, optimizer, scaler, step = a_loop()
    with watch(model, optimizer, scaler) as seen:
        sizes = []
        for _ in range(5):
            for _ in range(1000):
                step()
            gc.collect()
            sizes.append((len(gc.get_objects()), len(seen.run.events)))
    run = seen.run
    assert run.counts["Stepped"] == 5000
    assert run.steps == 5000
    events = [number for _, number in sizes]
    assert max(events) < 800
    objects = [number for number, _ in sizes]
    assert objects[-1] - objects[1] < 2_000


def test_scale_and_skips_are_known_for_all_steps():
    model, optimizer, scaler, step = a_loop()
    with watch(model, optimizer, scaler) as seen:
        for number in range(1, 101):
            if number == 70:
                handle = model.weight.register_hook(lambda gradient: gradient * float("inf"))
            step()
            if number == 70:
                handle.remove()
    run = seen.run
    assert run.skips == (70,)
    grown = dict(run.scales)
    assert grown[3] == 4.0
    assert grown[70] < grown[69]
    assert 70 in run.kept_steps
    assert 40 not in run.kept_steps
    skipped = [event for event in run.of(Stepped) if event.step == 70]
    assert [(event.skipped.value, event.ran) for event in skipped] == [(True, False)]
    assert len(list(run.of(Updated))) == len(run.kept_steps)
