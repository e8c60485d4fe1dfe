"""Sources that need a package, or the user's own code: Parquet, data sets, reasoning-gym, functions."""

import dataclasses
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from freerun.config.data import DataConfig
from freerun.config.load import load_recipe
from freerun.data.settings import check_settings
from freerun.data.task_prompt import TaskPrompt
from freerun.data.tasks import alphabet_of, check_demonstrations, demonstrations_of, load_prompts
from freerun.errors import ConfigError, DataError

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n), "hints": ["add", str(n)]} for n in range(10)]


def all_prompts(config: DataConfig) -> dict[str, TaskPrompt]:
    prompts = load_prompts(config)
    return {prompt.key: prompt for prompt in prompts.training + prompts.held_out}


# Files


def test_a_json_array_gives_rows_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(ROWS))
    prompts = all_prompts(DataConfig(path=str(path), template="{question}", answer="{hints}\n{answer}"))
    assert prompts["train.json:3"] == TaskPrompt(key="train.json:3", text="2 + 2?", answer="add\n2\n4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "x"}', "an object, not an array of objects"),
        ('[{"question": "x", "answer": "1"}, 3]', "train.json:2: a number, not an object"),
        ("[1, 2", r"not JSON \(.*\); a file of one object a line ends in \.jsonl"),
    ],
)
def test_what_is_not_an_array_of_objects_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_prompts(DataConfig(path=str(path)))


def test_parquet_gives_rows_with_lists_and_numbers(tmp_path: Path) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{**row, "n": 1.5} for row in ROWS]), path)
    prompts = all_prompts(DataConfig(path=str(path), template="{n} {hints}"))
    assert prompts["train.parquet:10"] == TaskPrompt(key="train.parquet:10", text="1.5 add\n9", answer="18")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_missing_or_infinite_is_a_bad_row(tmp_path: Path, value: float) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    path = tmp_path / "train.parquet"
    rows = [{"question": f"{n}?", "answer": float(n)} for n in range(9)] + [{"question": "9?", "answer": value}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(DataError, match=rf'\Atrain\.parquet:10: field "answer" is {value}, not a finite number'):
        load_prompts(DataConfig(path=str(path)))


def written_as_parquet(path: Path, **options: object) -> bytes:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, **options)
    return path.read_bytes()


def with_flipped_bit(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def test_a_damaged_parquet_file_with_checksums_is_refused_or_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    content = written_as_parquet(path, write_page_checksum=True)
    config = DataConfig(path=str(path), template="{question} {hints}")
    whole, num_refused = all_prompts(config), 0
    for place in range(0, len(content), 3):
        path.write_bytes(with_flipped_bit(content, place, place % 8))
        try:
            assert all_prompts(config) == whole, f"byte {place}"
        except DataError:
            num_refused += 1
    assert num_refused > len(content) / 3 / 2


def test_text_of_a_damaged_parquet_file_that_is_no_text_any_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    content = written_as_parquet(path, compression="none", use_dictionary=False)
    path.write_bytes(with_flipped_bit(content, content.index(b"3 + 3?"), 7))
    with pytest.raises(DataError, match=r"train\.parquet: cannot be read as Parquet \(\w+: "):
        load_prompts(DataConfig(path=str(path)))


def test_a_file_that_is_not_what_its_suffix_says_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    path.write_text("question,answer")
    with pytest.raises(DataError, match=r"train\.parquet: cannot be read as Parquet"):
        load_prompts(DataConfig(path=str(path)))
    with pytest.raises(DataError, match=r"train\.csv: unknown kind of file; .* \.jsonl, \.json, \.parquet"):
        load_prompts(DataConfig(path=str(tmp_path / "train.csv")))


@pytest.mark.parametrize(
    ("package", "config"),
    [
        ("pyarrow.parquet", DataConfig(path="train.parquet")),
        ("datasets", DataConfig(task="datasets", path="somewhere")),
        ("reasoning_gym", DataConfig(task="reasoning-gym/chain_sum")),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str, config: DataConfig
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=r"needs \w+ .*; pip install 'freerun\[tasks\]'"):
        load_prompts(config)


# Data sets


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    datasets = importlib.import_module("datasets")
    path = tmp_path_factory.mktemp("data") / "sums"
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:3])}
    datasets.DatasetDict(parts).save_to_disk(path)
    return path


def test_a_saved_data_set_is_read_by_its_splits(saved: Path) -> None:
    prompts = load_prompts(DataConfig(task="datasets", path=str(saved), held_out_path="test"))
    assert [prompt.key for prompt in prompts.training] == [f"sums/train:{n}" for n in range(1, 11)]
    assert {prompt.key for prompt in prompts.held_out} == {"sums/test:1", "sums/test:2", "sums/test:3"}
    assert prompts.training[1].answer == "2"


