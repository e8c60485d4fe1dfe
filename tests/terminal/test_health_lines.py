"""What a terminal, a log and a summary say about a run's health, and when."""

import io
import os
from contextlib import closing
from pathlib import Path

from health_runs import a_start, a_step, an_end, an_eval, findings, healthy_run, state_after, steps
from rich.console import Console

from freerun.events.events import AnyEvent, WorkerDied
from freerun.events.metrics import RunState
from freerun.events.store import Store
from freerun.terminal.health_lines import HealthLog, count_levels, describe, panel_lines
from freerun.terminal.lines import summarize
from freerun.terminal.panel import render
from freerun.terminal.view import RunView

EQUAL = {"equal_group_share": 0.8, "all_right_share": 0.75}
ALL_EQUAL = {"equal_group_share": 0.99, "all_right_share": 0.98}
IDLE = ("grad_norm",)


def lines_of(events: list[AnyEvent]) -> list[str]:
    state, log, lines = RunState(), HealthLog(), []
    for event in events:
        state(event)
        lines += log(state, event)
    return lines


def fell() -> list[AnyEvent]:
    return [*healthy_run(), an_eval(20, 0.2), an_end()]


# ---- lines of the log ----------------------------------------------------------------------------------------


def test_a_healthy_run_has_no_line_about_its_health() -> None:
    assert lines_of([*healthy_run(), an_end()]) == []


def test_a_finding_is_told_when_it_appears_when_it_gets_worse_and_when_it_is_over() -> None:
    events = [a_start(), *steps(12, EQUAL), *steps(14, ALL_EQUAL, first=13), *steps(40, first=27)]
    lines = lines_of(events)
    kinds = [line.split(" ")[1] for line in lines if "equal rewards" in line]
    assert kinds == ["warn:", "alarm:", "over:"]
    [warning] = [line for line in lines if "warn: 80 %" in line]
    assert warning.endswith("→ use harder data, data.max_pass_rate or objective.dynamic_sampling")


def test_a_finding_that_comes_and_goes_is_told_once() -> None:
    spikes = [a_step(version, {"grad_norm": 9.0 if version % 6 == 0 else 0.4}) for version in range(1, 60)]
    lines = lines_of([a_start(), *spikes])
    assert len([line for line in lines if "gradient norm" in line and "warn" in line]) == 1
    assert not any("over" in line for line in lines)


def test_a_finding_that_gets_better_and_worse_again_is_told_once_for_each_level() -> None:
    waves = [event for wave in range(6) for event in steps(12, (EQUAL, ALL_EQUAL)[wave % 2], first=1 + 12 * wave)]
    lines = [line for line in lines_of([a_start(), *waves]) if "equal rewards" in line]
    assert [line.split(" ")[1] for line in lines] == ["warn:", "alarm:"]


def test_the_end_of_a_run_ends_no_finding() -> None:
    events = [a_start(), *steps(12, EQUAL), an_end(12)]
    assert not any("over" in line for line in lines_of(events))


