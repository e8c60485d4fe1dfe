"""The decoder computes what `transformers` computes, and model directories survive the round trip."""

import json
from pathlib import Path

import pytest
import torch
from reference_models import FAMILY, SHAPE, make_reference
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from freerun.errors import ModelError
from freerun.model.adapter_directory import model_config
from freerun.model.attention import Family, PackedCausalAttention, full_forward_logits, packed_positions
from freerun.model.checkpoint import load_model, save_model, save_weights
from freerun.model.decoder_config import read_config
from freerun.model.families import FAMILIES, ModelFamily


@pytest.mark.parametrize("name", FAMILY)
def test_decoder_equals_transformers(name: str, tmp_path: Path) -> None:
    reference = make_reference(name, tmp_path)
    model = load_model(tmp_path)
    tokens = torch.randint(0, 101, (90,))
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
        actual = full_forward_logits(model, tokens.tolist())
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_every_supported_family_is_compared_with_transformers() -> None:
    assert FAMILIES.keys() == {config.model_type for config, _ in FAMILY.values()}


def test_a_new_family_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MistralConfig(**SHAPE, sliding_window=None)
    monkeypatch.setitem(FAMILY, "mistral", (config, MistralForCausalLM))
    reference = make_reference("mistral", tmp_path)
    with pytest.raises(ModelError, match='model_type "mistral" is outside the supported family'):
        load_model(tmp_path)
    monkeypatch.setitem(FAMILIES, "mistral", ModelFamily(refuses=("sliding_window",)))
    tokens = torch.randint(0, 101, (90,))
    with torch.no_grad():
        expected = reference(tokens[None]).logits[0]
        actual = full_forward_logits(load_model(tmp_path), tokens.tolist())
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "sliding_window": 64}))
    with pytest.raises(ModelError, match="sliding_window = 64 is not supported"):
        load_model(tmp_path)


def test_packed_sequences_do_not_see_each_other(tmp_path: Path) -> None:
    make_reference("qwen3", tmp_path)
    model = load_model(tmp_path)
    lengths = [7, 1, 23]
    sequences = [torch.randint(0, 101, (n,)) for n in lengths]
    with torch.no_grad():
        families = [Family(length) for length in lengths]
        hidden = model(torch.cat(sequences), packed_positions(families), PackedCausalAttention(families))
        alone = torch.cat([full_forward_logits(model, s.tolist()) for s in sequences])
    torch.testing.assert_close(model.logits(hidden), alone, atol=1e-5, rtol=1e-5)


def test_branches_see_their_trunk_and_not_each_other(tmp_path: Path) -> None:
    make_reference("qwen3", tmp_path)
    model = load_model(tmp_path)
    families = [Family(6, (3, 0, 5)), Family(4), Family(1, (2, 2))]
    tokens = torch.randint(0, 101, (sum(family.num_tokens for family in families),))
    with torch.no_grad():
        hidden = model(tokens, packed_positions(families), PackedCausalAttention(families))
        logits = model.logits(hidden)
        begin = 0
        for family in families:
            trunk = tokens[begin : begin + family.trunk]
            alone = full_forward_logits(model, trunk.tolist())
            torch.testing.assert_close(logits[begin : begin + family.trunk], alone, atol=1e-5, rtol=1e-5)
            begin += family.trunk
            for branch in family.branches:
                sequence = torch.cat([trunk, tokens[begin : begin + branch]])
                alone = full_forward_logits(model, sequence.tolist())[family.trunk :]
                torch.testing.assert_close(logits[begin : begin + branch], alone, atol=1e-5, rtol=1e-5)
                begin += branch


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
def test_a_saved_model_loads_in_transformers_with_the_same_bits(
    name: str, max_shard_bytes: int, tmp_path: Path
) -> None:
    reference = make_reference(name, tmp_path / "source")
    model = load_model(tmp_path / "source")
    save_model(model, tmp_path / "copy", source=tmp_path / "source")
    if max_shard_bytes < 10**9:
        (tmp_path / "copy" / "model.safetensors").unlink()
        state = {n: p.detach() for n, p in model.named_parameters()}
        save_weights(state, model.config, tmp_path / "copy", max_shard_bytes=max_shard_bytes)
        assert (tmp_path / "copy" / "model.safetensors.index.json").is_file()
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    expected = reference.state_dict()
    for key, tensor in reloaded.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    for ours, again in zip(model.parameters(), load_model(tmp_path / "copy").parameters(), strict=True):
        assert torch.equal(ours, again)


def test_an_architecture_outside_the_family_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ModelError, match='model_type "mamba" is outside the supported family'):
        read_config(tmp_path)


def test_a_missing_model_directory_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="freerun model smollm2"):
        read_config(tmp_path / "nowhere")


def test_a_truncated_weights_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
        load_model(tmp_path)


LLAMA = {
    "model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", r"config\.json:1: not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps(LLAMA | {"max_position_embeddings": None}), "max_position_embeddings = null is not a number"),
        (json.dumps(LLAMA | {"num_key_value_heads": "2"}), 'num_key_value_heads = "2" is not a number'),
        (json.dumps(LLAMA | {"rope_scaling": {"type": "yarn"}}), 'rope_type "yarn" is not supported'),
        (json.dumps(LLAMA | {"rope_scaling": {"type": "llama3"}}), 'has no number "factor"'),
    ],
)
def test_a_damaged_config_is_refused_by_all_who_read_it(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "config.json").write_text(text)
    for read in (read_config, model_config):
        with pytest.raises(ModelError, match=complaint):
            read(tmp_path)
