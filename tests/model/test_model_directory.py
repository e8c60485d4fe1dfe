"""Model directories that cannot be computed with are refused by name, before a process starts."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from reference_models import make_reference
from safetensors.torch import load_file, save_file
from tiny_runs import make_run
from torch import Tensor

from freerun.cli.main import main
from freerun.errors import ModelError
from freerun.model.adapter_directory import check_directory
from freerun.model.checkpoint import load_model, save_weights

GATE = "model.layers.1.mlp.gate_proj.weight"
Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def configure(directory: Path, **settings: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def refused(directory: Path, reason: str) -> None:
    """Both the check of `--dry-run` and the loader say the same."""
    for read in (check_directory, load_model):
        with pytest.raises(ModelError, match=reason) as caught:
            read(directory)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (GATE, torch.zeros(80, 48).to(torch.float8_e4m3fn)),
        (GATE, torch.zeros(80, 48, dtype=torch.int8)),
        (GATE, torch.zeros(80, 24, dtype=torch.uint8)),
        (f"{GATE}_scale_inv", torch.ones(1, 1)),
        (GATE.replace("weight", "SCB"), torch.ones(80)),
        (GATE.replace("weight", "qweight"), torch.zeros(6, 80, dtype=torch.int32)),
        (f"{GATE}.absmax", torch.ones(60)),
    ],
    ids=["fp8", "int8", "uint8", "weight_scale_inv", "SCB", "qweight", "absmax"],
)
def test_a_quantised_checkpoint_is_refused_by_the_tensor_that_shows_it(
    tmp_path: Path, name: str, tensor: Tensor
) -> None:
    make_reference("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensor}))
    refused(tmp_path, rf'tensor "{name}" of dtype \w+ belongs to quantised weights')


def test_a_config_that_announces_quantised_weights_is_refused(tmp_path: Path) -> None:
    make_reference("qwen3", tmp_path)
    configure(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    refused(tmp_path, r'the weights are quantised \(quantization_config, quant_method "fp8"\), which is not supp')


def test_every_half_precision_checkpoint_is_read_as_the_float32_it_stands_for(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        make_reference("llama", tmp_path)
        expected = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
        save_file(expected, tmp_path / "model.safetensors")
        check_directory(tmp_path)
        actual = load_model(tmp_path).get_parameter("embedding.weight")
        assert torch.equal(actual, expected["model.embed_tokens.weight"].float())


def test_a_tensor_that_the_model_does_not_use_is_refused_unless_it_is_derived(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    inverse = torch.ones(4)
    rewrite(tmp_path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": inverse}))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    check_directory(tmp_path)
    load_model(tmp_path)
    rewrite(tmp_path, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}))
    refused(tmp_path, r'tensor "model\.layers\.0\.self_attn\.q_proj\.bias" is not part of the model')


def test_each_tensor_is_compared_with_the_config_and_not_only_their_stack(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)

    def move_rows(tensors: dict[str, Tensor]) -> None:
        q, k = tensors[Q], tensors[K]
        tensors[Q], tensors[K] = q[:-8].clone(), torch.cat((q[-8:], k))

    rewrite(tmp_path, move_rows)
    refused(tmp_path, r'q_proj\.weight" has shape \(40, 48\), config\.json asks for \(48, 48\)')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused_when_it_is_read(tmp_path: Path, value: float) -> None:
    make_reference("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors[GATE].view(-1)[1234:1235].fill_(value))
    with pytest.raises(ModelError, match=f'tensor "{GATE}" holds NaN or infinity'):
        load_model(tmp_path)


def test_a_weight_too_large_for_float32_is_refused_when_it_is_read(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({GATE: tensors[GATE].double() + 1e300}))
    with pytest.raises(ModelError, match=f'tensor "{GATE}" holds NaN or infinity'):
        load_model(tmp_path)


def test_the_pointer_that_git_lfs_leaves_says_how_to_get_the_weights(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 988097824\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    refused(tmp_path, r"model\.safetensors: a git-LFS pointer instead of the weights; run `git lfs pull`")


def test_missing_weights_are_refused_and_pickles_are_named(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refused(tmp_path, r"neither model\.safetensors nor model\.safetensors\.index\.json; fetch")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    refused(tmp_path, r"only pytorch_model\.bin: save it with transformers as safetensors")


@pytest.mark.parametrize("length", [0, 7, 300, 5000, -1])
def test_a_file_cut_short_anywhere_is_named(tmp_path: Path, length: int) -> None:
    make_reference("llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    refused(tmp_path, r"model\.safetensors: cannot be read \(.*\); it is damaged or cut short")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard = min(tmp_path.glob("model-*.safetensors"))
    shard.unlink()
    refused(tmp_path, f"{shard.name}: no such file; fetch the model again")


def sharded(directory: Path) -> Path:
    make_reference("llama", directory)
    model = load_model(directory)
    (directory / "model.safetensors").unlink()
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_weights(state, model.config, directory, max_shard_bytes=20_000)
    return directory / "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", '"weight_map" is not an object'),
        ('{"weight_map": null}', '"weight_map" is not an object'),
        ('{"weight_map": []}', '"weight_map" is not an object'),
        ('{"weight_map": {}}', '"weight_map" is not an object'),
        ('{"weight_map": {"a": 1}}', "1 is not a safetensors file beside it"),
        ('{"weight_map": {"a": ["b"]}}', "is not a safetensors file beside it"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "is not a safetensors file beside it"),
        ('{"weight_map": {"a": "config.json"}}', "is not a safetensors file beside it"),
        ('{"weight_map": {"a": "\\u0000.safetensors"}}', "is not a safetensors file beside it"),
        ("[" * 100_000, "nested too deeply"),
        ('{"weight_map": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_an_index_of_another_shape_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    sharded(tmp_path).write_text(text)
    refused(tmp_path, reason)


def test_a_tensor_that_two_files_hold_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    first, second = sorted(tmp_path.glob("model-*.safetensors"))[:2]
    save_file(load_file(first) | load_file(second), second)
    refused(tmp_path, rf'{second.name}: tensor ".*" is in {first.name} too')


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
)
@pytest.mark.parametrize("size", [10**5 * 48, 2**63, 10**4000])
def test_sizes_that_the_weights_do_not_have_are_refused_before_a_layer_is_built(
    tmp_path: Path, key: str, size: int
) -> None:
    make_reference("llama", tmp_path)
    configure(tmp_path, head_dim=8, **{key: size})
    refused(tmp_path, r"config\.json")


def test_more_layers_than_the_config_names_are_refused_too(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    configure(tmp_path, num_hidden_layers=2)
    refused(tmp_path, r'tensor "model\.layers\.2\..*" is not part of the model')


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": []}, r"model_type \[\.\.\.\] is outside the supported family"),
        ({"model_type": {}}, r"model_type \{\.\.\.\} is outside the supported family"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings = 1099511627776 exceeds"),
        ({"num_key_value_heads": 4}, "num_attention_heads = 6 is not a multiple of num_key_value_heads = 4"),
        ({"head_dim": 7}, "attention heads of size 7 cannot be rotated"),
        ({"rms_norm_eps": "small"}, 'rms_norm_eps = "small" is not a number greater than 0'),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = NaN is not a number greater than 0"),
        ({"rope_parameters": None, "rope_theta": [1]}, r"rope_theta = \[\.\.\.\] is not a number greater than 0"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta = a number of 1329 bits is not a number"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rotary settings that differ by layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor other than 1"),
        ({"layer_types": ["sliding_attention"] * 3}, 'layer_types other than "full_attention"'),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    make_reference("llama", tmp_path)
    configure(tmp_path, **settings)
    refused(tmp_path, reason)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [18446744073709551616], "data_offsets": [0, 4]}}',
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    make_reference("llama", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refused(tmp_path, r"model\.safetensors: cannot be read")


@pytest.mark.parametrize("arguments", [("--dry-run",), ()])
def test_a_plan_and_a_start_refuse_the_same_weights_in_one_line_and_leave_nothing(
    tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_run(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(tmp_path / "model", lambda tensors: tensors.update({f"{name}_scale_inv": torch.ones(1, 1)}))
    capsys.readouterr()
    assert main(["train", str(recipe), *arguments]) == 2
    assert capsys.readouterr().err.startswith(
        f'freerun: {tmp_path}/model/model.safetensors: tensor "{name}_scale_inv" of dtype F32 belongs to quantised'
    )
    assert not (tmp_path / "runs").exists()


def test_a_name_from_a_file_is_quoted_in_plain_characters(tmp_path: Path) -> None:
    make_reference("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"a\x1b[2J\nb" + "é" * 500: torch.ones(1)}))
    with pytest.raises(ModelError, match=r'tensor "a\\u001b\[2J\\nb(\\u00e9)+') as caught:
        check_directory(tmp_path)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 500
