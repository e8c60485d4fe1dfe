"""The stream of a run on live traffic: clients bring the prompts, so it only numbers them.

An ordinal stands for one recorded session. What is held out comes from the recipe's data, as in any run.
"""

import numpy as np

from freerun.data.mixture import PromptStream
from freerun.types import Prompt


class LivePrompts:
    """Prompts without words, in the order of their ordinals."""

    def __init__(self, data: PromptStream) -> None:
        self._data = data
        """Its cursor counts the sessions: a checkpoint keeps it."""

    @property
    def cursor(self) -> int:
        """Ordinal that `take` gives next."""
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
