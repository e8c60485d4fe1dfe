"""litellm: a loop over completions; it returns messages with other keys than it got."""

import json
import os
from typing import Any

from adding import CHAT_TOOL, MODEL, add, question

# Prices of models would be fetched from GitHub.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # It reads the environment.


def main() -> None:
    messages: list[Any] = [{"role": "user", "content": question()}]
    while True:
        reply = litellm.completion(model=f"openai/{MODEL}", messages=messages, tools=[CHAT_TOOL])
        message = reply.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump())
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    print(message.content)


main()
