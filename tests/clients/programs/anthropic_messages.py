"""anthropic: a loop over messages; arguments of calls are objects, never text."""

from typing import Any

from adding import MODEL, PARAMETERS, add, question
from anthropic import Anthropic

TOOL: Any = {"name": "add", "description": "Add two numbers.", "input_schema": PARAMETERS}


def main() -> None:
    client = Anthropic()
    messages: list[Any] = [{"role": "user", "content": question()}]
    while True:
        reply = client.messages.create(model=MODEL, max_tokens=200, messages=messages, tools=[TOOL])
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(add(**call.input))} for call in calls
        ]
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    print("".join(block.text for block in reply.content if block.type == "text"))


main()
