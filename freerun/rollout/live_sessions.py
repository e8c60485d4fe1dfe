"""Sessions of live clients: all are served, some are recorded, and rated ones are trained on.

    call ─► LiveSession ─► is there room? ─► a Recording begins: it has an ordinal and a tree
                 └► policy ─► reply, whose id a client may rate ─► rate ─► the workflow of that ordinal returns

A recording ends with its first rating, or unrated when its time is over. The conversation continues: its next call
starts another recording if there is room. The rated reply and the policy's earlier words in that conversation are
trained on; replies on other branches were not rated. Clients are not told about any of this.

All calls are sampled with the recipe's settings, recorded or not: all clients get the same treatment.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from freerun.chat.messages import ChatCall, Message, Reply
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SampleRequest, SessionLimits
from freerun.errors import SessionUnratedError
from freerun.protocols import Generator, Grader
from freerun.rollout.calls import sample_call
from freerun.types import Completion, Prompt, Reward, Sampling, Trajectory

StartRecording = Callable[[], Prompt | None]
"""Starts a rollout of one session and its workflow; None if too many are waiting."""
_UNRECORDED = 1 << 40
"""Ordinals from here on only seed the random numbers of sessions that are not recorded."""


class Recording:
    """The policy's turns in a session, until it is rated."""

    def __init__(self, prompt: Prompt, chat: ChatSession) -> None:
        self.prompt = prompt
        self.chat = chat
        self.text = ""
        """The client's last message before the first reply."""
        self.reply_ids: list[str] = []
        self.rated: asyncio.Future[tuple[int, float] | None] = asyncio.get_running_loop().create_future()
        """Number and reward of the rated call; None if the policy said nothing that could be rated."""

    @property
    def is_open(self) -> bool:
        return not self.rated.done()

    def close(self) -> None:
        """Close an empty recording: its place is free for another session."""
        if self.is_open:
            self.rated.set_result(None)


class LiveTraffic:
    """Opens sessions for clients, and implements `protocols.Workflow` for recorded sessions."""

    def __init__(
        self,
        renderer: Renderer,
        generator: Generator,
        sampling: Sampling,
        limits: SessionLimits,
        *,
        feedback_seconds: float,
        start_recording: StartRecording,
        request_ids: Iterator[int],
        numbers: Iterator[int],
    ) -> None:
        self._renderer = renderer
        self._generator = generator
        self._sampling = sampling
        self._limits = limits
        self._feedback_seconds = feedback_seconds
        self._start_recording = start_recording
        self._request_ids = request_ids
        self._numbers = numbers
        self._recordings: dict[int, Recording] = {}
        """Recordings of running groups, by ordinal."""
        self._replies: dict[str, tuple[Recording, int]] = {}
        """Replies that may be rated, by id: the recording and the number of the call."""

    def open_session(self) -> "LiveSession":
        return LiveSession(self, next(self._numbers))

    def rate(self, reply_id: str, reward: float) -> bool:
        """Rate a reply; False if no recording waits for it."""
        recording, call = self._replies.get(reply_id, (None, 0))
        if recording is None or not recording.is_open:
            return False
        recording.rated.set_result((call, reward))
        return True

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]:
        """Wait until the session with this ordinal is rated; raises `SessionUnratedError`."""
        recording = self._recordings[prompt.ordinal]
        try:
            # `asyncio.timeout` would cancel this task even if a rating was accepted just before.
            await asyncio.wait({recording.rated}, timeout=self._feedback_seconds)
            if not recording.rated.done():
                raise SessionUnratedError(f"{prompt.key}: no feedback in {self._feedback_seconds:g} s")
            rating = recording.rated.result()
        finally:
            self._forget(recording)
        if rating is None:
            raise SessionUnratedError(f"{prompt.key}: it got no reply")
        call, reward = rating
        sequence = recording.chat.sequence_to(call)
        asked = msgspec.structs.replace(prompt, text=recording.text, token_ids=sequence.prompt_token_ids)
        rated = Reward(reward, is_correct=reward > 0)
        return (Trajectory(prompt=asked, sample=0, completion=sequence.completion, reward=rated),)

    def new_chat(self, session: int, ordinal: int) -> ChatSession:
        return ChatSession(self._renderer, partial(self._sample, session, ordinal), self._limits)

    def record(self, session: int) -> Recording | None:
        """Start a recording in a chat of its own; None if too many are waiting."""
        prompt = self._start_recording()
        if prompt is None:
            return None
        recording = self._recordings[prompt.ordinal] = Recording(prompt, self.new_chat(session, prompt.ordinal))
        return recording

    def await_rating(self, recording: Recording, replies: tuple[Reply, ...]) -> None:
        """Allow clients to rate these replies from now on."""
        if recording.prompt.ordinal in self._recordings and recording.is_open:
            for reply in replies:
                self._replies[reply.id] = recording, reply.call
                recording.reply_ids.append(reply.id)

    def end_session(self, session: int) -> None:
        self._generator.end_session(session)

    def _forget(self, recording: Recording) -> None:
        recording.rated.cancel()
        del self._recordings[recording.prompt.ordinal]
        for reply_id in recording.reply_ids:
            self._replies.pop(reply_id, None)

    async def _sample(self, session: int, ordinal: int, asked: SampleRequest) -> tuple[Completion, ...]:
        return await sample_call(
            self._generator,
            asked,
            self._sampling,
            ordinal=ordinal,
            sample=0,
            session=session,
            request_ids=self._request_ids,
        )


class LiveSession:
    """One conversation of a client; implements the gateway's `OpenSession`."""

    def __init__(self, traffic: LiveTraffic, number: int) -> None:
        self._traffic = traffic
        self._number = number
        self._chat = traffic.new_chat(number, _UNRECORDED + number)
        self._recording: Recording | None = None
        self._num_in_flight = 0

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        if not self._num_in_flight and not call.is_retry:
            self._record_if_possible(call)
        chat, recording = self._chat, self._recording
        self._num_in_flight += 1
        try:
            replies = await chat.reply(call)
            if recording is not None:
                self._traffic.await_rating(recording, replies)
            return replies
        finally:
            self._num_in_flight -= 1
            if recording is not None and not recording.reply_ids and not self._num_in_flight:
                recording.close()

    def _record_if_possible(self, call: ChatCall) -> None:
        """Start a recording unless one is open. Its tree is empty: earlier turns are given, not trained on."""
        if self._recording is not None and self._recording.is_open:
            return
        self._recording = self._traffic.record(self._number)
        if self._recording is not None:
            self._recording.text = _last_of_user(call.messages)
            self._chat = self._recording.chat

    def end(self) -> None:
        """End the session; what is recorded may still be rated."""
        self._chat.end()
        self._traffic.end_session(self._number)


def _last_of_user(messages: tuple[Message, ...]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "user"), "")
