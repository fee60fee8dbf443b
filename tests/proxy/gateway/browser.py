"""A client of raw sockets: it sees each byte, leaves when it likes, and need not be polite."""

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
    """A whole answer; header names are in lower case."""

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
        """The payloads of a stream; the ``event:`` line must say the same as ``type``."""
        told = []
        for frame in self.body.decode().split("\n\n")[:-1]:
            name, _, text = frame.partition("\n")
            payload = json.loads(text.removeprefix("data: "))
            assert name == f"event: {payload['type']}"
            told.append(payload)
        return told

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
class Browser:
    port: int
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
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
            with connection.getresponse() as answer:
                named = {name.lower(): value for name, value in answer.getheaders()}
                return Reply(answer.status, named, answer.read())

    def post(
        self,
        request: Mapping[str, Any] | bytes,
        path: str = "/v1/messages",
        *,
        packed: bool = False,
        **headers: str,
    ) -> Reply:
        """POST a request; header names are given with underscores."""
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        told = {"x-api-key": self.key, "content-type": "application/json"}
        if packed:
            body, told["content-encoding"] = gzip.compress(body), "gzip"
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, {name: text for name, text in told.items() if text})

    @contextlib.contextmanager
    def open(self, request: Mapping[str, Any], **headers: str) -> Iterator[socket.socket]:
        """Send a request and hand out the socket; leaving the block hangs up."""
        body = json.dumps(request).encode()
        told = {"host": "gateway", "x-api-key": self.key, "content-length": str(len(body))}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {text}\r\n" for name, text in told.items())
        with socket.create_connection(("127.0.0.1", self.port), timeout=90) as connection:
            connection.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n".encode() + body)
            yield connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Everything up to and beyond ``mark``."""
    seen = b""
    while mark not in seen:
        piece = connection.recv(65_536)
        assert piece, f"the gateway hung up after {seen!r}"
        seen += piece
    return seen
