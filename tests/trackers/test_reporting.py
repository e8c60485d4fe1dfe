"""A reporter gets what is in the store, in order and once, however a run is cut off and resumed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_events import a_start, an_end, an_eval, make_group, make_step, write
from told_reporters import Told

from freerun.events.events import EvalFinished, RunFinished, SftStep
from freerun.events.reader import RunReader
from freerun.events.store import Store
from freerun.trackers.cursor import Cursor, cursor_file, held, read_cursor, write_cursor
from freerun.trackers.reporter import AlarmRaised, Measured, SampleTable
from freerun.trackers.reporting import Reporting, ReportOptions, report


class Rig:
    """Reporters of one run, one after the other, as the processes of its sessions are."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory, self.options = directory, ReportOptions(**options)
        self.attempts: list[Told] = []
        self.cursor: Cursor | None = None

    def open(self, *, continues: bool = False) -> Reporting:
        return Reporting(
            self.directory, lambda: Told(self.attempts, continues=continues), self.options, self.cursor
        )

    def report(self, *, continues: bool = False, is_killed: bool = False) -> Told:
        reporting = self.open(continues=continues)
        deliver(reporting)
        if is_killed:
            self.cursor = msgspec.structs.replace(reporting.cursor, is_closed=False)
        else:
            self.cursor = reporting.close("finished")
        return self.attempts[-1]


def deliver(reporting: Reporting) -> None:
    while reporting.deliver():
        pass


def assert_equal_to_store(told: Told, directory: Path) -> None:
    with RunReader(directory) as reader:
        steps, evals = reader.steps(), reader.evals()
    measured = [e for e in told.events if isinstance(e, Measured) and "train/reward" in e.values]
    assert [e.step for e in measured] == [step.version for step in steps]
    for event, step in zip(measured, steps, strict=True):
        trained = {n.removeprefix("train/"): x for n, x in event.values.items() if n.startswith("train/")}
        assert trained == step.metrics
        assert event.values["time/step_seconds"] == step.step_seconds
    evaluated = [e for e in told.events if isinstance(e, Measured) and "eval/accuracy" in e.values]
    assert {e.step: e.values["eval/accuracy"] for e in evaluated} == {row.version: row.accuracy for row in evals}
    assert len(evaluated) == len(evals)


def test_everything_is_told_once_and_equals_the_store(tmp_path: Path) -> None:
    write(tmp_path, a_start(), an_eval(0), make_step(1, ()), make_step(2, (), entropy=0.3), an_eval(2), an_end())
    told = Rig(tmp_path).report()
    assert told.run.attempt == 1
    assert isinstance([e for e in told.events if not isinstance(e, Measured)][-1], RunFinished)
    assert_equal_to_store(told, tmp_path)


@pytest.mark.parametrize("continues", [False, True])
def test_a_killed_run_that_repeats_steps_is_a_new_attempt_with_all_of_them(
    tmp_path: Path, continues: bool
) -> None:
    rig = Rig(tmp_path)
    write(tmp_path, a_start(), *(make_step(v, ()) for v in (1, 2, 3)))
    assert rig.report(is_killed=True, continues=continues).steps == [1, 2, 3]
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
        for event in (a_start(1), an_eval(1), make_step(2, (), entropy=0.1), make_step(3, ()), an_end()):
            store(event)
    told = rig.report(continues=continues)
    assert (told.run.attempt, told.run.is_resumed) == (2, False)
    assert told.run.key != rig.attempts[0].run.key
    assert_equal_to_store(told, tmp_path)


def test_a_run_that_is_rewound_while_it_is_followed_is_told_again_from_the_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    write(tmp_path, a_start(), *(make_step(v, ()) for v in (1, 2, 3)))
    reporting = rig.open(continues=True)
    deliver(reporting)
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
        store(a_start(1))
        store(make_step(2, (), entropy=0.2))
    deliver(reporting)
    assert rig.attempts[0].outcome == "rewound"
    assert_equal_to_store(rig.attempts[-1], tmp_path)
    with Store(tmp_path) as store:
        store(make_step(3, ()))
    deliver(reporting)
    assert len(rig.attempts) == 2
    assert_equal_to_store(rig.attempts[-1], tmp_path)


def test_a_reporter_that_continues_gets_only_what_is_new_after_an_orderly_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    write(tmp_path, a_start(), an_eval(0), make_step(1, ()), an_end("interrupted"))
    rig.report(continues=True)
    write(tmp_path, a_start(1), an_eval(1), make_step(2, ()), an_end())
    told = rig.report(continues=True)
    assert (told.run.attempt, told.run.is_resumed) == (1, True)
    assert told.run.key == rig.attempts[0].run.key
    assert told.steps == [2]
    assert [e.version for e in told.events if isinstance(e, EvalFinished)] == [1]


