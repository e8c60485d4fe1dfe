"""The policy behind `freerun serve` and `freerun chat`: a model or a run's checkpoint, in its own rollout workers.

    ServeJob ─► open_policy ─► ServedPolicy ─► sessions, one for each conversation

There is no trainer and no grader. Only those parts of a run's recipe are used that affect sampling: sampling
settings, engine, LoRA, chat template.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from freerun.chat.messages import ChatCall, Reply
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SampleRequest, SessionLimits
from freerun.config.load import key_types, load_recipe, make_recipe
from freerun.config.recipe import Recipe
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError
from freerun.events.best import CheckpointVersion
from freerun.model.adapter_directory import check_directory, model_config
from freerun.rollout.calls import sample_call
from freerun.rollout.single_turn import to_sampling
from freerun.session.assembly import make_rollout_pool
from freerun.session.build import check_backends, check_model, make_launcher
from freerun.session.evaluation_job import find_model
from freerun.session.live_server import MAX_TURNS
from freerun.session.run_directory import CONFIG_FILE
from freerun.types import Completion
from freerun.workers.rollout_pool import RolloutPool

_LONGEST_CONVERSATION = 4096
"""Default length; an engine reserves this much for each of its slots."""
_DEFAULTS = ("--engine.num_slots", "16", "--engine.cache_tokens", "65536", "--data.task", "times-tables")
"""Conversations are longer than the completions of a run, and fewer. No prompt of the task is read."""
_SECTIONS_OF_RUN = ("run", "model", "lora", "sampling", "engine", "runtime")
_DATA_OF_RUN = ("data.use_chat_template", "data.system_prompt")


@dataclass(frozen=True)
class ServeJob:
    """A policy to be served, resolved."""

    recipe: Recipe
    model: Path
    name: str
    """The model name that clients use."""


def make_serve_job(
    target: Path, overrides: Sequence[str], *, version: CheckpointVersion | None = None
) -> ServeJob:
    """The model that `target` names and its sampling settings; nothing is started."""
    model, _ = find_model(target, version)
    longest = min(model_config(model).max_positions, _LONGEST_CONVERSATION)
    defaults = [*_DEFAULTS, "--rollout.max_session_tokens", str(longest)]
    own_recipe = target / CONFIG_FILE
    if own_recipe.is_file():
        others = [key for key in key_types() if not _is_of_run(key)]
        recipe = load_recipe(own_recipe, [*defaults, *overrides], without=others)
    else:
        recipe = make_recipe(model.name, ["--data.use_chat_template", "true", *defaults, *overrides])
    return ServeJob(_for_conversations(recipe), model, target.resolve().name)


def _is_of_run(key: str) -> bool:
    return key.partition(".")[0] in _SECTIONS_OF_RUN or key in _DATA_OF_RUN


def _for_conversations(recipe: Recipe) -> Recipe:
    """The recipe with sequences of the length of a conversation, without limits on its parts."""
    longest = recipe.rollout.max_session_tokens
    if longest < 2:
        raise ConfigError(f"config: rollout.max_session_tokens = {longest} has no room for a reply; raise it")
    max_completion_tokens = min(recipe.sampling.max_completion_tokens, longest - 1)
    return dataclasses.replace(
        recipe,
        sampling=dataclasses.replace(recipe.sampling, max_completion_tokens=max_completion_tokens),
        data=dataclasses.replace(recipe.data, max_prompt_tokens=longest - max_completion_tokens),
    )


class ServedPolicy:
    """Opens sessions with the policy; call `start` first."""

    def __init__(self, job: ServeJob, tokenizer: Tokenizer, pool: RolloutPool) -> None:
        longest = job.recipe.rollout.max_session_tokens
        self.sampling = to_sampling(job.recipe.sampling, tokenizer.stop_token_ids)
        self.limits = SessionLimits(max_turns=MAX_TURNS, max_session_tokens=longest, max_completion_tokens=longest)
        self.renderer = Renderer(
            tokenizer, history=job.recipe.rollout.history, use_chat_template=job.recipe.uses_chat_template
        )
        self.wait_for_loss = pool.wait_for_loss
        self._pool = pool
        self._numbers = itertools.count()
        self._request_ids = itertools.count()

    async def start(self) -> None:
        """Return when the engines have the model and the chat template has been tried."""
        await self.renderer.traits()
        await self._pool.start()

    def open_session(self) -> "ServedSession":
        return ServedSession(self, next(self._numbers))

    async def sample(self, session: int, asked: SampleRequest) -> tuple[Completion, ...]:
        wishes = msgspec.structs.asdict(asked.sampling).items()
        return await sample_call(
            self._pool,
            asked,
            msgspec.structs.replace(self.sampling, **{name: value for name, value in wishes if value is not None}),
            ordinal=session,
            sample=0,
            session=session,
            request_ids=self._request_ids,
        )

    def end_session(self, session: int) -> None:
        self._pool.end_session(session)


class ServedSession:
    """One conversation; calls use the recipe's values for settings they leave out."""

    def __init__(self, policy: ServedPolicy, number: int) -> None:
        self._policy = policy
        self._number = number
        self._chat = ChatSession(policy.renderer, partial(policy.sample, number), policy.limits)

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        sampling = self._policy.sampling
        return await self._chat.reply(
            msgspec.structs.replace(
                call,
                max_tokens=sampling.max_completion_tokens if call.max_tokens is None else call.max_tokens,
                stop=(*call.stop, *sampling.stop_strings),
            )
        )

    def end(self) -> None:
        self._chat.end()
        self._policy.end_session(self._number)


@contextlib.asynccontextmanager
async def open_policy(job: ServeJob, logs: Path) -> AsyncIterator[ServedPolicy]:
    """The policy, not started yet; all of its processes have ended when the context ends."""
    check_backends(job.recipe, trains=False)
    check_directory(job.model)
    tokenizer = Tokenizer.load(job.model)
    check_model(job.recipe, tokenizer, job.model)
    launcher = make_launcher(job.recipe, logs, publishes=False)
    pool = make_rollout_pool(
        job.recipe,
        launcher,
        model_directory=job.model,
        on_report=lambda worker, stats: None,
        on_death=lambda worker, reason, is_restarted: None,
    )
    try:
        yield ServedPolicy(job, tokenizer, pool)
    finally:
        await pool.close()
        await launcher.close()
