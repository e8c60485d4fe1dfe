"""A session: one client's calls to the policy, within limits, and the sequences they become.

    reply(call) ──► prompt ids from the tree ──► sample ──► commit ──► Reply

It does not know who calls (an episode, an HTTP client) or who samples (an engine in this process or another).
Calls may overlap. A call is numbered on arrival; refused calls keep their numbers, which seed random numbers.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from freerun.chat.messages import AS_IN_RECIPE, CallSampling, ChatCall, Reply, TokenLogprob
from freerun.chat.rendering import Renderer
from freerun.chat.sequences import SessionSequence
from freerun.chat.tree import ChatPrompt, SessionTree
from freerun.chat.turns import Turn
from freerun.errors import ChatError, ContextLengthError, SessionEndedError, TruncatedError
from freerun.types import Completion, Ints


@dataclass(frozen=True)
class SampleRequest:
    """A request for completions of these ids; sample i is call `call + i` of the session."""

    token_ids: Ints
    max_tokens: int
    stop: tuple[str, ...]
    num_samples: int
    call: int
    sampling: CallSampling = AS_IN_RECIPE


Sample = Callable[[SampleRequest], Awaitable[tuple[Completion, ...]]]


@dataclass(frozen=True)
class SessionLimits:
    max_turns: int
    """Limit on the session's replies."""
    max_session_tokens: int
    """Limit on a conversation: its prompt and its completion together."""
    max_completion_tokens: int


@dataclass(eq=False)
class _CallInFlight:
    """A call in flight; kept when it is answered, for clients that repeat it."""

    call: ChatCall
    task: asyncio.Task[tuple[Reply, ...]]
    num_waiters: int = 0

    @property
    def has_failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class ChatSession:
    def __init__(self, renderer: Renderer, sample: Sample, limits: SessionLimits) -> None:
        self.num_calls = 0
        """Number of call numbers given out."""
        self.is_truncated = False
        """Whether a limit was hit."""
        self._renderer = renderer
        self._sample = sample
        self._limits = limits
        self._tree = SessionTree(renderer, now=time.time())
        self._calls: list[_CallInFlight] = []
        self._has_ended = False

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        """The policy's next `num_replies` messages.

        If the last caller that waits for a call is cancelled, the call is cancelled too and nothing of it is kept.
        """
        if self._has_ended:
            raise SessionEndedError("the session has ended; it takes no more calls")
        flight = self._joined(call) or self._start(call)
        flight.num_waiters += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if flight.task.cancelled() and not (caller and caller.cancelling()):
                raise SessionEndedError("the session ended during the call") from None
            raise
        finally:
            flight.num_waiters -= 1
            if not flight.num_waiters and not flight.task.done():
                flight.task.cancel()

    def _joined(self, call: ChatCall) -> _CallInFlight | None:
        """The call that this one repeats, unless that call failed."""
        if not call.is_retry:
            return None
        wanted = msgspec.structs.replace(call, is_retry=False)
        return next((f for f in reversed(self._calls) if f.call == wanted and not f.has_failed), None)

    def _start(self, call: ChatCall) -> _CallInFlight:
        number = self.num_calls
        if number + call.num_replies > self._limits.max_turns:
            self.is_truncated = True
            raise TruncatedError(
                f"the session has had {number} of {self._limits.max_turns} turns, and {call.num_replies} more are "
                "asked for; raise rollout.max_turns or end it earlier"
            )
        self.num_calls += call.num_replies
        flight = _CallInFlight(
            msgspec.structs.replace(call, is_retry=False), asyncio.ensure_future(self._answer(call, number))
        )
        self._calls.append(flight)
        return flight

    async def _answer(self, call: ChatCall, number: int) -> tuple[Reply, ...]:
        self._require_chance_to_fit(call)
        prompt = await self._tree.prompt(call)
        wanted, room = self._num_tokens(call, len(prompt.token_ids))
        completions = await self._sample(
            SampleRequest(
                token_ids=prompt.token_ids,
                max_tokens=min(wanted, room),
                stop=call.stop,
                num_samples=call.num_replies,
                call=number,
                sampling=call.sampling,
            )
        )
        if len(completions) != call.num_replies:
            raise ChatError(
                f"call {number}: the engine returned {len(completions)} completions for a request of "
                f"{call.num_replies}"
            )
        if room < wanted and any(completion.finish_reason == "length" for completion in completions):
            self.is_truncated = True
        turns = [
            self._tree.commit(prompt, completion, number=number + n) for n, completion in enumerate(completions)
        ]
        return tuple(self._reply(prompt, turn, number + n) for n, turn in enumerate(turns))

    def _require_chance_to_fit(self, call: ChatCall) -> None:
        """Refuse what is far too long before rendering and encoding it, which would delay all other sessions."""
        num_characters = call.num_characters
        if num_characters > self._limits.max_session_tokens * self._renderer.tokenizer.longest_token:
            self.is_truncated = True
            raise ContextLengthError(
                f"the conversation has {num_characters:,} characters, and a session has room for "
                f"{self._limits.max_session_tokens} tokens; shorten it or raise rollout.max_session_tokens"
            )

    def _num_tokens(self, call: ChatCall, num_prompt_tokens: int) -> tuple[int, int]:
        """The number of tokens to sample, and the number that the session has room for."""
        room = self._limits.max_session_tokens - num_prompt_tokens
        if room < 1:
            self.is_truncated = True
            raise ContextLengthError(
                f"the conversation has {num_prompt_tokens} tokens, and a session has room for "
                f"{self._limits.max_session_tokens} with its completions; shorten it or raise "
                "rollout.max_session_tokens"
            )
        most = self._limits.max_completion_tokens
        return (most if call.max_tokens is None else min(call.max_tokens, most)), room

    def _reply(self, prompt: ChatPrompt, turn: Turn, number: int) -> Reply:
        completion = turn.completion
        return Reply(
            id=secrets.token_hex(12),
            message=turn.message,
            finish_reason="tool_calls" if turn.message.tool_calls else completion.finish_reason,
            sampled_text=self._renderer.tokenizer.decode(completion.token_ids),
            call=number,
            num_prompt_tokens=len(prompt.token_ids),
            num_completion_tokens=len(completion.token_ids),
            num_cached_tokens=prompt.num_shared,
            logprobs=self._logprobs(completion) if prompt.call.wants_logprobs else (),
        )

    def _logprobs(self, completion: Completion) -> tuple[TokenLogprob, ...]:
        bytes_of = self._renderer.tokenizer.bytes_of
        pieces = [bytes_of(token_id) for token_id in completion.token_ids.tolist()]
        return tuple(
            TokenLogprob(token=piece.decode(errors="replace"), logprob=logprob, bytes=piece)
            for piece, logprob in zip(pieces, completion.logprobs.tolist(), strict=True)
        )

    def sequences(self) -> tuple[SessionSequence, ...]:
        """The sequences to train on, from everything sampled so far."""
        return self._tree.sequences()

    def sequence_to(self, call: int) -> SessionSequence:
        """The reply with this number and those before it in its conversation, without other branches."""
        return self._tree.sequence_to(call)

    def end(self) -> None:
        """Cancel calls in flight and refuse later ones; committed turns are kept."""
        self._has_ended = True
        for flight in self._calls:
            flight.task.cancel()
