"""What every trace in Chrome's JSON format must keep: for the tests of `freerun trace`."""

from collections import Counter, defaultdict
from typing import Any

NEEDS = {
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "b": {"name", "pid", "ts", "id", "cat"},
    "e": {"name", "pid", "ts", "id", "cat"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "s": {"name", "pid", "tid", "ts", "id", "cat"},
    "f": {"name", "pid", "tid", "ts", "id", "cat", "bp"},
}


def check_trace(events: list[dict[str, Any]]) -> None:
    """Every event is whole, in order, on a named track; slices nest; what begins ends; arrows touch slices."""
    named = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert NEEDS[event["ph"]] <= event.keys(), event
        assert event["pid"] in named, event
        assert isinstance(event.get("ts", 0), int)
        assert event.get("ts", 0) >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for of_thread in slices.values():
        _check_nested(of_thread)
    _check_pairs(events)
    for event in (e for e in events if e["ph"] in "sf"):
        around = slices[event["pid"], event["tid"]]
        assert any(begin <= event["ts"] <= end for begin, end in around), event


def _check_nested(slices: list[tuple[int, int]]) -> None:
    open_ends: list[int] = []
    for begin, end in slices:
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], (begin, end, open_ends)
        open_ends.append(end)


def _check_pairs(events: list[dict[str, Any]]) -> None:
    for begins, ends in (("b", "e"), ("s", "f")):
        keys = [Counter((e["cat"], e["id"], e["name"]) for e in events if e["ph"] == ph) for ph in (begins, ends)]
        assert keys[0] == keys[1]
    first = {(e["cat"], e["id"]): e["ts"] for e in events if e["ph"] == "s"}
    assert all(first[e["cat"], e["id"]] <= e["ts"] for e in events if e["ph"] == "f")
