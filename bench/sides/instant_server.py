"""A server of chat completions that always says the same, at once: what LiteLLM's proxy is put in front of.

instant_server.py PORT REPLY
"""

import sys

import msgspec
import uvicorn
from serving import report_when_up
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def main() -> None:
    port, reply = sys.argv[1:]
    message = {"role": "assistant", "content": reply}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    body = msgspec.json.encode(completion)

    async def complete(request: Request) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    report_when_up(int(port))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
