"""Ways to divide GPUs between rollouts and training: which fit into memory, and an upper bound of their speed.

The closed form assumes generation at full batches, training without waits, and no more samples in flight than the
staleness bound allows. It is used only to choose what to simulate.
"""

import math
from dataclasses import dataclass, replace

from freerun.backends.backend import find_backend
from freerun.config.engine import BYTES
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.model.adapter_directory import num_adapter_parameters
from freerun.model.decoder_config import DecoderConfig
from freerun.simulation.costs import (
    CONSTANTS,
    FORWARD_BACKWARD,
    Constants,
    RooflineEngine,
    RooflineTrainer,
    WeightCosts,
    weight_costs,
)
from freerun.simulation.hardware import Gpu
from freerun.simulation.run import Setup
from freerun.simulation.shapes import BFLOAT16_BYTES, ModelShape
from freerun.simulation.workload import Workload

NUM_PARTS = 16
"""Granularity of the splits: sixteenths of the GPUs."""
TRAINED_BYTES = 16
"""Bytes per parameter: weights, gradients and two moments in float32."""
MAX_SIMULATED = 512
"""Maximal trajectories per step; larger runs are simulated at a smaller scale, with fewer engines and ranks."""
MIN_PROMPTS = 16
MIN_ENGINES = 2


@dataclass(frozen=True)
class Machine:
    """The machine and model of a plan."""

    gpu: Gpu
    kind: str
    shape: ModelShape
    constants: Constants = CONSTANTS


@dataclass(frozen=True)
class GpuSplit:
    """GPUs for rollouts, in engines of equal size, and GPUs for training."""

    num_engines: int
    gpus_per_engine: int
    num_trainer_gpus: int

    @property
    def num_rollout_gpus(self) -> int:
        return self.num_engines * self.gpus_per_engine

    @property
    def num_gpus(self) -> int:
        return self.num_rollout_gpus + self.num_trainer_gpus

    def __str__(self) -> str:
        parallel = f", TP {self.gpus_per_engine}" if self.gpus_per_engine > 1 else ""
        return f"{self.num_rollout_gpus} + {self.num_trainer_gpus}{parallel}"


def split_of(recipe: Recipe) -> GpuSplit:
    """The split of the recipe."""
    engine = recipe.engine
    return GpuSplit(engine.num_workers, engine.num_gpus, recipe.train.num_ranks)


def num_published(recipe: Recipe, shape: ModelShape) -> int:
    """Number of parameters that each step publishes; those of the adapter, if there is one."""
    if not recipe.lora.is_on:
        return shape.num_parameters
    return num_adapter_parameters(recipe.lora, _decoder_config(shape))


def published_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Bytes of a version: whole models travel in the engines' dtype, adapters in float32 (`weights/layout.py`)."""
    return num_published(recipe, shape) * BYTES["float32" if recipe.lora.is_on else recipe.engine.dtype]


def trainer_bytes(recipe: Recipe, shape: ModelShape, num_ranks: int) -> float:
    """Bytes of a rank: its share of the state, embedding and head while it computes, and one micro-batch."""
    trained = num_published(recipe, shape)
    frozen = 0 if trained == shape.num_parameters else 4 * shape.num_parameters
    copies = 2 * shape.num_parameters if recipe.train.dtype == "bfloat16" else 0
    state = (TRAINED_BYTES * trained + frozen + copies) / num_ranks
    whole = 2 * 2 * 4 * shape.vocab_size * shape.hidden_size if num_ranks > 1 else 0
    tokens = recipe.train.micro_batch_tokens
    kept = shape.activation_bytes
    if recipe.train.recompute_activations:  # the input of each layer, and all activations of one layer
        kept = shape.activation_bytes // shape.num_layers + shape.num_layers * BFLOAT16_BYTES * shape.hidden_size
    activations = tokens * kept * (1 if recipe.train.dtype == "bfloat16" else 2)
    return state + whole + activations + 3 * 4 * tokens * shape.vocab_size


