"""The views and the summary: what a person sees of a run, whatever the model samples."""

import io
import random
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineReport,
    EvalFinished,
    GroupFinished,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.metrics import RunState
from freerun.terminal.progress_lines import ProgressLines
from freerun.terminal.summary import describe
from freerun.terminal.view import PlainView, RunView, TerminalView, make_view
from freerun.terminal.wording import describe_doing, duration, histogram, printable, sparkline
from freerun.types import Completion, Doing, EngineStats, Group, Prompt, Reward, Span, StepResult, Trajectory

HOSTILE = "[red]56[/red] :smile: \x1b[2J\x1b]0;owned\x07\u202egnp\x00\n[link=http://x]\x9b31mlast"


def make_group(ordinal: int, text: str = " 56\n") -> Group:
    prompt = Prompt(
        ordinal=ordinal,
        key="7*8",
        text="Question: what is 7 times 8?\nAnswer:",
        answer="56",
        token_ids=np.arange(9),
    )
    completion = Completion(
        token_ids=np.arange(2), logprobs=np.zeros(2), spans=(Span(0, 2),), finish_reason="stop", text=text
    )
    trajectory = Trajectory(prompt=prompt, sample=0, completion=completion, reward=Reward(5.0, True))
    return Group(ordinal=ordinal, start_version=0, trajectories=(trajectory,))


def make_step(version: int, text: str = " 56\n", **changes: Any) -> StepFinished:
    metrics = {
        "reward": -4 + version * 0.4, "completion_length": 5.1, "num_tokens": 1200.0, "engine_trainer_kl": 1.2e-5,
        "entropy": 0.83,
    }  # fmt: skip
    result = StepResult(
        version=version,
        metrics=changes.get("metrics", metrics),
        staleness_counts=changes.get("staleness_counts", {0: 20, 1: 30, 2: 10, 3: 4}),
    )
    groups = tuple(make_group(8 * version + i, text) for i in range(8))
    return StepFinished(seconds=version * 2.4, result=result, groups=groups, step_seconds=1.9, wait_seconds=0.4)


def a_run(num_steps: int = 12, text: str = " 56\n") -> list[AnyEvent]:
    events: list[AnyEvent] = [
        RunStarted(
            seconds=0.0,
            name="times-tables",
            directory="runs/times-tables",
            num_steps=60,
            version=0,
            max_staleness=4,
        ),
        Activity(seconds=0.1, worker="trainer", doing=Doing("starting")),
        Activity(seconds=0.1, worker="rollout-0", doing=Doing("starting")),
        SftStep(seconds=0.2, step=10, num_steps=50, loss=1.25, held_out_loss=1.5, lr=1e-3, num_tokens=9),
        EvalFinished(
            seconds=0.5,
            version=0,
            accuracy=0.18,
            accuracy_low=0.12,
            accuracy_high=0.26,
            num_prompts=64,
            num_samples=4,
            num_failed=0,
            mean_length=7.0,
        ),
    ]
    for version in range(1, num_steps + 1):
        stats = EngineStats(
            version=version, num_tokens=1228 * version, num_steps=90 * version, busy_seconds=2.1 * version,
            num_running=41, num_waiting=3, num_interrupts=38 * version, num_loads=version,
            load_seconds=0.06 * version, num_recomputed_tokens=1900 * version,
        )  # fmt: skip
        events += [
            GroupFinished(seconds=version * 2.4, ordinal=version, outcome="filtered"),
            EngineReport(seconds=version * 2.4, worker="rollout-0", stats=stats),
            make_step(version, text),
            WeightsLoaded(seconds=version * 2.4, version=version, checksum="ab"),
        ]
    end = num_steps * 2.4
    return [
        *events,
        EvalFinished(
            seconds=end,
            version=10,
            accuracy=0.55,
            accuracy_low=0.45,
            accuracy_high=0.65,
            num_prompts=64,
            num_samples=4,
            num_failed=1,
            mean_length=5.0,
        ),
        CheckpointSaved(seconds=end, version=10, directory="runs/times-tables/checkpoints/10"),
        GroupFinished(seconds=end, ordinal=99, outcome="failed", reason="grader-0 timed out after 10 s"),
        Activity(seconds=end, worker="controller", doing=Doing("waiting", "rollouts 12, 14")),
        Activity(seconds=end, worker="rollout-0", doing=Doing("generating")),
        Activity(seconds=end, worker="trainer", doing=Doing("training")),
    ]


