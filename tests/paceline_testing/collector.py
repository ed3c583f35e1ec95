"""A collector of traces on a loopback port: OTLP/HTTP, read by the protocol's own classes."""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span, an event or a resource as plain values."""
    return {each.key: _value(each.value) for each in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@dataclass(slots=True)
class Collector:
    """Keeps what it is sent; started and stopped as a context manager."""

    answers: int = 200
    """The status of its answers."""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0
    """Messages that came, whatever was answered."""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` names."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Read one message."""
        self.asked += 1
        if self.answers != 200 or path != "/v1/traces":
            return self.answers if path == "/v1/traces" else 404
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(batch.resource))
            self.spans.extend(span for scope in batch.scope_spans for span in scope.spans)
        return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = collector.take(self.path, headers, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *_args: object) -> None:
                """Say nothing."""

        return Handler
