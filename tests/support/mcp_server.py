"""An MCP server for the tests of MCP tools: `python mcp_server.py`, or `python mcp_server.py PORT` over HTTP."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tests", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fail with these words."""
    raise ToolError(why)


@server.tool()
def pid() -> int:
    """The process of the server."""
    return os.getpid()


@server.tool()
def rows() -> list[dict[str, int]]:
    """A table."""
    return [{"a": 1}, {"a": 2}]


@server.tool()
def end() -> None:
    """End the server."""
    os._exit(3)


@server.tool()
def hang() -> None:
    """Never return."""
    time.sleep(1000)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