def an_end(outcome: Any = "finished", reason: str = "") -> RunFinished:
    return RunFinished(
        seconds=30.0, outcome=outcome, reason=reason, version=12,
        model_directory="runs/times-tables/checkpoints/12/model",
    )  # fmt: skip


def a_console(width: int = 120, height: int = 40) -> Console:
    return Console(
        record=True, force_terminal=True, width=width, height=height, file=io.StringIO(), color_system="truecolor"
    )


def picture(events: list[AnyEvent], *, width: int = 120, height: int = 40) -> str:
    console = a_console(width, height)
    view = TerminalView(console, clock=lambda: 0.0)
    for event in events:
        view(event)
    console.print(view.render())
    return console.export_text()


def log_of(events: list[AnyEvent]) -> str:
    console = Console(file=io.StringIO(), width=80)
    view = PlainView(console, now=lambda: "12:00:00")
    for event in events:
        view(event)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def state_of(events: list[AnyEvent]) -> RunState:
    state = RunState()
    for event in events:
        state(event)
    return state


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_shows_what_a_person_asks_of_a_run(width: int) -> None:
    shown = picture(a_run(), width=width)
    for words in (
        "times-tables", "step 12/60", "left", "0.8", "18.0 % → 55.0 %", "max 3 of 4", "512 tok/s", "503 tok/s",
        "88 % busy", "456", "KL engine-trainer 1.2e-05", "12 filtered", "1 failed",
        "waiting for rollouts 12, 14", "41 running", "generating",
        "what is 7 times 8", "→ 56", "+5",
    ):  # fmt: skip
        assert words in shown, words


def test_the_live_view_shows_the_parts_of_a_summed_reward() -> None:
    metrics = {"reward": 3.2, "reward/number": 2.5, "reward/fo\x1b[31mrmat": 4.75}
    shown = picture([*a_run(), make_step(13, metrics=metrics)], width=140)
    assert "number 2.5 · format 4.8" in shown


def test_no_line_of_the_live_view_is_wider_than_the_terminal() -> None:
    for width in (1, 2, 5, 10, 20, 33, 50, 79, 99, 100, 200):
        assert all(len(line) <= max(width, 4) for line in picture(a_run(), width=width).splitlines())


def test_the_live_view_fits_a_low_terminal() -> None:
    for height in (24, 30, 50):
        assert len(picture(a_run(), width=80, height=height).splitlines()) <= height


def test_the_live_view_survives_every_prefix_of_a_run() -> None:
    events = [*a_run(), an_end()]
    for length in range(len(events) + 1):
        picture(events[:length], width=100, height=24)


def test_many_workers_are_cut_with_a_count() -> None:
    workers: list[AnyEvent] = [
        Activity(seconds=1.0, worker=f"rollout-{i:02}", doing=Doing("generating")) for i in range(40)
    ]
    shown = picture([*a_run(), *workers], height=30)
    assert "more" in shown
    assert len(shown.splitlines()) <= 30


@pytest.mark.parametrize("width", [80, 120])
def test_a_hostile_completion_is_shown_and_does_nothing(width: int) -> None:
    console = a_console(width)
    view = TerminalView(console)
    for event in a_run(text=HOSTILE):
        view(event)
    console.print(view.render())
    assert isinstance(console.file, io.StringIO)
    raw = console.file.getvalue()
    assert "[red]56[/red] :smile:" in console.export_text()
    for evil in ("\x1b[2J", "\x1b]", "\x07", "\u202e", "\x00", "\x9b", "owned"):
        assert evil not in raw


