"""Measure the longest gap between deltas of paced streams while admin pages show hostile texts.

    python -m benchmarks.hostile_pages --streams 20 --workers 2

Stored conversations have fenced blocks in languages whose lexers are slow for 8 KB of spaces, and
48 KB of Markdown that is slow to parse; the last text of each is the answer. Streams of one delta
each 50 ms run all the time: first without a page, then while each page is opened. The output has
the time and status of each page, and the longest gap of the streams meanwhile.
"""

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.servers.web_session import WebSession

ROUTE: Final = '[[routes]]\nmodel = "*"\ntargets = [{ upstream = "chat" }]\n'
PACE_S: Final = 0.05
CODE: Final = [f"```{language}\nx{' ' * 8_000}\n```" for language in ("c", "cpp", "ini", "console")]
TEXTS: Final[dict[str, list[str]]] = {
    "code": CODE,
    "brackets": [f"{number} " + "[" * 16_000 for number in range(3)],
    "links": [f"{number} " + "[a](" * 4_000 for number in range(3)],
    "emphasis": [f"{number} " + "*a **b " * 2_200 for number in range(3)],
    "images": [f"{number} " + "![[]()" * 2_600 for number in range(3)],
}
"""Texts of at most 16 KB: the page renders no longer ones."""
JSON_HEADERS: Final = {"content-type": "application/json"}


def serve_upstream(started: Connection) -> None:
    """Answer with the text that the model names, or with deltas at a pace without end."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
    event = b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"

    def completion(text: str) -> bytes:
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "c", "object": "chat.completion", "model": "m", "created": 1, "usage": usage}
        return json.dumps({**body, "choices": choices}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                model = json.loads(await reader.readexactly(length))["model"]
                if model == "paced":
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                    while True:
                        writer.write(event)
                        await writer.drain()
                        await asyncio.sleep(PACE_S)
                raw = completion(TEXTS[model][-1])
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n" % len(raw) + raw
                )
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        started.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


class Streams:
    """Read the streams in a thread; ``ended`` counts those that were cut."""

    def __init__(self, gateway: Gateway, count: int) -> None:
        self._last = [time.monotonic()] * count
        self._longest = [0.0] * count
        self.ended = 0
        self._started = threading.Barrier(2)
        arguments = (gateway.port, gateway.key)
        threading.Thread(target=self._read_all, args=arguments, daemon=True).start()
        self._started.wait()

    def _read_all(self, port: int, key: str) -> None:
        async def main() -> None:
            tasks = [self._read(number, port, key) for number in range(len(self._last))]
            await asyncio.gather(*tasks, asyncio.to_thread(self._started.wait))

        asyncio.run(main())

    async def _read(self, number: int, port: int, key: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        message = {"role": "user", "content": "x"}
        body = json.dumps(
            {"model": "paced", "max_tokens": 9, "stream": True, "messages": [message]}
        ).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while await reader.read(65_536):
            now = time.monotonic()
            self._longest[number] = max(self._longest[number], now - self._last[number])
            self._last[number] = now
        self.ended += 1

    def longest_gap(self, action: Callable[[], Any]) -> tuple[float, float, Any]:
        """Return the longest gap while the action runs, the seconds of the action, its result."""
        now = time.monotonic()
        self._longest = [0.0] * len(self._last)
        result = action()
        end = time.monotonic()
        gaps = (end - max(last, now) for last in self._last)
        return max(*gaps, *self._longest), end - now, result


def store(gateway: Gateway, model: str) -> str:
    """Send a request whose answer is the hostile text; return its id."""
    user = json.dumps({"session_id": f"session-{model}"})
    messages = [{"role": "user", "content": "Show the marmot."}]
    for text in TEXTS[model][:-1]:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "More."}]
    body = {"model": model, "max_tokens": 9, "messages": messages, "metadata": {"user_id": user}}
    reply = gateway.request("POST", "/v1/messages", json.dumps(body).encode(), JSON_HEADERS)
    assert reply.status == 200, reply.body
    return reply.headers["request-id"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    options = parser.parse_args()
    receiver, sender = multiprocessing.Pipe()
    upstream = multiprocessing.Process(target=serve_upstream, args=(sender,), daemon=True)
    upstream.start()
    base_url = f"http://127.0.0.1:{receiver.recv()}/v1"
    config = toml_for({"chat": {"dialect": "chat", "base_url": base_url}}, ROUTE)
    with (
        tempfile.TemporaryDirectory() as folder,
        Gateway(
            Path(folder) / "g", config, {"BRIDGE_DRAIN_S": "1"}, workers=options.workers
        ) as gateway,
    ):
        ids = {model: store(gateway, model) for model in options.texts}
        wait_until_drained(gateway)
        web = WebSession(gateway).sign_in("admin", ADMIN_PASSWORD)
        web.headers["x-reading-reason"] = "benchmark of pages"
        streams = Streams(gateway, options.streams)
        time.sleep(3)
        pages = [("without a page", "")]
        for model, one in ids.items():
            page = f"/admin/proxy/exchange/{one}/change/"
            pages += [
                (f"{model}, first time", page),
                (f"{model}, again", page),
                (f"{model}, replay", f"{page}?tab=replay"),
                (f"{model}, session", f"/admin/sessions/one/?id=session-{model}&tab=words"),
                (
                    f"{model}, session export",
                    f"/admin/sessions/export/?id=session-{model}&format=markdown",
                ),
                (f"{model}, REST", f"/api/v1/requests/{one}/transcript/"),
            ]
        pages += [("search", "/admin/search/?q=marmot"), ("without a page", "")]
        for name, page in pages:

            def action(page: str = page) -> int | str:
                if not page:
                    time.sleep(5)
                    return ""
                if page.startswith("/api"):
                    return gateway.request("GET", page, headers=dict(web.headers)).status
                return web.send("GET", page).status

            try:
                gap, seconds, status = streams.longest_gap(action)
            except OSError as error:
                print(f"{name:24} failed: {error!r}; streams cut: {streams.ended}", flush=True)
                continue
            print(
                f"{name:24} {status!s:4} {seconds:6.2f} s, longest gap {gap:5.2f} s,"
                f" streams cut: {streams.ended}",
                flush=True,
            )
    upstream.kill()


if __name__ == "__main__":
    main()
