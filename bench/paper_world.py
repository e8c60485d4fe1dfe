"""The settings of the AReaL paper as simulations: models, lengths, gate, transfer through files.

Lengths come from AReaL's own log lines and figures: 7B from the mean and the share that is cut off in its first
tutorial, 1.5B from tokens per step (Fig. 5c x Table 1). What is not published is a choice here, and listed in
docs/results/simulation.md.
"""

from dataclasses import dataclass, replace
from typing import cast

import msgspec

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig, StalenessPolicy
from freerun.config.train import TrainConfig
from freerun.protocols import Generator, Grader
from freerun.rollout.single_turn import SingleTurn
from freerun.simulation.costs import Constants, RooflineEngine, RooflineTrainer, WeightCosts
from freerun.simulation.hardware import GPUS
from freerun.simulation.lengths import LognormalLengths
from freerun.simulation.run import Outcome, Setup, simulate
from freerun.simulation.shapes import MODEL_SHAPES
from freerun.types import Prompt, Reward, Trajectory

GPU = GPUS["h800"]
LENGTHS = {"1.5b": (8.862, 0.8), "7b": (8.792, 0.786), "14b": (8.9, 0.8), "32b": (8.8, 0.8)}
"""mu and sigma."""
GPUS_PER_ENGINE = {"1.5b": 1, "7b": 1, "14b": 4, "32b": 8}
MEMORY_SHARE = {"1.5b": 0.8, "7b": 0.7, "14b": 0.8, "32b": 0.7}
PROMPT_TOKENS = 110
WAVE_SLOTS = 4096
"""Of an engine that starts a whole batch at once."""
CONCURRENT = 8192
"""AReaL's default: one batch of trajectories under way at a time, counted in whole groups."""
MAX_TRAJECTORIES = 512
"""Of a simulated step: larger ones are simulated at a smaller scale."""


@dataclass(frozen=True)
class ConstantSet:
    """Constants of the roofline and the likeness of lengths, and where they come from."""

    name: str
    constants: Constants
    likeness: float
    origin: str
    mfu: dict[str, float] | None = None
    """By model, if it differs."""

    def of(self, model: str) -> Constants:
        return replace(self.constants, mfu=self.mfu[model]) if self.mfu else self.constants


@dataclass(frozen=True)
class Setting:
    """One point of a figure."""

    model: str
    rollout_gpus: int
    trainer_gpus: int
    max_staleness: int
    prompts_per_step: int = 512
    group_size: int = 16
    cap: int = 27648
    passes: float = 5.0
    """Forward, backward, recomputed activations, proximal forward."""
    num_concurrent: int = 0
    """Trajectories under way; 0 lets a batch start at once."""
    policy: StalenessPolicy | None = None
    """None is the paper's gate alone."""
    kv_on_load: str = "recompute"
    counts_groups: bool = False
    """A group holds its slots until its longest sample has ended, as in AReaL."""
    keep_fresh: bool = False


class GateOnly(TrajectoryBuffer):
    """AReaL's buffer: oldest first, without a bound beyond the gate's."""

    def _first_late_running(self) -> None:
        return None

    def _require_fresh(self, chosen: object) -> None: ...

    def _require_room(self, start_version: int) -> None: ...


class WholeGroups(SingleTurn):
    """One request for all samples of a prompt: the controller counts its slots until the last has ended."""

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]:
        request = msgspec.structs.replace(self._request(prompt, 0), num_samples=self._num_samples)
        completions = await generator.generate(request)
        rewards = [await grader.grade(prompt, completion) for completion in completions]
        return tuple(
            Trajectory(prompt=prompt, sample=sample, completion=completion, reward=cast(Reward, reward))
            for sample, (completion, reward) in enumerate(zip(completions, rewards, strict=True))
        )


def run(
    setting: Setting, constants: ConstantSet, *, num_warm: int | None = None, num_steps: int = 10
) -> tuple[Outcome, int]:
    """Simulate it; returns the outcome and how many times larger the setting is."""
    scale = _scale(setting)
    outcome = simulate(
        setup_of(setting, constants, scale, num_warm=num_warm, num_steps=num_steps),
        make_buffer=None if setting.policy is not None or setting.max_staleness == 0 else _gate_only,
        workflow=WholeGroups if setting.counts_groups else SingleTurn,
    )
    return outcome, scale


def thousand_tokens(setting: Setting, constants: ConstantSet) -> float:
    """Per second, prompts included."""
    outcome, scale = run(setting, constants)
    return scale * outcome.tokens_per_second / 1e3


def _gate_only(recipe: Recipe) -> GateOnly:
    return GateOnly(
        groups_per_batch=recipe.train.prompts_per_step,
        max_staleness=recipe.buffer.max_staleness,
        policy="wait",
        filter_zero_variance=False,
    )


def setup_of(
    setting: Setting, chosen: ConstantSet, scale: int, *, num_warm: int | None = None, num_steps: int
) -> Setup:
    shape, per_engine = MODEL_SHAPES[f"qwen2.5-{setting.model}"], GPUS_PER_ENGINE[setting.model]
    constants, (mu, sigma) = chosen.of(setting.model), LENGTHS[setting.model]
    engine = RooflineEngine(GPU, shape, per_engine, constants, memory_share=MEMORY_SHARE[setting.model])
    num_engines = setting.rollout_gpus // per_engine // scale
    bound, is_synchronous = setting.max_staleness, setting.max_staleness == 0
    if num_warm is None:
        num_warm = 1 if is_synchronous else min(bound, 8) + 4
    concurrent = setting.num_concurrent // scale
    slots = max(setting.group_size, -(-concurrent // num_engines)) if concurrent else WAVE_SLOTS
    num_bytes = 2 * shape.num_parameters
    recipe = Recipe(
        data=DataConfig(task="times-tables", max_prompt_tokens=1024),
        sampling=SamplingConfig(group_size=setting.group_size, max_completion_tokens=setting.cap),
        engine=EngineConfig(
            num_workers=num_engines,
            num_slots=slots,
            cache_tokens=engine.cache_tokens,
            prefill_chunk_tokens=8192,
            kv_on_load=setting.kv_on_load,  # type: ignore[arg-type]
        ),
        buffer=BufferConfig(max_staleness=bound, policy=setting.policy or "wait", keep_fresh=setting.keep_fresh),
        train=TrainConfig(
            num_steps=num_warm + (3 if is_synchronous else num_steps),
            prompts_per_step=setting.prompts_per_step // scale,
        ),
    )
    return Setup(
        recipe=recipe,
        engine_costs=engine,
        trainer_costs=RooflineTrainer(
            GPU, shape, setting.trainer_gpus / scale, passes=setting.passes, constants=constants
        ),
        lengths=LognormalLengths(mu, sigma, setting.cap, likeness=chosen.likeness),
        # AReaL writes the weights to a shared file system, polls it every 5 s, and loads them at 1.5 GB/s.
        weights=WeightCosts(
            transfer_seconds=num_bytes / 4e9 + 2.5, load_seconds=num_bytes / 1.5e9 / max(1, per_engine / 2)
        ),
        prompt_tokens=PROMPT_TOKENS,
        num_warm_steps=num_warm,
    )


def _scale(setting: Setting) -> int:
    num_engines = setting.rollout_gpus // GPUS_PER_ENGINE[setting.model]
    scale = 1
    while (
        setting.prompts_per_step * setting.group_size // scale > MAX_TRAJECTORIES
        and num_engines % (2 * scale) == 0
        and setting.prompts_per_step % (2 * scale) == 0
    ):
        scale *= 2
    return scale
