"""The messages between the controller and its workers: one union of structs for each direction.

    controller ──ToRollout──► rollout worker ──FromRollout──► controller
    controller ──ToTrainer──► trainer        ──FromTrainer──► controller

Messages are handled in the order they were sent. In particular, a `Generate` after a `Load` is served with the new
weights, and a `Save` after a `TrainStep` saves the result of that step.
"""

import msgspec

from freerun.backends.backend import EngineStart
from freerun.config.lora import LoraConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.types import (
    Completion,
    Demonstration,
    Doing,
    EngineStats,
    Group,
    Publication,
    Request,
    StepResult,
    TrainedTrajectory,
    WeightRoute,
)

DIVERGED = "diverged"
"""Metric of a step that skipped updates because the weights are no longer usable."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag=True):
    pass


class StartEngine(EngineStart, frozen=True, kw_only=True, eq=False, tag=True):
    pass


class Generate(_Message, frozen=True, kw_only=True):
    requests: tuple[Request, ...]


class Abort(_Message, frozen=True, kw_only=True):
    request_ids: tuple[int, ...]


class EndSession(_Message, frozen=True, kw_only=True):
    """The session has no further requests: drop what is kept for it."""

    session: int


class Load(_Message, frozen=True, kw_only=True):
    """Switch to the published weights after confirming their checksum."""

    published: Publication


class Pin(_Message, frozen=True, kw_only=True):
    """Keep the last loaded weights, which are of this version, for requests that name it."""

    version: int


class Unpin(_Message, frozen=True, kw_only=True):
    """Release the pinned version and abort the requests that name it."""


class EngineReady(_Message, frozen=True, kw_only=True):
    pass


class Finished(_Message, frozen=True, kw_only=True):
    """The results of one engine step."""

    completions: dict[int, tuple[Completion, ...]]
    """Completions by request id."""


class Refused(_Message, frozen=True, kw_only=True):
    request_id: int
    reason: str


class Loaded(_Message, frozen=True, kw_only=True):
    """The engine uses these weights from now on and has computed the same checksum."""

    published: Publication
    load_seconds: float = 0.0
    """How long decoding was paused."""
    drain_seconds: float = 0.0
    """How long available weights waited for the engine: with `drain`, or for a pinned version."""
    num_interrupts: int = 0
    """Number of sequences that continue under the new weights."""


class Report(_Message, frozen=True, kw_only=True):
    stats: EngineStats


ToRollout = StartEngine | Generate | Abort | EndSession | Load | Pin | Unpin
FromRollout = EngineReady | Finished | Refused | Loaded | Report


class StartTrainer(_Message, frozen=True, kw_only=True):
    model_directory: str
    """Weights to start from; with LoRA, the base of the adapter."""
    adapter_directory: str
    """The adapter of a checkpoint to start from; empty for a new adapter or none."""
    lora: LoraConfig
    seed: int
    """Seed for the initial weights of a new adapter."""
    companions_directory: str
    """Config and tokenizer, which every checkpoint contains next to the weights."""
    train: TrainConfig
    objective: ObjectiveConfig
    temperature: float
    max_completion_tokens: int
    is_truncated: bool
    """Whether sampling uses top-k or top-p."""
    version: int
    optimizer_file: str
    """Optimizer state of a checkpoint; empty for a new run."""
    is_in_sft: bool = False
    """Whether that is the optimizer state of an unfinished SFT."""
    reference_directory: str
    """Directory of the version 0 policy for a KL term; empty without one."""
    weights: WeightRoute | None = None
    """How rank 0 publishes; None for a trainer that does not."""
    rank: int = 0
    """Rank of this process."""
    rendezvous: str = ""
    """Where rank 0 listens, a file or host:port; empty for rank 0, which reports it in a `Rendezvous`."""
    num_engine_gpus: int = 0
    """Number of GPUs taken by rollout workers; rank 0 takes the next one (`freerun.model.device`)."""
    borrows_cores: bool = False
    """Whether it may be offered the cores of idle rollout workers."""


class Supervise(_Message, frozen=True, kw_only=True):
    """One step of SFT, or only its loss if `lr` is None."""

    demonstrations: tuple[Demonstration, ...]
    lr: float | None
    """None to compute the loss without an update."""


class UseCores(_Message, frozen=True, kw_only=True):
    """Compute on these cores, one thread per core: immediately between steps, soon within a step."""

    cores: tuple[int, ...]


class BatchPart(_Message, frozen=True, kw_only=True):
    """Groups of the next step, sent before the rest in its `TrainStep`."""

    groups: tuple[Group, ...]


class TrainStep(_Message, frozen=True, kw_only=True):
    """Train on the batch, of which these groups are the last part."""

    groups: tuple[Group, ...]


class Publish(_Message, frozen=True, kw_only=True):
    pass


class Save(_Message, frozen=True, kw_only=True):
    """Write the current model and optimizer into an existing directory."""

    directory: str
    version: int
    """Version of the weights; the controller's state in the same checkpoint has the same version."""


class Rendezvous(_Message, frozen=True, kw_only=True):
    """Where rank 0 listens for the other ranks."""

    address: str


class TrainerReady(_Message, frozen=True, kw_only=True):
    num_parameters: int
    num_trained: int
    """Number of trained parameters; fewer than all with an adapter."""


class Supervised(_Message, frozen=True, kw_only=True):
    loss: float


class TrainedPart(_Message, frozen=True, kw_only=True):
    """Results for the next trajectories of a step's batch, sent before its `StepDone`."""

    trajectories: tuple[TrainedTrajectory, ...]


class StepDone(_Message, frozen=True, kw_only=True):
    """A step is finished; the results of its trajectories were sent before."""

    result: StepResult


class Published(_Message, frozen=True, kw_only=True):
    published: Publication


class CoresInUse(_Message, frozen=True, kw_only=True):
    """The trainer now computes on these cores."""

    cores: tuple[int, ...]


class Saving(_Message, frozen=True, kw_only=True):
    """Progress of writing a checkpoint; independent of a step that runs at the same time."""


class Saved(_Message, frozen=True, kw_only=True):
    directory: str
    error: str
    """Why the files could not be written; empty on success."""


class Progress(_Message, frozen=True, kw_only=True):
    """Progress of a step or a supervised update; independent of a checkpoint that is being written."""

    doing: Doing


ToTrainer = StartTrainer | Supervise | UseCores | BatchPart | TrainStep | Publish | Save
FromTrainer = (
    Rendezvous
    | TrainerReady
    | Supervised
    | TrainedPart
    | StepDone
    | Published
    | Saving
    | Saved
    | Progress
    | CoresInUse
)
