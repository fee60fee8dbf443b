"""A collector of traces: takes OTLP over HTTP on a loopback port and keeps every span."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Use it as a context manager; ``url`` is what OTEL_EXPORTER_OTLP_ENDPOINT wants."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.raw = b""
        collector = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                packed = self.headers.get("content-encoding") == "gzip"
                collector.take(self.path, gzip.decompress(body) if packed else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        told = ExportTraceServiceRequest.FromString(body)
        self.raw += body
        for resource in told.resource_spans:
            self.services.add(named(resource.resource.attributes)["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def named(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        found[each.key] = getattr(each.value, kind) if kind else None
    return found
