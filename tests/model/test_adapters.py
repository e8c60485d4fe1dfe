"""Adapters of PEFT's format from elsewhere: merged as PEFT merges them, or refused by the setting or tensor."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted_models import TOKENS, adapted, logprobs, save
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from reference_models import make_reference
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from freerun.errors import ModelError
from freerun.model.adapter_directory import check_directory
from freerun.model.checkpoint import load_model


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora"])
def test_an_adapter_whose_initialisation_changed_its_base_is_refused(tmp_path: Path, init: Any) -> None:
    base = tmp_path / "base"
    make_reference("llama", base)
    settings = PeftConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=init)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings).save_pretrained(str(tmp_path / "adapter"))
    for read in (load_model, check_directory):
        with pytest.raises(ModelError, match=f'init_lora_weights = "{init}" changed the weights of the base'):
            read(tmp_path / "adapter")


@pytest.mark.parametrize("init", ["gaussian", "orthogonal", "mica", True])
def test_an_initialisation_that_leaves_the_base_alone_is_merged_as_peft_merges_it(
    tmp_path: Path, init: Any
) -> None:
    base = tmp_path / "base"
    make_reference("llama", base)
    settings = PeftConfig(
        r=4, lora_alpha=8, target_modules=["q_proj"], layers_to_transform=[1], init_lora_weights=init
    )
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.add_(0.05)
        theirs = torch.log_softmax(peft(torch.tensor([TOKENS])).logits[0], dim=-1)
    peft.save_pretrained(str(tmp_path / "adapter"))
    check_directory(tmp_path / "adapter")
    torch.testing.assert_close(logprobs(load_model(tmp_path / "adapter")), theirs, atol=1e-4, rtol=1e-4)


def adapter_directory(tmp_path: Path, **settings: object) -> Path:
    """A sound adapter, but for `settings`."""
    base = tmp_path / "base"
    make_reference("llama", base)
    directory = save(adapted(load_model(base)), tmp_path / "adapter", base=base)
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return directory


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True), ("use_rslora", True), ("use_qalora", True), ("lora_bias", True),
        ("fan_in_fan_out", True), ("modules_to_save", ["embed_tokens"]), ("rank_pattern", {"q_proj": 2}),
        ("alpha_pattern", {"q_proj": 2}),
        ("layer_replication", [[0, 2]]), ("trainable_token_indices", [1]), ("target_parameters", ["x"]),
        ("corda_config", {"a": 1}), ("alora_invocation_tokens", [1]), ("an_option_of_tomorrow", 1),
    ],
)  # fmt: skip
def test_settings_of_peft_that_we_do_not_compute_are_refused(tmp_path: Path, key: str, value: object) -> None:
    directory = adapter_directory(tmp_path, **{key: value})
    for read in (load_model, check_directory):
        with pytest.raises(ModelError, match=f'"{key}" is not supported'):
            read(directory)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bias": "lora_only"}, 'bias = "lora_only" is not supported'),
        ({"peft_type": ["LORA"]}, "peft_type .* is not supported"),
        ({"r": "4"}, 'r = "4" is not a number'),
        ({"r": 0}, "r = 0 is not a number"),
        ({"r": None}, "r = null is not a number"),
        ({"r": 8}, r"r = 8 in adapter_config\.json ask for floats of shape \(8, "),
        ({"lora_alpha": {}}, r"lora_alpha = {\.\.\.} is not a number"),
        ({"lora_alpha": 10**400}, "lora_alpha = a number of 1329 bits is not a number"),
        ({"base_model_name_or_path": ["x"]}, "base_model_name_or_path is not a string"),
        ({"base_model_name_or_path": "x" * 5000}, "is not a model directory here"),
        ({"base_model_name_or_path": "a\0b"}, "is not a model directory here"),
    ],
)
def test_an_adapter_config_of_another_shape_is_refused(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    directory = adapter_directory(tmp_path, **settings)
    for read in (load_model, check_directory):
        with pytest.raises(ModelError, match=reason):
            read(directory)


def test_an_adapter_that_names_itself_as_its_base_is_refused(tmp_path: Path) -> None:
    directory = adapter_directory(tmp_path, base_model_name_or_path=str(tmp_path / "adapter"))
    shutil.copy(tmp_path / "base" / "config.json", directory)
    with pytest.raises(ModelError, match="is not a model directory here"):
        load_model(directory)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\udcff"])
def test_an_adapter_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    directory = adapter_directory(tmp_path)
    (directory / "adapter_config.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        check_directory(directory)


def test_adapter_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    directory = adapter_directory(tmp_path)
    weights = directory / "adapter_model.safetensors"
    sound = load_file(weights)
    name = min(sound)
    other = name.replace("lora_A", "lora_B")
    for change, reason in (
        ({name: sound[name].to(torch.int8)}, "is I8 of shape"),
        ({name: sound[name][:, 1:].clone()}, "of shape"),
        ({"base_model.model.lm_head.lora_A.weight": sound[name].clone()}, "is of no projection"),
    ):
        save_file(sound | change, weights)
        for read in (load_model, check_directory):
            with pytest.raises(ModelError, match=reason):
                read(directory)
    save_file({key: tensor for key, tensor in sound.items() if key != other}, weights)
    with pytest.raises(ModelError, match=f'tensor "{other}" is missing'):
        check_directory(directory)
    save_file(sound | {name: sound[name] * float("nan")}, weights)
    with pytest.raises(ModelError, match=f'tensor "{name}" holds NaN or infinity'):
        load_model(directory)
    weights.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        check_directory(directory)
