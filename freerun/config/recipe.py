"""A recipe: everything that decides a run, one section per stage.

Each section checks itself; `Recipe` checks rules over several sections. The defaults are the paper's algorithm
(AReaL, arXiv 2505.24298), asynchronous.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.online import OnlineConfig
from freerun.config.page import PageConfig
from freerun.config.report import ReportConfig
from freerun.config.reward import RewardConfig
from freerun.config.rollout import GatewayConfig, RolloutConfig
from freerun.config.section import Section, require
from freerun.config.sft import SftConfig
from freerun.config.train import TrainConfig
from freerun.config.values import (
    MAX_NAME_BYTES,
    MAX_TEMPERATURE,
    Count,
    CountOrNone,
    FilePath,
    GroupCount,
    Seconds,
    Seed,
    Share,
    ShareAboveZero,
)

MAX_BATCH_SIZE = 1_000_000


def name_fault(name: str) -> str:
    """Why no run can have this name; empty if one can."""
    if len(name.encode()) > MAX_NAME_BYTES:
        return (
            f'= "{name[:40]}..." has {len(name)} characters; a directory\'s name has at most '
            f"{MAX_NAME_BYTES} bytes"
        )
    if not name or (name.isprintable() and "/" not in name and name == name.strip() and name[0] not in ".-"):
        return ""
    return (
        f'= {name!r} must be the name of a directory: without "/", control characters or spaces at its ends, '
        'and not beginning with "." or "-"'
    )


StalenessPolicy = Literal["wait", "drop", "requeue"]
"""What happens to trajectories that would be too stale."""


@dataclass(frozen=True)
class RunConfig(Section, name="run"):
    name: Annotated[str, name_fault] = ""
    """Name of the run directory; empty takes the recipe's file name."""
    directory: FilePath = "runs"
    """Where run directories are made."""
    seed: Seed = 0
    """Seeds the order of prompts and of demonstrations, the sampling and a new adapter."""
    listeners: tuple[str, ...] = ()
    """What else gets every event of the run, as "module:function": called with the recipe and the run directory,
    it returns a function that takes an event."""


@dataclass(frozen=True)
class ModelConfig(Section, name="model"):
    path: FilePath = ""
    """Hugging Face model directory to start from (config.json, safetensors, tokenizer.json), or the hub name of a
    model in the local cache (hf download NAME)."""


