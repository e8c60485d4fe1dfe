"""The trainer's real processes, several ranks of them: checkpoints reshard, and losing one is losing all."""

import asyncio
import dataclasses
import os
import signal
import string
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import torch
from process_table import children_running
from safetensors.torch import load_file, save_file
from tiny_runs import are_gone, recipe_of
from torch import Tensor
from training_batches import CONFIG, MAX_COMPLETION_TOKENS, TEMPERATURE, VERSION, assert_close, make_groups

from freerun.config.lora import LoraConfig
from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.errors import CheckpointError, WorkerError
from freerun.model.checkpoint import load_model
from freerun.model.tiny import make_tiny
from freerun.processes.local import LocalLauncher
from freerun.session.assembly import make_trainer
from freerun.trainer.trainer import PolicyTrainer
from freerun.weights.buffers import create_buffers, shared_route
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel
from freerun.workers.messages import DIVERGED, StartTrainer
from freerun.workers.trainer_client import TrainerClient

TRAIN = dataclasses.replace(CONFIG, num_minibatches=2)


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 40}
    make_tiny(directory, alphabet=string.ascii_letters, seed=5, **sizes)
    (tmp_path / "recipe.toml").write_text(f'[model]\npath = "{directory}"\n[data]\ntask = "euclid"\n')
    return directory


@asynccontextmanager
async def trainer_of(
    num_ranks: int,
    model_directory: Path,
    *,
    objective: ObjectiveConfig,
    checkpoint: Path | None = None,
    version: int = VERSION,
    silence_seconds: float = 30.0,
) -> AsyncIterator[tuple[TrainerClient, SharedMemoryChannel]]:
    """A started trainer of real processes, and the buffers that it publishes to; nothing is left at the end."""
    recipe = recipe_of(
        model_directory.parent / "recipe.toml",
        "--train.num_ranks",
        str(num_ranks),
        "--runtime.silence_seconds",
        str(silence_seconds),
    )
    buffers = create_buffers("ranks")
    launcher = LocalLauncher(model_directory.parent / "logs", {}, weights=shared_route(buffers))
    trainer = await make_trainer(recipe, launcher, on_progress=lambda _: None)
    workers = children_running("train_worker")
    try:
        assert len(workers) == num_ranks
        await trainer.start(
            StartTrainer(
                model_directory=str(checkpoint / "model" if checkpoint else model_directory),
                adapter_directory="",
                lora=LoraConfig(),
                seed=0,
                companions_directory=str(model_directory),
                train=dataclasses.replace(TRAIN, num_ranks=num_ranks),
                objective=objective,
                temperature=TEMPERATURE,
                max_completion_tokens=MAX_COMPLETION_TOKENS,
                is_truncated=False,
                version=version,
                optimizer_file=str(checkpoint / "optimizer.safetensors") if checkpoint else "",
                reference_directory="",
                weights=launcher.weights,
            )
        )
        yield trainer, SharedMemoryChannel(buffers, WeightLayout(load_model(model_directory)))
    finally:
        await trainer.close()
        await launcher.close()
    assert are_gone(workers)


async def within(seconds: float, what: str, awaited: Awaitable[object]) -> None:
    try:
        await asyncio.wait_for(awaited, seconds)
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s for {what}") from None


@pytest.mark.slow
def test_a_checkpoint_of_one_number_of_ranks_is_continued_by_another(
    model_directory: Path, tmp_path: Path
) -> None:
    num_ranks = (2, 1, 3)
    objective = PRESETS["ppo"]  # with a critic, which is not sharded

    async def main() -> None:
        checkpoint: Path | None = None
        for number, ranks in enumerate(num_ranks):
            directory = tmp_path / f"step-{number}"
            directory.mkdir()
            version = VERSION + number
            async with trainer_of(
                ranks, model_directory, objective=objective, checkpoint=checkpoint, version=version
            ) as (trainer, buffers):
                assert (await trainer.step(make_groups(number))).version == version + 1
                published = await trainer.publish()
                await trainer.save(str(directory), version=version + 1)
                weights = dict(load_model(directory / "model").named_parameters())
                fetched = buffers.fetch(published)
                assert all(torch.equal(fetched[name], weights[name]) for name in weights)
            checkpoint = directory

    asyncio.run(main())

    model = load_model(model_directory)
    uninterrupted = PolicyTrainer(
        model,
        TRAIN,
        objective,
        temperature=TEMPERATURE,
        max_completion_tokens=MAX_COMPLETION_TOKENS,
        version=VERSION,
    )
    for number in range(len(num_ranks)):
        uninterrupted.step(make_groups(number))
    last = tmp_path / f"step-{len(num_ranks) - 1}"
    assert_close(state_of(last), dict(model.named_parameters()), tolerance=1e-6)
    assert_close(load_file(last / "optimizer.safetensors"), uninterrupted.optimizer_state(), tolerance=1e-6)


