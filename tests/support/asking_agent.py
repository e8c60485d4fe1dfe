"""An agent without freerun: it gets a task and an endpoint from `rollout.command`, and prints an answer."""

import json
import os
import sys
import urllib.request

task = json.load(sys.stdin)
asked = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": task["text"]}]}
request = urllib.request.Request(
    f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
    json.dumps(asked).encode(),
    {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
print(said.replace("\n", " ") or "nothing")
