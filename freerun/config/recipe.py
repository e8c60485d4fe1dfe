"""A recipe: everything that decides a run, one frozen dataclass per stage.

The string under a field is its documentation and its `--help` text. Each stage checks itself; `Recipe`
checks what only makes sense together. The defaults are the paper's algorithm (AReaL, arXiv 2505.24298),
asynchronous.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from freerun.config.checks import (
    COUNT,
    COUNT_OR_NONE,
    GROUPS,
    LEARNING_RATE,
    MAX_NAME_BYTES,
    SHARE_ABOVE_NONE,
    SHARE_BELOW_ONE,
    TOKENS,
    Range,
    require,
    require_paths,
    require_ranges,
)
from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.eval import EvalConfig
from freerun.config.lora import LoraConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.reward import RewardConfig
from freerun.config.runtime import RuntimeConfig
from freerun.config.train import TrainConfig

MAX_BATCH_SIZE = 1_000_000
VLLM_MIN_TEMPERATURE = 0.01
"""vLLM raises a lower one to it, unless it is 0."""


@dataclass(frozen=True)
class RunConfig:
    name: str = ""
    """Name of the run directory; empty takes the recipe's file name."""
    directory: str = "runs"
    """Where run directories are made."""
    seed: int = 0
    """Seeds the order of prompts, the sampling and the warm start."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, f"run.seed = {self.seed} must lie between 0 and 2^63 - 1")
        require_paths("run", self, "directory")
        if self.name:
            self._check_name()

    def _check_name(self) -> None:
        name = self.name
        require(
            len(name.encode(errors="surrogatepass")) <= MAX_NAME_BYTES,
            f'run.name = "{name[:40]}..." has {len(name)} characters; a directory\'s name has at most '
            f"{MAX_NAME_BYTES} bytes",
        )
        require(
            name.isprintable() and "/" not in name and name == name.strip() and name[0] not in ".-",
            f'run.name = {name!r} must be the name of a directory: without "/", control characters or spaces '
            'at its ends, and not beginning with "." or "-"',
        )


@dataclass(frozen=True)
class ModelConfig:
    path: str = ""
    """Hugging Face model directory to start from (config.json, safetensors, tokenizer.json), or the hub name of a
    model in the local cache (hf download NAME)."""

    def __post_init__(self) -> None:
        require_paths("model", self, "path")


@dataclass(frozen=True)
class SamplingConfig:
    group_size: int = 8
    """Completions sampled for each prompt."""
    max_completion_tokens: int = 256
    """A completion that reaches this length is cut off (finish reason "length")."""
    temperature: float = 1.0
    """Divides the logits; the trainer uses the same."""
    top_k: int = 0
    """Sample only from the k likeliest tokens; 0 samples from all."""
    top_p: float = 1.0
    """Sample only from the smallest set of tokens with this much probability; 1 samples from all."""
    stop: tuple[str, ...] = ()
    """A completion ends as soon as its text contains one of these strings (or the end-of-sequence token)."""

    def __post_init__(self) -> None:
        require_ranges(
            "sampling",
            self,
            group_size=GROUPS,
            max_completion_tokens=TOKENS,
            temperature=Range(0.001, 1000),
            top_k=Range(0, 10_000_000),
            top_p=SHARE_ABOVE_NONE,
        )
        require(all(self.stop), "sampling.stop holds an empty string, which would end every completion")


@dataclass(frozen=True)
class BufferConfig:
    max_staleness: int = 4
    """Largest staleness a trajectory may have when it is trained on (the paper's eta); 0 is synchronous."""
    policy: Literal["wait", "drop", "requeue"] = "wait"
    """Trajectories that would become too old are waited for, dropped, or generated again."""
    whole_batches: bool = False
    """Start rollouts a batch at a time, when none is running; with max_staleness = 1, one batch ahead."""

    def __post_init__(self) -> None:
        require_ranges("buffer", self, max_staleness=COUNT_OR_NONE)

    @property
    def starts_whole_batches(self) -> bool:
        """A synchronous run has no choice: what it may start is the batch that it trains on next."""
        return self.whole_batches or self.max_staleness == 0


@dataclass(frozen=True)
class WarmStartConfig:
    num_steps: int = 0
    """Supervised steps on the task's demonstrations before version 0; 0 skips the warm start."""
    batch_size: int = 64
    """Demonstrations per supervised step."""
    lr: float = 1e-3
    """Peak learning rate of the warm start; it falls to a tenth along a cosine."""
    error_rate: float = 0.0
    """Share of the demonstrations' steps that are wrong on purpose, so that there is something to reinforce."""

    def __post_init__(self) -> None:
        require_ranges(
            "warm_start",
            self,
            num_steps=COUNT_OR_NONE,
            batch_size=GROUPS,
            lr=LEARNING_RATE,
            error_rate=SHARE_BELOW_ONE,
        )


@dataclass(frozen=True)
class CheckpointConfig:
    every_steps: int = 20
    """A checkpoint after this many steps, and always at the end and on Ctrl-C."""
    keep: int = 2
    """Newest checkpoints kept."""
    keep_optimizer: bool = True
    """Keep AdamW's moments, two thirds of a checkpoint, after the last step; extending the run needs them."""

    def __post_init__(self) -> None:
        require_ranges("checkpoint", self, every_steps=COUNT, keep=COUNT)


@dataclass(frozen=True)
class Recipe:
    """One run, resolved: every stage's configuration."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(task="times-tables"))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        require(
            self.batch_size <= MAX_BATCH_SIZE,
            f"train.prompts_per_step = {self.train.prompts_per_step} x sampling.group_size = "
            f"{self.sampling.group_size} make a batch of {self.batch_size:,} trajectories; the most is "
            f"{MAX_BATCH_SIZE:,}",
        )
        longest = self.data.max_prompt_tokens + self.sampling.max_completion_tokens
        require(
            self.engine.cache_tokens >= longest,
            f"engine.cache_tokens = {self.engine.cache_tokens} cannot hold one sequence of data.max_prompt_tokens "
            f"+ sampling.max_completion_tokens = {longest} tokens; raise it or shorten the sequences",
        )
        require(
            self.train.num_minibatches <= self.batch_size,
            f"train.num_minibatches = {self.train.num_minibatches} exceeds the {self.batch_size} trajectories "
            "of a batch (train.prompts_per_step x sampling.group_size)",
        )
        if self.objective.compares_within_groups:
            require(
                self.sampling.group_size > 1,
                "sampling.group_size = 1 leaves nothing to compare within a group; raise it, or set "
                'objective.advantage = "global" and objective.dynamic_sampling = false',
            )
        require(
            self.reward.overlong_buffer_tokens <= self.sampling.max_completion_tokens,
            f"reward.overlong_buffer_tokens = {self.reward.overlong_buffer_tokens} exceeds "
            f"sampling.max_completion_tokens = {self.sampling.max_completion_tokens}, before whose end it lies",
        )
        if self.engine.backend == "vllm":
            require(
                self.sampling.temperature >= VLLM_MIN_TEMPERATURE,
                f"sampling.temperature = {self.sampling.temperature} would be raised by vLLM to "
                f"{VLLM_MIN_TEMPERATURE}, which the trainer would not know; raise it, or set engine.backend = "
                '"native"',
            )
            require(
                not self.engine.addresses or self.runtime.backend == "local",
                "engine.addresses names vLLM servers of this machine, but runtime.backend = "
                f'"{self.runtime.backend}" places workers on any; remove engine.addresses, so that each starts '
                "its own",
            )

    @property
    def batch_size(self) -> int:
        """Trajectories consumed by one training step (the paper's B)."""
        return self.train.prompts_per_step * self.sampling.group_size

    @property
    def max_sequence_tokens(self) -> int:
        return self.data.max_prompt_tokens + self.sampling.max_completion_tokens
