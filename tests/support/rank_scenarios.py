"""Trainings that must come out the same on any number of ranks; run as a script, it is one rank of several.

    python rank_scenarios.py RANK NUM_RANKS DIRECTORY [ADDRESS]

Rank 0 prints the address where the others find it, and writes what came of each scenario to the directory.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sessions import as_few_sequences_as_possible, make_sessions
from tiny_models import random_model, random_weights
from torch import Tensor
from training_batches import SHAPE, config, make_groups, make_trainer, replace, tiny_decoder, trajectories_of

from freerun.config.lora import LoraConfig
from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.data.demonstrations import demonstration_of
from freerun.model.decoder import Decoder
from freerun.model.lora import add_adapter, trained_parameters
from freerun.trainer.ranks import Ranks, snapshot
from freerun.trainer.supervised import SupervisedTrainer
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Group, Reward, StepResult


@dataclasses.dataclass
class Outcome:
    """What a scenario made: full tensors, weights and moments, and everything that was reported."""

    tensors: dict[str, Tensor]
    reports: list[dict[str, float]]


Scenario = Callable[[Ranks], Outcome]


def collect(ranks: Ranks, model: Decoder, trainer: Any, reports: list[dict[str, float]]) -> Outcome:
    weights = {f"weights.{name}": parameter.detach() for name, parameter in trained_parameters(model).items()}
    return Outcome(snapshot(ranks, {**weights, **trainer.optimizer_state()}), reports)


def sharded(ranks: Ranks, model: Decoder) -> Decoder:
    ranks.shard(model)
    return model


def train(
    ranks: Ranks,
    steps: list[list[Group]],
    objective: ObjectiveConfig,
    *,
    model: Decoder | None = None,
    reference: Decoder | None = None,
    **changes: Any,
) -> Outcome:
    model = sharded(ranks, model or tiny_decoder())
    trainer = make_trainer(model, config(**changes), objective, ranks=ranks)
    if reference is not None:
        trainer.reference = sharded(ranks, reference.requires_grad_(False))
    reports = [told(trainer.step(groups)) for groups in steps]
    return collect(ranks, model, trainer, reports)


def told(result: StepResult) -> dict[str, float]:
    """All that a step says about the batch and its trajectories, as numbers."""
    trained = {
        f"{name} {index}": value
        for index, trajectory in enumerate(result.trajectories)
        for name, value in (
            ("advantage", trajectory.advantage),
            ("num_clipped", trajectory.num_clipped),
            ("num_weights", trajectory.log_weights.size),
            *((f"log_weight {place} of", float(w)) for place, w in enumerate(trajectory.log_weights)),
            *((f"clipped {number} of", float(place)) for number, place in enumerate(trajectory.clipped)),
        )
    }
    return result.metrics | trained


def some_steps(num_steps: int = 2, **shape: int) -> list[list[Group]]:
    return [make_groups(seed, **shape) for seed in range(num_steps)]


def some_sessions(num_steps: int = 2) -> list[list[Group]]:
    """Sessions in branches: ranks and minibatches divide their parts."""
    return [
        as_few_sequences_as_possible(make_sessions(seed, branches=True, has_turns=True))
        for seed in range(num_steps)
    ]


def one_prompt(ranks: Ranks, objective: ObjectiveConfig) -> Outcome:
    """One family that fits one micro-batch: all ranks but one are idle, always."""
    return train(ranks, some_steps(num_groups=1, group_size=2), objective, micro_batch_tokens=200)


def poisoned_steps() -> list[list[Group]]:
    """The second step has a token whose weight overflows, in one of four minibatches."""
    first, second, third = some_steps(3)
    victim = trajectories_of(second)[6]
    spoiled = replace(second, completion=lambda t: {"logprobs": t.completion.logprobs - 200 * (t is victim)})
    return [first, spoiled, third]


def equal_rewards() -> list[list[Group]]:
    first, second, third = some_steps(3)
    return [first, replace(second, reward=lambda _: Reward(value=1.0, is_correct=True)), third]


def with_adapter(ranks: Ranks, **changes: Any) -> Outcome:
    model = tiny_decoder()
    add_adapter(model, LoraConfig(rank=3, alpha=6), seed=7)
    return train(ranks, some_steps(), PRESETS["grpo"], model=model, num_minibatches=2, **changes)


def with_untied_head(ranks: Ranks) -> Outcome:
    shape = dataclasses.replace(SHAPE, is_head_tied=False)
    return train(ranks, some_steps(), PRESETS["grpo"], model=random_model(0, shape), num_minibatches=2)


def supervised(ranks: Ranks, *, num_rows: int, **changes: Any) -> Outcome:
    model = sharded(ranks, tiny_decoder())
    trainer = SupervisedTrainer(model, config(**changes), ranks=ranks)
    reports: list[dict[str, float]] = []
    for groups in some_steps():
        rows = [demonstration_of(t.prompt.token_ids, t.completion.token_ids) for t in trajectories_of(groups)]
        before = trainer.loss(rows[:num_rows])
        reports.append({"before": before, "loss": trainer.step(rows[:num_rows], 0.02)})
    return collect(ranks, model, trainer, reports)


def restored(ranks: Ranks, objective: ObjectiveConfig) -> Outcome:
    """The second half by a new trainer, from full tensors as they stand in a checkpoint."""
    steps = some_steps()
    first_model = sharded(ranks, tiny_decoder())
    first = make_trainer(first_model, config(num_minibatches=2), objective, ranks=ranks)
    reports = [first.step(steps[0]).metrics]
    outcome = collect(ranks, first_model, first, [])
    saved = broadcast(ranks, outcome.tensors)
    weights = {n.removeprefix("weights."): t for n, t in saved.items() if n.startswith("weights.")}
    model = tiny_decoder(seed=1)
    model.load_state_dict(weights)
    ranks.shard(model)
    second: PolicyTrainer = make_trainer(
        model, config(num_minibatches=2), objective, ranks=ranks, version=first.version
    )
    second.load_optimizer_state({n: t for n, t in saved.items() if not n.startswith("weights.")})
    reports += [second.step(groups).metrics for groups in steps[1:]]
    return collect(ranks, model, second, reports)


def broadcast(ranks: Ranks, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What rank 0 has, on every rank; in a run the checkpoint's files do this."""
    names = ranks.gather(torch.tensor(list("\n".join(tensors).encode()), dtype=torch.uint8))[0]
    received = {}
    for name in bytes(names.tolist()).decode().split("\n"):
        own = tensors.get(name, torch.empty(0))
        flat = ranks.gather(own.double().reshape(-1))[0]
        shape = ranks.gather(torch.tensor(own.shape, dtype=torch.int64))[0].tolist()
        received[name] = flat.float().reshape(shape)
    return received


