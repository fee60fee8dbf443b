"""HTTP clients of the gateway under test: whole requests, and raw sockets that can disconnect."""

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A complete response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["request-id"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The payloads of a stream; checks that the ``event`` field equals ``type``."""
        payloads = []
        for frame in self.body.decode().split("\n\n")[:-1]:
            name, _, text = frame.partition("\n")
            payload = json.loads(text.removeprefix("data: "))
            assert name == f"event: {payload['type']}"
            payloads.append(payload)
        return payloads

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        return "".join(
            event["delta"].get("text", "")
            for event in self.events
            if event["type"] == "content_block_delta"
        )


@dataclass(frozen=True)
class GatewayClient:
    """Sends requests to the gateway with one key."""

    port: int
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        ) as connection:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            with connection.getresponse() as response:
                lower = {name.lower(): value for name, value in response.getheaders()}
                return Reply(response.status, lower, response.read())

    def post(
        self,
        request: Mapping[str, Any] | bytes,
        path: str = "/v1/messages",
        *,
        packed: bool = False,
        **headers: str,
    ) -> Reply:
        """POST a request; ``headers`` have names with underscores, an empty value removes one."""
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        all_headers = {"x-api-key": self.key, "content-type": "application/json"}
        if packed:
            body, all_headers["content-encoding"] = gzip.compress(body), "gzip"
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        present = {name: text for name, text in all_headers.items() if text}
        return self.request("POST", path, body, present)

    @contextlib.contextmanager
    def open(self, request: Mapping[str, Any], **headers: str) -> Iterator[socket.socket]:
        """Send a request and yield the socket; the end of the block closes it."""
        body = json.dumps(request).encode()
        all_headers = {"host": "gateway", "x-api-key": self.key, "content-length": str(len(body))}
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {text}\r\n" for name, text in all_headers.items())
        with socket.create_connection(("127.0.0.1", self.port), timeout=90) as connection:
            connection.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n".encode() + body)
            yield connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until ``mark`` has arrived; return all bytes, which may include later ones."""
    seen = b""
    while mark not in seen:
        piece = connection.recv(65_536)
        assert piece, f"the gateway closed the connection after {seen!r}"
        seen += piece
    return seen
