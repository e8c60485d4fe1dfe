"""What is held out is never trained on: the split of repeated prompts, and data that overlap."""

import dataclasses
import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_prompts import make_tokenizer
from tiny_runs import Run, make_run, recipe_of

from freerun.config.data import DataConfig
from freerun.config.load import load_recipe
from freerun.data.mixture import open_stream
from freerun.data.task_prompt import TaskPrompt, check_apart, in_hash_order, split
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError
from freerun.session.plan import describe_plan

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(20)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def jsonl(path: Path, **settings: Any) -> DataConfig:
    return DataConfig(path=str(path), **settings)


# The split


def test_equal_prompts_fall_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": str(n)} for n in range(200)]
    prompts = load_prompts(jsonl(write(tmp_path / "train.jsonl", *rows, *rows)))
    assert (len(prompts.training), len(prompts.held_out)) == (320, 80)
    assert not {prompt.text for prompt in prompts.training} & {prompt.text for prompt in prompts.held_out}


@given(num_prompts=st.integers(5, 60), fraction=st.floats(0.2, 0.8))
def test_without_repetitions_the_first_in_hash_order_are_held_out(num_prompts: int, fraction: float) -> None:
    prompts = [TaskPrompt(key=str(n), text=f"{n}?", answer="1") for n in range(num_prompts)]
    num_held_out = round(fraction * num_prompts)
    assert split(prompts, held_out_fraction=fraction).held_out == in_hash_order(prompts)[:num_held_out]


@given(texts=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=30), fraction=st.floats(0.1, 0.9))
def test_repetitions_never_enlarge_what_is_held_out(texts: list[str], fraction: float) -> None:
    prompts = [TaskPrompt(key=str(n), text=text, answer="1") for n, text in enumerate(texts)]
    try:
        parts = split(prompts, held_out_fraction=fraction)
    except DataError:
        return
    assert not {prompt.text for prompt in parts.training} & {prompt.text for prompt in parts.held_out}
    assert len(parts.held_out) <= round(fraction * len(texts))
    assert sorted(parts.training + parts.held_out, key=lambda prompt: int(prompt.key)) == prompts
    assert parts.held_out == in_hash_order(parts.held_out)


def test_a_file_of_one_question_cannot_be_split(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *[ROWS[0]] * 10)
    with pytest.raises(
        DataError, match=r"0\.2 of 10 prompts, only 1 of them different, leaves none for evaluation"
    ):
        load_prompts(jsonl(path))


def test_a_prompt_that_is_shown_solved_is_not_trained_on_under_another_key(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS, *ROWS)
    prompts = load_prompts(jsonl(path, num_shots=2))
    shown = {prompt.text for prompt in prompts.shots}
    assert not shown & {prompt.text for prompt in prompts.training + prompts.held_out}


# Data that overlap


def test_the_training_data_as_held_out_data_are_refused_under_any_name(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS)
    copy, hard, soft = (tmp_path / f"{name}.jsonl" for name in ("copy", "hard", "soft"))
    shutil.copy(path, copy)
    os.link(path, hard)
    soft.symlink_to(path)
    for held_out in (path, copy, hard, soft):
        stream = open_stream(jsonl(path, held_out_path=str(held_out)), tokenizer, seed=0)
        with pytest.raises(
            DataError, match=rf"20 of 20 held-out prompts are trained on .*{held_out.name}:\d+, which"
        ):
            check_apart(stream.prompts())


