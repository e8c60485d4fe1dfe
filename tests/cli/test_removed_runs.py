"""`freerun runs --rm`: removes whole runs that are named and not used, nothing else, and says what it freed."""

import io
from pathlib import Path

import pytest

from freerun.cli.main import main
from freerun.errors import FreerunError
from freerun.events.run_files import disk_bytes
from freerun.session.run_lock import locked
from freerun.session.run_removal import find_removable


class Terminal(io.StringIO):
    """A person who types this."""

    def isatty(self) -> bool:
        return True


def a_run(directory: Path, name: str, *, num_bytes: int = 1_000_000) -> Path:
    (directory / name / "checkpoints" / "step-1").mkdir(parents=True)
    (directory / name / "config.toml").write_text("")
    (directory / name / "checkpoints" / "step-1" / "weights").write_bytes(b"0" * num_bytes)
    return directory / name


def test_named_runs_go_and_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        a_run(tmp_path, name)
    assert main(["runs", str(tmp_path), "--rm", "a", "b", "--yes"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert (
        capsys.readouterr().out == f"{tmp_path / 'a'}  1.0 MB\n{tmp_path / 'b'}  1.0 MB\nremoved; 2.0 MB freed\n"
    )


@pytest.mark.parametrize(("typed", "is_removed"), [("y\n", True), ("yes\n", True), ("\n", False), ("", False)])
def test_a_person_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, is_removed: bool) -> None:
    run = a_run(tmp_path, "a")
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert main(["runs", str(tmp_path), "--rm", "a"]) == (0 if is_removed else 1)
    assert run.exists() != is_removed


def test_without_a_terminal_it_must_be_said_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path, "a")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["runs", str(tmp_path), "--rm", "a"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert run.exists()


def test_a_run_in_use_is_refused_and_so_are_all_that_were_named_with_it(tmp_path: Path) -> None:
    free, used = a_run(tmp_path, "free"), a_run(tmp_path, "used")
    with locked(used):
        assert main(["runs", str(tmp_path), "--rm", "free", "used", "--yes"]) == 2
    assert free.exists()
    assert used.exists()


@pytest.mark.parametrize("name", ["../other", ".", "..", "", "/etc", "a/checkpoints", "nothing-there"])
def test_only_the_name_of_a_run_is_accepted(tmp_path: Path, name: str) -> None:
    a_run(tmp_path / "runs", "a")
    a_run(tmp_path, "other")
    with pytest.raises(FreerunError):
        find_removable(tmp_path / "runs", [name])


def test_what_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(FreerunError, match="is not a run"):
        find_removable(tmp_path, ["data"])
    assert list((tmp_path / "data").iterdir()) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    kept = a_run(tmp_path / "elsewhere", "kept")
    runs = tmp_path / "runs"
    run = a_run(runs, "a")
    (run / "out").symlink_to(kept)
    (runs / "link").symlink_to(kept)
    assert disk_bytes(run) < 2_000_000
    with pytest.raises(FreerunError, match="is a link"):
        find_removable(runs, ["link"])
    assert main(["runs", str(runs), "--rm", "a", "--yes"]) == 0
    assert (kept / "checkpoints" / "step-1" / "weights").is_file()
    assert not run.exists()
