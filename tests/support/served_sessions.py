"""Real sessions behind a gateway: a small tokenizer with a chat template, and a policy that a test scripts."""

from pathlib import Path

from scripted_policy import ScriptedPolicy
from tokenizer_kinds import byte_level, load

from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.gateway.sessions import SessionKeys

LIMITS = SessionLimits(max_turns=8, max_session_tokens=2000, max_completion_tokens=200)


def small_renderer(directory: Path) -> Renderer:
    return Renderer(load(directory, byte_level()), use_chat_template=True)


class ServedSession:
    """A session with a key, and its policy."""

    def __init__(self, keys: SessionKeys, renderer: Renderer, *texts: str, limits: SessionLimits = LIMITS) -> None:
        self.policy = ScriptedPolicy(renderer.tokenizer, texts)
        self.session = ChatSession(renderer, self.policy, limits)
        self.key = keys.add(self.session)

    def sampled_texts(self) -> list[str]:
        """What was sampled in each of the session's sequences; given tokens are left out."""
        decode = self.session._renderer.tokenizer.decode
        sequences = [sequence.completion for sequence in self.session.sequences()]
        return [decode(completion.token_ids[completion.is_sampled]) for completion in sequences]
