"""The reporter of docs/trackers.md works as it is written."""

import sys
from pathlib import Path

import pytest
from documented_commands import ROOT, blocks
from recorded_events import a_start, an_end, make_step, write

from freerun.trackers.registry import check_trackers
from freerun.trackers.reporting import ReportOptions, report


def test_the_documented_reporter_writes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = blocks(ROOT / "docs" / "trackers.md", "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 17
    (tmp_path / "my_reporter.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_reporter", raising=False)
    check_trackers(["my_reporter:CsvReporter"])
    steps = [make_step(v, (), equal_group_share=1.0, all_right_share=1.0) for v in range(1, 11)]
    write(tmp_path / "run", a_start(), *steps, an_end())
    report(tmp_path / "run", "my_reporter:CsvReporter", ReportOptions(), must_stop=lambda seconds: True)
    lines = (tmp_path / "run" / "reward.csv").read_text().splitlines()
    assert lines[:2] == ["1,0.1", "2,0.2"]
    assert [line for line in lines if "have equal rewards" in line]
