"""A tool that adds, as a function and as an MCP server: `python sum_tools.py`, with a PORT over HTTP."""

import sys


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


if __name__ == "__main__":
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("sums", log_level="CRITICAL")
    server.tool()(add)
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
