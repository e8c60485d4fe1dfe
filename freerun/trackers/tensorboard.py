"""TensorBoard: an event file in the run directory, `tensorboard --logdir runs` shows all runs.

It uses TensorBoard's own writer, without torch or TensorFlow. A resumed run is written again from the first
step; the new file begins with a mark that makes an open TensorBoard forget the old one.
"""

import html
import math
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event as EventProto
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from freerun.trackers.reporter import AlarmRaised, Measured, Reported, RunInfo, SampleTable, sample_cells

TENSORBOARD_FOLDER = "tensorboard"
LARGEST = 3.4028234663852886e38
"""TensorBoard's scalars are float32."""


class TensorBoardReporter:
    def start(self, run: RunInfo) -> None:
        folder = Path(run.directory) / TENSORBOARD_FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._started = run.started
        self._writer = EventFileWriter(str(folder))
        self._writer.add_event(EventProto(step=0, session_log=SessionLog(status=SessionLog.START)))
        settings = "\n".join(f"    {key} = {value!r}" for key, value in run.settings.items())
        self._write(0.0, 0, _text("settings", settings))

    def event(self, event: Reported) -> None:
        match event:
            case Measured():
                values = [Summary.Value(tag=tag, simple_value=_float32(x)) for tag, x in event.values.items()]
                self._write(event.seconds, event.step, *values)
            case AlarmRaised():
                self._write(event.seconds, event.step, _text("health/alarms", html.escape(event.finding.text)))
            case SampleTable():
                self._write(event.seconds, event.step, _text("samples", _table(event)))

    def close(self, outcome: str) -> None:
        self._writer.close()

    def _write(self, seconds: float, step: int, *values: Summary.Value) -> None:
        summary = Summary(value=values)
        self._writer.add_event(EventProto(wall_time=self._started + seconds, step=step, summary=summary))


def _float32(value: float) -> float:
    return value if not math.isfinite(value) else max(-LARGEST, min(LARGEST, value))


def _text(tag: str, markdown: str) -> Summary.Value:
    """Text in the format of the text plugin."""
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=[markdown.encode(errors="replace")])
    return Summary.Value(tag=tag, tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin))


def _table(event: SampleTable) -> str:
    head, rows = sample_cells(event)
    lines: list[Sequence[str | float]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(str(cell)) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """A model's text as a Markdown table cell: one line, no markup."""
    return html.escape(text).replace("|", "&#124;").replace("\n", "⏎").replace("\r", "")
