"""A game behind OpenEnv's own server: find a number from 1 to 9. Prints its port when it listens."""

import random
import socket
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

MAX_GUESSES = 5


class Guess(Action):
    number: str


class Hint(Observation):
    text: str


class GuessTheNumber(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        self._secret = random.Random(seed).randint(1, 9)
        self._state = State()
        return Hint(text="Guess a number from 1 to 9.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        guess = int(action.number)
        self._state.step_count += 1
        if guess == self._secret:
            return Hint(text="yes", reward=1.0, done=True)
        is_over = self._state.step_count == MAX_GUESSES
        return Hint(text="higher" if guess < self._secret else "lower", reward=-0.1, done=is_over)

    @property
    def state(self) -> State:
        return self._state


with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    app = create_fastapi_app(GuessTheNumber, Guess, Hint, max_concurrent_envs=2)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
