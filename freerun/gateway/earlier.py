"""Earlier responses that a request may continue with `previous_response_id`, and the messages up to them.

A response belongs to the key of its request. The session is held weakly: its responses are forgotten with it.
"""

from weakref import WeakKeyDictionary, WeakValueDictionary

from freerun.chat.messages import Message
from freerun.gateway.refusals import RefusedError
from freerun.gateway.sessions import Session


class _Conversation:
    """The messages up to a response and the response itself."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self.messages = messages


class EarlierResponses:
    """Conversations by key and response."""

    def __init__(self) -> None:
        self._of_sessions: WeakKeyDictionary[Session, list[_Conversation]] = WeakKeyDictionary()
        self._found: WeakValueDictionary[tuple[str, str], _Conversation] = WeakValueDictionary()

    def remember(self, key: str, response_id: str, session: Session, messages: tuple[Message, ...]) -> None:
        if (key, response_id) in self._found:
            return
        conversation = _Conversation(messages)
        self._of_sessions.setdefault(session, []).append(conversation)
        self._found[key, response_id] = conversation

    def recall(self, key: str, response_id: str) -> tuple[Message, ...]:
        conversation = self._found.get((key, response_id))
        if conversation is None:
            raise RefusedError(
                f'previous_response_id: "{response_id}" is not known here, or its session has ended; '
                "send the whole conversation as input",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return conversation.messages
