"""A run in plain text: its lines, its summary, and what both are made from."""

import msgspec
import pytest
from watched_run import a_run, an_end, make_step, state_of

from freerun.events.events import Activity, AnyEvent, CoresMoved, EngineReport, GroupFinished, WorkerDied
from freerun.events.metrics import RunState
from freerun.terminal.lines import describe_event, summarize
from freerun.terminal.wording import printable_block, wrapped
from freerun.types import Doing, EngineStats


def log_of(events: list[AnyEvent]) -> str:
    state, lines = RunState(), []
    for event in events:
        state(event)
        lines.append(describe_event(state, event))
    return "\n".join(printable_block(line) for line in lines if line)


def test_a_hostile_reason_stays_on_its_indented_lines_of_the_log() -> None:
    died = WorkerDied(
        seconds=3.0,
        worker="rollout-0",
        reason="exit 1\n[bold]Traceback\x1b[2J\nfinished at step 60",
        is_restarted=True,
    )
    lines = log_of([died]).splitlines()
    assert lines == [
        "worker rollout-0 died, restarted: exit 1",
        "    [bold]Traceback",
        "    finished at step 60",
    ]


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
    assert log.startswith("started  run times-tables  60 steps  max staleness 4")
    assert log.endswith("finished at step 13/60")


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
    assert "Traceback" in summarize(state), "the live view has shown none"
    summary = summarize(state, shows_failures=True)
    assert "Traceback" not in summary
    assert "ValueError: invalid literal" in summary
    assert "120 failed" in summary


def test_a_traceback_is_not_repeated_when_another_group_failed_after_the_last_straw() -> None:
    reason = f"16 rollouts in a row failed; the last, of 6*7: {TRACEBACK.format(n=15)}"
    state = state_of([*failures(18), an_end("failed", reason)])
    assert "Traceback" not in summarize(state, shows_failures=True)


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
    summary = summarize(state_of(events))
    assert (
        "192 trajectories in 3 steps; 0 of 3 steps changed the weights: every group's rewards were eq" in summary
    )
    learning = make_step(4, metrics={"reward": 1.0, "skipped_updates": 0.0, "grad_norm": 0.3})
    assert "no update" not in log_of([*events, learning]).splitlines()[-1]
    assert "1 of 4 steps changed the weights: in the others every" in summarize(state_of([*events, learning]))
    exploded = make_step(5, metrics={"reward": 1.0, "skipped_updates": 2.0})
    assert "no update: the gradients were not finite" in log_of([*events, learning, exploded])


def test_a_broken_bound_is_shouted_in_the_summary() -> None:
    events = [*a_run(), make_step(13, staleness_counts={6: 1})]
    assert "BOUND BROKEN: 6 was trained on, max_staleness is 4" in summarize(state_of(events))


def test_the_summary_says_what_came_of_the_run_and_what_to_type_next() -> None:
    words = summarize(state_of([*a_run(), an_end()]))
    assert words.splitlines() == [
        "outcome    finished",
        "SFT        10 of 50 steps, loss 1.2500 → 1.2500, held-out loss 1.5000 → 1.5000",
        "steps      12 of 60, in 30 s",
        "reward     -3.6 → 0.8",
        "held-out   18.0 % → 55.0 % [45.0 %, 65.0 %] (versions 0 → 10)",
        "staleness  mean 0.97, max 3 of 4: bound held",
        "generation 14,736 tokens; busy: rollout-0 88 %",
        "training   busy 79 %",
        "interrupts 456 sequences in 12 loads; cost: decoding paused 0.7 s, 22,800 tokens recomputed",
        "trained    768 trajectories; groups: 12 filtered, 1 failed (last failure: grader-0 timed out after 10 s)",
        "model      runs/times-tables/checkpoints/12/model",
        "view       freerun view runs/times-tables  (its page, at http://127.0.0.1:6161/)",
        "next       freerun eval runs/times-tables",
    ]


def test_an_interrupted_run_is_told_how_to_go_on() -> None:
    words = summarize(state_of([*a_run(), an_end("interrupted")]))
    assert words.endswith("freerun train runs/times-tables --resume")


def test_a_run_that_learned_nothing_is_told_to_look_at_its_rewards() -> None:
    idle = make_step(1, metrics={"skipped_updates": 0.0, "reward": 1.0})
    assert "next       freerun show runs/times-tables --order reward\nALARM" in summarize(
        state_of([a_run()[0], idle, an_end()])
    )


def test_the_newest_checkpoint_of_a_run_that_has_not_ended_is_its_model() -> None:
    assert "model      runs/times-tables/checkpoints/10/model" in summarize(state_of(a_run()))


def test_a_run_that_never_began_still_has_a_summary() -> None:
    assert "no checkpoint was written" in summarize(RunState())


def test_the_summary_tells_of_borrowed_cores() -> None:
    borrowed = CoresMoved(seconds=20.0, cores=(0, 1), num_borrowed=1)
    returned = CoresMoved(seconds=24.0, cores=(1,), num_borrowed=0)
    summary = summarize(state_of([*a_run(), borrowed, returned, an_end()]))
    assert "busy 79 %; used cores of idle rollout workers for 4.0 s" in summary


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


def test_a_summary_is_wrapped_between_words_below_where_its_text_begins() -> None:
    summary = (
        "outcome    finished, with 1 note\n"
        "health     info   the trainer is the limit of this run\n"
        "                  → give it more cores or GPUs\n"
        "model      runs/a-rather-long-name-of-a-run/model"
    )
    assert wrapped(summary, 40).splitlines() == [
        "outcome    finished, with 1 note",
        "health     info   the trainer is the",
        "                  limit of this run",
        "                  → give it more cores",
        "                    or GPUs",
        "model      runs/a-rather-long-name-of-a-run/model",
    ]
    assert wrapped(summary, 200) == summary


def test_the_rate_of_the_first_step_leaves_out_the_time_in_which_engines_started() -> None:
    state = state_of([a_run()[0]])
    for seconds, version, tokens in ((30.0, None, 0), (40.0, 0, 0), (44.0, 0, 400)):
        stats = EngineStats(version=version, num_tokens=tokens)
        state(EngineReport(seconds=seconds, worker="rollout-0", stats=stats))
    state(msgspec.structs.replace(make_step(1), seconds=44.0))
    assert state.token_marks.tokens_per_second == 100


def test_a_summary_begins_with_what_failed_in_one_line_and_has_the_traceback_below() -> None:
    reason = f"16 rollouts in a row failed; the last, of 6*7: {TRACEBACK.format(n=1).partition(chr(10))[2]}"
    lines = summarize(state_of([*failures(3), an_end("failed", reason)])).splitlines()
    assert lines[0] == (
        "outcome    failed: 16 rollouts in a row failed; the last, of 6*7: "
        "ValueError: invalid literal for int() with base 10: 'x1'"
    )
    assert lines[1].startswith("steps ")
    [first] = [line for line in lines if line.startswith("in full ")]
    assert "Traceback" in first
    assert "Traceback" not in summarize(state_of([an_end("failed", "one line")]))
