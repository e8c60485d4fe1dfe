"""The tool, an MCP server of its own."""

import verifiers.v1 as vf


class AddingToolset(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


if __name__ == "__main__":
    AddingToolset.run()
