"""Selects recorded samples: of a step, a group or the whole run, by what is wrong with them, in an order.

    Selection ─► narrow query: ordered keys of the samples, with a limit ─► whole rows of these alone

A store may hold millions of trajectories of many kilobytes, so whole rows are read only for the requested
samples. A sample that became several sequences is found if one of them matches, and is returned whole.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from freerun.errors import FreerunError
from freerun.events.schema import EVAL_COMPLETIONS, LOST_GROUPS, TRAJECTORIES
from freerun.types import Floats, decoder_for

SampleOrder = Literal["reward", "weight", "length", "age"]
"""Orders, each with the greatest first."""
SampleFilter = Literal[
    "wrong", "right", "cut-off", "empty", "stale", "clipped", "equal", "lost", "filtered", "dropped", "requeued",
    "failed", "passed-over",
]  # fmt: skip
FILTERS: tuple[SampleFilter, ...] = get_args(SampleFilter)
ORDERS: tuple[SampleOrder, ...] = get_args(SampleOrder)
CONDITIONS: dict[SampleFilter, str] = {
    "wrong": "NOT is_correct",
    "right": "is_correct",
    "cut-off": "finish_reason = 'length'",
    "empty": "trim(completion, char(9, 10, 13, 32)) = ''",
    "stale": "staleness > 0",
    "clipped": "num_clipped > 0",
    "equal": (
        "ordinal IN (SELECT ordinal FROM trajectories {of} GROUP BY ordinal HAVING min(reward) = max(reward))"
    ),
    "lost": "outcome IS NOT NULL",
    "filtered": "outcome = 'filtered'",
    "dropped": "outcome = 'dropped'",
    "requeued": "outcome = 'requeued'",
    "failed": "outcome = 'failed'",
    "passed-over": "outcome = 'passed_over'",
}
OF_LOST: tuple[SampleFilter, ...] = ("lost", "filtered", "dropped", "requeued", "failed", "passed-over")
"""Filters that refer to samples that were not trained on."""
OF_TRAINED: tuple[SampleFilter, ...] = ("stale", "clipped", "equal")
KEYS = {
    "reward": "reward",
    "weight": "largest_log_weight(log_weights)",
    "length": "length(token_ids)",  # of the encoded array: SQLite knows it without reading the whole row
    "age": "staleness",
}
NUM_PARTS_EXPECTED = 2
"""Expected sequences per sample, for the limit of the first query."""
_floats: msgspec.msgpack.Decoder[Floats] = decoder_for(Floats)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to read; all given conditions must hold."""

    step: int | None = None
    """Only what the step to this version consumed."""
    ordinal: int | None = None
    """Only the samples of this group."""
    where: tuple[SampleFilter, ...] = ()
    text: str = ""
    """Only samples whose prompt, completion or answer contains this text, ignoring case."""
    order: SampleOrder | None = None
    """None: the order of training within a step, evaluation or group; otherwise newest first."""
    is_reversed: bool = False
    limit: int = 20

    @property
    def is_of_lost(self) -> bool:
        return any(name in OF_LOST for name in self.where)


class SampleQuery(msgspec.Struct, frozen=True):
    """The ordered keys of the selected samples."""

    table: str
    key: tuple[str, ...]
    """Columns that identify a sample."""
    where: str
    order: str
    values: tuple[Any, ...]

    @property
    def keys(self) -> str:
        """A statement for one row per matching sequence; add a limit."""
        return f"SELECT {', '.join(self.key)} FROM {self.table} {self.where} ORDER BY {self.order}"

    @property
    def count(self) -> str:
        """A statement for the number of samples."""
        return f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(self.key)} FROM {self.table} {self.where})"

    @property
    def parts(self) -> str:
        """The end of a statement that reads one sample by its key."""
        return f"WHERE {' AND '.join(f'{column} = ?' for column in self.key)} ORDER BY part"


def query_of(selection: Selection, eval_version: int | None = None) -> SampleQuery:
    """The query for an evaluation, for lost samples, or for trained ones."""
    if eval_version is not None:
        return eval_query(selection, eval_version)
    return lost_query(selection) if selection.is_of_lost else trained_query(selection)


