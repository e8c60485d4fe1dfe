"""A store that was damaged after it was written: said so, never other data and never a traceback."""

import random
import resource
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_events import a_loss, a_start, an_end, an_eval_with_prompts, make_group, make_step, write

from freerun.cli.main import main
from freerun.events.reader import RunReader, list_runs
from freerun.events.schema import TABLES, StoreError, create_tables
from freerun.events.store import Store
from freerun.types import encode

NUM_FLIPS = 400


def everything(directory: Path) -> bytes:
    """All that a store says, but for the session's own row."""
    with RunReader(directory) as reader:
        versions = [step.version for step in reader.steps()]
        parts: list[Any] = [
            list(map(encode, reader.events())),
            reader.trained_ordinals(),
            reader.evals(),
            [(encode(reader.trajectories(v)), reader.eval_prompts(v)) for v in versions],
            [encode(reader.eval_completions(e.version)) for e in reader.evals()],
            [msgspec.structs.asdict(step) for step in reader.steps()],
            encode(reader.lost()),
        ]
        reader.status()
        return encode(parts)


def make_store(directory: Path) -> Path:
    steps = (make_step(version, loss=0.5) for version in range(1, 6))
    write(directory, a_start(), *steps, a_loss(), an_eval_with_prompts(5), an_end())
    return directory / "store.sqlite"


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    file = make_store(tmp_path / "run")
    whole, said = file.read_bytes(), everything(tmp_path / "run")
    generator = random.Random(8)
    num_noticed = 0
    for _ in range(NUM_FLIPS):
        flipped = bytearray(whole)
        flipped[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        file.write_bytes(flipped)
        list_runs(tmp_path)
        try:
            with RunReader(tmp_path / "run") as reader:
                reader.verify()
        except StoreError:
            num_noticed += 1
            # A damaged index hides rows from a reader that does not verify; it must still not fail otherwise.
            with suppress(StoreError):
                everything(tmp_path / "run")
        else:
            assert everything(tmp_path / "run") == said
    assert num_noticed > NUM_FLIPS / 20


def columns() -> list[tuple[str, str]]:
    """Every column that a checksum covers; the id of an event is its place in the file's structure."""
    db = sqlite3.connect(":memory:")
    create_tables(db)
    found = [(table.name, row[1]) for table in TABLES for row in db.execute(f"PRAGMA table_info({table.name})")]
    db.close()
    return [(table, column) for table, column in found if column != "id"]


@pytest.mark.parametrize(("table", "column"), columns())
def test_a_value_that_was_changed_is_noticed_in_every_column(tmp_path: Path, table: str, column: str) -> None:
    file = make_store(tmp_path)
    db = sqlite3.connect(file)
    db.execute(f"UPDATE {table} SET {column} = 77 WHERE {column} IS (SELECT {column} FROM {table} LIMIT 1)")
    db.commit()
    db.close()
    with RunReader(tmp_path) as reader, pytest.raises(StoreError, match="is damaged"):
        reader.verify()


def test_a_damaged_run_is_listed_with_the_reason_and_the_others_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "whole")
    db = sqlite3.connect(make_store(tmp_path / "broken"))
    db.execute("UPDATE sessions SET updated = 'never', pid = 'x', state = 'running'")
    db.commit()
    db.close()
    (tmp_path / "directory" / "store.sqlite").mkdir(parents=True)
    states = {run.name: run.state for run in list_runs(tmp_path)}
    assert states == {"whole": "finished", "broken": "crashed", "directory": "crashed"}
    assert main(["runs", str(tmp_path)]) == 0


def test_a_store_that_is_a_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").mkdir()
    with pytest.raises(StoreError, match=r"cannot be opened: .*; make it a file that can be read and written"):
        Store(tmp_path)


def test_a_new_store_on_a_full_disk_asks_for_space(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot be opened: .*free .*space"):
            Store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Store(tmp_path) as store:
        store(make_step(1, (make_group(1),)))