def test_a_split_that_is_not_there_is_named_with_those_that_are(saved: Path) -> None:
    with pytest.raises(DataError, match=r'no split "dev"; it has "train", "test"'):
        load_prompts(DataConfig(task="datasets", path=str(saved), settings=('split="dev"',)))


def test_a_bad_row_of_a_data_set_is_named_by_its_split_and_number(saved: Path) -> None:
    with pytest.raises(DataError, match=r'sums/train:1: no field "nothing"'):
        load_prompts(DataConfig(task="datasets", path=str(saved), template="{nothing}"))


def test_a_saved_data_set_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DataError, match=r'split "train" cannot be loaded \(\w+'):
        load_prompts(DataConfig(task="datasets", path=str(tmp_path)))


def test_rows_of_a_saved_data_set_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    datasets = importlib.import_module("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "sums")
    (file,) = (tmp_path / "sums").glob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(with_flipped_bit(content, content.index(b"3 + 3?"), 7))
    with pytest.raises(DataError, match=r"sums/train: row \d+ cannot be read \(\w+: "):
        load_prompts(DataConfig(task="datasets", path=str(tmp_path / "sums")))


def test_a_folder_of_parquet_is_loaded_as_a_data_set(tmp_path: Path) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "train.parquet")
    settings = (f'cache_dir="{tmp_path / "cache"}"',)
    prompts = all_prompts(DataConfig(task="datasets", path=str(folder), settings=settings))
    assert len(prompts) == 10
    assert prompts["folder/train:4"].text == "Question: 3 + 3?\nAnswer:"


def test_a_data_set_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'data\.path = ".*gone": split "train" cannot be loaded \(\w+'):
        load_prompts(DataConfig(task="datasets", path=str(tmp_path / "gone")))


# reasoning-gym

CHAIN_SUM = DataConfig(
    task="reasoning-gym/chain_sum", settings=("size=60", "max_terms=2", "min_digits=2", "max_digits=2")
)


def test_reasoning_gym_makes_the_same_prompts_whose_answers_its_scorer_accepts() -> None:
    score_of = importlib.import_module("reasoning_gym").get_score_answer_fn
    prompts = all_prompts(CHAIN_SUM)
    assert prompts == all_prompts(CHAIN_SUM)
    assert 50 < len(prompts) <= 60
    for prompt in prompts.values():
        entry = json.loads(prompt.answer)
        assert entry["question"] in prompt.text
        assert score_of(entry["metadata"]["source_dataset"])(answer=prompt.shot, entry=entry) == 1.0


def test_a_question_that_repeats_itself_is_asked_once() -> None:
    settings = ("size=500", "min_terms=2", "max_terms=2", "min_digits=1", "max_digits=1")
    prompts = all_prompts(DataConfig(task="reasoning-gym/chain_sum", settings=settings))
    assert len({prompt.text for prompt in prompts.values()}) == len(prompts) <= 200


def test_a_task_that_has_only_a_scorer_is_used_without_examples() -> None:
    config = DataConfig(task="reasoning-gym/graph_color", settings=("size=10",))
    assert all(json.loads(prompt.answer)["answer"] is None for prompt in all_prompts(config).values())
    with pytest.raises(ConfigError, match="has a scorer but no reference answers to show; set it to 0"):
        load_prompts(dataclasses.replace(config, num_shots=1))


def test_a_task_that_json_would_grade_wrongly_is_refused() -> None:
    with pytest.raises(DataError, match=r'"reasoning-gym/rearc": its entries do not survive JSON'):
        load_prompts(DataConfig(task="reasoning-gym/rearc", settings=("size=4",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "reasoning-gym/chain_sums"}, r'did you mean "reasoning-gym/chain_sum"\?'),
        ({"settings": ("terms=2",)}, r"were refused .*'terms'.*; it has min_terms, max_terms"),
        ({"settings": ("min_terms=9", "max_terms=2")}, "were refused"),
        ({"settings": ('size="50"',)}, "were refused|make no prompts"),
        ({"settings": ("min_terms",)}, "each is name=value, such as max_number=50"),
        ({"settings": ("min_terms=two",)}, r'whose value is not TOML .*text is quoted: min_terms="\.\.\."'),
        ({"answer": "{answer}!"}, r"data\.answer and data\.answer_after mean nothing"),
    ],
)
def test_settings_that_a_task_does_not_take_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(DataConfig(**{"task": "reasoning-gym/chain_sum", **changes}))


# The user's own functions

