"""A gateway in its own processes, a scripted upstream, and users who are signed in."""

import contextlib
import http.cookies
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from websockets.sync.client import ClientConnection, connect

from proxy.live.running_requests import LiveRow
from proxy.models.ledger_names import person_ids, team_ids
from tests.fakes.servers.gateway import Gateway, Reply, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script, Stall, chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.admin import factories
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.http_client import GatewayClient

ROUTES = """
[[routes]]
model = "*"
targets = [{ upstream = "chat" }]
"""
WORDS = [f"canary{n} " for n in range(40)]


@contextlib.contextmanager
def running(
    folder: Path, scripted: ScriptedUpstream, workers: int = 1, **environment: str
) -> Iterator[Gateway]:
    upstream = {
        "dialect": "chat",
        "base_url": scripted.base_url,
        "profile": "generic",
        # The upstream stalls until a test has stopped its request, on a busy machine for minutes.
        "timeouts": {"first_byte_s": 900, "idle_s": 900},
    }
    gateway = Gateway(
        folder,
        config=toml_for({"chat": upstream}, ROUTES),
        environment=environment,
        workers=workers,
    )
    with gateway:
        yield gateway


def streaming_then_stalled(words: list[str] = WORDS) -> Script:
    """A stream that sends these words and then stalls until one side disconnects."""
    return [stream_head(), chunk(b"".join(upstream_scripts.chat_events(words)[:-3])), Stall()]


def stalled() -> Script:
    return [Stall()]


def completed() -> Script:
    return [stream_head(), chunk(b"".join(upstream_scripts.chat_events())), LAST_CHUNK]


def live_request(model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "secretquestion"}]
    return {"model": model, "max_tokens": 100, "stream": True, "messages": messages, **fields}


class SignedInUser:
    """A user with the cookies of a browser session."""

    def __init__(
        self, gateway: Gateway, name: str = "admin", password: str = ADMIN_PASSWORD
    ) -> None:
        self.gateway = gateway
        self.cookies: dict[str, str] = {}
        self.get("/admin/login/")
        form = {"username": name, "password": password, "next": "/admin/live/"}
        answer = self.post("/admin/login/", form)
        assert answer.status == 302, answer.body[:2000]

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Reply:
        token = self.cookies.get("csrftoken", "")
        body = urlencode({**(form or {}), "csrfmiddlewaretoken": token}).encode()
        own = {"content-type": "application/x-www-form-urlencoded", "referer": self.gateway.url}
        return self.send("POST", path, body, own | headers)

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def open_feed(self, **headers: str) -> ClientConnection:
        """Open the live feed as the live page does."""
        return open_feed(self.gateway, {"cookie": self.cookie, **headers})

    def send(self, method: str, path: str, body: bytes | None = None, headers: Any = None) -> Reply:
        sent = {"cookie": self.cookie, **(headers or {})}
        reply = self.gateway.request(method, path, body, sent, authorized=False)
        cookies = http.cookies.SimpleCookie(reply.headers.get("set-cookie", ""))
        self.cookies |= {name: cookie.value for name, cookie in cookies.items()}
        return reply


def open_feed(gateway: Gateway, headers: dict[str, str], origin: Any = "own") -> ClientConnection:
    url = f"ws://127.0.0.1:{gateway.port}/ws/live/"
    return connect(
        url,
        origin=gateway.url if origin == "own" else origin,
        additional_headers=headers,
        proxy=None,
        open_timeout=90,
    )


def receive_until(feed: ClientConnection, predicate: Any, within_s: float = 90) -> dict[str, Any]:
    """Return the first message that matches the predicate."""
    deadline = time.monotonic() + within_s
    received = []
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            received.append(json.loads(feed.recv(timeout=1)))
            if predicate(received[-1]):
                return received[-1]
    raise AssertionError(f"no such message; received: {json.dumps(received)[-3000:]}")


def browser(gateway: Gateway) -> GatewayClient:
    return GatewayClient(gateway.port, gateway.key)


class FakeRunningRequest:
    """A running request with a fixed live row."""

    def __init__(self, request_id: str, **fields: Any) -> None:
        self.row = LiveRow(
            id=request_id, age_ms=1000.0, team="platform", team_id="", key_id=7, key="ci",
            user="ben", user_id="",
            client="claude-cli", session="s", agent="", model="claude-opus-5-5", upstream="openai",
            upstream_model="gpt-5.2", stream=True, speed="", inference_geo="", state="answering", input_tokens=10,
            output_tokens=5, estimated=True, attempts=1, first_ms=10.0,
        ) | fields  # fmt: skip
        self.stopped_by = ""

    def live_row(self) -> Any:
        """Return the row with the ids that its names have now."""
        team = self.row["team_id"] or factories.ledger_id(team_ids, self.row["team"])
        user = self.row["user_id"] or factories.ledger_id(person_ids, self.row["user"])
        return self.row | {"team_id": team, "user_id": user}

    def stop_by(self, who: str) -> None:
        self.stopped_by = who
