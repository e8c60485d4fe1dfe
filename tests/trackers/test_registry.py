"""Trackers by name: refused before a run with the remedy, and found where others register them."""

import importlib.metadata
import importlib.util
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import told_reporters

from freerun.errors import ConfigError
from freerun.trackers import registry
from freerun.trackers.registry import TRACKERS, check_trackers, make_reporter


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tensorbord"], 'there is no tracker "tensorbord"; did you mean "tensorboard"'),
        (["jsonl", "jsonl"], 'names "jsonl" twice'),
        (["told_reporters:Nothing"], 'has no function "Nothing"'),
        (["told_reporters:NoEvent"], "has no method event"),
        (["told_reporters:Told"], "without arguments"),
        (["no_such_module:X"], "importing no_such_module failed"),
    ],
)
def test_a_wrong_name_is_refused_with_the_remedy(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trackers(names)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_is_installed", lambda package: package not in ("sqlalchemy", "alembic"))
    with pytest.raises(
        ConfigError, match=r"needs the package sqlalchemy, alembic; pip install 'freerun\[mlflow\]'"
    ):
        check_trackers(["jsonl", "mlflow"])


def test_ones_own_reporter_and_a_registered_one_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = EntryPoint("swan", "told_reporters:Exiting", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([registered]))
    check_trackers(["told_reporters:Hanging", "swan"])
    assert isinstance(make_reporter("told_reporters:Hanging"), told_reporters.Hanging)
    assert isinstance(make_reporter("swan"), told_reporters.Exiting)
    with pytest.raises(ConfigError, match='did you mean "swan"'):
        check_trackers(["swam"])


@pytest.mark.parametrize("name", TRACKERS)
def test_every_row_has_a_module_and_an_extra_that_installs_its_packages(name: str) -> None:
    tracker = TRACKERS[name]
    assert importlib.util.find_spec(tracker.module)
    extras = importlib.metadata.metadata("freerun").get_all("Provides-Extra") or []
    assert bool(tracker.packages) == bool(tracker.extra)
    assert not tracker.extra or tracker.extra in extras or tracker.extra in _extras_of_the_checkout()


def _extras_of_the_checkout() -> list[str]:
    import tomllib
    from pathlib import Path

    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    return [*settings["project"]["optional-dependencies"]]