TASK = """
from freerun.data.task_prompt import TaskPrompt

ALPHABET = "ab"

def rows(num=10):
    for n in range(num):
        yield {"question": f"{n}?", "answer": n}

def worded(num=10):
    return [TaskPrompt(key=f"k{n}", text=f"{n}", answer="x") for n in range(num)]

def demonstration(prompt, rng, error_rate):
    return prompt.text[::-1]

def twins():
    yield from [{"question": "a", "answer": "b", "key": "same"}] * 9

def broken():
    yield {"question": "a", "answer": "b"}
    raise KeyError("oops")

def texts():
    return ["a", "b"]

def nothing():
    return []

def fails_at_once():
    raise KeyError("oops")

def leaves():
    raise SystemExit(3)

def endless():
    while True:
        yield {}

def numbers():
    return [TaskPrompt(key="k", text="t", answer="a"), TaskPrompt(key="l", text="t", answer=3)]

def empty_text():
    return [TaskPrompt(key="k", text=" ", answer="a")]
"""


@pytest.fixture
def user_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_task", raising=False)


@pytest.mark.usefixtures("user_task")
def test_rows_of_a_function_are_worded_by_the_recipe_and_prompts_taken_as_they_are() -> None:
    rows = all_prompts(DataConfig(task="my_task:rows", template="{question}!", settings=("num=20",)))
    assert len(rows) == 20
    assert rows["7"] == TaskPrompt(key="7", text="7?!", answer="7")
    assert all_prompts(DataConfig(task="my_task:worded"))["k3"] == TaskPrompt(key="k3", text="3", answer="x")


@pytest.mark.usefixtures("user_task")
def test_a_module_with_an_alphabet_and_demonstrations_can_be_learned_from_nothing() -> None:
    config = DataConfig(task="my_task:worded")
    assert alphabet_of("my_task:worded") == "ab"
    text, completion = next(demonstrations_of(config, seed=0, error_rate=0.0))
    assert completion == text[::-1]
    check_demonstrations(config)


@pytest.mark.usefixtures("user_task")
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("my_task:twins", 'two prompts with the key "same"'),
        ("my_task:broken", 'data.task = "my_task:broken" failed with KeyError'),
        ("my_task:texts", r"0: a string, not a dictionary such as dict\(question="),
        ("my_task:nothing", "yields nothing"),
        ("my_task:fails_at_once", 'data.task = "my_task:fails_at_once" failed with KeyError'),
        ("my_task:leaves", 'data.task = "my_task:leaves" failed with SystemExit: 3'),
        ("my_task:endless", "yields more than 1,000,000 prompts; make it end"),
        ("my_task:numbers", 'data.task = "my_task:numbers": prompt 1 has answer = 3; it must be a string'),
        ("my_task:empty_text", "prompt 0 has text = ' '; it must be a string that is not empty"),
    ],
)
def test_what_a_function_yields_wrongly_is_named(task: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_prompts(DataConfig(task=task))


@pytest.mark.usefixtures("user_task")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(task="my_task:gone"), 'has no function "gone"'),
        (DataConfig(task="no_task:rows"), "importing no_task failed with ModuleNotFoundError"),
        (DataConfig(task="my task:rows"), 'write "module:function"'),
        (DataConfig(task="my_task:rows", settings=("size=3",)), 'data.task = "my_task:rows" takes num'),
        (DataConfig(task="my_task:worded", template="{a}"), r"data\.template means nothing .*prompts itself"),
        (DataConfig(task="times-tables", answer="{a}"), r"data\.answer means nothing .*prompts itself"),
        (DataConfig(task="euclid", settings=('max_number="50"',)), "max_number='50' must be a whole number"),
        (DataConfig(task="euclid", settings=("max_number=50.0",)), "max_number=50.0 must be a whole number"),
        (DataConfig(task="times-tables", settings=("max_number=50",)), 'data.task = "times-tables" takes none'),
        (DataConfig(task="time-tables"), r'unknown task .*did you mean "times-tables"\?'),
        (
            DataConfig(task="euclid", settings=("max_number=4",)),
            "max_number=4 must be a whole number from 5 to 1000",
        ),
    ],
)
def test_a_task_that_is_not_there_is_named(config: DataConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(config)


def test_a_function_that_does_not_tell_its_arguments_is_given_them_unchecked() -> None:
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(dict)
    check_settings(dict, {"anything": 1}, task="builtins:dict")


def test_the_example_of_a_task_in_one_file_is_short_and_in_the_documentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[2]
    source = (root / "examples" / "sort_words.py").read_text()
    assert len(source.splitlines()) < 30
    assert source in (root / "docs" / "tasks.md").read_text()
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [*sys.path])
    prompts = load_prompts(load_recipe(Path("examples/sort_words.toml"), []).data)
    reward = importlib.import_module("examples.sort_words").reward
    answers = [prompt.answer for prompt in prompts.training]
    assert {reward(prompt="", completion=f" {answer}\n", answer=answer) for answer in answers} == {1.0}
    assert reward(prompt="", completion="a c b", answer="a b c") == pytest.approx(-2 / 3)
    assert reward(prompt="", completion="a b c d", answer="a b c") == 0.0
