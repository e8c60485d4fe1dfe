"""The gateway's refusals; each dialect has its own form for them.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}            OpenAI
    {"type": "error", "error": {"type": ..., "message": ...}}                       Anthropic

Anthropic's form has no field for a code, so the code ends the message. Statuses are chosen by what the SDKs do
with them: they retry 408, 409, 429 and all from 500 on, so a limit of the session is a plain 400.
"""

from typing import Any

from freerun.errors import ChatError, ContextLengthError, SessionEndedError, TemplateRefusedError, TruncatedError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES = (
    (ContextLengthError, "context_length_exceeded"),
    (TruncatedError, "session_ended"),
    (SessionEndedError, "session_ended"),
    (TemplateRefusedError, "template_refused"),
)
"""The first match counts: a `ContextLengthError` is also a `TruncatedError`."""


class RefusedError(Exception):
    """A request that gets an error instead of a reply."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request", param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        """The invalid key of the body, if there is one."""


def refusal_of(error: ChatError) -> RefusedError:
    """The refusal for an error that a session raised."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "invalid_request")
    return RefusedError(str(error), code=code, param="messages" if code == "context_length_exceeded" else "")


def openai_error(refusal: RefusedError) -> dict[str, Any]:
    default = "invalid_request_error" if refusal.status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(refusal.status, default)
    error = {"message": refusal.message, "type": kind, "param": refusal.param or None, "code": refusal.code}
    return {"error": error}


def anthropic_error(refusal: RefusedError) -> dict[str, Any]:
    default = "invalid_request_error" if refusal.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(refusal.status, default)
    message = f"{refusal.message} ({refusal.code})"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