@dataclass(frozen=True)
class SamplingConfig(Section, name="sampling"):
    group_size: GroupCount = 8
    """Completions sampled for each prompt."""
    max_completion_tokens: Count = 256
    """A completion that reaches this length is cut off (finish reason "length")."""
    temperature: Annotated[float, Meta(ge=0.001, le=MAX_TEMPERATURE)] = 1.0
    """Divides the logits; the trainer applies the same."""
    top_k: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Sample only from the k likeliest tokens; 0 samples from all."""
    top_p: ShareAboveZero = 1.0
    """Sample only from the smallest set of tokens with this much probability; 1 samples from all."""
    stop: tuple[str, ...] = ()
    """A completion ends as soon as its text contains one of these strings (or the end-of-sequence token)."""

    def check(self) -> None:
        require(all(self.stop), "sampling.stop holds an empty string, which would end every completion")


@dataclass(frozen=True)
class BufferConfig(Section, name="buffer"):
    max_staleness: CountOrNone = 4
    """Largest staleness a trajectory may have when it is trained on (the paper's eta); 0 is synchronous."""
    policy: StalenessPolicy = "wait"
    """What to do with trajectories that would become too stale: wait for, drop, or generate them again."""
    whole_batches: bool = False
    """Start rollouts a batch at a time, when none is running; with max_staleness = 1, one batch ahead."""
    keep_fresh: bool = False
    """Start rollouts as late as the trainer's pace allows, so that max_staleness is a limit rather than what is
    reached whenever generation is faster than training."""

    @property
    def starts_whole_batches(self) -> bool:
        """A synchronous run always does: it may only start the batch that it trains on next."""
        return self.whole_batches or self.max_staleness == 0

    def check(self) -> None:
        require(
            not (self.keep_fresh and self.whole_batches),
            "buffer.keep_fresh and buffer.whole_batches exclude each other; set one of them",
        )


@dataclass(frozen=True)
class EvalConfig(Section, name="eval"):
    every_steps: Count = 10
    """Held-out evaluation after this many steps, during training rollouts; the first and last version always."""
    num_prompts: CountOrNone = 64
    """Held-out prompts used, at most; 0 evaluates nothing."""
    num_samples: GroupCount = 4
    """Completions per held-out prompt, sampled like training rollouts."""
    stop_after: CountOrNone = 0
    """End the run after this many evaluations in a row without a higher held-out accuracy; 0 never does."""
    target_accuracy: Share = 0.0
    """End the run at the first evaluation with at least this held-out accuracy; 0 never does."""

    def check(self) -> None:
        for key, value in (("stop_after", self.stop_after), ("target_accuracy", self.target_accuracy)):
            require(
                not value or self.num_prompts > 0,
                f"eval.{key} = {value:g} needs a held-out evaluation; raise eval.num_prompts",
            )

    def is_due(self, version: int) -> bool:
        """Whether a version is evaluated; the last one always is, when it is trained."""
        return version % self.every_steps == 0


@dataclass(frozen=True)
class CheckpointConfig(Section, name="checkpoint"):
    every_steps: Count = 20
    """A checkpoint after this many steps, and always at the end and on Ctrl-C."""
    keep: Count = 2
    """Newest checkpoints kept."""
    keep_best: bool = True
    """Keep the checkpoint of the version with the best held-out accuracy too; each evaluated version gets one."""
    keep_optimizer: bool = True
    """Keep AdamW's moments, two thirds of a checkpoint, after the last step; extending the run needs them."""


@dataclass(frozen=True)
class RuntimeConfig(Section, name="runtime"):
    backend: Literal["local", "ray"] = "local"
    """local starts the workers as processes of this machine, ray as actors of a Ray cluster."""
    address: str = ""
    """Ray cluster to join, host:port of its head or auto; empty starts one on this machine."""
    silence_seconds: Seconds = 30.0
    """A worker that sends nothing for this long, not even a heartbeat, is killed."""
    stall_seconds: Seconds = 300.0
    """A worker that has work and makes no progress for this long is killed."""
    start_seconds: Seconds = 180.0
    """Time a worker has to start and load its model."""
    max_worker_restarts: CountOrNone = 3
    """Rollout workers restarted before the run gives up."""

    def check(self) -> None:
        require(
            self.backend == "ray" or not self.address,
            f'runtime.address = "{self.address}" is the address of a Ray cluster; set runtime.backend = "ray"',
        )


@dataclass(frozen=True)
class Recipe:
    """One run, resolved: every stage's configuration."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(task="times-tables"))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    page: PageConfig = field(default_factory=PageConfig)

    def __post_init__(self) -> None:
        require(
            self.batch_size <= MAX_BATCH_SIZE,
            f"train.prompts_per_step = {self.train.prompts_per_step} x sampling.group_size = "
            f"{self.sampling.group_size} make a batch of {self.batch_size:,} trajectories; the limit is "
            f"{MAX_BATCH_SIZE:,}",
        )
        require(
            self.engine.cache_tokens >= self.max_sequence_tokens,
            f"engine.cache_tokens = {self.engine.cache_tokens} cannot hold one sequence of "
            f"{self.longest_sequence_keys} = {self.max_sequence_tokens} tokens; raise it or shorten the sequences",
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
            f"sampling.max_completion_tokens = {self.sampling.max_completion_tokens}; lower it",
        )
        if self.engine.min_workers:
            self._check_balance()
        if self.rollout.runs_sessions:
            self._check_sessions()
        if self.online.is_on:
            self._check_online()

    def _check_balance(self) -> None:
        """Refuse runs in which a closed gate does not mean that rollouts are faster than training."""
        reasons = {
            "buffer.max_staleness = 0": self.buffer.max_staleness == 0,
            "buffer.whole_batches": self.buffer.whole_batches,
            "buffer.keep_fresh": self.buffer.keep_fresh,
            "online.feedback_seconds": self.online.is_on,
        }
        for key, is_set in reasons.items():
            require(
                not is_set,
                f"engine.min_workers = {self.engine.min_workers} follows how long the gate is closed, and {key} "
                "closes it for other reasons; remove one of them",
            )

    def _check_sessions(self) -> None:
        """Refuse what sessions cannot do; what they need of the model is checked with it."""
        rollout, reward = self.rollout, self.reward
        require(
            rollout.max_session_tokens > self.data.max_prompt_tokens,
            f"rollout.max_session_tokens = {rollout.max_session_tokens} leaves no room after a prompt of "
            f"data.max_prompt_tokens = {self.data.max_prompt_tokens}; raise it, or lower data.max_prompt_tokens",
        )
        require(
            not reward.overlong_buffer_tokens and not reward.requires_stop,
            "reward.overlong_buffer_tokens and reward.requires_stop judge single completions; sessions are cut "
            "off by rollout.max_turns and rollout.max_session_tokens; remove them",
        )
        require(
            rollout.session_seconds < self.runtime.stall_seconds,
            f"rollout.session_seconds = {rollout.session_seconds:g} must be less than runtime.stall_seconds = "
            f"{self.runtime.stall_seconds:g}: a run in which nothing is generated for that long is ended",
        )
        in_chat = {part.use_chat_template for part in self.data.parts.values()}
        alike = {(part.use_chat_template, part.system_prompt) for part in self.data.parts.values()}
        require(
            len(alike) == 1,
            "data.mixture mixes recipes with different data.use_chat_template or data.system_prompt, and all "
            "sessions of a run need the same; use the same values",
        )
        for part in self.data.parts.values():
            require(
                not (part.use_chat_template and part.num_shots),
                f"data.num_shots = {part.num_shots} cannot be shown in sessions with data.use_chat_template; put "
                "examples into data.system_prompt or data.template",
            )
        require(
            not rollout.tools or in_chat == {True},
            "rollout.tools needs data.use_chat_template = true: the chat template tells the policy of its tools",
        )

    def _check_online(self) -> None:
        """Refuse what live traffic cannot give: prompts that are asked twice, and sessions made to order."""
        require(
            not self.rollout.runs_sessions,
            "online.feedback_seconds trains on the sessions of clients; remove rollout.episode, rollout.tools and "
            "rollout.command, or set it to 0",
        )
        require(
            self.sampling.group_size == 1,
            f"sampling.group_size = {self.sampling.group_size} needs several answers to one prompt, and a live "
            'session is asked once; set sampling.group_size = 1 with objective.advantage = "global" or "gae"',
        )
        require(
            self.buffer.policy == "drop",
            f'buffer.policy = "{self.buffer.policy}" would wait for people, or ask them again; set "drop"',
        )
        require(
            not self.buffer.whole_batches,
            "buffer.whole_batches starts whole batches of rollouts; live sessions come one by one; remove it",
        )
        require(
            self.data.min_pass_rate == 0 and self.data.max_pass_rate == 1,
            "data.min_pass_rate and data.max_pass_rate choose among prompts, and clients bring their own; remove "
            "them",
        )

    @property
    def batch_size(self) -> int:
        """Trajectories consumed by one training step (the paper's B)."""
        return self.train.prompts_per_step * self.sampling.group_size

    @property
    def keeps_fresh(self) -> bool:
        """Whether rollouts are started late; live ones start when their clients do."""
        return self.buffer.keep_fresh and self.buffer.max_staleness > 1 and not self.online.is_on

    @property
    def generates(self) -> bool:
        """Whether the run needs engines and graders; SFT alone, without a held-out evaluation, does not."""
        return self.train.num_steps > 0 or self.eval.num_prompts > 0 or not self.sft.is_on

    @property
    def max_sequence_tokens(self) -> int:
        """The longest sequence that an engine computes."""
        asked = self.data.max_prompt_tokens + self.sampling.max_completion_tokens
        if self.online.is_on:  # held-out prompts are asked as always
            return max(self.rollout.max_session_tokens, asked)
        return self.rollout.max_session_tokens if self.rollout.runs_sessions else asked

    @property
    def longest_sequence_keys(self) -> str:
        """The keys that decide `max_sequence_tokens`, for errors."""
        if self.rollout.runs_sessions or self.max_sequence_tokens == self.rollout.max_session_tokens:
            return "rollout.max_session_tokens"
        return "data.max_prompt_tokens + sampling.max_completion_tokens"

    @property
    def uses_chat_template(self) -> bool:
        """Whether sessions are chats; otherwise their messages are joined as plain text."""
        return all(part.use_chat_template for part in self.data.parts.values())
