"""Which groups may have been sampled with a kept cache that the record does not tell."""

import numpy as np

from freerun.engine.resampling import RecordedCall
from freerun.replay.group import late_siblings


def a_call(ordinal: int, sample: int, versions: list[int], *, call: int = 0) -> RecordedCall:
    return RecordedCall(
        ordinal=ordinal,
        sample=sample,
        part=0,
        call=call,
        prompt_token_ids=np.zeros(3, np.int32),
        token_ids=np.zeros(len(versions), np.int32),
        logprobs=np.zeros(len(versions), np.float32),
        versions=np.array(versions),
    )


def test_a_group_is_late_if_a_sample_began_under_a_later_version_than_its_siblings() -> None:
    together = [a_call(1, 0, [3, 3, 4]), a_call(1, 1, [3])]
    late = [a_call(2, 0, [3, 4]), a_call(2, 1, [4, 4])]
    later_turn = [a_call(3, 0, [3]), a_call(3, 0, [5], call=1)]
    assert late_siblings([*together, *late, *later_turn]) == {2}
