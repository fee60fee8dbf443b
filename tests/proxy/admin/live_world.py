"""A gateway in processes of its own, its scripted upstream, and people who are signed in to it."""

import contextlib
import http.cookies
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from websockets.sync.client import ClientConnection, connect

from proxy.live.running import Row
from tests.fakes.gateway import Gateway, Reply, toml_for
from tests.fakes.steps import LAST_CHUNK, Script, Stall, chunk, stream_head
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts
from tests.proxy.gateway.browser import Browser

PASSWORD = "correct-horse-battery"
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
    upstream = {"dialect": "chat", "base_url": scripted.base_url, "profile": "generic"}
    gateway = Gateway(
        folder,
        config=toml_for({"chat": upstream}, ROUTES),
        environment={"BRIDGE_ADMIN_PASSWORD": PASSWORD, **environment},
        workers=workers,
    )
    with gateway:
        yield gateway


def held(words: list[str] = WORDS) -> Script:
    """A stream that says these words and then nothing, until somebody goes."""
    return [stream_head(), chunk(b"".join(scripts.chat_events(words)[:-3])), Stall()]


def silent() -> Script:
    return [Stall()]


def quick() -> Script:
    return [stream_head(), chunk(b"".join(scripts.chat_events())), LAST_CHUNK]


def asked(model: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "secretquestion"}]
    return {"model": model, "max_tokens": 100, "stream": True, "messages": said, **fields}


class Person:
    """Somebody with a browser's cookies."""

    def __init__(self, gateway: Gateway, name: str = "admin", password: str = PASSWORD) -> None:
        self.gateway = gateway
        self.cookies: dict[str, str] = {}
        self.get("/admin/login/")
        form = {"username": name, "password": password, "next": "/admin/live/"}
        answer = self.post("/admin/login/", form)
        assert answer.status == 302, answer.body[:2000]

    def get(self, path: str) -> Reply:
        return self._ask("GET", path)

    def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Reply:
        token = self.cookies.get("csrftoken", "")
        body = urlencode({**(form or {}), "csrfmiddlewaretoken": token}).encode()
        told = {"content-type": "application/x-www-form-urlencoded", "referer": self.gateway.url}
        return self._ask("POST", path, body, told | headers)

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def watch(self, **headers: str) -> ClientConnection:
        """The live feed, as a page of ours opens it."""
        told = {"cookie": self.cookie, **headers}
        return listen(self.gateway, told)

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: Any = None) -> Reply:
        told = {"cookie": self.cookie, **(headers or {})}
        answer = self.gateway.ask(method, path, body, told, authorised=False)
        found = http.cookies.SimpleCookie(answer.headers.get("set-cookie", ""))
        self.cookies |= {name: one.value for name, one in found.items()}
        return answer


def listen(gateway: Gateway, headers: dict[str, str], origin: Any = "own") -> ClientConnection:
    url = f"ws://127.0.0.1:{gateway.port}/ws/live/"
    return connect(
        url,
        origin=gateway.url if origin == "own" else origin,
        additional_headers=headers,
        proxy=None,
        open_timeout=90,
    )


def heard(feed: ClientConnection, what: Any, within_s: float = 90) -> dict[str, Any]:
    """The first message for which ``what`` holds."""
    deadline = time.monotonic() + within_s
    told = []
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            told.append(json.loads(feed.recv(timeout=1)))
            if what(told[-1]):
                return told[-1]
    raise AssertionError(f"never heard; instead: {json.dumps(told)[-3000:]}")


def browser(gateway: Gateway) -> Browser:
    return Browser(gateway.port, gateway.key)


def until(check: Any, within_s: float = 90) -> Any:
    """What ``check`` gives as soon as it gives anything."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to be")


class Still:
    """A running request that stands where it is told to."""

    def __init__(self, request_id: str, **told: Any) -> None:
        self.row = Row(
            id=request_id, age_ms=1000.0, team="platform", key_id=7, key="ci", user="ben",
            client="claude-cli", session="s", agent="", model="claude-opus-5-5", upstream="openai",
            upstream_model="gpt-5.2", stream=True, state="answering", input_tokens=10,
            output_tokens=5, estimated=True, attempts=1, first_ms=10.0,
        ) | told  # fmt: skip
        self.stopped_by = ""

    def glance(self) -> Any:
        return self.row

    def stop_by(self, who: str) -> None:
        self.stopped_by = who
