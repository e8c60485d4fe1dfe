"""The text of each token of a sequence, and where the samples of a group diverge.

A character may be spread over several tokens: the last of them has its text, the others have none, so that the
texts of all tokens joined are the whole text.
"""

import codecs
from collections.abc import Sequence

from freerun.data.tokenizer import Tokenizer
from freerun.types import Ints


def token_texts(tokenizer: Tokenizer, ids: Ints | Sequence[int]) -> list[str]:
    """One text per id; a byte that belongs to no character is shown as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(tokenizer.bytes_of(int(i))) for i in ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts


def first_difference(ids: Sequence[int], others: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Which of `others` shares the longest prefix with `ids`, and its length; None without others."""
    lengths = [_num_common(ids, other) for other in others]
    if not lengths:
        return None
    longest = max(lengths)
    return lengths.index(longest), longest


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    number = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        number += 1
    return number
