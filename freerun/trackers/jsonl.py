"""JSON lines in the run directory, which every program can read.

`metrics.jsonl` has one line per step and evaluation; the first line describes the run, the last one its end. It is
rewritten from the store when a run is resumed, so everything that happened is in it once.
"""

from pathlib import Path
from typing import IO, Any

import msgspec

from freerun.trackers.reporter import AlarmRaised, Measured, Reported, RunInfo, SampleTable, sample_cells

JSON_LINES = "metrics.jsonl"


class JsonLinesReporter:
    def start(self, run: RunInfo) -> None:
        path = Path(run.directory) / JSON_LINES
        path.unlink(missing_ok=True)  # do not follow a link of a copied run
        self._file: IO[bytes] = path.open("xb", buffering=0)
        self._write("run", name=run.name, settings=run.settings, freerun=run.version, started=run.started)

    def event(self, event: Reported) -> None:
        match event:
            case Measured():
                axis = "sft_step" if event.is_sft else "step"
                self._write("measured", **{axis: event.step}, seconds=event.seconds, values=event.values)
            case AlarmRaised():
                self._write("alarm", step=event.step, rule=event.finding.rule, text=event.finding.text)
            case SampleTable():
                head, rows = sample_cells(event)
                self._write("samples", step=event.step, columns=head, rows=rows)

    def close(self, outcome: str) -> None:
        self._write("end", outcome=outcome)
        self._file.close()

    def _write(self, kind: str, **values: Any) -> None:
        self._file.write(msgspec.json.encode({"kind": kind, **values}) + b"\n")
