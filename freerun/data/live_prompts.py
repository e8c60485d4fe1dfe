"""The prompt stream of a run on live traffic: clients bring the prompts, so it only numbers them.

An ordinal stands for one recorded session. Held-out prompts come from the recipe's data, as in any run.
"""

import numpy as np

from freerun.data.mixture import PromptStream
from freerun.types import Prompt


class LivePrompts:
    """Empty prompts with consecutive ordinals."""

    def __init__(self, data: PromptStream) -> None:
        self._data = data
        """Its cursor counts the sessions, so checkpoints save it."""

    @property
    def cursor(self) -> int:
        """Ordinal of the next prompt from `take`."""
        return self._data.cursor

    @property
    def fingerprint(self) -> str:
        return self._data.fingerprint

    def at(self, ordinal: int) -> Prompt:
        return Prompt(ordinal=ordinal, key=f"live:{ordinal}", text="", answer="", token_ids=np.zeros(0, np.int32))

    def take(self) -> Prompt:
        prompt = self.at(self._data.cursor)
        self._data.cursor += 1
        return prompt

    def held_out(self, limit: int) -> list[Prompt]:
        return self._data.held_out(limit)
