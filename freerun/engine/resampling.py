"""Samples recorded completions again, under the versions that sampled them and with their random numbers.

    version     4  4  4 |  5  5  5       the engine gets one version after the other; a sequence waits for
    recorded   a  b  c  |  d  e  f       the next version where the recorded one was interrupted
    drawn      a  b  c  |  d  x  f       if another token is drawn, the recorded one is used as context,
                                         so that each token is drawn in its recorded context

It is not known which other sequences were decoded in the same batch. That can change the last bits of the
logits, and so change a token only if its random number lies that close to the boundary between two tokens. The
distance is reported.

Shapes: R rows, V vocabulary.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec
from torch import Tensor

from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine, TextDecoder
from freerun.engine.sampler import cumulative, sample
from freerun.engine.sequence import Sequence as EngineSequence
from freerun.model.decoder import Decoder
from freerun.types import Floats, Ints, Request, Sampling


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedCall:
    """The tokens of one call: a completion, or one reply in a session."""

    ordinal: int
    sample: int
    part: int
    call: int
    prompt_token_ids: Ints
    """All tokens before it."""
    token_ids: Ints
    logprobs: Floats
    versions: Ints
    """The version of each token; never decreasing."""

    @property
    def first_version(self) -> int:
        return int(self.versions[0])

    @property
    def last_version(self) -> int:
        return int(self.versions[-1])

    @property
    def is_interrupted(self) -> bool:
        return self.first_version != self.last_version

    def num_until(self, version: int) -> int:
        """Number of its tokens sampled under this version or earlier ones."""
        return int((self.versions <= version).sum())


@dataclass(frozen=True)
class OtherToken:
    """A token that was drawn in place of the recorded one, and how close the decision was."""

    position: int
    version: int
    recorded: int
    drawn: int
    recorded_probability: float
    drawn_probability: float
    uniform: float
    """The random number at this position."""
    distance: float
    """From the random number to the nearest one that draws the recorded token."""


@dataclass
class Resampled:
    """The result for one call."""

    call: RecordedCall
    num_drawn: int = 0
    num_others: int = 0
    """Number of drawn tokens that differ from the recorded ones."""
    first_other: OtherToken | None = None
    num_equal_logprobs: int = 0
    """Number of identical tokens whose logprob has the recorded bits."""
    largest_difference: float = 0.0
    """Largest difference between logprobs of the same token."""

    @property
    def is_same(self) -> bool:
        """Whether every token was drawn again and equals the recorded one."""
        return self.num_drawn == len(self.call.token_ids) and not self.num_others


class Resampling:
    """Resamples recorded calls with an engine; `load` takes the versions in increasing order."""

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig,
        *,
        text: TextDecoder,
        max_sequence_tokens: int,
        seed: int,
        sampling: Sampling,
        calls: Sequence[RecordedCall],
    ) -> None:
        self.results = [Resampled(call) for call in calls]
        # Only the recorded end ends a call, not a stop string or token.
        self._sampling = msgspec.structs.replace(sampling, stop_strings=(), stop_token_ids=())
        self._beginning: defaultdict[int, list[int]] = defaultdict(list)
        """Calls by the version of their first token."""
        for request_id, call in enumerate(calls):
            self._beginning[call.first_version].append(request_id)
        self._begun: set[int] = set()
        num_slots = _slots_needed(calls, num_at_once=config.num_slots)
        self._engine = Engine(
            model,
            replace(
                config,
                num_slots=num_slots,
                cache_tokens=num_slots * max_sequence_tokens,
                parked_tokens=0,
                # Most rows were computed with many others, and then have the bits of a product of four rows.
                steady_rows=True,
            ),
            text=text,
            max_sequence_tokens=max_sequence_tokens,
            seed=seed,
            draw=self._draw,
        )

    def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Sample all tokens of this version."""
        self._engine.load(version, weights)
        for request_id in self._beginning.pop(version, ()):
            self._engine.submit(self._request(request_id))
            self._begun.add(request_id)
        targets = {each: self.results[each].call.num_until(version) for each in self._begun}
        while pending := self._hold_at(targets):
            targets = pending
            self._engine.step()
        self._begun = {each for each in self._begun if self.results[each].call.last_version > version}

    def _hold_at(self, targets: dict[int, int]) -> dict[int, int]:
        """Hold the requests that have reached their number of tokens; returns the others."""
        for request_id, target in targets.items():
            if self.results[request_id].num_drawn == target:
                self._engine.hold(request_id)
        return {each: target for each, target in targets.items() if self.results[each].num_drawn < target}

    def _request(self, request_id: int) -> Request:
        call = self.results[request_id].call
        return Request(
            request_id=request_id,
            ordinal=call.ordinal,
            prompt_token_ids=call.prompt_token_ids,
            num_samples=1,
            sampling=msgspec.structs.replace(self._sampling, max_completion_tokens=len(call.token_ids)),
            sample=call.sample,
            call=call.call,
        )

    def _draw(
        self, ready: list[EngineSequence], logits_RV: Tensor, uniforms_R: Tensor
    ) -> tuple[list[int], list[float]]:
        # Sampling changes the logits in place.
        tokens, logprobs = sample(logits_RV.clone(), [self._sampling] * len(ready), uniforms_R)
        rows = zip(ready, logits_RV, uniforms_R.tolist(), tokens, logprobs, strict=True)
        return [self._compare(*row) for row in rows], logprobs

    def _compare(
        self, sequence: EngineSequence, logits_V: Tensor, uniform: float, drawn: int, logprob: float
    ) -> int:
        """Record what was drawn; returns the recorded token."""
        result = self.results[sequence.group.request.request_id]
        call, position = result.call, result.num_drawn
        recorded = int(call.token_ids[position])
        result.num_drawn += 1
        if drawn == recorded:
            difference = abs(logprob - float(call.logprobs[position]))
            result.num_equal_logprobs += difference == 0
            result.largest_difference = max(result.largest_difference, difference)
            return recorded
        result.num_others += 1
        if result.first_other is None:
            result.first_other = OtherToken(
                position=position,
                version=int(call.versions[position]),
                recorded=recorded,
                drawn=drawn,
                uniform=uniform,
                **_closeness(cumulative(logits_V, self._sampling), uniform, recorded, drawn),
            )
        return recorded


def _closeness(sums_V: Tensor, uniform: float, recorded: int, drawn: int) -> dict[str, float]:
    """The probabilities of both tokens, and the random number's distance from the recorded token's interval."""

    def part(token: int) -> tuple[float, float]:
        return float(sums_V[token - 1]) if token else 0.0, float(sums_V[token])

    begin, end = part(recorded)
    other_begin, other_end = part(drawn)
    return {
        "recorded_probability": end - begin,
        "drawn_probability": other_end - other_begin,
        "distance": max(0.0, begin - uniform, uniform - end),
    }


def _slots_needed(calls: Sequence[RecordedCall], *, num_at_once: int) -> int:
    """Slots for all calls that wait for a version at the same time, and for some that do not."""
    changes = Counter(call.first_version for call in calls)
    changes.subtract(call.last_version for call in calls)
    num_waiting = max(accumulate(changes[version] for version in sorted(changes)), default=0)
    return num_waiting + min(num_at_once, len(calls))
