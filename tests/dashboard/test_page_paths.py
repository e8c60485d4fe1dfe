"""Nothing outside the runs directory and the page's own files can be read by any name in a request."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from served_pages import ServedPage, served, write_run

from freerun.dashboard.feeds import FEEDS
from freerun.dashboard.shelf import NoSuchRunError, RunShelf
from freerun.dashboard.static_files import static_files

CANARY = "canary-5d1c"
UP = ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "....//", "..\\", "..%5c", "%252e%252e%252f", "./../", "..;/"]
ENDS = ["secret", "etc/passwd", "runs/small/page.token", "outside/store.sqlite", "server.py", "secret%00.js"]
PAYLOADS = [up * depth + end for up, depth, end in itertools.product(UP, (1, 2, 6), ENDS)] + [
    "/etc/passwd", "//etc/passwd", "file:///etc/passwd", "~/secret", "C:\\secret", "secret\n", ".", "..", "", "%",
    "\u2024\u2024/secret", "small/../../outside", "small/", "/small", "link-out", "store-out", "outside", "*",
    "small\0", "sm*", "[s]mall", "small%00", "small\u200b", "small .",
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """A page beside which there is a secret, and runs that are links to others outside."""
    root = tmp_path_factory.mktemp("root")
    (root / "secret").write_text(CANARY)
    run = write_run(root / "runs" / "small")
    (run / "page.token").write_text(CANARY)
    outside = write_run(root / "outside")
    (outside / "config.toml").write_text(f'[run]\nname = "{CANARY}"\n')
    (root / "runs" / "link-out").symlink_to(outside)
    (root / "runs" / "store-out").mkdir()
    (root / "runs" / "store-out" / "store.sqlite").symlink_to(outside / "store.sqlite")
    with served(root / "runs", run) as page:
        yield page


@pytest.mark.slow
def test_no_path_leads_out(guarded: ServedPage) -> None:
    assert len(PAYLOADS) >= 200
    for payload in PAYLOADS:
        raw = quote(payload, safe="%/.;:\\~*[]")
        for path in (f"/static/{raw}", f"/{raw}", f"/api/run?run={quote(payload, safe='%')}"):
            reply = guarded.ask(path.replace("\\", "%5C"))
            is_own = reply.status == 200 and (
                path in ("/", "//") or path.endswith(("run=", "run=small", "/.", "/.."))
            )
            assert reply.status in (400, 404) or is_own, f"{path}: {reply.status}"
            assert CANARY.encode() not in reply.body
            assert b"root:" not in reply.body


def test_runs_are_found_by_name_and_links_out_of_the_directory_are_none(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", write_run(tmp_path / "outside")
    one, two = write_run(runs / "one"), write_run(runs / "two")
    (runs / "link-out").symlink_to(outside)
    (runs / "alias").symlink_to(one)
    (runs / "store-out").mkdir()
    (runs / "store-out" / "store.sqlite").symlink_to(outside / "store.sqlite")
    half = write_run(runs / ".fork.123.tmp")
    os.utime(half / "store.sqlite", (3e9, 3e9))
    shelf = RunShelf(runs)
    assert shelf.find("one").directory == one.resolve()
    assert shelf.find("alias").directory == one.resolve()
    os.utime(two / "store.sqlite", (2e9, 2e9))
    assert shelf.find().directory == two.resolve(), "the newest"
    for name in (".fork.123.tmp", "link-out", "store-out", "../outside", str(outside), "three", "one/", "."):
        with pytest.raises(NoSuchRunError, match="no run"):
            shelf.find(name)
    shelf.close()


def test_a_directory_without_runs_says_so(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        reply = page.ask("/api/run")
    assert (reply.status, b"no run here yet" in reply.body) == (404, True)


def test_files_beside_the_pages_own_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text("1")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.css").write_text("2")
    (tmp_path / "link.js").symlink_to(tmp_path / "app.js")
    found = static_files(tmp_path)
    assert {name: file.content_type for name, file in found.items()} == {
        "app.js": "text/javascript; charset=utf-8",
        "deep/b.css": "text/css; charset=utf-8",
    }


def test_the_environment_is_in_no_answer(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "USER"):
        monkeypatch.setenv(name, CANARY)
    with served(small_run.parent, small_run) as page:
        answers = [page.ask(path) for path in ["/", "/metrics", *(f"/api/{name}" for name in FEEDS)]]
    assert all(CANARY.encode() not in reply.body for reply in answers)
