"""openai: a loop over chat completions."""

import json
from typing import Any

from adding import CHAT_TOOL, MODEL, add, question
from openai import OpenAI


def main() -> None:
    client = OpenAI()
    messages: list[Any] = [{"role": "user", "content": question()}]
    while True:
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL]).choices[0].message
        )
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            assert call.type == "function"
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    print(message.content)


main()
