"""Model directories that may be adapters, read without torch: finds the base, and checks whether it can be merged.

Merging adds `scale * B A` to the weights of the base. That is correct only if no setting changes what the matrices
mean. Settings that do not are listed; any other setting that is on is refused by name.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from freerun.config.lora import LORA_TARGETS, LoraConfig
from freerun.config.model_directory import read_object, shown
from freerun.errors import ConfigError, ModelError
from freerun.model.companions import check_companions
from freerun.model.decoder_config import DecoderConfig, read_config
from freerun.model.families import Projection, projections_of
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory
from freerun.model.weight_files import DTYPES, check_weights, file_headers

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
"""PEFT's prefix for the model that it wraps."""
UNCHANGED_BASE = ("true", "false", "gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights that leave the base as it is; PiSSA, OLoRA, CorDA and others subtract from it."""
IRRELEVANT = frozenset({
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "peft_type", "peft_version", "qalora_group_size", "r", "revision", "runtime_config", "target_modules",
    "task_type",
})  # fmt: skip
"""Settings that do not affect merging: tensor names show which modules they belong to."""


def is_adapter(directory: Path) -> bool:
    return (directory / ADAPTER_CONFIG_FILE).is_file()


def base_of(directory: Path) -> Path:
    """The model directory that the adapter was trained on."""
    config = read_adapter_config(directory)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str):
        raise ModelError(
            f"{directory / ADAPTER_CONFIG_FILE}: base_model_name_or_path is not a string; restore the file"
        )
    base = Path(local_directory(name, revision=revision if isinstance(revision, str) else ""))
    try:
        is_model = (base / "config.json").is_file() and not is_adapter(base)
    except OSError:  # no file can have such a name
        is_model = False
    if not is_model:
        fetch = f"{how_to_fetch(name)}," if is_hub_name(name) else "put it back,"
        raise ModelError(
            f"{directory}: the base model of this adapter, {shown(name)}, is not a model directory here; {fetch} "
            f"or name it where it is now: freerun model merge {directory} DIR --base BASE"
        )
    return base


def read_adapter_config(directory: Path) -> dict[str, Any]:
    """The adapter's settings; refuses those that would need more than its matrices to merge."""
    path = directory / ADAPTER_CONFIG_FILE
    config = read_object(path)
    if config.get("peft_type") != "LORA":
        raise ModelError(f'{path}: peft_type {shown(config.get("peft_type"))} is not supported, only "LORA"')
    _check_settings(config, path)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ModelError(f"{path}: r = {shown(rank)} is not a number of at least 1; restore the file")
    if type(alpha) not in (int, float) or not 0 < abs(alpha) < 1e30:  # type: ignore[arg-type]
        raise ModelError(f"{path}: lora_alpha = {shown(alpha)} is not a number to scale with; restore the file")
    return config


def _check_settings(config: Mapping[str, Any], path: Path) -> None:
    init = config.get("init_lora_weights", True)
    if str(init).lower() not in UNCHANGED_BASE:
        raise ModelError(
            f"{path}: init_lora_weights = {shown(init)} changed the weights of the base before training, so the "
            "adapter does not fit the base as it is; merge it with PEFT, or save it with PEFT's "
            "path_initial_model_for_weight_conversion"
        )
    if config.get("bias", "none") != "none":
        raise ModelError(f"{path}: bias = {shown(config['bias'])} is not supported; merge it with PEFT instead")
    for key, value in config.items():
        if value and key not in IRRELEVANT and key not in ("init_lora_weights", "bias"):
            raise ModelError(f"{path}: {shown(key)} is not supported; merge it with PEFT instead")


def check_adapter(directory: Path, config: DecoderConfig) -> None:
    """Refuse an adapter file that cannot be read, or a matrix that does not fit a model of this shape."""
    path, rank = directory / ADAPTER_WEIGHTS_FILE, read_adapter_config(directory)["r"]
    fitting: dict[str, tuple[int, ...]] = {}
    for projection in _projections(config, LORA_TARGETS):
        fitting[f"{PEFT_PREFIX}{projection.name}.lora_A.weight"] = (rank, projection.num_columns)
        fitting[f"{PEFT_PREFIX}{projection.name}.lora_B.weight"] = (projection.num_rows, rank)
    headers = file_headers(path)
    if not headers:
        raise ModelError(f"{path}: holds no matrices; save the adapter again")
    for name, header in headers.items():
        if name not in fitting:
            raise ModelError(f"{path}: tensor {shown(name)} is of no projection of its base; merge it with PEFT")
        if header.shape != fitting[name] or header.dtype not in DTYPES:
            raise ModelError(
                f"{path}: tensor {shown(name)} is {header.dtype} of shape {header.shape}; the base and r = {rank} "
                f"in {ADAPTER_CONFIG_FILE} ask for floats of shape {fitting[name]}"
            )
        other = name.replace("lora_A", "lora_B") if "lora_A" in name else name.replace("lora_B", "lora_A")
        if other not in headers:
            raise ModelError(
                f"{path}: tensor {shown(other)} is missing beside {shown(name)}; save the adapter again"
            )


def check_rank(lora: LoraConfig, config: DecoderConfig, directory: Path) -> None:
    """Refuse a rank above that of a target: it would train more numbers than the matrix itself."""
    if not lora.is_on:
        return
    thinnest = min(_projections(config, lora.targets), key=lambda p: min(p.num_rows, p.num_columns))
    target, rows, columns = thinnest.target, thinnest.num_rows, thinnest.num_columns
    if lora.rank > min(rows, columns):
        raise ConfigError(
            f"config: lora.rank = {lora.rank} exceeds the rank of {target}, {rows} x {columns} in the model in "
            f"{directory}; lower it to {min(rows, columns)} or leave {target} out of lora.targets"
        )


def num_adapter_parameters(lora: LoraConfig, config: DecoderConfig) -> int:
    return sum(lora.rank * (p.num_rows + p.num_columns) for p in _projections(config, lora.targets))


def _projections(config: DecoderConfig, targets: Collection[str]) -> Iterator[Projection]:
    return (p for _, projections in projections_of(config) for p in projections if p.target in targets)


def model_config(directory: Path) -> DecoderConfig:
    """The shape of the model in a directory, or of the base of an adapter directory."""
    return read_config(base_of(directory) if is_adapter(directory) else directory)


def check_directory(directory: Path) -> None:
    """Refuse a directory that could not be loaded, or an adapter whose base could not, with the reason.

    `--dry-run` and every start call this: it takes milliseconds, reading small files and the headers of weights.
    """
    check_companions(directory)
    model = base_of(directory) if is_adapter(directory) else directory
    check_companions(model)
    config = read_config(model)
    check_weights(model, config)
    if is_adapter(directory):
        check_adapter(directory, config)
