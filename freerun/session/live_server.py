"""The gateway of a run on live traffic, in the controller's process: clients reach the engines of the run.

clients ─► Gateway ─► Conversations ─► LiveTraffic ─► rollout workers
              └► POST /v1/feedback ─────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.chat.rendering import Renderer
from freerun.chat.session import SessionLimits
from freerun.config.recipe import Recipe
from freerun.config.section import require
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError
from freerun.protocols import Generator
from freerun.rollout.live_sessions import LiveTraffic
from freerun.rollout.single_turn import to_sampling
from freerun.session.agents import Workflows
from freerun.session.attachments import LiveKey
from freerun.types import Prompt

if TYPE_CHECKING:
    from freerun.gateway.feedback import Feedback

MAX_TURNS = 100_000
"""Turns of a client's conversation: in practice unlimited."""


def live_model_name(recipe: Recipe) -> str:
    """The model name that clients use for the policy."""
    return Path(recipe.model.path).name or recipe.run.name


def check_traffic(recipe: Recipe, key: LiveKey | None) -> None:
    """Before a run is created, refuse what could not be served; only `freerun serve` has a key, and needs one."""
    is_on = recipe.online.is_on
    require(
        not is_on or key is not None,
        f"online.feedback_seconds = {recipe.online.feedback_seconds:g} makes this a run on live traffic; start it "
        "with freerun serve, or set it to 0",
    )
    require(
        is_on or key is None,
        "online.feedback_seconds = 0 trains on no live traffic; set how long a session waits for feedback, such "
        "as 300, or serve a model or a run without training it",
    )
    if key is not None:
        _check_serving(recipe, key)


def _check_serving(recipe: Recipe, key: LiveKey) -> None:
    try:
        from freerun.gateway.address import listen, parse_address
        from freerun.gateway.server import check_exposure
    except ImportError as error:
        raise ConfigError(f"freerun serve needs a web server ({error}); pip install 'freerun[agents]'") from error
    address = parse_address(recipe.gateway.address)
    check_exposure(address, key.used if key.is_given else "")
    listen(address).close()


class LiveServer:
    """Serves the policy of a run from its first weights on."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: Tokenizer,
        generator: Generator,
        workflows: Workflows,
        key: LiveKey,
        *,
        start_recording: Callable[[], Prompt | None],
    ) -> None:
        from freerun.gateway.conversations import Conversations
        from freerun.gateway.server import Gateway

        sampling = to_sampling(recipe.sampling, tokenizer.stop_token_ids)
        self._renderer = Renderer(
            tokenizer, history=recipe.rollout.history, use_chat_template=recipe.uses_chat_template
        )
        self.traffic = LiveTraffic(
            self._renderer,
            generator,
            sampling,
            SessionLimits(
                max_turns=MAX_TURNS,
                max_session_tokens=recipe.rollout.max_session_tokens,
                max_completion_tokens=recipe.sampling.max_completion_tokens,
            ),
            feedback_seconds=recipe.online.feedback_seconds,
            start_recording=start_recording,
            request_ids=workflows.request_ids,
            numbers=workflows.session_numbers,
        )
        self._gateway = Gateway(
            Conversations(live_model_name(recipe), key=key.used, open_session=self.traffic.open_session),
            sampling=sampling,
            address=recipe.gateway.address,
            key=key.used if key.is_given else "",
            feedback=self._rate,
        )
        self.url = ""
        """The address it serves at; empty before `open`."""

    async def prepare(self) -> None:
        """Try the chat template, to find errors in it before any client is served."""
        await self._renderer.traits()

    def open(self) -> str:
        """Start serving; returns the base URL for OpenAI clients."""
        self.url = self._gateway.open()
        return self.url

    async def close(self) -> None:
        await self._gateway.close()

    def _rate(self, feedback: Feedback) -> bool:
        return self.traffic.rate(feedback.reply_id, feedback.reward)