def candidates(recipe: Recipe, machine: Machine, num_gpus: int) -> list[GpuSplit]:
    """Splits that fit into memory, with the smallest engines that fit and with larger ones."""
    if num_gpus < 2:
        raise FreerunError(f"--gpus {num_gpus}: rollouts and training need at least one GPU each; give 2 or more")
    sizes = [size for size in (1, 2, 4, 8) if size <= machine.gpu.gpus_per_node and _holds(recipe, machine, size)]
    if not sizes:
        raise FreerunError(
            f"no engine of up to {machine.gpu.gpus_per_node} GPUs of {machine.kind} holds the weights and half a "
            f"group of sequences of {recipe.max_sequence_tokens:,} tokens; take a larger GPU or shorter ones"
        )
    sizes = sorted({*sizes[:3], *({recipe.engine.num_gpus} & set(sizes))})
    shares = {max(1, round(num_gpus * part / NUM_PARTS)) for part in range(1, NUM_PARTS)}
    found = {
        GpuSplit(rollout // size, size, num_gpus - rollout // size * size)
        for size in sizes
        for rollout in shares
        if 0 < rollout // size <= 1024 and num_gpus - rollout // size * size > 0
    }
    fitting = [s for s in found if trainer_bytes(recipe, machine.shape, s.num_trainer_gpus) <= _room(machine.gpu)]
    if not fitting:
        needed = trainer_bytes(recipe, machine.shape, num_gpus - 1) / 1e9
        raise FreerunError(
            f"the trainer needs {needed:,.0f} GB on each of {num_gpus - 1} GPUs of {machine.kind} with "
            f"{machine.gpu.memory_bytes / 1e9:,.0f} GB; lower train.micro_batch_tokens = "
            f"{recipe.train.micro_batch_tokens}, set lora.rank, or take more GPUs"
        )
    return sorted(fitting, key=lambda s: (s.num_rollout_gpus, s.gpus_per_engine))


def _room(gpu: Gpu) -> float:
    return 0.95 * gpu.memory_bytes


def _holds(recipe: Recipe, machine: Machine, num_gpus: int) -> bool:
    """Whether the weights and half a group of the longest sequences fit."""
    engine = RooflineEngine(machine.gpu, machine.shape, num_gpus, machine.constants)
    longest = recipe.max_sequence_tokens
    return engine.cache_tokens >= max(longest, recipe.sampling.group_size * longest // 2)


def steady_steps(max_staleness: int) -> tuple[int, int]:
    """Number of steps until the pipeline is full, and number of steps to measure after that.

    Long completions recur together every `max_staleness + 1` steps; the window is a multiple of this period.
    """
    period = min(max_staleness, 11) + 1
    return period + 2, period * math.ceil(8 / period)


def setup_of(
    recipe: Recipe, machine: Machine, split: GpuSplit, workload: Workload, *, num_steps: int | None = None
) -> Setup:
    """The setup on these GPUs, at the smallest scale that keeps the result; with `num_steps`, all of its steps."""
    scale = _scale(recipe, split) if num_steps is None else 1
    num_warm, num_measured = steady_steps(recipe.buffer.max_staleness) if num_steps is None else (0, num_steps)
    engine = RooflineEngine(machine.gpu, machine.shape, split.gpus_per_engine, machine.constants)
    config = replace(
        recipe.engine,
        num_workers=split.num_engines // scale,
        min_workers=0,
        num_gpus=1,
        cache_tokens=min(engine.cache_tokens, 10**9),
        prefill_chunk_tokens=find_backend(recipe.engine.backend).prefill_tokens(recipe.engine),
        addresses=(),
    )
    prompts = recipe.train.prompts_per_step // scale
    scaled = replace(
        recipe,
        engine=config,
        train=replace(recipe.train, prompts_per_step=prompts, num_steps=num_warm + num_measured),
        reward=replace(recipe.reward, num_workers=max(1, round(recipe.reward.num_workers / scale))),
    )
    return Setup(
        recipe=scaled,
        engine_costs=engine,
        trainer_costs=RooflineTrainer(
            machine.gpu,
            machine.shape,
            split.num_trainer_gpus / scale,
            passes=passes_of(recipe),
            constants=machine.constants,
        ),
        lengths=workload.lengths,
        weights=weights_of(recipe, machine),
        prompt_tokens=workload.prompt_tokens,
        grade_seconds=workload.grade_seconds,
        num_warm_steps=num_warm,
    )


def scale_of(recipe: Recipe, setup: Setup) -> int:
    """How many times larger the run is than its simulation."""
    return recipe.train.prompts_per_step // setup.recipe.train.prompts_per_step


def _scale(recipe: Recipe, split: GpuSplit) -> int:
    prompts = recipe.train.prompts_per_step
    scale = 1
    while (
        recipe.batch_size // scale > MAX_SIMULATED
        and prompts % (2 * scale) == 0
        and prompts // (2 * scale) >= MIN_PROMPTS
        and split.num_engines % (2 * scale) == 0
        and split.num_engines // (2 * scale) >= MIN_ENGINES
    ):
        scale *= 2
    return scale


def passes_of(recipe: Recipe) -> float:
    """Passes over a batch: the first minibatch needs no proximal forward, unless the objective requires it."""
    objective, num_minibatches = recipe.objective, recipe.train.num_minibatches
    if objective.decides_over_the_step:
        return FORWARD_BACKWARD + 1
    return FORWARD_BACKWARD + ((num_minibatches - 1) / num_minibatches if objective.uses_proximal else 0)


def weights_of(recipe: Recipe, machine: Machine) -> WeightCosts:
    return weight_costs(machine.gpu, published_bytes(recipe, machine.shape))


def expected_tokens_per_second(recipe: Recipe, machine: Machine, split: GpuSplit, workload: Workload) -> float:
    """The closed form: an upper bound of the split's trained tokens per second."""
    mean = workload.mean_length(recipe.sampling.group_size)
    tokens = workload.prompt_tokens + mean
    engine = RooflineEngine(machine.gpu, machine.shape, split.gpus_per_engine, machine.constants)
    trainer = RooflineTrainer(
        machine.gpu, machine.shape, split.num_trainer_gpus, passes_of(recipe), machine.constants
    )
    weights = weights_of(recipe, machine)
    training = trainer.step_seconds([round(tokens)] * recipe.batch_size) + weights.hold_seconds
    cached = workload.prompt_tokens + mean / 2
    at_once = min(
        recipe.engine.num_slots,
        engine.cache_tokens / cached,
        (recipe.buffer.max_staleness + 1) * recipe.batch_size / split.num_engines,
    )
    step = engine.step_seconds(round(at_once), at_once * cached)
    sampling = recipe.batch_size * mean * step / (at_once * split.num_engines) + weights.load_seconds
    under_way = weights.load_seconds + weights.transfer_seconds + training + mean * step
    in_turn = under_way / (recipe.buffer.max_staleness + 1)
    return recipe.batch_size * tokens / max(training, sampling, in_turn)


def _decoder_config(shape: ModelShape) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        norm_eps=1e-6,
        rope_theta=10000.0,
        max_positions=1,
        is_head_tied=shape.is_head_tied,
    )