def test_held_out_prompts_that_are_trained_on_are_counted_and_one_is_named(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    train, test = write(tmp_path / "train.jsonl", *ROWS[:15]), write(tmp_path / "test.jsonl", *ROWS[14:])
    stream = open_stream(jsonl(train, held_out_path=str(test)), tokenizer, seed=0)
    with pytest.raises(DataError, match=r"\A1 of 6 .*such as test\.jsonl:1, which is equal to train\.jsonl:15\)"):
        check_apart(stream.prompts())
    other = write(tmp_path / "other.jsonl", *ROWS[15:])
    check_apart(open_stream(jsonl(train, held_out_path=str(other)), tokenizer, seed=0).prompts())


def test_a_prompt_that_is_too_long_to_be_trained_on_may_be_held_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = {"question": "x" * 200, "answer": "1"}
    train, test = (
        write(tmp_path / "train.jsonl", *ROWS[:15], long),
        write(tmp_path / "test.jsonl", *ROWS[15:], long),
    )
    config = jsonl(train, held_out_path=str(test), max_prompt_tokens=100)
    check_apart(open_stream(config, tokenizer, seed=0).prompts())


def test_splits_of_a_data_set_that_overlap_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    datasets = importlib.import_module("datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:3])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "sums")
    config = DataConfig(task="datasets", path=str(tmp_path / "sums"), held_out_path="test")
    with pytest.raises(DataError, match=r"3 of 3 held-out .* sums/test:\d, which is equal to sums/train:\d"):
        check_apart(open_stream(config, tokenizer, seed=0).prompts())


def test_a_data_set_without_splits_has_no_other_split_to_hold_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    datasets = importlib.import_module("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "sums")
    datasets.Dataset.from_list(ROWS, split="dev").save_to_disk(tmp_path / "named")
    sums, named = (DataConfig(task="datasets", path=str(tmp_path / name)) for name in ("sums", "named"))
    with pytest.raises(
        DataError, match=r'saved without splits, so it has no "test"; leave out data\.held_out_path'
    ):
        load_prompts(dataclasses.replace(sums, held_out_path="test"))
    for config, split_name in ((sums, "train"), (named, "dev")):
        assert len(load_prompts(config).held_out) == 4
        stream = open_stream(dataclasses.replace(config, held_out_path=split_name), tokenizer, seed=0)
        with pytest.raises(DataError, match="20 of 20 held-out prompts are trained on"):
            check_apart(stream.prompts())


def test_what_one_part_of_a_mixture_holds_out_no_other_part_trains_on(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    for name, rows in (("one", ROWS), ("two", ROWS[::-1])):
        path = write(tmp_path / f"{name}.jsonl", *rows)
        (tmp_path / f"{name}.toml").write_text(
            f'[data]\npath = "{path}"\nheld_out_fraction = 0.3\nsystem_prompt = "{name}"\n'
        )

    def mixed(*names: str) -> DataConfig:
        mixture = ", ".join(f'"{tmp_path / name}.toml"' for name in names)
        (tmp_path / "mixed.toml").write_text(f"[data]\nmixture = [{mixture}]\n")
        return load_recipe(tmp_path / "mixed.toml", []).data

    with pytest.raises(DataError, match=r"of 12 held-out prompts .*(one/one\S+ .*two/two|two/two\S+ .*one/one)"):
        check_apart(open_stream(mixed("one", "two"), tokenizer, seed=0).prompts())
    write(tmp_path / "two.jsonl", *[{"question": f"{n} * {n}?", "answer": str(n * n)} for n in range(20)])
    check_apart(open_stream(mixed("one", "two"), tokenizer, seed=0).prompts())


def test_a_plan_and_a_run_refuse_data_that_overlap_before_any_process_starts(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    rows = [{"question": f"^{n},{n + 1}>", "answer": "1"} for n in range(1, 20)]
    path, copy = write(tmp_path / "train.jsonl", *rows), write(tmp_path / "copy.jsonl", *rows)
    data = ["--data.task", "file", "--data.path", str(path), "--data.template", "{question}"]
    overlap = [*data, "--data.held_out_path", str(copy)]
    with pytest.raises(DataError, match="19 of 19 held-out prompts are trained on"):
        describe_plan(recipe_of(recipe, *overlap))
    assert "training prompts" in describe_plan(recipe_of(recipe, *data))
    run = Run(recipe, *overlap)
    assert run.wait() == 2
    assert "19 of 19 held-out prompts are trained on" in run.output
    assert not (tmp_path / "runs").exists()
