"""`freerun runs`: the list of runs as a table and as JSON."""

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from freerun.cli.main import main
from freerun.cli.report_table import as_table
from freerun.cli.runs import RUN_COLUMNS, ago, table_rows
from freerun.events.reader import RunSummary

RUNS = [
    RunSummary(name="a[b]", state="running", version=3, num_steps=60, reward=1.25, accuracy=0.5, updated=940.0),
    RunSummary(name="c", state="crashed", version=0, num_steps=9, reward=None, accuracy=None, updated=999.0),
]


def test_runs_are_shown_in_a_table_without_inventing_numbers() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(as_table(RUN_COLUMNS, table_rows(RUNS, {"a[b]": 2_500_000_000}, now=1000.0)))
    rows = [line.split() for line in captured.get().splitlines()]
    assert rows[1:] == [
        ["a[b]", "running", "3/60", "1.25", "50.0", "%", "2.5", "GB", "1", "min", "ago"],
        ["c", "crashed", "0/9", "-", "-", "-", "1", "s", "ago"],
    ]


def test_runs_as_json_carry_every_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("freerun.events.reader.list_runs", lambda directory: RUNS)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert msgspec.convert(printed, list[RunSummary]) == RUNS
    assert [row["disk_bytes"] for row in printed] == [0, 0]


def test_a_directory_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out


def test_before_the_first_run_the_list_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == 'no runs in "runs"\n'
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s ago"), (59, "59 s ago"), (7200, "2 h ago"), (200_000, "2 d ago")]
)
def test_durations_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text
