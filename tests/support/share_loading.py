"""One of several ranks that load models: what they hold is gathered and saved, and so is how much memory it took.

    python share_loading.py RANK NUM_RANKS DIRECTORY [ADDRESS]

The directory has what `write_models` made. Memory is that of a rank at its peak, with the files that it maps.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from adapted_models import ALL, adapted, save
from safetensors.torch import load_file, save_file
from tiny_models import TINY, random_weights
from torch import Tensor
from training_batches import config

from freerun.config.lora import LoraConfig
from freerun.model.checkpoint import load_model, save_weights
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig
from freerun.model.trained import TrainedModel
from freerun.trainer.optimizer import Optimizer
from freerun.trainer.ranks import Ranks, snapshot
from freerun.trainer.reference import load_reference

LARGE = dataclasses.replace(TINY, vocab_size=120_000, hidden_size=96, intermediate_size=20_000)
CPU = torch.device("cpu")


def write_models(directory: Path) -> None:
    """`small` and `large` models, an `adapter` of the small one, and the `moments` of the large one."""
    for name, shape in (("small", TINY), ("large", LARGE)):
        write_model(directory / name, shape)
    save(adapted(load_model(directory / "small")), directory / "adapter", base=directory / "small")
    moments = {
        f"{key}.{name}": weight
        for seed, key in ((1, "exp_avg"), (2, "exp_avg_sq"))
        for name, weight in random_weights(seed, LARGE).items()
    }
    steps = {f"step.{name}": torch.tensor(1.0) for name in random_weights(1, LARGE)}
    save_file({**moments, **steps, "num_updates": torch.tensor(1)}, directory / "moments")


def write_model(directory: Path, shape: DecoderConfig) -> None:
    directory.mkdir()
    save_weights(random_weights(0, shape), shape, directory, max_shard_bytes=50_000_000)
    settings = {
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.is_head_tied,
    }
    (directory / "config.json").write_text(json.dumps(settings))


def loaded(directory: Path, ranks: Ranks) -> dict[str, tuple[Decoder, str]]:
    """Every kind of model that a trainer loads, with the checksum of what is frozen."""
    small, adapter = directory / "small", directory / "adapter"
    trained = {
        "full": TrainedModel.load(small, LoraConfig(), seed=7, shares=ranks),
        "new adapter": TrainedModel.load(small, ALL, seed=7, shares=ranks),
        "saved adapter": TrainedModel.load(small, ALL, seed=7, adapter=adapter, shares=ranks),
    }
    reference = load_reference(adapter, ranks, device=CPU)
    return {name: (t.decoder, t.frozen) for name, t in trained.items()} | {"merged": (reference, "")}


def whole_weights(ranks: Ranks, model: Decoder) -> dict[str, Tensor]:
    return snapshot(ranks, {name: parameter.detach() for name, parameter in model.named_parameters()})


def peak_growth(work: Callable[[], object]) -> tuple[int, object]:
    """By how many bytes this process grew at most while it worked, and what it made."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_bytes()
    made = work()
    return _peak_bytes() - before, made


def _peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def main(rank: int, num_ranks: int, directory: Path, address: str) -> None:
    from freerun.trainer.fsdp import Meeting

    meeting = Meeting(rank=rank, num_ranks=num_ranks, address=address)
    if rank == 0:
        print(meeting.address, flush=True)
    ranks = meeting.join(CPU)
    frozen: dict[str, str] = {}
    for name, (model, checksum) in loaded(directory, ranks).items():
        weights = whole_weights(ranks, model)
        frozen[name] = checksum
        if rank == 0:
            save_file(weights, directory / f"{name}.safetensors")
    grown, trained = peak_growth(
        lambda: TrainedModel.load(directory / "large", LoraConfig(), seed=0, shares=ranks)
    )
    assert isinstance(trained, TrainedModel)
    optimizer = Optimizer(trained.decoder, config(), ranks=ranks)
    resumed, _ = peak_growth(lambda: optimizer.load_state(load_file(directory / "moments")))
    moments = snapshot(ranks, optimizer.state())
    report = {"frozen": frozen, "model": grown, "moments": resumed}
    (directory / f"rank-{rank}.json").write_text(json.dumps(report))
    if rank == 0:
        save_file(moments, directory / "resumed")
    ranks.barrier()


if __name__ == "__main__":
    rank, num_ranks, directory, *address = sys.argv[1:]
    main(int(rank), int(num_ranks), Path(directory), "".join(address))
