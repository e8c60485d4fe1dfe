"""A client of a run on live traffic: it asks, and rates replies by how many digits they have.

    python examples/online_client.py http://127.0.0.1:8000/v1 KEY [NUM_QUESTIONS]

Any client of OpenAI or Anthropic could ask instead; only the feedback is freerun's.
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any

NUM_BETWEEN_LINES = 20


def post(url: str, key: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask_and_rate(url: str, key: str, question: str) -> float:
    """One question, and the feedback to its answer; the reward."""
    messages = [{"role": "user", "content": question}]
    answer = post(f"{url}/chat/completions", key, {"model": "euclid", "messages": messages})
    text = answer["choices"][0]["message"]["content"] or ""
    reward = sum(character.isdigit() for character in text) / 8
    try:
        post(f"{url}/feedback", key, {"id": answer["id"], "reward": reward})
    except urllib.error.HTTPError as error:
        if error.code != 404:  # this session was only served
            raise
    return reward


def main(url: str, key: str, num_questions: int = 400) -> None:
    rewards: list[float] = []
    for number in range(num_questions):
        rewards.append(ask_and_rate(url, key, f"^{number % 50},{number % 7}>"))
        if len(rewards) == NUM_BETWEEN_LINES:
            mean = sum(rewards) / len(rewards)
            print(f"{number + 1} questions, mean reward of the last {len(rewards)}: {mean:.2f}", flush=True)
            rewards.clear()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
