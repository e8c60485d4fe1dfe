"""A server that speaks OpenEnv's protocol as its own server does, without OpenEnv.

The game: guess a number. What the environment is asked is kept.
"""

import http
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

TEXT = {"type": "string"}
OBSERVATION = {"properties": {"done": {}, "reward": {}, "metadata": {}, "text": TEXT}}
GUESS = {"properties": {"metadata": {}, "number": TEXT}}


@dataclass
class GameServer:
    """Plays until the number is `secret`."""

    action: dict[str, Any] = field(default_factory=lambda: GUESS)
    """Schema of its actions."""
    secret: str = "5"
    refusal: dict[str, Any] | None = None
    """What it says to everybody who connects before it hangs up."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    num_open: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address, for `rollout.episode`."""
        async with serve(self._play, "127.0.0.1", 0, process_request=self._schema) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            yield f"http://127.0.0.1:{port}"

    def _schema(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        body = json.dumps({"action": self.action, "observation": OBSERVATION, "state": {}}).encode()
        return Response(http.HTTPStatus.OK, "", Headers(Content_Length=str(len(body))), body)

    async def _play(self, socket: ServerConnection) -> None:
        if self.refusal is not None:
            await socket.send(json.dumps({"type": "error", "data": self.refusal}))
            return
        self.num_open += 1
        async for message in socket:
            asked = json.loads(message)
            self.asked.append(asked)
            await socket.send(json.dumps(self._answer(asked["type"], asked["data"])))
        self.num_open -= 1

    def _answer(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind == "reset":
            return _observation("Guess.", None, False)
        if set(data) - {*self.action["properties"]}:
            errors = [{"loc": [name], "msg": "extra fields not permitted"} for name in data]
            return {"type": "error", "data": {"message": "no", "code": "VALIDATION_ERROR", "errors": errors}}
        if data["number"] == "boom":
            return {"type": "error", "data": {"message": "the game is broken", "code": "EXECUTION_ERROR"}}
        is_right = data["number"] == self.secret
        return _observation("yes" if is_right else "higher", 1 if is_right else -0.25, is_right)


def _observation(text: str, reward: float | None, is_done: bool) -> dict[str, Any]:
    data = {"observation": {"text": text, "metadata": {}}, "reward": reward, "done": is_done}
    return {"type": "observation", "data": data}
