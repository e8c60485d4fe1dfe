"""Training on live traffic: clients of the gateway are served, and the sessions that they rate are trained on."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from freerun.config.section import Section
from freerun.config.values import Count

SecondsOrNone = Annotated[float, Meta(ge=0, le=31_536_000)]


@dataclass(frozen=True)
class OnlineConfig(Section, name="online"):
    feedback_seconds: SecondsOrNone = 0.0
    """freerun serve RECIPE: a recorded session that has no feedback this long after its beginning is unrated and
    not trained on. 0: the run asks the prompts of [data] and serves no clients."""

    max_sessions: Count = 1024
    """Sessions that wait for feedback at once; those that begin beyond it are served and not recorded."""

    @property
    def is_on(self) -> bool:
        return self.feedback_seconds > 0
