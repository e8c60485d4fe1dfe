"""What a recipe with an environment of verifiers needs; it is played in tests/clients/test_verifiers.py."""

import asyncio

import pytest

from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError
from freerun.rollout.loading import open_episode


@pytest.mark.parametrize("settings", [(), ('python="/no/such/python"',), ("python=3",)])
def test_without_the_python_of_an_environment_that_has_verifiers_the_run_is_refused(
    settings: tuple[str, ...],
) -> None:
    async def run() -> None:
        async with open_episode(RolloutConfig(episode="verifiers:my-env", settings=settings)):
            pass

    with pytest.raises(ConfigError, match="needs the Python of an environment that has verifiers"):
        asyncio.run(run())