def test_a_hostile_reason_stays_on_its_indented_lines_of_the_log() -> None:
    died = WorkerDied(
        seconds=3.0,
        worker="rollout-0",
        reason="exit 1\n[bold]Traceback\x1b[2J\nfinished at step 60",
        is_restarted=True,
    )
    lines = log_of([died]).splitlines()
    assert lines == [
        "12:00:00  worker rollout-0 died, restarted: exit 1",
        "    [bold]Traceback",
        "    finished at step 60",
    ]


def test_printable_text_is_one_line_without_controls() -> None:
    generator = random.Random(0)
    for _ in range(300):
        text = "".join(chr(generator.choice((generator.randrange(0x300), 0x1B, 0x5B))) for _ in range(40))
        assert printable(text).isprintable()
    assert printable("a\nb\tc") == "a⏎b c"
    assert printable("e" + "\u0301" * 50) == "e\u0301\u0301"
    assert printable("नमस्ते") == "नमस्ते"


def test_the_log_has_one_line_per_step_and_nothing_that_is_not_known() -> None:
    log = log_of([*a_run(), make_step(13, metrics={}, staleness_counts={}), an_end()])
    assert (
        "step 12/60  reward 0.80  held-out 18.0 %  length 5.1  staleness 1.0/3 (bound 4)  gen 512 tok/s  "
        "train 503 tok/s  waited 0.4 s  1:55 left\n"
    ) in log
    assert "held-out 55.0 % [45.0 %, 65.0 %] at version 10  (64 prompts x 4)  1 failed\n" in log
    assert "checkpoint 10 saved  runs/times-tables/checkpoints/10\n" in log
    assert "group 99 failed: grader-0 timed out after 10 s\n" in log
    assert "step 13/60  held-out 55.0 %" in log
    assert log.startswith("12:00:00  started  run times-tables  60 steps  max staleness 4")
    assert log.endswith("finished at step 12/60\n")


TRACEBACK = """6*{n}: grading sample 0 failed: my_task:grade failed:
Traceback (most recent call last):
  File "my_task.py", line 3, in grade
    return int(completion)
ValueError: invalid literal for int() with base 10: 'x{n}'"""


def failures(number: int) -> list[AnyEvent]:
    return [
        GroupFinished(seconds=30.0, ordinal=n, outcome="failed", reason=TRACEBACK.format(n=n))
        for n in range(number)
    ]


def test_a_failing_reward_shows_its_traceback_once_and_is_then_counted() -> None:
    reason = f"16 rollouts in a row failed; the last, of 6*119: {TRACEBACK.format(n=119)}"
    log = log_of([*failures(120), an_end("failed", reason)])
    assert log.count("Traceback (most recent call last)") == 1
    assert "10 groups failed like this: 6*9: grading sample 0 failed" in log
    assert "100 groups failed like this" in log
    assert len(log.splitlines()) == 5 + 2 + 1
    state = state_of([*failures(120), an_end("failed", reason)])
    assert "Traceback" in describe(state), "the live view has shown none"
    summary = describe(state, shows_failures=True)
    assert "Traceback" not in summary
    assert "ValueError: invalid literal" in summary
    assert "120 failed" in summary


def test_a_traceback_is_not_repeated_when_another_group_failed_after_the_last_straw() -> None:
    reason = f"16 rollouts in a row failed; the last, of 6*7: {TRACEBACK.format(n=15)}"
    state = state_of([*failures(18), an_end("failed", reason)])
    assert "Traceback" not in describe(state, shows_failures=True)


def test_failures_of_another_cause_show_their_own_traceback() -> None:
    other = TRACEBACK.format(n=1).replace("line 3", "line 7")
    timeouts: list[AnyEvent] = [
        GroupFinished(seconds=1.0, ordinal=n, outcome="failed", reason=f"number timed out grading 6*{n}")
        for n in range(3)
    ]
    events = [*failures(2), GroupFinished(seconds=1.0, ordinal=9, outcome="failed", reason=other), *timeouts]
    log = log_of(events)
    assert log.count("Traceback (most recent call last)") == 2
    assert log.count("timed out") == 1


