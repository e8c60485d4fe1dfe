"""The HTTP side: routes, and the handling of a request.

    request ─► admission ─► dialect.read ─► session ─► call ─► dialect.answer | dialect.events ─► response

Every refusal is sent in the form of its dialect. Bodies, keys and texts of exceptions are never logged.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from freerun.errors import ChatError
from freerun.gateway.admission import Admission, GatewayLimits, drop_body, read_body
from freerun.gateway.anthropic import ANTHROPIC
from freerun.gateway.calls import CallsInFlight, Replies, outcome, place_of
from freerun.gateway.chat_completions import CHAT_COMPLETIONS
from freerun.gateway.dialect import Asked, Dialect
from freerun.gateway.earlier import EarlierResponses
from freerun.gateway.feedback import GiveFeedback, read_feedback
from freerun.gateway.models import no_such_model, shown_model, shown_models
from freerun.gateway.refusals import RefusedError, anthropic_error, openai_error, refusal_of
from freerun.gateway.responses import RESPONSE_PREFIX, RESPONSES
from freerun.gateway.sampling_rule import SamplingRule
from freerun.gateway.sessions import Session, SessionDirectory

_PING = b": waiting for the policy\n\n"
_DIALECTS = {"/v1/chat/completions": CHAT_COMPLETIONS, "/v1/responses": RESPONSES, "/v1/messages": ANTHROPIC}
_log = logging.getLogger(__name__)

Serve = Callable[[Request, str, bytes], Awaitable[Response]]
"""Handles a request, given its key and its body."""
ErrorForm = Callable[[RefusedError], dict[str, Any]]


class GatewayApp:
    """Answers requests from the sessions of a directory."""

    def __init__(
        self,
        sessions: SessionDirectory,
        *,
        admission: Admission,
        sampling: SamplingRule,
        limits: GatewayLimits,
        feedback: GiveFeedback | None,
    ) -> None:
        self.calls = CallsInFlight(call_seconds=limits.call_seconds)
        self._sessions = sessions
        self._admission = admission
        self._sampling = sampling
        self._limits = limits
        self._feedback = feedback
        self._earlier = EarlierResponses()
        self.asgi = Starlette(routes=[*self._routes()], exception_handlers={HTTPException: self._no_route})
        self.asgi.router.redirect_slashes = False

    def _routes(self) -> Iterator[Route]:
        for path, dialect in _DIALECTS.items():
            yield Route(path, self._endpoint(partial(self._chat, dialect), dialect.error), methods=["POST"])
        yield Route("/v1/models", self._endpoint(self._models, openai_error))
        yield Route("/v1/models/{model:path}", self._endpoint(self._model, openai_error))
        if self._feedback is not None:
            rate = partial(self._rate, self._feedback)
            yield Route("/v1/feedback", self._endpoint(rate, openai_error), methods=["POST"])

    def _endpoint(self, serve: Serve, error: ErrorForm) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a handler as an endpoint that turns every exception into an answer."""

        async def endpoint(request: Request) -> Response:
            try:
                return await self._served(request, serve)
            except RefusedError as refused:
                refusal = refused
            except ClientDisconnect:
                return Response()  # The client is gone.
            except Exception as broken:  # noqa: BLE001 - the edge of a request
                _log.error("a request failed: %s", place_of(broken))
                refusal = RefusedError("the gateway failed; its log says where", status=500, code="internal_error")
            return _json(error(refusal), status=refusal.status)

        return endpoint

    async def _served(self, request: Request, serve: Serve) -> Response:
        try:
            key = self._admission.admit(request)
        except RefusedError:
            await drop_body(request, self._limits)
            raise
        return await serve(request, key, await read_body(request, self._limits))

    async def _chat(self, dialect: Dialect, request: Request, key: str, body: bytes) -> Response:
        asked = dialect.read(body, partial(self._earlier.recall, key))
        if asked.model != self._sessions.model_name:
            raise no_such_model(asked.model, self._sessions.model_name)
        sampling, headers = self._sampling.settle(asked.settings)
        session, asked = self._find(key, asked.sampled(sampling), is_retry=_is_retry(request))
        call = self.calls.start(self._replies(key, session, asked))
        if asked.is_streamed:
            return await self._streamed(dialect, asked, call, headers)
        return _json(dialect.answer(asked, await outcome(call)), headers=headers)

    def _find(self, key: str, asked: Asked, *, is_retry: bool) -> tuple[Session, Asked]:
        if is_retry:
            asked = asked.again()
        try:
            return self._sessions.find(key, asked.call), asked
        except ChatError as error:
            raise refusal_of(error) from error

    async def _replies(self, key: str, session: Session, asked: Asked) -> Replies:
        replies = await session.reply(asked.call)
        if asked.is_remembered:
            messages = (*asked.call.messages[asked.num_passing :], replies[0].message)
            self._earlier.remember(key, RESPONSE_PREFIX + replies[0].id, session, messages)
        return replies

    async def _streamed(
        self, dialect: Dialect, asked: Asked, call: asyncio.Task[Replies], headers: dict[str, str]
    ) -> Response:
        """A streamed response; a call that ends before the first ping can still be refused with its status."""
        headers = {**headers, "cache-control": "no-store"}
        done, _ = await asyncio.wait({call}, timeout=self._limits.ping_seconds)
        if done:
            events = b"".join(dialect.events(asked, await outcome(call)))
            return Response(events, media_type="text/event-stream", headers=headers)
        stream = self._waiting(dialect, asked, call)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _waiting(self, dialect: Dialect, asked: Asked, call: asyncio.Task[Replies]) -> AsyncIterator[bytes]:
        """The body of a stream: pings until the call ends, then all of its events."""
        while not call.done():
            yield _PING
            await asyncio.wait({call}, timeout=self._limits.ping_seconds)
        try:
            replies = await outcome(call)
        except RefusedError as refusal:
            yield dialect.error_event(refusal)
            return
        for event in dialect.events(asked, replies):
            yield event

    async def _models(self, request: Request, key: str, body: bytes) -> Response:
        return _json(shown_models(self._sessions.model_name))

    async def _model(self, request: Request, key: str, body: bytes) -> Response:
        name = request.path_params["model"]
        if name != self._sessions.model_name:
            raise no_such_model(name, self._sessions.model_name)
        return _json(shown_model(name))

    async def _rate(self, give: GiveFeedback, request: Request, key: str, body: bytes) -> Response:
        feedback = read_feedback(body, key=key)
        if not give(feedback):
            raise RefusedError(
                "id: no answer of this id is waiting for feedback", status=404, code="not_found", param="id"
            )
        return _json({"object": "feedback", "reward": feedback.reward})

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        await drop_body(request, self._limits)
        is_anthropic = "anthropic-version" in request.headers or request.scope["path"].startswith("/v1/messages")
        form = anthropic_error if is_anthropic else openai_error
        paths = ", ".join(route.path for route in self.asgi.routes if isinstance(route, Route))
        refusal = RefusedError(
            f"no {request.method} of this path here; there are {paths}", status=error.status_code, code="not_found"
        )
        return _json(form(refusal), status=refusal.status)


def _is_retry(request: Request) -> bool:
    """Whether the request is a retry: the SDKs of OpenAI and Anthropic number their attempts."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and count.strip("0") != ""


def _json(body: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json", headers=headers)
