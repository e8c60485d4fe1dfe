"""Asks the package `renderers` for the prompt of the next turn: cases as JSON on stdin, ids as JSON on stdout.

Runs in an environment with `renderers` and `tokenizers`, and without freerun.
"""

import json
import sys
from typing import Any

import tokenizers
from renderers import create_renderer
from renderers.configs import config_from_name


class Backend:
    """What a renderer needs of a tokenizer."""

    unk_token_id = None
    eos_token_id = None

    def __init__(self, text: str, name: str) -> None:
        self.name_or_path = name
        self._backend = tokenizers.Tokenizer.from_str(text)

    def encode(self, text: str, add_special_tokens: bool = False, **settings: Any) -> list[int]:
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Any, skip_special_tokens: bool = False, **settings: Any) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._backend.token_to_id(tokens)
        return [self._backend.token_to_id(token) for token in tokens]


def main() -> None:
    asked = json.load(sys.stdin)
    config = config_from_name(asked["family"])
    if "thinking_retention" in type(config).model_fields and asked["family"] != "llama-3":
        thinks = {"enable_thinking": True} if asked["family"] == "qwen3.5" else {}
        config = type(config)(thinking_retention="all", **thinks)  # or it renders anew where a user speaks
    renderer = create_renderer(Backend(asked["tokenizer"], asked["family"]), config)
    bridged = []
    for case in asked["cases"]:
        found = renderer.bridge_to_next_turn(
            case["prompt"], case["completion"], case["messages"], tools=case["tools"]
        )
        bridged.append(None if found is None else list(found.token_ids))
    json.dump(bridged, sys.stdout)


main()
