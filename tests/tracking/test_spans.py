"""A run as a trace of OpenTelemetry: spans of its groups, steps and loads, sent to a collector."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from recorded_events import a_start, an_end, an_eval, make_step, write

from freerun.events.events import EngineLoaded, GroupFinished
from freerun.trackers.opentelemetry import OpenTelemetryReporter
from freerun.trackers.reporting import Reporting, ReportOptions, report


def a_store(directory: Path, *, num_steps: int = 3) -> None:
    group = GroupFinished(
        seconds=1.0, ordinal=7, outcome="buffered", started=0.2, sampled=0.8, graded=0.9, worker="rollout-0"
    )
    load = EngineLoaded(seconds=1.5, worker="rollout-0", version=1, load_seconds=0.25, num_interrupts=2)
    steps = [make_step(v, ()) for v in range(1, num_steps + 1)]
    write(directory, a_start(), group, load, an_eval(0), *steps, an_end())


def test_spans_have_the_times_of_the_store_and_one_root(tmp_path: Path) -> None:
    a_store(tmp_path)
    exporter = InMemorySpanExporter()
    reporting = Reporting(tmp_path, lambda: OpenTelemetryReporter(exporter), ReportOptions(), None)
    while reporting.deliver():
        pass
    reporting.close("finished")
    spans = exporter.get_finished_spans()
    [root] = [span for span in spans if span.name == "rl.run"]
    assert [span.name for span in spans].count("rl.train") == 3
    assert {span.name for span in spans} == {"rl.run", "rl.train", "rl.sample", "rl.reward", "rl.sync"}
    assert {span.parent.span_id for span in spans if span is not root} == {root.context.span_id}
    [sampling] = [span for span in spans if span.name == "rl.sample"]
    assert (sampling.end_time - sampling.start_time) == pytest.approx(0.6e9, abs=1e4)
    [sync] = [span for span in spans if span.name == "rl.sync"]
    assert (sync.start_time - root.start_time) == pytest.approx(1.25e9, abs=1e4)
    assert [event.name for event in root.events] == ["rl.eval"]


def test_a_collector_gets_every_span_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_store(tmp_path, num_steps=5000)
    names: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                names.extend(span.name for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        report(tmp_path, "opentelemetry", ReportOptions(), must_stop=lambda seconds: True)
        server.shutdown()
    assert names.count("rl.train") == 5000
    assert names.count("rl.run") == 1