def test_steps_that_change_nothing_are_said_to_change_nothing() -> None:
    idle = {"reward": -5.0, "loss": 0.0, "skipped_updates": 0.0}
    events = [a_run()[0], *(make_step(version, metrics=idle) for version in (1, 2, 3))]
    assert log_of(events).count("no update: every group's rewards were equal") == 3
    summary = describe(state_of(events))
    assert (
        "192 trajectories in 3 steps; 0 of 3 steps changed the weights: every group's rewards were eq" in summary
    )
    learning = make_step(4, metrics={"reward": 1.0, "skipped_updates": 0.0, "grad_norm": 0.3})
    assert "no update" not in log_of([*events, learning]).splitlines()[-1]
    assert "1 of 4 steps changed the weights: in the others every" in describe(state_of([*events, learning]))
    exploded = make_step(5, metrics={"reward": 1.0, "skipped_updates": 2.0})
    assert "no update: the gradients were not finite" in log_of([*events, learning, exploded])


def test_everything_printed_is_kept_in_a_file_that_grows_with_every_session(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            (tmp_path / "log.txt").open("ab", buffering=0) as file,
            closing(RunView(make_view(a_console()), file, directory=tmp_path)) as view,
        ):
            for event in [*a_run(), an_end()]:
                view(event)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("step 12/60  reward 0.80") == 2
    assert log.count("next       freerun eval runs/times-tables") == 2
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  started  run", log)


def test_a_log_on_a_full_disk_is_no_reason_to_end() -> None:
    console = a_console()
    file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(make_view(console), file, directory=Path("nowhere"))) as view:
        for event in [*a_run(), an_end()]:
            view(event)
    assert view.state.version == 12
    assert "outcome    finished" in console.export_text()


def test_work_without_a_terminal_says_now_and_then_how_far_it_is() -> None:
    seconds = 0.0
    console = Console(file=io.StringIO(), width=80)
    lines = ProgressLines(console, 100, clock=lambda: seconds)
    for done in range(1, 101):
        seconds += 0.5
        lines(done, "prompts evaluated")
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue().splitlines()
    assert len(printed) == 9
    assert re.fullmatch(r"\d\d:\d\d:\d\d  10/100 prompts evaluated  45 s left", printed[0])


def test_a_pipe_gets_lines_and_a_terminal_gets_the_live_view() -> None:
    assert isinstance(make_view(Console(file=io.StringIO())), PlainView)
    with closing(make_view(a_console())) as view:
        assert isinstance(view, TerminalView)


def test_the_live_view_draws_by_itself_while_events_come() -> None:
    console = a_console()
    with closing(TerminalView(console).start()) as view:
        for event in a_run():
            view(event)
        time.sleep(0.6)
    assert "step 12/60" in console.export_text()


def test_the_view_and_the_summary_tell_of_borrowed_cores() -> None:
    borrowed = CoresMoved(seconds=20.0, cores=(0, 1), num_borrowed=1)
    returned = CoresMoved(seconds=24.0, cores=(1,), num_borrowed=0)
    assert "training  on 2 cores, 1 lent by idle rollout workers" in picture([*a_run(), borrowed])
    assert "training  on 1 core  " in picture([*a_run(), borrowed, returned])
    summary = describe(state_of([*a_run(), borrowed, returned, an_end()]))
    assert "the trainer had cores of idle rollout workers for 4.0 s" in summary


def test_a_loan_counts_until_it_is_given_back_or_its_session_ends() -> None:
    borrowed = CoresMoved(seconds=29.0, cores=(0, 1), num_borrowed=1)
    returned = CoresMoved(seconds=29.7, cores=(1,), num_borrowed=0)
    later = Activity(seconds=29.5, worker="trainer", doing=Doing("training"))
    again = msgspec.structs.replace(a_run()[0], seconds=29.2)
    assert state_of([*a_run(), borrowed, later]).borrowed_seconds == pytest.approx(0.5)
    assert state_of([*a_run(), borrowed, an_end()]).borrowed_seconds == pytest.approx(1.0)
    assert state_of([*a_run(), borrowed, returned, an_end()]).borrowed_seconds == pytest.approx(0.7)
    # Resumed from a checkpoint at 29.2: what came after it is forgotten, its processes are gone.
    resumed = state_of([*a_run(), borrowed, an_end(), again])
    assert resumed.borrowed_seconds == pytest.approx(0.2)
    assert resumed.cores is None


