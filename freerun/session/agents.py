"""The sessions of a run: agent workers, and the workflows that play prompts in them or in a single turn."""

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.data.tokenizer import Tokenizer
from freerun.processes.link import Launcher
from freerun.processes.local import LocalLauncher
from freerun.processes.supervision import OnDeath
from freerun.protocols import Workflow
from freerun.rollout.sessions import Sessions
from freerun.rollout.single_turn import SingleTurn, to_sampling
from freerun.workers.agent_messages import StartAgents
from freerun.workers.agent_pool import AgentPool


def session_data(recipe: Recipe) -> DataConfig:
    """The data settings for sessions, which apply the chat template themselves, to all their messages."""
    if not recipe.rollout.runs_sessions or not recipe.uses_chat_template:
        return recipe.data
    parts = {name: _unwrapped(part) for name, part in recipe.data.mixture.items()}
    return dataclasses.replace(recipe.data, mixture=parts) if parts else _unwrapped(recipe.data)


def _unwrapped(data: DataConfig) -> DataConfig:
    return dataclasses.replace(data, use_chat_template=False, system_prompt="")


def make_agents(
    recipe: Recipe, tokenizer: Tokenizer, launcher: Launcher, *, model_directory: Path, on_death: OnDeath
) -> AgentPool | None:
    """The agent workers; None for a recipe without sessions."""
    if not recipe.rollout.runs_sessions:
        return None
    return AgentPool(
        StartAgents(
            rollout=recipe.rollout,
            gateway=recipe.gateway,
            sampling=to_sampling(recipe.sampling, tokenizer.stop_token_ids),
            model_directory=str(model_directory),
            model_name=Path(recipe.model.path).name or model_directory.name,
            uses_chat_template=recipe.uses_chat_template,
            system_prompt=_system_prompt(recipe),
            seed=recipe.run.seed,
        ),
        launcher=launcher,
        runtime=recipe.runtime,
        on_death=on_death,
        is_synchronous=recipe.buffer.max_staleness == 0,
    )


def _system_prompt(recipe: Recipe) -> str:
    """The system prompt of every chat; empty without a chat template, where it is part of the prompt's text."""
    part = next(iter(recipe.data.parts.values()))
    return part.system_prompt if recipe.uses_chat_template else ""


def check_agents(recipe: Recipe, tokenizer: Tokenizer, model: Path) -> None:
    """Start one agent worker and end it; raises the error that would stop a run."""
    if recipe.rollout.runs_sessions:
        asyncio.run(_try_agents(recipe, tokenizer, model))


async def _try_agents(recipe: Recipe, tokenizer: Tokenizer, model: Path) -> None:
    alone = dataclasses.replace(recipe, rollout=dataclasses.replace(recipe.rollout, num_workers=1))
    with tempfile.TemporaryDirectory(prefix="freerun-agents-") as logs:
        launcher = LocalLauncher(Path(logs), {})
        agents = make_agents(
            alone, tokenizer, launcher, model_directory=model, on_death=lambda worker, reason, is_restarted: None
        )
        assert agents is not None
        try:
            await agents.start()
        finally:
            await agents.close()


@dataclass(frozen=True)
class Workflows:
    """Makes the workflows of a run; they share one sequence of request ids and one of session numbers."""

    recipe: Recipe
    tokenizer: Tokenizer
    agents: AgentPool | None
    request_ids: Iterator[int] = field(default_factory=itertools.count)
    session_numbers: Iterator[int] = field(default_factory=itertools.count)

    def training(self) -> Workflow:
        return self._make(self.recipe.sampling.group_size, is_evaluation=False)

    def evaluation(self) -> Workflow:
        return self._make(self.recipe.eval.num_samples, is_evaluation=True)

    def _make(self, num_samples: int, *, is_evaluation: bool) -> Workflow:
        sampling = to_sampling(self.recipe.sampling, self.tokenizer.stop_token_ids)
        if self.agents is None:
            return SingleTurn(sampling, num_samples=num_samples, request_ids=self.request_ids)
        return Sessions(
            self.agents,
            sampling,
            num_samples=num_samples,
            is_evaluation=is_evaluation,
            request_ids=self.request_ids,
            numbers=self.session_numbers,
        )
