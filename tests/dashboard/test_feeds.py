"""Feeds: what the page shows is what the store and the run's state hold, and unknown is never a number."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from recorded_events import a_loss, a_start, an_end, an_eval, an_eval_with_prompts, make_group, make_step, write
from rich_runs import rich_run
from watched_run import a_run

from freerun.dashboard import timeline
from freerun.dashboard.feeds import FEEDS, report_answers, request_key
from freerun.dashboard.source import Source, finite
from freerun.events.events import AnyEvent
from freerun.events.intervals import occupation
from freerun.events.metrics import RunState
from freerun.events.paired import paired_interval
from freerun.events.reader import RunReader
from freerun.events.trace import trace_events


def answer(directory: Path, name: str, **params: str) -> dict[str, object]:
    """As a browser gets it: JSON knows no NaN."""
    source = Source(directory)
    try:
        answered = FEEDS[name](source, params)
    finally:
        source.close()
    as_read: dict[str, object] = json.loads(json.dumps(answered, allow_nan=False))
    return as_read


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    write(tmp_path / "r", *a_run())
    return tmp_path / "r"


def state_of(directory: Path) -> RunState:
    state = RunState()
    with RunReader(directory) as reader:
        for event in reader.events():
            state(event)
    return state


def test_the_run_feed_has_the_numbers_of_the_terminals_state(watched: Path) -> None:
    state, shown = state_of(watched), answer(watched, "run")
    assert (shown["step"], shown["num_steps"], shown["name"]) == (state.version, state.num_steps, state.name)
    held, totals = shown["held"], shown["totals"]
    assert isinstance(held, dict)
    assert isinstance(totals, dict)
    assert held["num_trained"] == state.num_trained
    assert held["worst_staleness"] == state.worst_staleness
    assert held["is_bound_held"] == state.is_bound_held
    assert totals["num_tokens"] == state.engine_total("num_tokens")
    assert totals["num_interrupts"] == state.engine_total("num_interrupts")
    assert totals["groups"] == dict(state.groups)
    assert totals["staleness_counts"] == {str(age): n for age, n in sorted(state.staleness_counts.items())}


def test_the_steps_feed_has_every_metric_of_every_recorded_step(watched: Path) -> None:
    shown = answer(watched, "steps")
    with RunReader(watched) as reader:
        steps = reader.steps()
    metrics, x = shown["metrics"], shown["x"]
    assert isinstance(metrics, dict)
    assert isinstance(x, dict)
    assert x["step"] == [step.version for step in steps]
    for name in steps[0].metrics:
        assert metrics[name]["mean"] == pytest.approx([step.metrics[name] for step in steps], rel=1e-5)


def test_a_metric_that_a_step_does_not_have_is_null_and_not_zero(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1, grad_norm=0.5), make_step(2), make_step(3, grad_norm=float("nan")))
    metrics = answer(tmp_path, "steps")["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["grad_norm"]["mean"] == [0.5, None, None]


def test_what_is_not_known_before_the_first_event_is_null(tmp_path: Path) -> None:
    shown = answer(tmp_path, "run")
    assert (shown["state"], shown["num_engines"], shown["checkpoint"]) == ("starting", None, None)
    totals = shown["totals"]
    assert isinstance(totals, dict)
    assert totals["num_tokens"] is None


def test_a_run_that_was_killed_is_crashed(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1))
    write_pid(tmp_path, 2**22)
    assert answer(tmp_path, "run")["state"] == "crashed"


def write_pid(directory: Path, pid: int) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(directory / "store.sqlite")) as db, db:
        db.execute("UPDATE sessions SET pid = ?, state = 'running'", (pid,))


def test_the_shares_of_a_window_are_those_of_its_events_and_add_up(watched: Path) -> None:
    shown = answer(watched, "time", **{"from": "5", "to": "20"})
    with RunReader(watched) as reader:
        known = occupation(reader.events())
    shares = shown["shares"]
    assert isinstance(shares, dict)
    assert set(shares) == {"trainer", "rollout-0"}
    for worker, expected in known.shares(5, 20).items():
        assert sum(shares[worker].values()) == pytest.approx(1, abs=1e-3)
        assert shares[worker] == pytest.approx(expected, abs=1e-3)


def test_a_window_with_many_stretches_is_binned_and_its_shares_still_add_up(tmp_path: Path) -> None:
    write(tmp_path, *rich_run(1200))
    shown = answer(tmp_path, "time")
    tracks = shown["tracks"]
    assert isinstance(tracks, dict)
    assert tracks["trainer"]["is_binned"]
    assert len(json.dumps(shown)) < 1_500_000, "the server's limit is 2 MB"
    for _, _, parts in tracks["trainer"]["stretches"][5:-5]:
        assert sum(parts.values()) == pytest.approx(1, abs=0.01)


def test_a_batch_has_every_row_of_the_store(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1), make_step(2))
    shown = answer(tmp_path, "batch", step="2")
    with RunReader(tmp_path) as reader:
        rows = reader.trajectories(2)
    lines = shown["rows"]
    assert isinstance(lines, list)
    assert [(line["ordinal"], line["sample"], line["reward"], line["text"]) for line in lines] == [
        (row.ordinal, row.sample, row.reward, row.completion) for row in rows
    ]
    assert {line["advantage"] for line in lines} == {None}, "the trainer has not said"
    assert {line["num_clipped"] for line in lines} == {None}


def test_a_wrong_sample_departs_from_its_nearest_right_sibling(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1, groups=(make_group(2),)))
    samples = answer(tmp_path, "group", step="1", ordinal="2")["samples"]
    assert isinstance(samples, list)
    assert samples[0]["departs"] is None, "it is right"
    assert samples[1]["departs"] == {"sample": 0, "at": 3}, "all three tokens are the same"


def test_lost_and_held_out_samples_are_shown(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1), an_eval_with_prompts(1), a_loss())
    lost, held_out = answer(tmp_path, "lost"), answer(tmp_path, "held_out")
    assert isinstance(lost["rows"], list)
    assert {row["outcome"] for row in lost["rows"]} == {"filtered"}
    assert isinstance(held_out["prompts"], list)
    assert [prompt["num_correct"] for prompt in held_out["prompts"]] == [1, 0]
    assert held_out["prompts"][1]["mean_reward"] is None


@pytest.mark.parametrize("text", ["56", "%", "_", "\\"])
def test_a_search_takes_its_text_as_it_is(tmp_path: Path, text: str) -> None:
    written = make_step(1, groups=(make_group(2, text=f"a{text}b"), make_group(3, text="nothing")))
    write(tmp_path, a_start(), written)
    rows = answer(tmp_path, "search", text=text)["rows"]
    assert isinstance(rows, list)
    assert {row["ordinal"] for row in rows} == {2}


def test_an_alarm_is_marked_at_the_step_at_which_it_began(tmp_path: Path) -> None:
    steps = [
        make_step(version, equal_group_share=float(version > 6), all_right_share=1.0) for version in range(1, 13)
    ]
    write(tmp_path, a_start(), *steps)
    alarms = answer(tmp_path, "steps")["alarms"]
    assert isinstance(alarms, list)
    [mark] = [mark for mark in alarms if mark["rule"] == "equal_groups"]
    assert mark["metric"] == "equal_group_share"
    assert 7 <= mark["step"] <= 12


def test_a_rewound_run_is_shown_without_the_steps_it_discarded(tmp_path: Path) -> None:
    from freerun.events.store import Store

    write(tmp_path, a_start(), *(make_step(version) for version in range(1, 6)))
    source = Source(tmp_path)
    source.update()
    assert source.state.num_steps_seen == 5
    with Store(tmp_path) as store:
        store.rewind(2)
        store(a_start(version=2))
        store(make_step(3))
    source.update()
    source.close()
    assert source.state.num_steps_seen == 3


def test_runs_are_compared_by_what_differs(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        write(tmp_path / name, a_start(), make_step(1), an_eval(1), an_end())
        (tmp_path / name / "config.toml").write_text(
            f'[run]\nname = "{name}"\n[train]\nlr = {rate}\nnum_steps = 5\n'
        )
    shown = answer(tmp_path / "a", "compare", runs="a,b,../a,/etc")
    assert shown["differences"] == [{"key": "train.lr", "values": ["0.1", "0.2"]}]
    assert isinstance(shown["runs"], list)
    assert [run["name"] for run in shown["runs"]] == ["a", "b"]


def test_runs_that_are_links_out_of_the_directory_are_neither_listed_nor_compared(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for directory in (runs / "a", tmp_path / "outside"):
        write(directory, a_start(), make_step(1), an_end())
    (tmp_path / "outside" / "config.toml").write_text('[run]\nname = "outside"\n')
    (runs / "link-out").symlink_to(tmp_path / "outside")
    (runs / "a" / "config.toml").symlink_to(tmp_path / "outside" / "config.toml")
    listed, compared = (answer(runs / "a", name, runs="a,link-out") for name in ("runs", "compare"))
    for shown in (listed, compared):
        assert isinstance(shown["runs"], list)
        assert [run["name"] for run in shown["runs"]] == ["a"]
    assert "outside" not in json.dumps(answer(runs / "a", "settings"))


@pytest.mark.parametrize(
    ("name", "params", "complaint"),
    [
        ("batch", {"step": "two"}, 'step = "two" is not a whole number'),
        ("group", {"step": "1", "ordinal": "9" * 30}, 'ordinal = "999999999999999999999999999999" is not a whole'),
        ("held_out", {"version": "1.5"}, 'version = "1.5" is not a whole number'),
        ("time", {"from": "nan"}, 'from = "nan" is not a number of seconds'),
        ("time", {"to": "soon"}, 'to = "soon" is not a number of seconds'),
    ],
)
def test_a_parameter_that_is_no_number_is_an_error(
    watched: Path, name: str, params: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        answer(watched, name, **params)


@pytest.mark.parametrize("events", [[], [a_start()], a_run(1), [*a_run(3), an_end()]])
def test_a_report_has_an_answer_to_every_request_it_names(tmp_path: Path, events: list[AnyEvent]) -> None:
    write(tmp_path, *events)
    source = Source(tmp_path)
    answers = report_answers(source)
    source.close()
    assert {"run", "steps", "time", "batch", "settings", "lost"} <= set(answers)
    json.dumps(answers, allow_nan=False)


def test_the_key_of_a_request_does_not_depend_on_the_order_of_its_parameters() -> None:
    assert request_key("group", {"step": "1", "ordinal": "2"}) == "group?ordinal=2&step=1"
    assert request_key("run", {}) == "run"
    assert request_key("search", {"text": "a b&c"}) == "search?text=a%20b%26c"


def test_completions_are_shown_in_their_slots_the_newest_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *rich_run(4))
    groups = answer(tmp_path, "time")["groups"]
    assert isinstance(groups, list)
    assert {(group[6], len(group[-1])) for group in groups} == {("buffered", 4), ("failed", 0)}
    monkeypatch.setattr(timeline, "MAX_SLOT_USES", 9)
    groups = answer(tmp_path, "time")["groups"]
    assert isinstance(groups, list)
    numbers = [len(group[-1]) for group in groups if group[6] == "buffered"]
    assert numbers == [0] * 10 + [4, 4]


def test_a_trace_of_a_window_is_that_of_the_command(tmp_path: Path) -> None:
    write(tmp_path / "r", *rich_run(6))
    shown = answer(tmp_path / "r", "trace", **{"from": "4", "to": "8"})
    with RunReader(tmp_path / "r") as reader:
        assert shown["traceEvents"] == json.loads(json.dumps(trace_events(reader, begin=4, end=8)))
    assert answer(tmp_path / "r", "time")["trace_command"] == f"freerun trace {tmp_path / 'r'}"


def test_a_group_comes_with_the_command_that_samples_it_again(tmp_path: Path) -> None:
    write(tmp_path / "my run", a_start(), make_step(1, groups=(make_group(2),)))
    shown = answer(tmp_path / "my run", "group", step="1", ordinal="2")
    assert shown["replay_command"] == f"freerun replay '{tmp_path / 'my run'}' --group 2"


def test_runs_that_differ_in_their_seed_alone_are_one_family(tmp_path: Path) -> None:
    for name, rate, seed in (("a", 0.1, 0), ("b", 0.2, 0), ("c", 0.1, 1), ("d", 0.1, 2)):
        write(tmp_path / name, a_start(), make_step(1), an_end())
        settings = f'[run]\nname = "{name}"\nseed = {seed}\n[train]\nlr = {rate}\n'
        (tmp_path / name / "config.toml").write_text(settings)
    for name in ("old-1", "old-2"):
        write(tmp_path / name, a_start(), make_step(1), an_end())
    shown = answer(tmp_path / "a", "compare", runs="a,b,c,d,old-1,old-2")
    assert shown["families"] == [[0, 2, 3], [1], [4], [5]], "what is not known is not the same"


def test_prompts_that_became_right_or_wrong_between_two_evaluations_are_named(tmp_path: Path) -> None:
    versions = [an_eval_with_prompts(version, num_correct=right) for version, right in ((1, 0), (2, 2), (3, 1))]
    write(tmp_path, a_start(), make_step(1), make_step(2), make_step(3), *versions)
    changes = answer(tmp_path, "held_out")["changes"]
    assert isinstance(changes, dict)
    assert (changes["against"], changes["num_compared"]) == (1, 1), (
        "the first; a prompt that failed is not compared"
    )
    [row] = changes["rows"]
    assert (row["key"], row["before"], row["after"], row["change"]) == ("k", [0, 2], [1, 2], 0.5)
    worse = answer(tmp_path, "held_out", version="3", against="2")["changes"]
    assert isinstance(worse, dict)
    assert (worse["num_better"], worse["num_worse"], worse["rows"][0]["change"]) == (0, 1, -0.5)
    assert answer(tmp_path, "held_out", version="1")["changes"] is None


def an_eval_of(run: Path, results: Mapping[str, int], texts: Mapping[str, str], answer: str = "56") -> None:
    """A run that was evaluated with two samples of each prompt."""
    event = an_eval_with_prompts(3)
    [[kept, *_]] = event.groups
    ordinals = {key: -1 - place for place, key in enumerate(results)}
    change = msgspec.structs.replace
    prompts = tuple(
        change(event.prompts[0], ordinal=ordinals[key], key=key, num_correct=right)
        for key, right in results.items()
    )
    groups = tuple(
        (
            change(
                kept,
                prompt=change(kept.prompt, ordinal=ordinals[key], key=key, answer=answer),
                completion=change(kept.completion, text=text),
            ),
        )
        for key, text in texts.items()
    )
    write(run, a_start(), make_step(3), change(event, prompts=prompts, groups=groups))


def test_the_last_evaluations_of_two_runs_are_paired_by_prompt(tmp_path: Path) -> None:
    an_eval_of(tmp_path / "a", {"k": 0, "l": 2, "m": 1, "n": 2}, {"k": " 54", "m": " 1"})
    an_eval_of(tmp_path / "b", {"k": 2, "l": 1, "m": 1, "o": 2}, {"k": " 56", "m": " 2"})
    write(tmp_path / "c", a_start(), make_step(1))
    shown = answer(tmp_path / "a", "paired", runs="a,b,../a")
    changes = shown["changes"]
    assert isinstance(changes, dict)
    assert [changes[name] for name in ("num_compared", "num_better", "num_worse")] == [3, 1, 1]
    assert [(row["key"], row["change"]) for row in changes["rows"]] == [("k", 1.0), ("l", -0.5)]
    assert changes["difference"] == [finite(value) for value in paired_interval([1.0, -0.5, 0.0], 2)]
    assert (shown["prompts"], shown["prompt"]) == (["k", "l", "m"], "k")
    samples = answer(tmp_path / "a", "paired", runs="a,b", prompt="m")["samples"]
    assert isinstance(samples, list)
    assert [[row["completion"] for row in side] for side in samples] == [[" 1"], [" 2"]]
    unevaluated = answer(tmp_path / "a", "paired", runs="a,c")
    assert (unevaluated["changes"], unevaluated["samples"]) == (None, [])
    assert answer(tmp_path / "a", "paired", runs="a,b", prompt="n")["samples"] == [], "only one was asked it"


def test_prompts_of_one_key_with_other_answers_are_not_paired(tmp_path: Path) -> None:
    an_eval_of(tmp_path / "a", {"k": 0, "l": 2}, {"k": " 54"})
    an_eval_of(tmp_path / "b", {"k": 2, "l": 2}, {"k": " 56"}, answer="another")
    shown = answer(tmp_path / "a", "paired", runs="a,b")
    assert isinstance(shown["changes"], dict)
    assert (shown["prompts"], shown["changes"]["rows"]) == (["l"], [])


def test_a_reason_for_which_many_groups_are_lost_is_told_once(tmp_path: Path) -> None:
    def lost(ordinal: int, reason: str) -> AnyEvent:
        return msgspec.structs.replace(a_loss(ordinal, "failed"), reason=reason)

    events = [lost(n, f"number timed out grading 6*{n}") for n in range(3)] + [lost(9, "another")]
    write(tmp_path, a_start(), make_step(1), *events, a_loss(20))
    shown = answer(tmp_path, "lost")
    reasons, rows = shown["reasons"], shown["rows"]
    assert isinstance(reasons, list)
    assert isinstance(rows, list)
    numbers = {reason["text"]: reason["num_groups"] for reason in reasons}
    assert numbers == {"number timed out grading 6*2": 3, "another": 1}
    assert {reasons[row["reason"]]["text"] for row in rows if row["ordinal"] < 9} == {
        "number timed out grading 6*2"
    }
    assert {row["reason"] for row in rows if row["ordinal"] == 20} == {None}
