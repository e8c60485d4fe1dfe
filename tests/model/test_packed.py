"""Packed weights compute what plain ones do, in the engine too, and follow every load."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from engine_reference import finish, logprobs_of_full_forward
from tiny_models import WIDE, Letters, make_request, random_model, random_weights
from torch.nn import functional as F

import freerun.model.packed
from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import read_config
from freerun.model.lora import add_adapter, trained_parameters
from freerun.model.packed import MIN_PACKED_ELEMENTS, PackedWeight

WEIGHTS = {
    version: {name: w / 8 for name, w in random_weights(300 + version, WIDE).items()} for version in range(3)
}


@pytest.mark.parametrize("shape", [(1024, 512), (1024, 576), (1000, 300)])
@pytest.mark.parametrize("num_rows", [1, 7, 64, 200])
def test_a_packed_product_is_the_plain_one(shape: tuple[int, int], num_rows: int) -> None:
    weight, other = torch.randn(2, *shape) / 16
    x, bias = torch.randn(num_rows, shape[1]), torch.randn(shape[0])
    packed = PackedWeight(weight)
    torch.testing.assert_close(packed.linear(x, bias), F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
    in_its_memory = PackedWeight(other, spare=PackedWeight(weight))
    torch.testing.assert_close(in_its_memory.linear(x, None), F.linear(x, other), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.linear(x, bias), F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["random", "zeros"])
def test_an_order_that_is_not_known_is_packed_anew_each_time(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freerun.model.packed, "ROWS_SIDE_BY_SIDE", 32)
    uncached = freerun.model.packed._has_known_order.__wrapped__
    monkeypatch.setattr(freerun.model.packed, "_has_known_order", uncached)
    other, x = torch.randn(1024, 512), torch.randn(8, 512)
    packed = PackedWeight(other, spare=PackedWeight(scale * torch.randn(1024, 512)))
    torch.testing.assert_close(packed.linear(x, None), F.linear(x, other), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("sizes", [{}, {"tie_word_embeddings": False}, {"vocab_size": 64}])
def test_a_copy_keeps_each_weight_once_packed_or_plain_and_a_tied_embedding_as_both(
    tmp_path: Path, sizes: dict[str, Any]
) -> None:
    raw = {
        "model_type": "llama",
        "vocab_size": 640,
        "hidden_size": 512,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    } | sizes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = Decoder(read_config(tmp_path))
    model.use_packed(model.pack({}))
    num_packed = sum(model.get_parameter(name).numel() for name in model.packed_weights())
    assert num_packed > 0
    parameters = dict(model.named_parameters())
    kept = model.frozen_copy(changing=parameters.keys())
    num_plain = sum(weight.numel() for weight in kept.parameters())
    num_all = sum(weight.numel() for weight in parameters.values())
    embedding = model.embedding.weight.numel()
    is_kept_twice = raw["tie_word_embeddings"] and embedding >= MIN_PACKED_ELEMENTS
    assert num_plain + num_packed == num_all + (embedding if is_kept_twice else 0)


def make_engine() -> Engine:
    settings = EngineConfig(num_slots=4, cache_tokens=400)
    engine = Engine(random_model(0, WIDE), settings, text=Letters(), max_sequence_tokens=100, seed=7)
    engine.load(0, WEIGHTS[0])
    return engine


REQUEST = make_request(1, num_samples=3, max_completion_tokens=20, vocab_size=WIDE.vocab_size)


def test_an_engine_with_packed_weights_gives_the_logprobs_of_a_plain_forward_across_loads() -> None:
    engine = make_engine()
    assert engine.model.packed_weights()
    for completion in finish(engine, REQUEST, {6: 1, 13: 2}, WEIGHTS):
        assert set(completion.versions.tolist()) == {0, 1, 2}
        for version in range(3):
            mine = completion.versions == version
            expected = logprobs_of_full_forward(random_model(0, WIDE), WEIGHTS[version], REQUEST, completion)
            np.testing.assert_allclose(completion.logprobs[mine], expected[mine], atol=1e-5)


def test_a_pinned_version_keeps_its_packed_weights() -> None:
    live = make_engine()
    buffer = {name: weight.clone() for name, weight in WEIGHTS[0].items()}
    live.load(0, buffer)
    engine = PinnableEngine(live)
    engine.pin(0)
    engine.load(1, WEIGHTS[1])
    for weight in buffer.values():  # the trainer writes its next version there
        weight.zero_()
    pinned = finish(engine, msgspec.structs.replace(REQUEST, pinned_version=0), {}, WEIGHTS)
    alone = finish(make_engine(), REQUEST, {}, WEIGHTS)
    assert [c.token_ids.tolist() for c in pinned] == [c.token_ids.tolist() for c in alone]


def test_an_adapter_is_loaded_over_a_base_that_was_packed_once() -> None:
    model = random_model(0, WIDE)
    add_adapter(model, LoraConfig(rank=4), seed=1)
    engine = Engine(model, EngineConfig(num_slots=4), text=Letters(), max_sequence_tokens=100, seed=7)
    adapter = {name: torch.randn_like(p) / 8 for name, p in trained_parameters(model).items()}
    engine.load(0, adapter)
    packed = model.packed_weights()
    assert packed
    request = make_request(2, vocab_size=WIDE.vocab_size)
    (completion,) = finish(engine, request, {}, WEIGHTS)
    plain = random_model(0, WIDE)
    add_adapter(plain, LoraConfig(rank=4), seed=1)
    expected = logprobs_of_full_forward(plain, adapter, request, completion)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    engine.load(1, adapter)
    assert model.packed_weights() == packed
    pinnable = PinnableEngine(engine)
    pinnable.pin(1)
    pinnable.load(2, {name: torch.randn_like(weight) for name, weight in adapter.items()})
    assert pinnable._pinned is not None
    assert pinnable._pinned.model.packed_weights() == packed, "a pinned version shares what never changes"
    (again,) = finish(pinnable, msgspec.structs.replace(request, pinned_version=1), {}, WEIGHTS)
    assert again.logprobs.tolist() == completion.logprobs.tolist()


def test_a_pinned_version_takes_memory_only_when_others_are_loaded_and_once_for_each_packed_weight() -> None:
    live = make_engine()
    twin = live.twin()
    assert twin.model is live.model
    twin.keep_weights()
    packed = twin.model.packed_weights()
    assert packed.keys() == live.model.packed_weights().keys()
    num_elements = {name: weight.numel() for name, weight in twin.model.named_parameters()}
    assert all(num_elements[name] == 0 for name in packed if name != "embedding.weight")
    assert num_elements["embedding.weight"] == live.model.embedding.weight.numel(), "it is read by rows too"
    assert all(num_elements[name] for name in num_elements.keys() - packed.keys())
