"""A view of the rollout pool at one version: for evaluations, while rollouts continue with newer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from freerun.errors import PinLostError
from freerun.types import Completion, Request

if TYPE_CHECKING:
    from freerun.workers.rollout_pool import RolloutPool


class PinnedVersion:
    """Implements `protocols.PinnedGenerator`."""

    def __init__(self, pool: RolloutPool, version: int) -> None:
        self._pool = pool
        self._version = version

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        return await self._pool.generate(msgspec.structs.replace(request, pinned_version=self._version))

    def end_session(self, session: int) -> None:
        self._pool.end_session(session)

    def release(self) -> None:
        self._pool.unpin()


def pin_lost(request: Request) -> PinLostError:
    return PinLostError(
        f"version {request.pinned_version} is gone: the worker that kept it died, and newer weights have arrived"
    )
