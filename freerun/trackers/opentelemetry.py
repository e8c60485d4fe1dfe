"""OpenTelemetry: a run as one trace, sent with OTLP over HTTP to `OTEL_EXPORTER_OTLP_ENDPOINT`.

    rl.run ─┬─ rl.sample, rl.reward     a group: sampled, graded
            ├─ rl.train                 a step, with its metrics
            └─ rl.sync                  a load of new weights by an engine

Names follow the open proposal 88 of OpenTelemetry's conventions for generative AI. Spans are made from recorded
events: the run itself is not instrumented. Texts of prompts and completions are not sent.
"""

import math
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from freerun.events.events import EngineLoaded, EvalFinished, GroupFinished, StepFinished, WorkerDied
from freerun.trackers.reporter import AlarmRaised, Reported, RunInfo

MAX_QUEUED = 2048
FLUSH_EVERY = 1024
"""Flush interval: spans of a long run come faster than they are sent, and a full queue drops them."""


class OpenTelemetryReporter:
    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = exporter or OTLPSpanExporter()
        self._num_spans = 0

    def start(self, run: RunInfo) -> None:
        self._started, self._seconds = run.started, 0.0
        known = {"service.name": "freerun", "service.version": run.version, "rl.run.id": run.key}
        self._provider = TracerProvider(resource=Resource.create(known))
        processor = BatchSpanProcessor(self._exporter, max_queue_size=MAX_QUEUED)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("freerun", run.version)
        algorithm = "/".join(str(run.settings.get(f"objective.{key}", "")) for key in ("advantage", "clip"))
        attributes = {"rl.run.name": run.name, "rl.algorithm": algorithm}
        self._root = self._tracer.start_span("rl.run", start_time=self._at(0.0), attributes=attributes)

    def event(self, event: Reported) -> None:
        self._seconds = max(self._seconds, event.seconds)
        match event:
            case StepFinished():
                metrics: dict[str, float] = {
                    f"rl.metric.{n}": x for n, x in event.result.metrics.items() if math.isfinite(x)
                }
                begin = event.seconds - event.step_seconds
                metrics["rl.version"] = event.result.version
                self._span("rl.train", begin, event.seconds, metrics)
            case EngineLoaded():
                begin = event.seconds - event.load_seconds
                facts: dict[str, float | str] = {"rl.version": event.version, "rl.worker": event.worker}
                self._span("rl.sync", begin, event.seconds, {**facts, "rl.interrupts": event.num_interrupts})
            case GroupFinished() if event.started is not None:
                self._group(event, event.started)
            case EvalFinished():
                self._note("rl.eval", event.seconds, {"rl.version": event.version, "rl.accuracy": event.accuracy})
            case WorkerDied():
                self._note("rl.worker.died", event.seconds, {"rl.worker": event.worker})
            case AlarmRaised():
                self._note(
                    "rl.health", event.seconds, {"rl.rule": event.finding.rule, "rl.text": event.finding.text}
                )

    def close(self, outcome: str) -> None:
        is_bad = outcome in ("failed", "crashed")
        self._root.set_status(Status(StatusCode.ERROR if is_bad else StatusCode.OK))
        self._root.set_attribute("rl.outcome", outcome)
        self._root.end(self._at(self._seconds))
        self._provider.shutdown()

    def _group(self, event: GroupFinished, started: float) -> None:
        facts: dict[str, float | str] = {
            "rl.prompt": event.ordinal,
            "rl.outcome": event.outcome,
            "rl.worker": event.worker,
        }
        sampled = event.sampled if event.sampled is not None else event.seconds
        self._span("rl.sample", started, sampled, {**facts, "rl.tokens": event.num_tokens})
        if event.sampled is not None and event.graded is not None:
            self._span("rl.reward", event.sampled, event.graded, {**facts, "rl.reward": event.mean_reward})

    def _span(self, name: str, begin: float, end: float, attributes: Mapping[str, float | str]) -> None:
        context = set_span_in_context(self._root)
        start, stop = self._at(begin), max(self._at(begin), self._at(end))
        span = self._tracer.start_span(name, context=context, start_time=start, attributes=attributes)
        assert isinstance(span, SdkSpan)
        span.end(stop)
        self._num_spans += 1
        if self._num_spans % FLUSH_EVERY == 0:
            self._provider.force_flush()

    def _note(self, name: str, seconds: float, attributes: Mapping[str, float | str]) -> None:
        self._root.add_event(name, attributes, timestamp=self._at(seconds))

    def _at(self, seconds: float) -> int:
        """Time in nanoseconds since 1970."""
        return int(1e9 * (self._started + seconds))
