"""Demonstrations: which tokens carry loss, and what is said of rows that cannot be used."""

import dataclasses
import json
import re
import string
from pathlib import Path
from typing import Any

import pytest

from freerun.config.load import load_recipe
from freerun.config.sft import SftConfig
from freerun.data.demonstrations import Demonstrations, open_sft_data, read_demonstrations
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, DataError
from freerun.model.tiny import make_tiny
from freerun.types import Demonstration

ALPHABET = string.ascii_lowercase + string.digits + " <>=?\n$"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'][0] + '>' + m['content'] + '$\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)
FORGETFUL_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>"
    "{% if m['role'] != 'assistant' or loop.last %}{{ m['content'] }}{% endif %}${% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
KEEP_ALL = SftConfig(held_out_fraction=0)
SUMS = SftConfig(
    path="rows.jsonl", template="what is {question}?\n", completion_field="answer", held_out_fraction=0
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a token per character, so that masks can be read off the text."""
    directory = tmp_path_factory.mktemp("model") / "model"
    make_tiny(directory, alphabet=ALPHABET, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=2)
    return directory


@pytest.fixture
def chat_tokenizer(model: Path) -> Tokenizer:
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return Tokenizer.load(model)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(tmp_path: Path, tokenizer: Tokenizer, config: SftConfig, *rows: Any) -> Demonstrations:
    path = write(tmp_path / "rows.jsonl", list(rows))
    return read_demonstrations(dataclasses.replace(config, path=str(path)), tokenizer)


def error_of(tmp_path: Path, tokenizer: Tokenizer, config: SftConfig, *rows: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(tmp_path, tokenizer, config, *rows)
    return str(caught.value).replace(f"{tmp_path}/", "")


def chat(*contents: str, roles: str = "ua") -> dict[str, Any]:
    names = {"u": "user", "a": "assistant", "s": "system"}
    return {
        "messages": [
            {"role": names[roles[i % len(roles)]], "content": content} for i, content in enumerate(contents)
        ]
    }


def shown(demonstration: Demonstration, tokenizer: Tokenizer) -> tuple[str, str]:
    """The text, and below each character whether it carries loss."""
    text = "".join(tokenizer.decode([token]) for token in demonstration.token_ids)
    return text, "".join("^" if trained else "." for trained in demonstration.is_trained)


def test_the_completion_and_its_end_carry_loss_and_the_prompt_does_not(
    tmp_path: Path, chat_tokenizer: Tokenizer
) -> None:
    rows = [{"question": "2 2", "answer": 4}, {"question": "abc", "answer": "de$"}]
    data = read(tmp_path, chat_tokenizer, SUMS, *rows)
    assert [shown(row, chat_tokenizer) for row in data.training] == [
        ("what is 2 2?\n4$", ".............^^"),
        ("what is abc?\nde$", ".............^^^"),
    ]


def test_in_a_chat_each_assistant_turn_and_the_token_that_ends_it_carry_loss(
    tmp_path: Path, chat_tokenizer: Tokenizer
) -> None:
    rows = [
        chat("hi", "yes", "and", "no"),
        chat("be kind", "hi", "ok", roles="sua"),
        chat("one", "two", "three", "four", "five"),
    ]
    data = read(tmp_path, chat_tokenizer, KEEP_ALL, *rows)
    assert shown(data.training[0], chat_tokenizer) == (
        "<u>hi$\n<a>yes$\n<u>and$\n<a>no$\n",
        "..........^^^^............^^^.",
    )
    for row, demonstration in zip(rows, data.training, strict=True):
        text, mask = shown(demonstration, chat_tokenizer)
        whole = chat_tokenizer.render_chat(row["messages"], add_generation_prompt=False)
        assert whole.startswith(text), "what follows the last assistant turn may be left out, nothing else"
        # Brute force: the characters after each <a>, up to and including the next $.
        expected = ["."] * len(text)
        for turn in re.finditer(r"<a>([^$]*\$)", text):
            expected[turn.start(1) : turn.end(1)] = "^" * len(turn[1])
        assert mask == "".join(expected)


def test_the_chat_template_of_smollm2_is_masked_as_its_text_reads(tmp_path: Path) -> None:
    directory = Path(__file__).parents[2] / "models" / "smollm2"
    if not (directory / "tokenizer.json").is_file():
        pytest.skip("models/smollm2 is not made")
    tokenizer = Tokenizer.load(directory)
    row = chat("What is 7 * 8?", "7 * 8 = 56", "Sure?", "Yes.")
    [demonstration] = read(tmp_path, tokenizer, KEEP_ALL, row).training
    whole = tokenizer.render_chat(row["messages"], add_generation_prompt=False)
    assert demonstration.token_ids.tolist() == tokenizer.encode(whole, add_special_tokens=False).tolist()
    trained = demonstration.token_ids[demonstration.is_trained].tolist()
    [end] = tokenizer.encode("<|im_end|>", add_special_tokens=False).tolist()
    first, second = (tokenizer.encode(t, add_special_tokens=False).tolist() for t in ("7 * 8 = 56", "Yes."))
    assert trained == [*first, end, *second, end]


def test_rows_that_are_too_long_are_left_out_whole_and_counted(tmp_path: Path, chat_tokenizer: Tokenizer) -> None:
    config = SftConfig(held_out_fraction=0, max_tokens=14)
    data = read(tmp_path, chat_tokenizer, config, chat("a", "b"), chat("a", "b" * 40), chat("c", "dd"))
    assert data.num_too_long == 1
    assert [shown(row, chat_tokenizer)[0] for row in data.training] == ["<u>a$\n<a>b$\n", "<u>c$\n<a>dd$\n"]
    message = error_of(tmp_path, chat_tokenizer, SftConfig(max_tokens=5), chat("a", "b"))
    assert (
        message
        == "rows.jsonl: all 1 rows exceed sft.max_tokens = 5; raise it to 12 or more, the length of the shortest"
    )


def test_the_held_out_rows_are_always_the_same_and_none_is_trained_on(
    tmp_path: Path, chat_tokenizer: Tokenizer
) -> None:
    rows = [chat(f"q{i}", f"a{i}") for i in range(40)]
    one, other = (read(tmp_path, chat_tokenizer, SftConfig(held_out_fraction=0.25), *rows) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    held_out, training = ({shown(row, chat_tokenizer)[0] for row in part} for part in (one.held_out, one.training))
    assert len(held_out) == 10
    assert len(training) == 30
    assert not held_out & training


def test_rows_that_repeat_fall_on_one_side(tmp_path: Path, chat_tokenizer: Tokenizer) -> None:
    rows = [chat(f"q{i}", f"a{i}") for i in range(20)]
    data = read(tmp_path, chat_tokenizer, SftConfig(held_out_fraction=0.25), *rows, *rows)
    held_out, training = (
        [shown(row, chat_tokenizer)[0] for row in part] for part in (data.held_out, data.training)
    )
    assert len(held_out) == 10
    assert len(training) == 30
    assert not set(held_out) & set(training)


def test_every_bad_row_is_named_by_file_and_line(tmp_path: Path, chat_tokenizer: Tokenizer) -> None:
    message = error_of(
        tmp_path,
        chat_tokenizer,
        SUMS,
        {"question": "1", "answer": "2"},
        '{"question": ',
        "",
        {"question": "1"},
        {"question": "1", "answer": "  "},
        {"question": "1", "answer": [1]},
        {"question": "UPPER", "answer": "x"},
        [1],
    )
    lines = message.splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"rows.jsonl:{n}" for n in (2, 4, 5, 6, 7)]
    assert "not JSON" in lines[0]
    assert 'no field "answer" (fields: "question"); change sft.completion_field or the row' in lines[1]
    assert 'field "answer" is empty' in lines[2]
    assert "not a string, a number or a list of strings" in lines[3]
    assert "cannot encode" in lines[4]
    assert lines[5] == "and 1 more of 7 rows"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question": "x"}, 'no list of chat messages in field "messages" (fields: "question")'),
        ({"messages": [{"role": "user"}]}, 'message 1 is not an object with the strings "role" and "content"'),
        (chat("a"), 'no message of role "assistant" says anything'),
    ],
)
def test_a_bad_chat_row_says_what_is_wrong(
    tmp_path: Path, chat_tokenizer: Tokenizer, row: dict[str, Any], complaint: str
) -> None:
    assert error_of(tmp_path, chat_tokenizer, KEEP_ALL, row).startswith(f"rows.jsonl:1: {complaint}")


def test_a_template_that_rewrites_earlier_turns_is_refused_where_it_matters(tmp_path: Path, model: Path) -> None:
    (model / "chat_template.jinja").write_text(FORGETFUL_TEMPLATE)
    tokenizer = Tokenizer.load(model)
    [single] = read(tmp_path, tokenizer, KEEP_ALL, chat("a", "b")).training
    assert shown(single, tokenizer) == ("<u>a$<a>b$", "........^^")
    message = error_of(tmp_path, tokenizer, KEEP_ALL, chat("a", "b", "c", "d"))
    assert "use a row for each assistant turn, as the last message" in message


def test_a_model_without_a_chat_template_asks_for_a_template(tmp_path: Path, model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    assert "sft.template = " in error_of(tmp_path, Tokenizer.load(model), KEEP_ALL, chat("a", "b"))


def test_files_and_templates_that_cannot_be_used_are_named(tmp_path: Path, chat_tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no such file or directory; name a file"):
        read_demonstrations(SftConfig(path=str(tmp_path / "gone.jsonl")), chat_tokenizer)
    assert "the file has no rows" in error_of(tmp_path, chat_tokenizer, KEEP_ALL)
    with pytest.raises(ConfigError, match=r"sft\.template has a lone"):
        read(tmp_path, chat_tokenizer, SftConfig(path="rows.jsonl", template="{a} }"), {"a": "b"})
    message = error_of(tmp_path, chat_tokenizer, SftConfig(held_out_fraction=0.05), chat("a", "b"))
    assert message.startswith("sft.held_out_fraction = 0.05 of 1 rows leaves none to measure")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "sft.batch_size = 0 must be an integer between 1 and 65,536"),
        ({"warmup_steps": -1}, "sft.warmup_steps = -1 must be an integer between 0 and 1,000,000,000"),
        ({"template": "{question}"}, "sft.template = '{question}' needs sft.path"),
        ({"path": "rows.jsonl", "error_rate": 0.1}, "sft.error_rate = 0.1 needs the demonstrations of a task"),
        ({"held_out_fraction": 1.0}, "sft.held_out_fraction = 1.0 must be a number"),
    ],
)
def test_settings_that_make_no_sense_are_named_as_they_are_written(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SftConfig(**changes)


def test_rows_are_read_as_training_reads_them(tmp_path: Path, chat_tokenizer: Tokenizer) -> None:
    rows = [{"question": 1, "answer": ["1", "2"]}, {"question": "3", "answer": "4"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    config = dataclasses.replace(SUMS, path=str(tmp_path / "rows.json"))
    assert len(read_demonstrations(config, chat_tokenizer).training) == 2
    deep = '{"question": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert error_of(tmp_path, chat_tokenizer, SUMS, deep).startswith("rows.jsonl:1: not JSON (maximum recursion")


def test_each_row_is_trained_on_once_per_epoch_in_an_order_of_the_seed(
    tmp_path: Path, chat_tokenizer: Tokenizer
) -> None:
    path = write(tmp_path / "rows.jsonl", [chat(f"q{i}", f"a{i}") for i in range(20)])

    def order(seed: int, *, step: int = 0) -> list[str]:
        values = {"sft.path": path, "sft.num_epochs": 2, "sft.batch_size": 7, "run.seed": seed}
        data = open_sft_data(load_recipe("times-tables", values), chat_tokenizer)
        assert data.num_steps == 6
        return [row.token_ids.tobytes().hex() for batch in data.batches(step) for row in batch]

    one = order(1)
    assert len(one) == 2 * 19
    assert sorted(one[:19]) == sorted(one[19:]) == sorted(set(one))
    assert one[:19] != one[19:]
    assert one == order(1)
    assert one != order(2)
    assert one[4 * 7 :] == order(1, step=4), "a resumed run goes on with the batches that are left"
