"""Tasks beside a loop: no failure goes unnoticed, and none is reported twice."""

import asyncio
import gc
from typing import Any

import pytest

from freerun.controller.background import Background


async def fail(what: str) -> None:
    raise ValueError(what)


def test_two_failures_in_one_turn_leave_nothing_for_asyncio_to_complain_about() -> None:
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        background = Background()
        background.start(fail("beside"))
        with pytest.raises(ValueError, match="beside"):
            await background.watch(fail("watched"))
        await background.cancel()
        gc.collect()

    asyncio.run(main())
    assert complaints == []
