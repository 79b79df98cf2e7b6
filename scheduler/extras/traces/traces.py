"""Sends an OpenTelemetry span for each attempt, for each call of a model and for each tool, without prompts and answers.

The names are those of the GenAI semantic conventions of OpenTelemetry (`gen_ai.*`). What they do not define begins with
`heartbeatd.`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import TypeVar
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from heartbeat.runners import Answer, Resources, Tokens
from heartbeat.runners.redaction import Redactor, secret_parts
from heartbeat.spec import Agent, HttpRunner, ModelRunner
from heartbeatd.answers import time_as_json
from scheduler import __version__
from scheduler.model.budget import Price, call_cost
from scheduler.model.entry import Claim
from scheduler.model.outcome import FAILURES, AttemptResult, Outcome
from scheduler.model.settings import Settings
from scheduler.net.library_requests import limited_answers
from scheduler.system.log import log_event
from scheduler.system.process import add_variables
from scheduler.work.executor import Done

PROTOCOL = "http/protobuf"  # the only one that the extra has an exporter for
FLUSH_TIMEOUT = 2.0  # seconds that sending the last spans may delay the end of the daemon
MAX_QUEUED = 10_000  # spans of attempts whose results have not come
MAX_PROBLEM = 300  # characters of a library's message in the log
DEFAULT_ENDPOINT = "http://localhost:4318"  # of the OTLP exporter

Made = TypeVar("Made", bound="Span")


class Traces:
    """Creates the spans of attempts, and sends them to a collector from a thread of its own.

    Spans wait in a queue of limited length, so a slow or dead collector delays nothing. The standard OTEL_* variables of the
    environment configure everything except whether traces are on. An invalid variable is one line in the log, and then nothing is
    traced.
    """

    def __init__(self, settings: Callable[[], Settings], worker: str | None) -> None:
        self._settings = settings
        self._worker = worker
        self._exporter: _Exporter | None = None
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._queued: OrderedDict[tuple[int, int], Span] = OrderedDict()  # by run and fence, used in one thread
        if (variable := _disabling_variable(os.environ)) is not None:
            log_event(logging.INFO, "traces", problem=f"off because of {variable}")
            return
        try:
            self._exporter, self._provider = _start_provider()
        except Exception as error:  # noqa: BLE001 (the SDK raises whatever an invalid variable leads to; the daemon needs no traces)
            problem = f"off because the OTEL_* variables cannot be used: {error}"
            log_event(logging.WARNING, "traces", problem=problem[:MAX_PROBLEM])
            return
        self._tracer = self._provider.get_tracer("heartbeatd", __version__)
        log_event(logging.INFO, "traces", endpoint=_endpoint(os.environ))

    @staticmethod
    def describe(environ: Mapping[str, str]) -> tuple[str, str]:
        """Where traces are sent. The daemon may have other environment variables than the command `doctor`."""
        if (variable := _disabling_variable(environ)) is not None:
            return "warn", f"telemetry.traces is true, but {variable} turns traces off"
        if (protocol := environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOL)) != PROTOCOL:
            return "warn", f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is ignored; traces are sent by {PROTOCOL}"
        return "ok", f"sent to {_endpoint(environ)}"

    async def run_attempt(
        self, claim: Claim, resources: Resources, carry_out: Callable[[Resources], Awaitable[AttemptResult]]
    ) -> AttemptResult:
        """Carry out an attempt within its span, which is not sent if the attempt is skipped before it has started anything."""
        trace = None if self._tracer is None else self._start_attempt(claim)
        if trace is None or not trace.is_valid:
            return await carry_out(resources)
        start = add_variables(resources.start, {"TRACEPARENT": trace.traceparent})
        try:
            result = await carry_out(replace(resources, start=start, trace=trace))
        except BaseException as error:
            trace.set_error(type(error).__qualname__)
            trace.end()
            raise
        if _is_wanted(result):
            trace.set_result(result, self._settings().prices, claim.run.started_at.date())
            trace.end()
        return result

    def _start_attempt(self, claim: Claim) -> AttemptTrace:
        agent = claim.entry.agent
        is_remote = agent is not None and isinstance(agent.runner, HttpRunner)
        return AttemptTrace(
            self._tracer,
            f"invoke_agent {agent.name}" if agent else f"cron {claim.entry.name}",
            _context_of(claim),
            SpanKind.CLIENT if is_remote else SpanKind.INTERNAL,
            (_agent_attributes(agent) if agent else {}) | _run_attributes(claim) | {"heartbeatd.worker": self._worker},
        )

    def begin_queueing(self, claim: Claim) -> str | None:
        """Begin the span of an attempt that a worker on another machine will execute; returns its `traceparent`.

        The same attempt gets the same span again. None if traces are off.
        """
        key = (claim.run.id, claim.run.fence)
        if key not in self._queued and self._settings().traces and self._tracer is not None:
            while len(self._queued) >= MAX_QUEUED:  # their results have never come
                self._queued.popitem(last=False)
            name = f"queue {claim.entry.name}"
            self._queued[key] = Span(self._tracer, name, Context(), SpanKind.PRODUCER, _run_attributes(claim))
        span = self._queued.get(key)
        return span.traceparent if span is not None and span.is_valid else None

    def end_queueing(self, done: Done[Claim, AttemptResult]) -> None:
        """End the span of an attempt with its result. It is sent if the worker sends one too."""
        span = self._queued.pop((done.task.run.id, done.task.run.fence), None)
        if span is None or (done.result is not None and not _is_wanted(done.result)):
            return
        if done.exception is not None:
            span.set_error(type(done.exception).__qualname__)
        span.end()

    def close(self) -> None:
        """Send the spans that are left. Takes at most FLUSH_TIMEOUT, and no time if the collector has failed last."""
        provider, self._tracer, self._provider = self._provider, None, None
        if provider is None or self._exporter is None:
            return
        flushing = threading.Thread(target=provider.shutdown, name="heartbeatd-traces", daemon=True)
        try:
            flushing.start()
        except RuntimeError:  # the machine has no thread left
            return
        flushing.join(0.0 if self._exporter.has_failed else FLUSH_TIMEOUT)


class Span:
    """A span, and the spans below it. Attributes that are None are left out."""

    def __init__(self, tracer: Tracer, name: str, context: Context, kind: SpanKind, attributes: Mapping[str, object]) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(name, context=context, kind=kind, attributes=_without_none(attributes))
        self.end = self._span.end

    @property
    def is_valid(self) -> bool:
        """Whether it has an ID that children can refer to. Without one, the SDK is switched off."""
        return bool(self._span.get_span_context().is_valid)

    @property
    def traceparent(self) -> str:
        """The span in the notation of W3C Trace Context, version 00."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set_error(self, kind: str) -> None:
        """Mark the span as failed, with the class of the error. Its text may quote the prompt, so it is left out."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        self._span.set_attributes(_without_none(attributes))

    @contextmanager
    def child(self, made: type[Made], name: str, kind: SpanKind, attributes: Mapping[str, object]) -> Iterator[Made]:
        """A span below this one, for the duration of the context."""
        span = made(self._tracer, name, set_span_in_context(self._span), kind, attributes)
        try:
            yield span
        except BaseException as error:
            span.set_error(type(error).__qualname__)
            raise
        finally:
            span.end()


class AttemptTrace(Span):
    """The span of one attempt. It is used in one thread."""

    @contextmanager
    def model_call(self, runner: ModelRunner, model: str | None) -> Iterator[ModelCallSpan]:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": runner.provider.kind,
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": runner.max_output_tokens,
            "heartbeatd.provider": runner.provider.name,
        }
        with self.child(ModelCallSpan, f"chat {model}" if model else "chat", SpanKind.CLIENT, attributes) as span:
            yield span

    def set_result(self, result: AttemptResult, prices: Mapping[str, Price], day: date) -> None:
        """Record how the attempt ended, with the sums of its usage."""
        known = [call.tokens for call in result.calls if call.tokens is not None]
        costs = [call_cost(prices, call, day) for call in result.calls]
        paid = [cost for cost in costs if cost is not None]
        self.set_attributes(
            {
                "heartbeatd.run.result": result.outcome.value,
                "heartbeatd.run.why": result.why and result.why.value,
                "gen_ai.response.model": result.model_used,
                **(_usage_attributes(sum(known, start=Tokens())) if known else {}),
                "heartbeatd.cost_usd": sum(paid) if paid and len(paid) == len(costs) else None,
            }
        )
        if result.outcome in FAILURES:
            self.set_error((result.reason or result.outcome).value)


class ModelCallSpan(Span):
    """The span of one call of a model."""

    @contextmanager
    def tool_call(self, name: str, call_id: str) -> Iterator[Span]:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "extension",
            "gen_ai.tool.call.id": call_id,
        }
        with self.child(Span, f"execute_tool {name}", SpanKind.INTERNAL, attributes) as span:
            yield span

    def set_result(self, answer: Answer) -> None:
        usage = _usage_attributes(answer.tokens) if answer.tokens is not None else {}
        self.set_attributes({"gen_ai.response.model": answer.model_used, "http.response.status_code": answer.status, **usage})
        if answer.failure is not None:
            self.set_error(answer.failure.value)


class _Exporter(OTLPSpanExporter):  # type: ignore[misc]
    """The OTLP exporter, which keeps whether the last attempt to send spans has failed."""

    def __init__(self, problems: _LibraryLog) -> None:
        with limited_answers():  # its session is opened here
            super().__init__()
        self._problems = problems
        self.has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with limited_answers():
            result = super().export(spans)
        self.has_failed = result is not SpanExportResult.SUCCESS
        if not self.has_failed:
            self._problems.written.clear()
        return result


class _LibraryLog(logging.Handler):
    """Writes each kind of message of the libraries to the log once, until spans can be sent again. Secrets are redacted."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(logging.WARNING)
        self._redactor = redactor
        self.written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self.written:
            self.written.add(record.msg)
            log_event(logging.WARNING, "traces", problem=self._redactor.redact(record.getMessage())[:MAX_PROBLEM])


