"""Checks the weight files of a model directory by their headers: fast, without torch, before anything starts.

    model.safetensors, or the files that model.safetensors.index.json names
      ─► name, dtype and shape of every tensor ─► compared, one by one, with what config.json asks for

Loading (`checkpoint.py`) begins with the same check, so `--dry-run` refuses what a run would refuse. NaN and
infinity are only found when the numbers are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from freerun.config.model_directory import read_object, shown
from freerun.errors import ModelError
from freerun.model.decoder_config import UNQUANTISE, DecoderConfig
from freerun.model.families import stacked_parts

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD = re.compile(r"[\w.+-]+\.safetensors", re.ASCII)
"""A shard next to the index, never a path to another directory."""
DTYPES = ("F64", "F32", "F16", "BF16")
"""safetensors' names of the dtypes that can be read as float32 without a scale."""
QUANTISED = re.compile(
    r"(weight_scale|weight_scale_inv|weight_scale_2|input_scale|SCB|weight_format|qweight|qzeros|scales|g_idx|absmax"
    r"|nested_absmax|quant_map|nested_quant_map|quant_state\.\w+|weight_packed|weight_shape|weight_zero_point)$"
)
"""Names of tensors that quantisation methods store beside a weight, or instead of it."""
DERIVED = re.compile(r"^model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$")
"""Names of tensors in older checkpoints that can be derived from config.json."""
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorHeader:
    file: Path
    dtype: str
    shape: tuple[int, ...]


def check_weights(directory: Path, config: DecoderConfig) -> dict[str, TensorHeader]:
    """The directory's tensors by name; refuses any that is missing, left over, quantised or of another shape."""
    headers = read_headers(directory)
    _refuse_quantised(headers)
    expected: set[str] = set()
    # Compared one at a time: a config.json with a million layers fails at the first missing one.
    for _, parts in stacked_parts(config):
        for name, shape in parts:
            expected.add(name)
            if name not in headers:
                raise ModelError(
                    f"{directory}: tensor {shown(name)} is missing from the weights, config.json asks for it; "
                    "fetch the model again"
                )
            if headers[name].shape != shape:
                raise ModelError(
                    f"{headers[name].file}: tensor {shown(name)} has shape {headers[name].shape}, config.json "
                    f"asks for {shape}; the directory mixes two models"
                )
    if config.is_head_tied:
        expected.add("lm_head.weight")  # a copy of the embedding
    for name in sorted(headers.keys() - expected):
        if not DERIVED.match(name):
            raise ModelError(
                f"{headers[name].file}: tensor {shown(name)} is not part of the model that config.json describes; "
                "use a plain causal language model"
            )
    return headers


def read_headers(directory: Path) -> dict[str, TensorHeader]:
    """The headers of all tensors in the directory's weight files."""
    headers: dict[str, TensorHeader] = {}
    for path in _weight_files(directory):
        for name, header in file_headers(path).items():
            if name in headers:
                raise ModelError(
                    f"{path}: tensor {shown(name)} is in {headers[name].file.name} too; remove one of them"
                )
            headers[name] = header
    return headers


def file_headers(path: Path) -> dict[str, TensorHeader]:
    """The headers of one safetensors file, whose length must match them."""
    if not path.is_file():  # not a pipe, for example, which would never end
        raise ModelError(f"{path}: no such file; fetch the model again")
    try:
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ModelError(
                    f"{path}: a git-LFS pointer instead of the weights; run `git lfs pull` in {path.parent}"
                )
        with safe_open(path, framework="numpy") as weights:
            names = weights.keys()  # a safe_open cannot be iterated over
            return {name: _header(path, weights.get_slice(name)) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: cannot be read ({error}); it is damaged or cut short: fetch the model again"
        ) from None


def _header(path: Path, tensor: Any) -> TensorHeader:
    return TensorHeader(path, tensor.get_dtype(), tuple(tensor.get_shape()))


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if index.is_file():
        return [directory / name for name in _indexed(index)]
    if (directory / WEIGHTS_FILE).is_file():
        return [directory / WEIGHTS_FILE]
    others = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in directory.glob(pattern)
    )
    instead = (
        f", only {others[0]}: save it with transformers as safetensors" if others else "; fetch the model again"
    )
    raise ModelError(f'model directory "{directory}" has neither {WEIGHTS_FILE} nor {INDEX_FILE}{instead}')


def _indexed(index: Path) -> list[str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f'{index}: "weight_map" is not an object that names files; fetch the model again')
    for name in weight_map.values():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise ModelError(f"{index}: {shown(name)} is not a safetensors file beside it; fetch the model again")
    return sorted(set(weight_map.values()))


def _refuse_quantised(headers: Mapping[str, TensorHeader]) -> None:
    for name, header in headers.items():
        if QUANTISED.search(name) or header.dtype not in DTYPES:
            raise ModelError(
                f"{header.file}: tensor {shown(name)} of dtype {header.dtype} belongs to quantised weights, "
                f"which are not supported; {UNQUANTISE}"
            )
