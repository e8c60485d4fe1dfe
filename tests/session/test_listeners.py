"""Listeners of a run: named in a recipe or given by a program, and never able to hold it up or end it."""

import re
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recorded_events import a_start, an_end, make_group, make_step
from tiny_runs import make_run

from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, Notice
from freerun.events.reader import RunReader
from freerun.session import listeners as listeners_module
from freerun.session.listeners import Listeners, check_listeners, open_listeners
from freerun.terminal.recorded import summarize_recorded

MODULE = """
from pathlib import Path


class Tracker:
    def __init__(self, path):
        self.file = path.open("w")

    def __call__(self, event):
        print(type(event).__name__, file=self.file)

    def close(self):
        print("closed", file=self.file)
        self.file.close()


def tracker(recipe, run_directory):
    return Tracker(run_directory / f"{recipe.run.name}.txt")


def no_listener(recipe, run_directory):
    return 3


def broken(recipe, run_directory):
    raise ValueError("no account")


def takes_one(recipe):
    return print
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_tracker.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_tracker", raising=False)

    def make(*names: str) -> Recipe:
        return load_recipe(make_run(tmp_path), {"run.listeners": list(names)})

    return make


def test_a_factory_named_in_the_recipe_gets_every_event_and_is_closed(recipe: Any, tmp_path: Path) -> None:
    with open_listeners(recipe("my_tracker:tracker"), tmp_path) as listeners:
        listeners(make_step(1, ()))
        listeners(Notice(seconds=2.0, text="half way"))
    assert (tmp_path / "tiny.txt").read_text().split() == ["StepFinished", "Notice", "closed"]
    assert "half way" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandb", 'there is no listener "wandb"; write "module:function"'),
        ("my_tracker:none", 'has no function "none"; it has tracker'),
        ("my_tracker:takes_one", r"define it as def listener\(recipe, run_directory\)"),
    ],
)
def test_a_name_that_means_no_factory_is_refused_before_there_is_a_run(
    recipe: Any, name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_listeners(recipe(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [("broken", "raised ValueError: no account"), ("no_listener", "is a int; it must be a function")],
)
def test_a_factory_that_fails_is_named(recipe: Any, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), open_listeners(recipe(f"my_tracker:{name}"), tmp_path):
        pass


def test_what_would_not_be_called_is_refused(recipe: Any, tmp_path: Path) -> None:
    async def waits(event: AnyEvent) -> None:
        pass

    refused: list[tuple[Any, str]] = [(waits, "is async"), (3, "must be a function of an event")]
    settings = recipe()
    for listener, complaint in refused:
        with pytest.raises(ConfigError, match=complaint), open_listeners(settings, tmp_path, [listener]):
            pass


def test_a_slow_listener_holds_nothing_up_and_still_gets_every_event() -> None:
    gate, seen = threading.Event(), list[AnyEvent]()

    def slow(event: AnyEvent) -> None:
        gate.wait()
        seen.append(event)

    listeners = Listeners()
    listeners.add("slow", slow)
    for version in range(1, 101):
        listeners(make_step(version, ()))  # would never return if it waited: the gate opens only below
    assert not seen
    gate.set()
    listeners.finish()
    assert len(seen) == 100


def test_a_listener_that_raises_falls_behind_or_never_ends_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners_module, "MAX_BEHIND", 10)
    monkeypatch.setattr(listeners_module, "FINISH_SECONDS", 0.2)
    monkeypatch.setattr(listeners_module, "HINT_SECONDS", 0.1)
    gate, shown = threading.Event(), list[AnyEvent]()

    def stuck(event: AnyEvent) -> None:
        gate.wait()

    class BadEnd:
        def __call__(self, event: AnyEvent) -> None:
            pass

        def close(self) -> None:
            raise OSError("offline")

    def leaves(event: AnyEvent) -> None:
        sys.exit(3)

    listeners = Listeners([shown.append])
    listeners.add("stuck", stuck)
    for version in range(1, 21):
        listeners(make_step(version, ()))
    listeners.add("late", stuck)
    listeners.add("bad end", BadEnd())
    listeners.add("leaves", leaves)
    listeners(make_step(21, ()))
    listeners.finish()
    gate.set()
    assert {event.text for event in shown if isinstance(event, Notice)} == {
        "listener stuck is 10 events behind; it gets no more events",
        "waiting up to 0.2 s for listener late, which has 0 events left",
        "listener late is still busy after 0.2 s; it gets no more events",
        "listener bad end raised OSError: offline when it was closed; it gets no more events",
        "listener leaves raised SystemExit: 3; it gets no more events",
    }
    assert sum(isinstance(event, Notice) for event in shown) == 5
    assert sum(not isinstance(event, Notice) for event in shown) == 21


def test_what_belongs_to_every_run_is_closed_last_and_the_store_before_the_terminal(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Closing:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, event: AnyEvent) -> None:
            pass

        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setitem(listeners_module.LISTENERS, "store", lambda recipe, directory: Closing("store"))
    monkeypatch.setitem(listeners_module.LISTENERS, "terminal", lambda recipe, directory: Closing("terminal"))
    with closing(Closing("outside")), open_listeners(recipe(), tmp_path, [Closing("added")]):
        pass
    assert closed == ["added", "store", "terminal", "outside"]


def test_the_size_in_the_closing_summary_is_that_of_the_closed_run(tmp_path: Path, capsys: Any) -> None:
    """With its log beside it a store that is still open takes more."""
    run = tmp_path / "run"
    run.mkdir()
    text = "".join(chr(97 + n * n % 26) for n in range(400_000))
    with open_listeners(Recipe(), run) as listeners:
        for event in (a_start(), make_step(1, groups=(make_group(2, text=text),)), an_end()):
            listeners(event)
        listeners.flush()
        assert (run / "store.sqlite-wal").stat().st_size > 400_000
    [at_end] = re.findall(r"^disk +([\d.]+ MB) in", capsys.readouterr().out, re.MULTILINE)
    with RunReader(run) as reader:
        [later] = re.findall(r"^disk +([\d.]+ MB) in", summarize_recorded(reader), re.MULTILINE)
    assert at_end == later