def state_of(checkpoint: Path) -> dict[str, Tensor]:
    return dict(load_model(checkpoint / "model").named_parameters())


def listening_ports(processes: Collection[psutil.Process]) -> list[tuple[str, int]]:
    connections = [c for process in processes for c in process.net_connections("tcp")]
    return [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]


@pytest.mark.slow
def test_ranks_of_one_machine_meet_at_no_port_and_leave_nothing(model_directory: Path) -> None:
    async def ports_and_workers() -> tuple[list[tuple[str, int]], list[psutil.Process]]:
        async with trainer_of(2, model_directory, objective=PRESETS["areal"]):
            workers = children_running("train_worker")
            return listening_ports(workers), workers

    ports, workers = asyncio.run(ports_and_workers())
    # One for each rank is gloo's; there is none for the store.
    assert len(set(ports)) == 2
    assert {host for host, _ in ports} == {"127.0.0.1"}
    assert are_gone(workers)


@pytest.mark.slow
def test_the_silence_of_one_rank_ends_all_and_is_told_by_name(model_directory: Path) -> None:
    async def main() -> str:
        async with trainer_of(2, model_directory, objective=ObjectiveConfig(), silence_seconds=3) as (trainer, _):
            workers = children_running("train_worker")
            steps = asyncio.create_task(keep_busy(trainer))
            os.kill(workers[1].pid, signal.SIGSTOP)
            with pytest.raises(WorkerError) as raised:
                await within(60, "the silence of a rank to be noticed", trainer.wait_for_loss())
            with pytest.raises(WorkerError):
                await within(10, "the step under way to fail", steps)
            assert await asyncio.to_thread(are_gone, workers)
            return str(raised.value)

    reason = asyncio.run(main())
    assert "the trainer fell silent for 3 s" in reason
    assert "trainer-1" in reason


async def keep_busy(trainer: TrainerClient) -> None:
    while True:
        await trainer.step(make_groups())


@pytest.mark.slow
def test_a_checkpoint_of_several_ranks_leaves_the_next_step_as_it_was(
    model_directory: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()

    async def main() -> dict[str, Tensor]:
        async with trainer_of(2, model_directory, objective=PRESETS["areal"]) as (trainer, buffers):
            await trainer.step(make_groups(0))
            await trainer.save(str(directory), version=VERSION + 1)
            await trainer.step(make_groups(1))
            published = await trainer.publish()
            return {name: w.clone() for name, w in buffers.fetch(published).items()}

    model = load_model(model_directory)
    alone = PolicyTrainer(
        model,
        TRAIN,
        PRESETS["areal"],
        temperature=TEMPERATURE,
        max_completion_tokens=MAX_COMPLETION_TOKENS,
        version=VERSION,
    )
    for number in range(2):
        alone.step(make_groups(number))
    assert_close(asyncio.run(main()), dict(model.named_parameters()), tolerance=1e-6)


@pytest.mark.slow
def test_ranks_notice_together_that_training_has_diverged(model_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    file = model_directory / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] *= 1e38
    weights["model.embed_tokens.weight"] *= 1e3
    save_file(weights, file, metadata={"format": "pt"})

    async def main() -> None:
        async with trainer_of(2, model_directory, objective=PRESETS["areal"]) as (trainer, _):
            result = await trainer.step(make_groups())
            assert result.metrics[DIVERGED]
            await trainer.publish()
            with pytest.raises(CheckpointError, match="its logits are not finite"):
                await trainer.save(str(directory), version=result.version)

    asyncio.run(main())
    assert list(directory.iterdir()) == []