def trained_query(selection: Selection, steps: Sequence[int] = ()) -> SampleQuery:
    """The query for trained samples, limited to these steps if any are given."""
    _refuse(selection, OF_LOST, "trained samples were not lost")
    is_small = selection.step is not None or selection.ordinal is not None
    query = _query(TRAJECTORIES.name, ("ordinal", "sample"), selection, "rowid" if is_small else "rowid DESC")
    if not steps:
        return query
    return msgspec.structs.replace(
        query, where=f"WHERE version IN ({', '.join('?' * len(steps))})", values=tuple(steps)
    )


def eval_query(selection: Selection, version: int) -> SampleQuery:
    """The query for the held-out completions of an evaluation."""
    what = "a held-out completion is not trained on"
    _refuse(selection, (*OF_LOST, *OF_TRAINED), what)
    _refuse_order(selection, what)
    of_version = msgspec.structs.replace(selection, step=version)
    return _query(EVAL_COMPLETIONS.name, ("version", "ordinal", "sample"), of_version, "rowid")


def lost_query(selection: Selection) -> SampleQuery:
    """The query for samples that were not trained on, newest first."""
    what = "a lost completion was not trained on"
    _refuse(selection, OF_TRAINED, what)
    _refuse_order(selection, what)
    if selection.step is not None:
        raise FreerunError(f"step {selection.step} and lost completions exclude each other: {what}; leave one out")
    return _query(LOST_GROUPS.name, ("event", "sample"), selection, "event DESC, sample")


def largest_log_weight(encoded: bytes) -> float | None:
    """The largest log-weight of a trajectory's tokens, from the encoded array; used as an SQLite function."""
    log_weights = _floats.decode(encoded)
    return float(log_weights.max()) if log_weights.size else None


def can_use_step_maxima(selection: Selection) -> bool:
    """Whether the samples with the largest weights can be found among as many steps with the largest weights."""
    is_of_run = selection.step is None and selection.ordinal is None
    return (
        selection.order == "weight"
        and is_of_run
        and not (selection.where or selection.text or selection.is_reversed)
    )


def _query(table: str, key: tuple[str, ...], selection: Selection, own_order: str) -> SampleQuery:
    conditions, values = _conditions(selection)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return SampleQuery(table, key, where, _order(selection, own_order), values)


def _conditions(selection: Selection) -> tuple[list[str], tuple[Any, ...]]:
    conditions: list[str] = []
    values: list[Any] = []
    for column, wanted in (("version", selection.step), ("ordinal", selection.ordinal)):
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    # A number from a struct, never text, so it is safe inside the statement.
    of = f"WHERE version = {selection.step:d}" if selection.step is not None else ""
    conditions += [CONDITIONS[name].format(of=of) for name in selection.where]
    if selection.text:
        columns = ("completion", "prompt", "answer")
        conditions.append(f"({' OR '.join(f'{column} LIKE ? ESCAPE char(92)' for column in columns)})")
        escaped = selection.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values += [f"%{escaped}%"] * len(columns)
    return conditions, tuple(values)


def _order(selection: Selection, own_order: str) -> str:
    if selection.order is None:
        return _reversed(own_order) if selection.is_reversed else own_order
    direction = "ASC" if selection.is_reversed else "DESC"
    return f"{KEYS[selection.order]} {direction} NULLS LAST, rowid"


def _reversed(order: str) -> str:
    columns = order.split(", ")
    return ", ".join(c.removesuffix(" DESC") if c.endswith(" DESC") else f"{c} DESC" for c in columns)


def _refuse(selection: Selection, names: Sequence[SampleFilter], reason: str) -> None:
    for name in selection.where:
        if name in names:
            raise FreerunError(f'"{name}" cannot be asked for here: {reason}; leave it out')


def _refuse_order(selection: Selection, reason: str) -> None:
    if selection.order in ("weight", "age"):
        raise FreerunError(f'order "{selection.order}" is not known here: {reason}; order by reward or length')