def test_a_reporter_that_does_not_continue_gets_everything_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    write(tmp_path, a_start(), make_step(1, ()), an_end("interrupted"))
    rig.report()
    write(tmp_path, a_start(1), make_step(2, ()), an_end())
    told = rig.report()
    assert told.run.attempt == 2
    assert told.run.title.endswith("(2)")
    assert told.steps == [1, 2]


def test_an_orderly_end_without_a_checkpoint_is_no_place_to_continue_from(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    write(tmp_path, a_start(), *(make_step(v, ()) for v in (1, 2)), an_end("interrupted"))
    rig.report(continues=True)
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
        store(a_start(1))
        store(make_step(2, (), entropy=0.5))
    told = rig.report(continues=True)
    assert told.run.attempt == 2
    assert_equal_to_store(told, tmp_path)


def test_supervised_steps_that_are_repeated_are_told_once(tmp_path: Path) -> None:
    def sft(step: int, loss: float) -> SftStep:
        return SftStep(seconds=float(step), step=step, num_steps=3, loss=loss, lr=0.1, num_tokens=9)

    rig = Rig(tmp_path)
    write(tmp_path, a_start(), sft(1, 2.0), sft(2, 1.5))
    rig.report(is_killed=True)
    with Store(tmp_path) as store:
        store.rewind(0, seconds=1.0)
        for event in (a_start(), sft(2, 1.4), sft(3, 1.0)):
            store(event)
    told = rig.report()
    losses = [(e.step, e.values["sft/loss"]) for e in told.events if isinstance(e, Measured)]
    assert losses == [(1, 2.0), (2, 1.4), (3, 1.0)]


def test_an_alarm_is_raised_once_and_is_a_curve(tmp_path: Path) -> None:
    steps = [make_step(v, (), equal_group_share=1.0, all_right_share=1.0) for v in range(1, 13)]
    write(tmp_path, a_start(), *steps)
    told = Rig(tmp_path).report()
    alarms = [e for e in told.events if isinstance(e, AlarmRaised) and e.finding.rule == "equal_groups"]
    assert len(alarms) == 1
    curve = [e.values.get("health/equal_groups") for e in told.events if isinstance(e, Measured)]
    assert curve[-1] == 3.0


def test_samples_are_sent_only_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, a_start(), *(make_step(v, (make_group(v),)) for v in (1, 2, 3, 4)))
    assert not [e for e in Rig(tmp_path).report().events if isinstance(e, SampleTable)]
    tables = [e for e in Rig(tmp_path, samples_every=2).report().events if isinstance(e, SampleTable)]
    assert [table.step for table in tables] == [2, 4]
    assert tables[0].samples[0].completion == " 56\n"


def test_a_second_process_is_refused_and_a_damaged_cursor_is_a_new_attempt(tmp_path: Path) -> None:
    file = cursor_file(tmp_path, "my_module:My Reporter")
    with held(file, "x"), pytest.raises(Exception, match="another process reports"), held(file, "x"):
        pass
    write_cursor(file, Cursor(key="k", attempt=3, is_closed=True))
    assert read_cursor(file) == Cursor(key="k", attempt=3, is_closed=True)
    file.write_text("{")
    found = read_cursor(file)
    assert found is not None
    assert not found.is_closed


def test_json_lines_are_those_of_the_store_after_a_kill_and_after_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[train]\nlr = 0.5\n")
    write(tmp_path, a_start(), make_step(1, ()), make_step(2, ()))
    report(tmp_path, "jsonl", ReportOptions(), must_stop=lambda seconds: True)
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
        for event in (a_start(1), make_step(2, (), entropy=0.25), make_step(3, ()), an_eval(3), an_end()):
            store(event)
    report(tmp_path, "jsonl", ReportOptions(), must_stop=lambda seconds: True)
    lines = [msgspec.json.decode(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert lines[0]["settings"] == {"train.lr": 0.5}
    assert lines[-1] == {"kind": "end", "outcome": "finished"}
    steps = [line for line in lines if line["kind"] == "measured" and "train/reward" in line["values"]]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert steps[1]["values"]["train/entropy"] == 0.25
    assert [line["step"] for line in lines if "eval/accuracy" in line.get("values", {})] == [3]
