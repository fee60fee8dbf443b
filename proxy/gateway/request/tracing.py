"""OpenTelemetry traces. If tracing is disabled, OpenTelemetry is not imported.

A request is one SERVER span, a child of the client's span if there is a ``traceparent``. Each call
of an upstream is a CLIENT span below the SERVER span, and the upstream receives its
``traceparent``. No span contains a prompt, an output or a credential. The standard environment
variables configure exporter and sampling (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``,
``OTEL_SERVICE_NAME`` ...). Source: OpenTelemetry semantic conventions, "Generative client AI
spans", "HTTP spans".
"""

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from proxy.ledger.journal.records import CloseRecord

if TYPE_CHECKING:
    from proxy.gateway.http.request_headers import RequestHeaders
    from proxy.gateway.snapshot.targets import Target

SERVICE_NAME: Final = "messages-bridge"
PROVIDERS: Final = {
    # capability profile -> the provider's name in the semantic conventions, if the names differ
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
}
REQUEST_ATTRIBUTES: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
}
TRACE_HEADERS: Final = (b"traceparent", b"tracestate")
INPUT_COUNTS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h")


class Trace:
    """The spans of one request."""

    def __init__(self, tracer: Any, head: "RequestHeaders") -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an optional dependency
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an optional dependency

        self._api = trace
        self._tracer = tracer
        self._headers = tracecontext.TraceContextTextMapPropagator()
        carrier = {
            name.decode(): head.text(name, 512) for name in TRACE_HEADERS if name in head.headers
        }
        self._server = tracer.start_span(
            f"{head.scope['method']} {head.path[:100]}",
            context=self._headers.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={
                "http.request.method": head.scope["method"],
                "url.path": head.path[:200],
                "url.scheme": head.scope.get("scheme", "http"),
                "client.address": head.ip or "",
                "user_agent.original": head.text(b"user-agent", 300),
                "bridge.request_id": head.request_id,
            },
        )
        self._client: Any = None

    @property
    def id(self) -> str:
        """The trace id as 32 hexadecimal digits."""
        return format(self._server.get_span_context().trace_id, "032x")

    def start_attempt_span(
        self, target: "Target", request: dict[str, Any], model: str
    ) -> dict[str, str]:
        """Start the span of an upstream call. Return the trace headers to send to the upstream."""
        if self._client is not None:
            self._set_error(self._client, "another_target")
            self._client.end()
        server = target.server
        context = self._api.set_span_in_context(self._server)
        self._client = self._tracer.start_span(
            f"chat {model}",
            context=context,
            kind=self._api.SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDERS.get(server.profile_name, server.profile_name),
                "gen_ai.request.model": model,
                "server.address": server.url.host or "",
                "server.port": server.url.port or 0,
                "bridge.upstream": server.name,
                **{
                    attribute: request[name]
                    for name, attribute in REQUEST_ATTRIBUTES.items()
                    if isinstance(request.get(name), int | float)
                },
            },
        )
        headers: dict[str, str] = {}
        self._headers.inject(headers, self._api.set_span_in_context(self._client, context))
        return headers

    def end(self, closing: CloseRecord | None, status: int, team: str, route: str) -> None:
        """End the spans of the request. Call it once."""
        if self._client is not None:
            if closing is not None:
                self._client.set_attributes(_response_attributes(closing))
            if closing is not None and closing.error_type:
                self._set_error(self._client, closing.error_type)
            self._client.end()
        self._server.set_attributes(
            {
                "http.response.status_code": status,
                "bridge.team": team,
                "bridge.route": route,
                "bridge.outcome": closing.outcome if closing else "refused",
            }
        )
        if status >= 500 or (closing is not None and closing.outcome not in {"completed", ""}):
            self._set_error(self._server, (closing.error_type if closing else "") or str(status))
        self._server.end()

    def _set_error(self, span: Any, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR))


def _response_attributes(closing: CloseRecord) -> dict[str, Any]:
    usage = closing.usage
    counts = [usage[name] for name in INPUT_COUNTS if usage.get(name) is not None]
    written = sum(usage.get(name) or 0 for name in INPUT_COUNTS[2:])
    found = {
        "gen_ai.response.model": closing.model_upstream,
        "gen_ai.response.finish_reasons": [closing.stop_reason] if closing.stop_reason else None,
        "gen_ai.response.time_to_first_chunk": None
        if closing.ttft_ms is None
        else closing.ttft_ms / 1000,
        # the conventions include cached tokens
        "gen_ai.usage.input_tokens": sum(counts) if counts else None,
        "gen_ai.usage.output_tokens": usage.get("output"),
        "gen_ai.usage.cache_read.input_tokens": usage.get("cache_read"),
        "gen_ai.usage.cache_creation.input_tokens": written or None,
        "http.response.status_code": closing.upstream_status,
        "bridge.usage_source": usage.get("source"),
    }
    return {name: value for name, value in found.items() if value is not None}


class Tracing:
    """The tracer of this process. It is started and stopped with the gateway."""

    def __init__(self) -> None:
        self.on = False
        self._provider: Any = None
        self._tracer: Any = None

    def start(self, exporter: Any = None) -> None:
        """Start the tracer, unless it is running. The default exporter sends OTLP over HTTP."""
        if self._tracer is not None or not (settings.OTEL or exporter):
            return
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
                OTLPSpanExporter,
            )

            exporter = OTLPSpanExporter()
        named = Resource.create().attributes.get("service.name", "")
        resource = Resource.create(
            {"service.name": SERVICE_NAME} if str(named).startswith("unknown_service") else {}
        )
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVICE_NAME)
        self.on = True

    def stop(self) -> None:
        """Export the remaining spans and stop the tracer."""
        self.on = False
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is not None:
            provider.shutdown()

    def flush(self) -> None:
        if self._provider is not None:
            self._provider.force_flush()

    def trace_for(self, head: "RequestHeaders") -> Trace:
        """Return the trace of a request. Call it only while tracing is ``on``."""
        return Trace(self._tracer, head)


tracing: Final = Tracing()
