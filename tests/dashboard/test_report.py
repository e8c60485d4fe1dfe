"""The report: one file that holds the page and its data, and nothing that could run but the page."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from served_pages import served, write_run

from freerun.cli.main import main
from freerun.dashboard.feeds import REPORT_FEEDS, request_key
from freerun.dashboard.page_files import PAGE_MODULES, joined_modules
from freerun.dashboard.report import make_report, page_with
from freerun.dashboard.source import Source

HOSTILE = "</script><script>alert(1)</script><!-- ]]> \" ' &amp; \u2028 <img src=x onerror=alert(1)>"


def data_of(report: str) -> dict[str, object]:
    """What is packed in a report."""
    [packed] = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', report)
    found = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert isinstance(found, dict)
    return found


def test_a_report_has_the_answers_that_the_live_page_gets(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "small")
    data = data_of(make_report(run))
    source = Source(run)
    asked = [(name, params) for name, requests in REPORT_FEEDS.items() for params in requests(source)]
    assert {request_key(name, params) for name, params in asked} == set(data)
    with served(run.parent, run) as page:
        for name, params in asked:
            key = request_key(name, params)
            assert json.loads(page.ask(f"/api/{key}").body) == data[key], key
    source.close()


def test_only_the_scripts_and_styles_of_the_page_are_allowed_by_their_hashes() -> None:
    report = page_with({"run": HOSTILE})
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', report)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["trusted-types"] == "'none'"
    assert "connect-src" not in rules, "nothing is fetched"
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", report, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", report, re.DOTALL)
    for found, rule in ((scripts, "script-src"), (styles, "style-src")):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        assert rules[rule] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert not re.search(r'<(?:script|link|img)[^>]*\b(?:src|href)="(?!data:)', report), "it loads nothing"


def test_hostile_text_cannot_close_the_data() -> None:
    report = page_with({"run": HOSTILE})
    assert "alert(1)" not in report
    assert data_of(report) == {"run": HOSTILE}


def test_the_page_before_the_data_is_the_same_for_every_run() -> None:
    one, other = (re.sub(r'id="data">[^<]*', "", page_with(data)) for data in ({"run": 1}, {"run": HOSTILE}))
    assert one == other


def test_joined_modules_import_and_export_nothing() -> None:
    script = joined_modules()
    assert not re.search(r"^\s*(?:import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.MULTILINE)
    assert len(names) > len(PAGE_MODULES)
    assert sorted(set(names)) == sorted(names), "no two modules share a name"


def test_the_verb_writes_the_file_and_prints_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs" / "small")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "canary-77")
    assert main(["report", "runs/small"]) == 0
    assert capsys.readouterr().out == "small.html\n"
    report = Path("small.html").read_text()
    assert len(report) < 500_000
    assert "canary-77" not in json.dumps(data_of(report))
    assert main(["report", "runs/small", "--out", "runs/kept.html"]) == 0
    assert Path("runs/kept.html").read_text() == report
    assert main(["report", "runs"]) == 2
    assert 'freerun: "runs" is not a run: it has no store.sqlite' in capsys.readouterr().err
    assert main(["report", "runs/small", "--out", "gone/kept.html"]) == 2
    assert "gone/kept.html: the report cannot be written" in capsys.readouterr().err
