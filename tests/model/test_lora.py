"""LoRA: the same logprobs in engine, trainer, PEFT and after merging; only the adapter moves and is trained."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted_models import ALL, TOKENS, adapted, logprobs, save, state_of
from peft import PeftModel
from reference_models import FAMILY, make_reference
from tiny_models import TINY, Letters, make_request, random_model, random_weights
from torch import Tensor
from torch.func import functional_call
from training_batches import CONFIG, SHAPE, first_gradients, make_groups, make_trainer, trajectories_of
from transformers import AutoModelForCausalLM

from freerun.cli.main import main
from freerun.config.engine import EngineConfig
from freerun.config.lora import LORA_TARGETS, LoraConfig
from freerun.data.demonstrations import demonstration_of
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.errors import ConfigError, ModelError, WeightsError
from freerun.model.adapter import load_adapter
from freerun.model.adapter_directory import check_rank, num_adapter_parameters
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import read_config
from freerun.model.families import projections_of
from freerun.model.lora import LoraLinear, add_adapter, frozen_checksum, trained_parameters
from freerun.model.shares import Whole
from freerun.model.tiny import make_tiny
from freerun.model.trained import TrainedModel
from freerun.trainer.supervised import SupervisedTrainer
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Completion, Group, Publication
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel

SOME = LoraConfig(rank=3, alpha=12.0, targets=("v_proj", "q_proj", "up_proj"))


@pytest.mark.parametrize("config", [ALL, SOME], ids=["all targets", "some targets"])
def test_a_new_adapter_leaves_the_model_as_it_is_and_a_trained_one_does_not(config: LoraConfig) -> None:
    base = logprobs(random_model(0, SHAPE))
    new = random_model(0, SHAPE)
    add_adapter(new, config, seed=7)
    assert torch.equal(logprobs(new), base)
    assert not torch.allclose(logprobs(adapted(random_model(0, SHAPE), config)), base, atol=1e-2)


def test_the_same_seed_makes_the_same_adapter_and_another_seed_another() -> None:
    one, same, other = (state_of(adapted(random_model(0), seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def dense_state(model: Decoder, adapter: dict[str, Tensor]) -> dict[str, Tensor]:
    """A plain model's weights W + scale * B A, written out projection by projection."""
    state = {name: p.detach() for name, p in model.named_parameters() if name not in adapter}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLinear):
            weight = state[f"{name}.weight"].clone()
            stacked = layer.matrices(adapter[f"{name}.lora_A"], adapter[f"{name}.lora_B"])
            for projection, a, b in stacked:
                weight[projection.rows] += layer.scale * (b @ a)
            state[f"{name}.weight"] = weight
    return state


@pytest.mark.parametrize("config", [ALL, SOME], ids=["all targets", "some targets"])
def test_the_trainers_gradient_of_the_adapter_is_that_of_dense_weights(config: LoraConfig) -> None:
    groups = make_groups()
    model = adapted(random_model(0, SHAPE), config)
    trainer = make_trainer(model)
    adapter = {name: p.clone().requires_grad_(True) for name, p in state_of(model).items()}
    dense = random_model(0, SHAPE)
    dense.load_state_dict(dense_state(model, {name: p.detach() for name, p in adapter.items()}))
    reference = make_trainer(dense)

    actual = first_gradients_of(trainer, groups)
    dense_gradients = first_gradients_of(reference, groups)
    assert actual.keys() == adapter.keys(), "the base must have no gradient"
    differentiable = dense_state(model, adapter)
    total = sum((differentiable[name] * dense_gradients[name]).sum() for name in dense_gradients)
    assert isinstance(total, Tensor)
    total.backward()
    for name, parameter in adapter.items():
        assert parameter.grad is not None
        torch.testing.assert_close(actual[name], parameter.grad, atol=1e-5, rtol=1e-4)


def first_gradients_of(trainer: PolicyTrainer, groups: list[Group]) -> dict[str, Tensor]:
    trainer.step(groups)
    return first_gradients(trainer)


def test_a_step_changes_the_adapter_only_and_keeps_moments_of_nothing_else() -> None:
    model = adapted(random_model(0, SHAPE))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = make_trainer(model, dataclasses.replace(CONFIG, num_minibatches=2))
    trainer.step(make_groups())
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == trained_parameters(model).keys()
    moments = {name.partition(".")[2] for name in trainer.optimizer_state() if name.startswith("exp_avg.")}
    assert moments == changed


def test_a_supervised_step_changes_the_adapter_only() -> None:
    model = adapted(random_model(0, SHAPE))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trajectories = trajectories_of(make_groups())
    rows = [demonstration_of(t.prompt.token_ids, t.completion.token_ids) for t in trajectories]
    SupervisedTrainer(model, CONFIG).step(rows, lr=0.01)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == trained_parameters(model).keys()


