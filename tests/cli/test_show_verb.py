"""`freerun show`: the summary of a run and its completions, for people and for programs."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers
from fake_groups import a_group_of_sessions
from recorded_events import a_loss, a_start, an_end, an_eval, an_eval_with_prompts, make_group, make_step, write

from freerun.cli.main import main
from freerun.events.events import Activity, GroupFinished
from freerun.events.metrics import RunState
from freerun.events.store import Store
from freerun.terminal.lines import summarize
from freerun.types import Doing, TrainedTrajectory

HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\n\u202ec[red]"


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the verb where `runs` is, and gives what it printed, or its error."""
    monkeypatch.chdir(tmp_path)

    def show(*arguments: str, code: int = 0) -> str:
        assert main(["show", *arguments]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return show


def a_run(directory: Path, *more: Any) -> None:
    long = make_group(3, text="word " * 1000)
    step = make_step(1, (make_group(2, text=HOSTILE), long))
    trained = tuple(
        TrainedTrajectory(log_weights=np.array([0, 1], np.float16), advantage=0.25, clipped=np.arange(i))
        for i in range(4)
    )
    step = msgspec.structs.replace(step, result=msgspec.structs.replace(step.result, trajectories=trained))
    lost = a_loss(9, "dropped")
    unkept = GroupFinished(seconds=2.0, ordinal=8, outcome="passed_over")
    events = (a_start(), step, make_step(2), lost, unkept, an_eval(1), an_eval_with_prompts(2))
    write(directory, *events, *more)


def test_a_run_alone_is_its_summary(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    state = RunState()
    for event in (a_start(), make_step(1), make_step(2), a_loss(9, "dropped"), an_eval(1), an_eval(2), an_end()):
        state(event)
    own = summarize(state).splitlines()
    shown = show("r").splitlines()
    for line in own[:3]:
        assert line in shown
    assert "outcome    finished" in shown
    assert show("runs/r") == show("r")
    assert show(str(Path("runs/r/store.sqlite"))) == show("r")
    summary = json.loads(show("r", "--json"))
    assert (summary["state"], summary["version"], summary["facts"]["steps"]) == ("finished", 2, "2 of 60, in 1:39")
    assert summary["health"] == []


def test_a_run_that_is_active_is_told_as_it_is_now(show: Any) -> None:
    doing = Activity(seconds=4.5, worker="trainer", doing=Doing("waiting", "groups", 1, 2))
    with Store(Path("runs/r")) as store:
        for event in (a_start(), make_step(1), doing):
            store(event)
        store.flush()
        told = show("r")
    assert "outcome    still running: step 1/60" in told
    assert "next       freerun watch runs/r" in told
    assert "trainer    waiting for groups, 1 of 2, for " in told


def test_a_run_whose_process_died_is_said_to_have_crashed(show: Any) -> None:
    a_run(Path("runs/r"))
    db = sqlite3.connect("runs/r/store.sqlite")
    db.execute("UPDATE sessions SET state = 'running', pid = 4194304")
    db.commit()
    db.close()
    assert "outcome    crashed: process 4194304 is gone" in show("r")


def test_a_step_shows_prompt_answer_reward_age_advantage_and_weights(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    told = show("r", "--step", "1")
    assert "group 2  7*8  answer 56  trained in step 1  1 right of the 2 shown, mean reward 4.5" in told
    assert (
        "  right +5  sample 0  3 tokens  staleness 0 (versions 0-1)  advantage +0.25  weight 1.86, max 2.72"
        in told
    )
    assert "wrong +4  sample 1" in told
    assert "  3 clipped" in told
    assert "spans: 1 of version 0, 2 of version 1" in told
    assert "characters more: --full shows them" in told
    assert "word " * 1000 in show("r", "--step", "1", "--full")


def test_hostile_text_does_nothing_to_a_terminal(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    for arguments in ((), ("--full",)):
        told = show("r", "--group", "2", *arguments)
        assert "    ab\n    c[red]\n" in told
        assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_a_limit_says_how_many_more_there_are(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    assert "1 of 4 samples; --limit 4 shows all" in show("r", "--step", "1", "--limit", "1")
    assert "the first 3; --limit 30 shows more" in show("r", "--limit", "3")
    assert "samples;" not in show("r", "--step", "1")
    assert show("r", "--text", "not there") == "nothing matches\n"


def test_held_out_and_lost_completions_are_shown_too(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    told = show("r", "--eval", "2")
    assert "held-out prompt 1  7*8  answer 56  sampled by version 2" in told
    assert show("r", "--eval", "2", "--group", "1") == told
    assert "group 9  7*8  answer 56  dropped at 3.0 s" in show("r", "--where", "lost")
    assert "dropped at 3.0 s" in show("r", "--group", "9")


def test_an_evaluation_without_completions_shows_its_prompts(show: Any) -> None:
    result = msgspec.structs.replace(an_eval_with_prompts(3), groups=())
    a_run(Path("runs/r"), result, an_end())
    told = show("r", "--eval", "3")
    assert "k" in told
    assert "1 of 2" in told


def test_json_has_everything_token_by_token(show: Any) -> None:
    a_run(Path("runs/r"), an_end())
    samples = json.loads(show("r", "--step", "1", "--json"))
    [first] = samples[0]
    assert first["token_ids"] == [5, 6, 7]
    assert first["completion"] == HOSTILE
    assert first["spans"][1] == {"version": 1, "num_tokens": 2, "call": 0}
    assert first["log_weights"] == [0.0, 1.0]
    [unknown] = json.loads(show("r", "--step", "2", "--json"))[0]
    assert unknown["advantage"] is None
    assert json.loads(show("r", "--text", "not there", "--json")) == []


def test_a_session_is_shown_turn_by_turn_with_what_was_given_apart(show: Any) -> None:
    write(Path("runs/r"), a_start(), make_step(3, (a_group_of_sessions(7, 0),)), an_end())
    whole = show("r", "--step", "3")
    assert "turn 1" not in whole, "without its tokenizer it is one text"
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel({chr(97 + i): i for i in range(16)}, unk_token="a"))
    letters.decoder = tokenizers.decoders.Fuse()
    Path("runs/r/model").mkdir()
    letters.save("runs/r/model/tokenizer.json")
    told = show("r", "--step", "3")
    assert "    turn 1, 1 token of version 1\n      c\n    given, 2 tokens\n      jj\n    turn 2, 1 token" in told
    assert "sequence 2 of 2" in told
    assert "turn 3, 1 token of version 0" in told


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x",), 'there is no run "x", neither here nor in "runs"'),
        (("rr",), 'did you mean "r"?'),
        (("r", "--step", "7"), "step 7 is not in runs/r/store.sqlite: it has the steps 1 to 2"),
        (("r", "--eval", "7"), "version 7 was not evaluated in runs/r/store.sqlite: those of 1, 2 were"),
        (("r", "--group", "8"), "group 8 was not trained on: passed over, and its text was not kept"),
        (("r", "--group", "77"), "group 77 was not trained on in runs/r/store.sqlite: it is still in work, or"),
        (("r", "--where", "bad"), '--where takes no "bad"; it takes wrong, right'),
        (("r", "--order", "bad"), '--order takes no "bad"; it takes reward'),
        (("r", "--step", "1", "--eval", "1"), "--step and --eval exclude each other"),
        (("r", "--eval", "2", "--where", "stale"), '"stale" cannot be asked for here'),
        (("r", "--limit", "0"), "--limit 0 must lie between 1 and 100,000"),
        ((".",), '"." is not a run: it has no store.sqlite'),
    ],
)
def test_what_cannot_be_shown_is_an_error_of_one_line(show: Any, arguments: tuple[str, ...], error: str) -> None:
    a_run(Path("runs/r"), an_end())
    told = show(*arguments, code=2)
    assert error in told
    assert len(told.splitlines()) == 1


def test_an_old_and_a_damaged_store_are_errors_of_one_line(show: Any) -> None:
    a_run(Path("runs/old"), an_end())
    db = sqlite3.connect("runs/old/store.sqlite")
    db.execute("PRAGMA user_version = 3")
    db.close()
    assert "has schema version 3, this freerun knows" in show("old", code=2)
    a_run(Path("runs/bad"), an_end())
    file = Path("runs/bad/store.sqlite")
    file.write_bytes(file.read_bytes()[:9000])
    for arguments in (("bad",), ("bad", "--step", "1")):
        told = show(*arguments, code=2)
        assert "store" in told
        assert "Traceback" not in told