def _start_provider() -> tuple[_Exporter, TracerProvider]:
    """The exporter, and the provider of tracers with its thread. The SDK reads the OTEL_* variables."""
    problems = _LibraryLog(Redactor(_secrets(os.environ)))
    library = logging.getLogger("opentelemetry")
    library.handlers = [problems]
    library.propagate = False
    exporter = _Exporter(problems)
    ours = Resource({"service.name": "heartbeatd", "service.version": __version__})
    given = Resource.create().attributes  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which take precedence
    known = {key: value for key, value in given.items() if not str(value).startswith("unknown_service")}
    provider = TracerProvider(resource=ours.merge(Resource(known)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return exporter, provider


def _endpoint(environ: Mapping[str, str]) -> str:
    """Where the standard variables send traces, without a login or a query."""
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not url:
        url = (environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/") + "/v1/traces"
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return "an address that is not valid"


def _disabling_variable(environ: Mapping[str, str]) -> str | None:
    """The standard variable that turns traces off, with its value; None if none does."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED=true"
    return "OTEL_TRACES_EXPORTER=none" if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none" else None


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """The values of the OTEL_* variables that may be secret: headers, and parts of addresses."""
    headers = [value for name, value in environ.items() if name.startswith("OTEL_") and name.endswith("_HEADERS")]
    values = [pair.partition("=")[2].strip() for header in headers for pair in header.split(",")]
    urls = [value for name, value in environ.items() if name.startswith("OTEL_") and name.endswith("_ENDPOINT")]
    return [*values, *(part for url in urls for part in secret_parts(url, whole_url=False))]


def _context_of(claim: Claim) -> Context:
    """The context of an attempt: the span of its scheduler, or the root of a trace, whatever the context of this thread is."""
    if claim.facts.traceparent is None:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": claim.facts.traceparent}, context=Context())


def _run_attributes(claim: Claim) -> dict[str, object]:
    return {
        "heartbeatd.entry.kind": claim.entry.kind.value,
        "heartbeatd.entry.name": claim.entry.name,
        "heartbeatd.run.id": claim.run.id,
        "heartbeatd.run.trigger": claim.run.trigger.value,
        "heartbeatd.run.tries": claim.run.attempt,
        "heartbeatd.run.planned_at": time_as_json(claim.run.slot),
    }


def _is_wanted(result: AttemptResult) -> bool:
    """Whether the attempt has started anything."""
    return result.outcome is not Outcome.SKIPPED or bool(result.calls) or result.precheck is not None


def _agent_attributes(agent: Agent) -> dict[str, object]:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent.name,
        "gen_ai.provider.name": agent.runner.provider.kind if isinstance(agent.runner, ModelRunner) else None,
        "gen_ai.request.model": agent.model,
    }


def _usage_attributes(tokens: Tokens) -> dict[str, object]:
    """The usage by the conventions, in which the input tokens include those of the cache."""
    return {
        "gen_ai.usage.input_tokens": tokens.input + tokens.cache_read + tokens.cache_write,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_read.input_tokens": tokens.cache_read or None,
        "gen_ai.usage.cache_creation.input_tokens": tokens.cache_write or None,
    }


def _without_none(attributes: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in attributes.items() if value is not None}
