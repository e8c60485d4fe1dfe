"""One running gateway for the tests of a file; each test puts its own session behind it."""

from collections.abc import Iterator

import pytest
from running_gateways import Behind, RunningGateway, running_gateway
from scripted_sessions import OneSession, ScriptedSession


@pytest.fixture(scope="module")
def one_session() -> OneSession:
    return OneSession(ScriptedSession())


@pytest.fixture(scope="module")
def gateway(one_session: OneSession) -> Iterator[RunningGateway]:
    with running_gateway(one_session) as running:
        yield running


@pytest.fixture
def behind(gateway: RunningGateway, one_session: OneSession) -> Behind:
    """The gateway, with this session behind it."""

    def put(session: ScriptedSession) -> RunningGateway:
        one_session.session = session
        return gateway

    return put