def test_a_pipe_gets_the_findings_among_its_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    nowhere = open(os.devnull, "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(console, nowhere, directory=Path("nowhere"), now=lambda: "12:00:00")) as view:
        for event in fell():
            view(event)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "12:00:00  health: alarm: held-out accuracy is below where it began: 40.0 % at version 0" in printed
    assert "outcome    finished, with 1 alarm, 1 warning\n" in printed


# ---- the closing summary -------------------------------------------------------------------------------------


def test_a_run_that_ends_below_where_it_began_says_so_in_its_last_line() -> None:
    lines = summarize(state_after(fell())).splitlines()
    sentence = "held-out accuracy ended below where it began: 40.0 % at version 0, 20.0 % at version 20"
    assert lines[-1] == f"ALARM      {sentence}"
    assert lines[-2].startswith("next ")
    assert f"health     alarm  {sentence}" in lines
    assert lines[lines.index(f"health     alarm  {sentence}") + 1].startswith("                  → use the best")


def test_a_fall_within_the_error_of_the_measurement_is_a_warning_at_the_end() -> None:
    lines = summarize(state_after([*healthy_run(), an_eval(20, 0.38), an_end()])).splitlines()
    assert lines[-1].startswith("WARNING    held-out accuracy ended below")
    assert lines[-1].endswith("within the error of the measurement")


def test_a_run_in_which_nothing_could_be_learned_says_so_in_its_last_line() -> None:
    lines = summarize(state_after([a_start(), *steps(6, without=IDLE), an_end(6)])).splitlines()
    assert lines[0] == "outcome    finished, with 1 alarm"
    reason = "(every group's rewards were equal)"
    assert lines[-1] == f"ALARM      nothing was learned: none of the 6 steps changed the weights {reason}"


def test_the_worst_comes_first_in_the_summary() -> None:
    died = WorkerDied(seconds=3.0, worker="rollout-0", reason="exit status -9", is_restarted=True)
    waiting = steps(12, {"empty_share": 0.9}, wait_seconds=1.0)
    summary = summarize(state_after([a_start(), died, *waiting, an_end(12)]))
    start = summary.index("health ")
    places = [summary.index(word, start) for word in ("alarm", "warn", "info")]
    assert places == sorted(places)
    assert "with 1 alarm, 1 warning, 1 note" in summary


def test_a_healthy_run_ends_with_what_to_type_next() -> None:
    lines = summarize(state_after([*healthy_run(), an_end()])).splitlines()
    assert lines[0] == "outcome    finished"
    assert lines[-1] == "next       freerun eval runs/r"
    assert not any(line.startswith("health") for line in lines)


def test_a_resumed_run_remembers_where_it_began(tmp_path: Path) -> None:
    before = [event for event in healthy_run(10) if event.seconds <= 20]
    with Store(tmp_path) as store:
        for event in [*before, an_end(10, "interrupted")]:
            store(event)
    console = Console(file=io.StringIO(), width=80)
    nowhere = open(os.devnull, "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(console, nowhere, directory=tmp_path, now=lambda: "12:00:00")) as view:
        view.rewind(10, seconds=20.0)
        for event in [a_start(version=10, seconds=20.0), *steps(2, first=11), an_eval(12, 0.1), an_end(12)]:
            view(event)
    assert view.state.num_steps_seen == 12
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[-1].startswith("ALARM      held-out accuracy ended below")


# ---- the live view -------------------------------------------------------------------------------------------


def test_the_live_view_shows_the_worst_findings_with_their_advice() -> None:
    state = state_after([a_start(), *steps(12, ALL_EQUAL | {"cut_off_share": 0.5})])
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(render(state, now=state.seconds, width=200, height=40))
    shown = console.export_text()
    assert "alarm 99 % of the groups of steps 3-12 have equal rewards" in shown
    assert "→ use harder data" in shown
    assert shown.index("alarm 99 %") < shown.index("warn  50 % of the completions")


def test_many_findings_are_cut_with_a_count_and_keep_the_worst() -> None:
    many = ALL_EQUAL | {"cut_off_share": 0.5, "empty_share": 0.5, "distinct_text_share": 0.1}
    state = state_after([a_start(), *steps(12, many)])
    lines = [line.plain for line in panel_lines(state, state.seconds, max_rows=3)]
    assert [line.split()[0] for line in lines] == ["alarm", "alarm", "and"]
    assert lines[-1] == "      and 2 warnings"
    assert panel_lines(state, state.seconds, max_rows=0) == []


def test_hostile_text_in_a_finding_does_nothing() -> None:
    died = WorkerDied(seconds=1.0, worker="rollout-0", reason="[bold]\x1b[2Jexit\x07 1", is_restarted=True)
    [finding] = findings([a_start(), died]).values()
    assert describe(finding).startswith("warn: 1 worker death (rollout-0); the last: [bold]exit 1 →")
    assert count_levels([finding, finding]) == "2 warnings"


def test_the_summary_names_the_best_version_that_can_be_had() -> None:
    state = state_after([*healthy_run(), an_eval(20, 0.45), an_end()])
    lines = summarize(state, kept={10, 20}).splitlines()
    assert "best       held-out 50.0 % at version 10: runs/r/checkpoints/step-10/model" in lines
    assert "best       held-out 45.0 % at version 20: " in summarize(state, kept={20})
    began = "best       held-out 40.0 % at version 0: the model that the run began with"
    assert began in summarize(state, kept=set()).splitlines()
