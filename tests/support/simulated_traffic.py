"""A simulated run on live traffic: clients that come, talk, rate late or never, and stay away for hours."""

import asyncio
import itertools
import random
from typing import Any

from simulated_run import World

from freerun.chat.messages import ChatCall, Message
from freerun.chat.rendering import Renderer
from freerun.chat.session import SessionLimits
from freerun.config.recipe import Recipe
from freerun.rollout.live_sessions import LiveTraffic
from freerun.types import Prompt, Sampling, Trajectory

LIMITS = SessionLimits(max_turns=1000, max_session_tokens=500, max_completion_tokens=50)


class LiveWorld(World):
    """The same world, with the real sessions of live clients instead of prompts."""

    def __init__(self, recipe: Recipe, rng: random.Random, renderer: Renderer) -> None:
        super().__init__(recipe, rng, failure_rate=0.0, tail=1.0)
        self.renderer = renderer
        self.num_clients = 6
        self.rating_share = 0.7
        self.num_replies = 0
        self.num_ratings = 0

    async def session(self, ending: str) -> int:
        clients = [asyncio.create_task(self.client()) for _ in range(self.num_clients)]
        try:
            return await super().session(ending)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    def make_engines(self) -> Any:
        engines = super().make_engines()
        self.traffic = LiveTraffic(
            self.renderer,
            engines,
            Sampling(max_completion_tokens=50),
            LIMITS,
            feedback_seconds=self.recipe.online.feedback_seconds,
            start_recording=lambda: self.controller.start_one(),
            request_ids=self.request_ids,
            numbers=itertools.count(),
        )
        return engines

    async def workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        return await self.traffic(prompt, generator, grader)

    async def evaluation_workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        return await World.workflow(self, prompt, generator, grader)

    async def client(self) -> None:
        """Conversations of one to four turns, one after the other; it never sees an error."""
        while True:
            await asyncio.sleep(self.rng.choice([0.1, 1, 20]) * self.rng.random())
            session, messages = self.traffic.open_session(), list[Message]()
            for _ in range(self.rng.randint(1, 4)):
                messages.append(Message(role="user", content="hello"))
                [reply] = await session.reply(ChatCall(messages=tuple(messages)))
                self.num_replies += 1
                messages.append(reply.message)
                if self.rng.random() < self.rating_share:
                    await asyncio.sleep(self.rng.random() * 2 * self.recipe.online.feedback_seconds)
                    self.num_ratings += self.traffic.rate(reply.id, self.rng.random())
            session.end()