def test_the_engine_samples_with_the_adapters_full_forward_and_loads_only_the_adapter() -> None:
    base = random_weights(0)
    engines_model, trainers_model = random_model(0), adapted(random_model(0), SOME)
    add_adapter(engines_model, SOME, seed=99)
    engine = Engine(engines_model, EngineConfig(), text=Letters(), max_sequence_tokens=64, seed=1)
    buffers = create_buffers("test")
    trainers, engines = (
        SharedMemoryChannel(buffers, WeightLayout(model), frozen=frozen_checksum(model, Whole()))
        for model in (trainers_model, engines_model)
    )
    trainers.write(1, state_of(trainers_model))
    engine.load(1, engines.fetch(Publication(version=1, checksum=trainers.checksum(1))))
    engine.submit(make_request(0, num_samples=3))
    completions: list[Completion] = []
    while engine.has_work:
        completions += [completion for _, finished in engine.step() for completion in finished]
    assert len(completions) == 3
    prompt = make_request(0).prompt_token_ids.tolist()
    dense = dense_state(trainers_model, state_of(trainers_model))
    for completion in completions:
        ids = prompt + completion.token_ids.tolist()
        with torch.no_grad():
            table = torch.log_softmax(full_forward_logits(trainers_model, ids), dim=-1)
            merged = torch.log_softmax(
                functional_call(_FullForward(random_model(0)), _prefixed(dense), (ids,)), dim=-1
            )
        for i, token in enumerate(completion.token_ids.tolist(), start=len(prompt)):
            assert float(completion.logprobs[i - len(prompt)]) == pytest.approx(
                float(table[i - 1, token]), abs=1e-5
            )
            assert float(merged[i - 1, token]) == pytest.approx(float(table[i - 1, token]), abs=1e-5)
    assert all(torch.equal(p, base[n]) for n, p in engines_model.named_parameters() if "lora" not in n)


class _FullForward(torch.nn.Module):
    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: list[int]) -> Tensor:
        return full_forward_logits(self.model, ids)


def _prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"model.{name}": tensor for name, tensor in state.items()}


def test_publication_carries_the_adapters_bytes_and_no_others() -> None:
    model = adapted(random_model(0))
    layout = WeightLayout(model)
    assert layout.places.keys() == trained_parameters(model).keys()
    num_bytes = sum(p.nbytes for p in trained_parameters(model).values())
    assert num_bytes <= layout.num_bytes < num_bytes + 64 * len(layout.places)


def test_an_engine_on_another_base_does_not_confirm_the_adapter() -> None:
    trainers_model, engines_model = adapted(random_model(0)), adapted(random_model(1))
    buffers = create_buffers("test")
    trainer = SharedMemoryChannel(
        buffers, WeightLayout(trainers_model), frozen=frozen_checksum(trainers_model, Whole())
    )
    engine = SharedMemoryChannel(
        buffers, WeightLayout(engines_model), frozen=frozen_checksum(engines_model, Whole())
    )
    trainer.write(1, state_of(trainers_model))
    with pytest.raises(WeightsError, match="weights of version 1 arrived damaged"):
        engine.fetch(Publication(version=1, checksum=trainer.checksum(1)))


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("config", [ALL, SOME], ids=["all targets", "some targets"])
def test_a_saved_adapter_has_the_same_logprobs_in_peft_and_merged(
    name: str, config: LoraConfig, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    make_reference(name, base)
    model = adapted(load_model(base), config, b=0.05)
    directory = save(model, tmp_path / "adapter", base=base, config=config)
    expected = logprobs(model)
    with torch.no_grad():
        peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(directory))
        theirs = torch.log_softmax(peft(torch.tensor([TOKENS])).logits[0], dim=-1)
    torch.testing.assert_close(theirs, expected, atol=1e-4, rtol=1e-4)
    merged = load_model(directory)
    assert trained_parameters(merged).keys() == dict(load_model(base).named_parameters()).keys()
    torch.testing.assert_close(logprobs(merged), expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(logprobs(load_model(base)), expected, atol=1e-3)


def test_an_adapter_written_by_peft_is_merged_as_peft_merges_it(tmp_path: Path) -> None:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    base = tmp_path / "base"
    make_reference("llama", base)
    settings = PeftConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings)
    peft.save_pretrained(str(tmp_path / "adapter"))
    with torch.no_grad():
        theirs = torch.log_softmax(peft(torch.tensor([TOKENS])).logits[0], dim=-1)
    torch.testing.assert_close(logprobs(load_model(tmp_path / "adapter")), theirs, atol=1e-4, rtol=1e-4)