MINIBATCHES: dict[str, Any] = {"num_minibatches": 3}
SCENARIOS: dict[str, Scenario] = {
    "decoupled": lambda ranks: train(ranks, some_steps(), ObjectiveConfig(), **MINIBATCHES),
    "large micro-batches": lambda r: train(r, some_steps(), ObjectiveConfig(), micro_batch_tokens=10_000),
    "odd numbers": lambda r: train(
        r, some_steps(num_groups=3, group_size=3), PRESETS["grpo"], num_minibatches=2, micro_batch_tokens=30
    ),
    "clipped": lambda r: train(r, some_steps(), ObjectiveConfig(), max_grad_norm=0.05, **MINIBATCHES),
    "no correction": lambda r: train(r, some_steps(), PRESETS["cispo"], **MINIBATCHES),
    "one prompt": lambda ranks: one_prompt(ranks, ObjectiveConfig()),
    "one prompt, gspo": lambda ranks: one_prompt(ranks, PRESETS["gspo"]),
    "one prompt, critic": lambda ranks: one_prompt(ranks, PRESETS["ppo"]),
    "one prompt, m2po": lambda ranks: one_prompt(ranks, PRESETS["m2po"]),
    "equal rewards": lambda r: train(r, equal_rewards(), PRESETS["grpo"], **MINIBATCHES),
    "reference": lambda r: train(
        r,
        some_steps(),
        dataclasses.replace(PRESETS["grpo"], kl_coefficient=0.3, entropy_coefficient=0.2),
        reference=tiny_decoder(seed=1),
        **MINIBATCHES,
    ),
    "critic": lambda r: train(r, some_steps(), PRESETS["ppo"], **MINIBATCHES),
    "m2po": lambda r: train(r, some_steps(), PRESETS["m2po"], **MINIBATCHES),
    "sessions": lambda r: train(r, some_sessions(), PRESETS["gspo"], **MINIBATCHES),
    "sessions, critic": lambda r: train(
        r, some_sessions(), dataclasses.replace(PRESETS["ppo"], gae_lambda=0.6), **MINIBATCHES
    ),
    "poisoned": lambda r: train(r, poisoned_steps(), ObjectiveConfig(), num_minibatches=4),
    "adapter": with_adapter,
    "recomputed activations": lambda r: train(
        r, some_sessions(), PRESETS["ppo"], recompute_activations=True, **MINIBATCHES
    ),
    "recomputed activations, adapter": lambda ranks: with_adapter(ranks, recompute_activations=True),
    "untied head": with_untied_head,
    "supervised": lambda ranks: supervised(ranks, num_rows=7),
    "supervised, one row": lambda ranks: supervised(ranks, num_rows=1),
    "restored": lambda ranks: restored(ranks, ObjectiveConfig()),
    "restored critic": lambda ranks: restored(ranks, PRESETS["ppo"]),
}


QUICK = ("decoupled", "one prompt", "sessions", "critic", "recomputed activations")
"""Those that `make test` runs on two ranks."""


def main(rank: int, num_ranks: int, directory: Path, names: list[str], address: str) -> None:
    from freerun.trainer.fsdp import Meeting

    meeting = Meeting(rank=rank, num_ranks=num_ranks, address=address)
    if rank == 0:
        print(meeting.address, flush=True)
    ranks = meeting.join(torch.device("cpu"))
    model = sharded(ranks, random_model(0, SHAPE))
    shards: list[Any] = [*model.parameters()]
    own = sum(shard.to_local().numel() for shard in shards)
    by_rank = ranks.gather(torch.tensor([float(own)]))
    reports: dict[str, Any] = {"shares": [float(share) for share in by_rank]}
    for name in names:
        outcome = SCENARIOS[name](ranks)
        reports[name] = outcome.reports
        if rank == 0:
            save_file(outcome.tensors, directory / f"{name}.safetensors")
    if rank == 0:
        (directory / "reports.json").write_text(json.dumps(reports))
    ranks.barrier()


def num_weights() -> int:
    return sum(weight.numel() for weight in random_weights(0, SHAPE).values())


if __name__ == "__main__":
    rank, num_ranks, directory, names, *address = sys.argv[1:]
    main(int(rank), int(num_ranks), Path(directory), names.split(";"), "".join(address))