def test_a_broken_bound_is_shouted_in_view_and_summary() -> None:
    events = [*a_run(), make_step(13, staleness_counts={6: 1})]
    assert "BOUND BROKEN" in picture(events)
    assert "BOUND BROKEN: 6 was trained on, max_staleness is 4" in describe(state_of(events))


def test_the_summary_says_what_came_of_the_run_and_what_to_type_next() -> None:
    words = describe(state_of([*a_run(), an_end()]))
    assert words.splitlines() == [
        "outcome    finished",
        "SFT        10 of 50 steps, loss 1.2500 → 1.2500, held-out loss 1.5000 → 1.5000",
        "steps      12 of 60, in 30 s",
        "held-out   18.0 % → 55.0 % [45.0 %, 65.0 %] (versions 0 → 10)",
        "reward     -3.6 → 0.8",
        "staleness  mean 0.97, max 3 of 4: bound held",
        "trained    768 trajectories; groups: 12 filtered, 1 failed (last failure: grader-0 timed out after 10 s)",
        "generated  14,736 tokens",
        "interrupts 456 sequences in 12 loads; cost: decoding paused 0.7 s, 22,800 tokens recomputed",
        "busy       rollout-0 88 %, trainer 79 %",
        "model      runs/times-tables/checkpoints/12/model",
        "next       freerun eval runs/times-tables",
    ]


def test_an_interrupted_run_is_told_how_to_go_on() -> None:
    words = describe(state_of([*a_run(), an_end("interrupted")]))
    assert words.endswith("freerun train runs/times-tables/config.toml --resume")


def test_a_run_that_never_began_still_has_a_summary() -> None:
    assert "no checkpoint was written" in describe(RunState())


def test_a_replaced_engine_keeps_what_its_first_process_counted() -> None:
    state = RunState()
    for seconds, tokens, steps in ((1.0, 100, 10), (2.0, 300, 20), (5.0, 50, 3), (6.0, 90, 6)):
        stats = EngineStats(num_tokens=tokens, num_steps=steps, num_loads=1)
        state(EngineReport(seconds=seconds, worker="rollout-0", stats=stats))
    assert state.engine_total("num_tokens") == 390
    assert state.engine_total("num_loads") == 2
    assert state.generated_tokens_per_second == 40


def test_the_eta_follows_the_pace_of_the_last_steps_and_counts_down() -> None:
    state = state_of(a_run())
    at_step, later = state.eta_seconds(28.8), state.eta_seconds(29.8)
    assert at_step == pytest.approx(48 * 2.4, rel=0.01)
    assert later is not None
    assert at_step is not None
    assert at_step - later == pytest.approx(1.0)


def test_small_pictures_of_numbers() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([float("nan"), 1.0], 8) == "▄"
    assert len(sparkline(list(range(1000)), 24)) == 24
    assert histogram({0: 8, 2: 1}, 3) == "█·▁·"
    assert [duration(s) for s in (0.44, 59, 65, 7384, float("inf"))] == ["0.4 s", "59 s", "1:05", "2:03:04", "?"]


def test_what_a_process_does_is_data_until_it_is_shown() -> None:
    assert describe_doing(Doing("idle")) == "idle"
    assert (
        describe_doing(Doing("waiting", "the gate to admit a rollout"))
        == "waiting for the gate to admit a rollout"
    )
    assert describe_doing(Doing("generating", num_done=12)) == "generating 12"
    assert describe_doing(Doing("training", "proximal", 3, 8)) == "training: proximal, 3 of 8"