def take_up(model: Decoder, directory: Path) -> None:
    load_adapter(model, directory, Whole(), base_checksum=frozen_checksum(model, Whole()))


def test_a_saved_adapter_is_taken_up_again_bit_for_bit(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_reference("qwen2", base)
    model = adapted(load_model(base), SOME)
    directory = save(model, tmp_path / "adapter", base=base, config=SOME)
    again = load_model(base)
    add_adapter(again, SOME, seed=5)
    take_up(again, directory)
    saved, loaded = state_of(model), state_of(again)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)

    wider = load_model(base)
    add_adapter(wider, dataclasses.replace(SOME, rank=2), seed=5)
    with pytest.raises(ModelError, match="use the rank and targets it was trained with"):
        take_up(wider, directory)
    fewer = load_model(base)
    add_adapter(fewer, dataclasses.replace(SOME, targets=("q_proj",)), seed=5)
    with pytest.raises(ModelError, match="belongs to no adapter of this model"):
        take_up(fewer, directory)


def test_an_adapter_whose_base_has_changed_or_gone_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_reference("llama", base)
    directory = save(adapted(load_model(base)), tmp_path / "adapter", base=base)
    reference = make_reference("llama", base)
    with torch.no_grad():
        reference.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
    reference.save_pretrained(base)
    with pytest.raises(ModelError, match="weights of the base model have changed"):
        load_model(directory)
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"freerun model merge .* DIR --base BASE"):
        load_model(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ("qproj",)}, '"qproj"; the projections are q_proj, .*; did you mean "q_proj"'),
        ({"targets": ("lm_head",)}, '"lm_head"; the projections are'),
        ({"targets": ()}, "lora.targets is empty"),
        ({"targets": ("q_proj", "q_proj")}, "names a projection twice"),
        ({"rank": -1}, "lora.rank = -1"),
        ({"alpha": 0.0}, "lora.alpha = 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**changes)


def test_a_rank_above_a_projections_own_is_refused_and_the_remedy_named(tmp_path: Path) -> None:
    make_reference("qwen3", tmp_path)
    shape = read_config(tmp_path)
    with pytest.raises(ConfigError, match=r"lora.rank = 500 exceeds the rank of k_proj, \d+ x \d+"):
        check_rank(LoraConfig(rank=500), shape, tmp_path)
    check_rank(LoraConfig(rank=0), shape, tmp_path)
    for config in (ALL, SOME):
        model = load_model(tmp_path)
        add_adapter(model, config, seed=0)
        num_trained = sum(p.numel() for p in trained_parameters(model).values())
        assert num_adapter_parameters(config, shape) == num_trained


def test_every_projection_of_every_layer_is_found_where_the_decoder_keeps_it() -> None:
    found = [projection for _, projections in projections_of(TINY) for projection in projections]
    assert {projection.target for projection in found} == set(LORA_TARGETS)
    assert len(found) == TINY.num_layers * len(LORA_TARGETS)


def test_an_adapters_tokenizer_stops_where_its_models_does(tmp_path: Path) -> None:
    base, directory = tmp_path / "base", tmp_path / "adapter"
    make_tiny(base, alphabet="ab", hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=2)
    trained = TrainedModel.load(base, LoraConfig(rank=2), seed=0)
    trained.save(trained.state(), directory, companions=base)
    assert not (directory / "config.json").exists()
    assert Tokenizer.load(directory).stop_token_ids == Tokenizer.load(base).stop_token_ids != ()
    (base / "generation_config.json").unlink(missing_ok=True)
    trained.save(trained.state(), directory, companions=base)
    assert Tokenizer.load(directory).stop_token_ids == Tokenizer.load(base).stop_token_ids


def test_an_adapter_is_merged_into_a_base_that_has_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, adapter, moved, merged = (tmp_path / name for name in ("base", "adapter", "moved", "merged"))
    make_tiny(base, alphabet="abcdefgh", hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=2)
    trained = TrainedModel.load(base, LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for matrix in trained.state().values():
            matrix.add_(0.1)
    trained.save(trained.state(), adapter, companions=base)
    base.rename(moved)
    assert main(["model", "merge", str(adapter), str(merged)]) == 2
    assert "--base BASE" in capsys.readouterr().err
    assert main(["model", "merge", str(adapter), str(merged), "--base", str(moved)]) == 0
    tokens = [1, 2, 3]
    with torch.no_grad():
        expected = full_forward_logits(trained.decoder, tokens)
        torch.testing.assert_close(full_forward_logits(load_model(merged), tokens), expected, atol=1e-5, rtol=1e-5)
    assert main(["model", "merge", str(moved), str(tmp_path / "again")]) == 2
    assert "there is nothing to merge" in capsys.readouterr().err
