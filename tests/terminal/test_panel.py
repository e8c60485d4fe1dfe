"""The live view: what it shows of a run, whatever the model samples and however small the terminal is."""

import io
import random

import msgspec
import pytest
from rich.console import Console
from watched_run import a_run, an_end, make_step, state_of

from freerun.events.events import (
    Activity,
    AnyEvent,
    CoresMoved,
    EngineLoaded,
    GroupFinished,
    QueueCounts,
    Queues,
    RecentCompletion,
    RunStarted,
    excerpt_of,
)
from freerun.terminal.panel import render
from freerun.terminal.wording import describe_doing, duration, histogram, printable, sparkline
from freerun.types import Doing

HOSTILE = "[red]56[/red] :smile: \x1b[2J\x1b]0;owned\x07\u202egnp\x00\n[link=http://x]\x9b31mlast"


def draw(events: list[AnyEvent], *, width: int = 120, height: int = 40) -> Console:
    state = state_of(events)
    console = Console(
        record=True, force_terminal=True, width=width, height=height, file=io.StringIO(), color_system="truecolor"
    )
    console.print(render(state, now=state.seconds, width=width, height=height))
    return console


def picture(events: list[AnyEvent], *, width: int = 120, height: int = 40) -> str:
    return draw(events, width=width, height=height).export_text()


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


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_live_view_fits_a_terminal_of_any_height(width: int) -> None:
    for height in (8, 10, 15, 24, 30, 50, 80):
        assert len(picture(a_run(), width=width, height=height).splitlines()) < max(10, height), height


def test_a_tall_terminal_is_used_for_completions() -> None:
    assert picture(a_run(), height=70).count("what is 7 times 8") > picture(a_run(), height=24).count("what is 7")


def test_a_low_terminal_keeps_the_trainer_and_the_engines() -> None:
    shown = picture(a_run(), width=80, height=18)
    for words in ("reward", "held-out", "trainer", "rollout-0"):
        assert words in shown, words


def test_completions_are_shown_before_the_first_step() -> None:
    excerpt = RecentCompletion(prompt="7*8=", completion=" 55", reward=-1.0, is_correct=False)
    finished = GroupFinished(seconds=1.0, ordinal=3, outcome="buffered", excerpt=excerpt)
    shown = picture([*a_run(num_steps=0)[:4], finished])
    assert "7*8= → 55" in shown
    assert "step 0/60" in picture([a_run()[0], finished])


def test_a_completion_is_not_shown_again_when_it_is_trained_on() -> None:
    trained = make_step(13)
    excerpt = excerpt_of(trained.groups[0].trajectories[0])
    finished = GroupFinished(seconds=31.0, ordinal=trained.groups[0].ordinal, outcome="buffered", excerpt=excerpt)
    before = picture([a_run()[0], trained]).count("what is 7 times 8")
    assert picture([a_run()[0], finished, trained]).count("what is 7 times 8") == before == 8


def test_a_process_line_never_contradicts_what_the_engine_said_since() -> None:
    """A report of 41 running sequences is older than the news that it waits, and than the load of a version."""
    waits = Activity(seconds=29.0, worker="rollout-0", doing=Doing("waiting", "the gate to admit a rollout"))
    loaded = EngineLoaded(seconds=29.1, worker="rollout-0", version=13, load_seconds=0.1, num_interrupts=0)
    shown = picture([*a_run(), waits, loaded])
    assert "waiting for the gate to admit a rollout  version 13" in shown
    assert "41 running" not in shown


def test_a_run_that_has_ended_has_no_processes() -> None:
    shown = picture([*a_run(), an_end()])
    assert "generating" not in shown
    assert "finished" in shown


def test_the_queues_say_who_is_ahead() -> None:
    counts = QueueCounts(num_running=3, num_ready=8, gate_capacity=16, oldest_version=1, gate_closed_seconds=0.0)
    started = msgspec.structs.replace(a_run()[0], group_size=8, prompts_per_step=12)
    assert isinstance(started, RunStarted)
    open_gate = Queues(seconds=29.0, counts=counts)
    closed = Queues(seconds=29.0, counts=msgspec.structs.replace(counts, gate_capacity=7))
    assert "8 of 12 ready · 3 in work · gate open for 2" in picture([started, open_gate])
    assert "8 of 12 ready · 3 in work · gate closed" in picture([started, closed])
    ahead = Queues(seconds=29.0, counts=msgspec.structs.replace(counts, num_ready=40))
    assert " 40 ready · 3 in work" in picture([started, ahead])
    assert "gate" not in picture([a_run()[0], closed]), "whether a group fits is not known"


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
    console = draw(a_run(text=HOSTILE), width=width)
    assert isinstance(console.file, io.StringIO)
    raw = console.file.getvalue()
    assert "[red]56[/red] :smile:" in console.export_text()
    for evil in ("\x1b[2J", "\x1b]", "\x07", "\u202e", "\x00", "\x9b", "owned"):
        assert evil not in raw


def test_the_trainers_cores_are_shown_with_the_borrowed_ones() -> None:
    borrowed = CoresMoved(seconds=20.0, cores=(0, 1), num_borrowed=1)
    returned = CoresMoved(seconds=24.0, cores=(1,), num_borrowed=0)
    assert "training  on 2 cores, 1 lent by idle rollout workers" in picture([*a_run(), borrowed])
    assert "training  on 1 core  " in picture([*a_run(), borrowed, returned])


def test_a_broken_bound_is_shouted() -> None:
    assert "BOUND BROKEN: 6" in picture([*a_run(), make_step(13, staleness_counts={6: 1})])


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


def test_printable_text_is_one_line_without_controls() -> None:
    generator = random.Random(0)
    for _ in range(300):
        text = "".join(chr(generator.choice((generator.randrange(0x300), 0x1B, 0x5B))) for _ in range(40))
        assert printable(text).isprintable()
    assert printable("a\nb\tc") == "a⏎b c"
    assert printable("e" + "\u0301" * 50) == "e\u0301\u0301"
    assert printable("नमस्ते") == "नमस्ते"
