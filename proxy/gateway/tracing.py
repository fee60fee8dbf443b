"""OpenTelemetry traces by the conventions for generative AI; switched off, nothing is imported.

A request is one SERVER span, below the client's own span when it sent a ``traceparent``; each call
of an upstream is a CLIENT span below it, whose ``traceparent`` goes to the upstream. No span holds
a prompt, an answer or a credential. Where spans go and how many is said by the standard variables
(``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME`` ...).
Source: OpenTelemetry semantic conventions, "Generative client AI spans", "HTTP spans".
"""

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from proxy.record.records import CloseRecord

if TYPE_CHECKING:
    from .head import Head
    from .targets import Target

SERVICE: Final = "messages-bridge"
PROVIDERS: Final = {
    # capability profile: the conventions' name of the provider; else the profile's own
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
}
ASKED: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
}
HEADERS: Final = (b"traceparent", b"tracestate")
INPUT: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h")


class Trace:
    """The spans of one request."""

    def __init__(self, tracer: Any, head: "Head") -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra; off, it costs nothing
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - the same

        self._api = trace
        self._tracer = tracer
        self._headers = tracecontext.TraceContextTextMapPropagator()
        told = {name.decode(): head.text(name, 512) for name in HEADERS if name in head.headers}
        self._server = tracer.start_span(
            f"{head.scope['method']} {head.path[:100]}",
            context=self._headers.extract(told),
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
        """As backends print it: 32 hexadecimal digits."""
        return format(self._server.get_span_context().trace_id, "032x")

    def dialled(self, target: "Target", request: dict[str, Any], model: str) -> dict[str, str]:
        """A call goes out: the headers that it carries."""
        if self._client is not None:
            self._failed(self._client, "another_target")
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
                    for name, attribute in ASKED.items()
                    if isinstance(request.get(name), int | float)
                },
            },
        )
        carried: dict[str, str] = {}
        self._headers.inject(carried, self._api.set_span_in_context(self._client, context))
        return carried

    def end(self, closing: CloseRecord | None, status: int, team: str, route: str) -> None:
        """Once, when the request is over."""
        if self._client is not None:
            if closing is not None:
                self._client.set_attributes(_of_answer(closing))
            if closing is not None and closing.error_type:
                self._failed(self._client, closing.error_type)
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
            self._failed(self._server, (closing.error_type if closing else "") or str(status))
        self._server.end()

    def _failed(self, span: Any, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR))


def _of_answer(closing: CloseRecord) -> dict[str, Any]:
    usage = closing.usage
    counts = [usage[name] for name in INPUT if usage.get(name) is not None]
    written = sum(usage.get(name) or 0 for name in INPUT[2:])
    found = {
        "gen_ai.response.model": closing.model_upstream,
        "gen_ai.response.finish_reasons": [closing.stop_reason] if closing.stop_reason else None,
        "gen_ai.response.time_to_first_chunk": None
        if closing.ttft_ms is None
        else closing.ttft_ms / 1000,
        "gen_ai.usage.input_tokens": sum(counts) if counts else None,  # cached ones included
        "gen_ai.usage.output_tokens": usage.get("output"),
        "gen_ai.usage.cache_read.input_tokens": usage.get("cache_read"),
        "gen_ai.usage.cache_creation.input_tokens": written or None,
        "http.response.status_code": closing.upstream_status,
        "bridge.usage_source": usage.get("source"),
    }
    return {name: value for name, value in found.items() if value is not None}


class Tracing:
    """``start`` it with the server, ``stop`` it after the last answer."""

    def __init__(self) -> None:
        self.on = False
        self._provider: Any = None
        self._tracer: Any = None

    def start(self, exporter: Any = None) -> None:
        """Again is fine. ``exporter``: other than the standard one, which speaks OTLP by HTTP."""
        if self._tracer is not None or not (settings.OTEL or exporter):
            return
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
                OTLPSpanExporter,
            )

            exporter = OTLPSpanExporter()
        named = Resource.create().attributes.get("service.name", "")
        resource = Resource.create(
            {"service.name": SERVICE} if str(named).startswith("unknown_service") else {}
        )
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVICE)
        self.on = True

    def stop(self) -> None:
        """Send what waits."""
        self.on = False
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is not None:
            provider.shutdown()

    def flush(self) -> None:
        if self._provider is not None:
            self._provider.force_flush()

    def of(self, head: "Head") -> Trace:
        """Only while tracing is ``on``."""
        return Trace(self._tracer, head)


tracing: Final = Tracing()
