"""Count the responses that reach the wrong client when an upstream sends unrequested responses.

    python -m benchmarks.stray_responses --requests 3000 --reuse shared,key,never

A quarter of the clients use the key of an attacker, who can make the upstream send one stray
response for each of the attacker's requests, on the connection of that request. Two attacks:

- ``after``: the stray response follows the genuine response by 0 to 2 ms. By then the connection
  is idle, is being reused, or carries the next request.
- ``before``: the stray response is sent as soon as the request has arrived, the genuine response
  5 ms later. The gateway cannot detect the first one, and all later responses are shifted by one.

After a stray response, the gateway stops reusing connections to that origin. ``--origins``
distributes the requests over so many origins, one after the other, and each origin sends only one
stray response. This simulates an attacker who waits until the gateway trusts the origin again.

Each response quotes the mark of its request. The output has the stray and the shifted genuine
responses that reached a client, how many of these reached another key, and the gateway's own
count. ``--reuse default`` leaves the option out of the configuration.
"""

import argparse
import asyncio
import itertools
import json
import random
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.fakes.servers.gateway import Gateway

KEYS: Final = {name: f"sk-br-{name}-{'k' * 40}" for name in ("mallory", "ada", "ben", "cleo")}
CLIENTS: Final = 20
MARK: Final = re.compile(rb"mark-(\w+)-(\d+)\.")
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
STRAYS: Final = re.compile(r"^bridge_upstream_stray_responses_total\{.*\} (\d+)", re.MULTILINE)

UPSTREAM: Final = """
[[upstreams]]
name = "origin-{n}"
dialect = "chat"
base_url = "http://127.0.0.1:{port}/v1"
{reuse}
[[routes]]
model = "m-{n}"
targets = [{{ upstream = "origin-{n}" }}]
"""
TEAM: Final = """
[[teams]]
name = "all"
"""
KEY: Final = """
[[keys]]
team = "all"
name = "{name}"
secret = {{ env = "BRIDGE_KEY_{upper}" }}
"""


def response(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = json.dumps({"id": "c", "object": "chat.completion", "model": "m",
                       "choices": [choice], "usage": usage}).encode()  # fmt: skip
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


STRAY: Final = response("a stray response")


class Attacked(asyncio.Protocol):
    """The upstream's side of one connection."""

    attack = "after"
    patient = False
    connections = 0
    strayed: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self._received = bytearray()
        self._chance = random.Random(Attacked.connections)
        Attacked.connections += 1

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            if not found or length is None or len(rest) < int(length[1]):
                return
            size = int(length[1])
            del self._received[: len(head) + 4 + size]
            self._answer(rest[:size])

    def _answer(self, body: bytes) -> None:
        mark = MARK.search(body)
        assert mark, body
        genuine = response(mark[0].decode())
        port = self._transport.get_extra_info("sockname")[1]
        if mark[1] != b"mallory" or (Attacked.patient and port in Attacked.strayed):
            self._loop.call_later(self._chance.uniform(0, 0.002), self._send, genuine)
            return
        Attacked.strayed.add(port)
        if Attacked.attack == "after":
            self._send(genuine)
            self._loop.call_later(self._chance.uniform(0, 0.002), self._send, STRAY)
        else:
            self._send(STRAY)
            self._loop.call_later(0.005, self._send, genuine)

    def _send(self, raw: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(raw)


class Upstream:
    """Servers in a thread, on free loopback ports."""

    def __init__(self, origins: int) -> None:
        self._origins = origins

    def __enter__(self) -> list[int]:
        self._loop = asyncio.new_event_loop()
        self._servers = [
            self._loop.run_until_complete(
                self._loop.create_server(Attacked, "127.0.0.1", 0, backlog=512)
            )
            for _ in range(self._origins)
        ]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


async def client(gateway: Gateway, key: str, models: Sequence[str], first: int) -> Counter[str]:
    """Send these requests one after the other over one connection and judge each response."""
    found: Counter[str] = Counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    for number, model in enumerate(models, first):
        text = f"mark-{key}-{number}."
        body_fields = {
            "model": model,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": text}],
        }
        body = json.dumps(body_fields).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {KEYS[key]}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(answered)
        assert length, answered
        answered += await reader.readexactly(int(length[1]))
        found[verdict(answered, key, text)] += 1
    writer.close()
    return found


def verdict(answered: bytes, key: str, text: str) -> str:
    if not answered.startswith(b"HTTP/1.1 200"):
        return "error"
    mark = MARK.search(answered)
    if mark is None:
        return "stray" if key == "mallory" else "stray, another key"
    if mark[0].decode() == text:
        return "own"
    return "shifted" if mark[1].decode() == key else "shifted, another key"


async def attack(gateway: Gateway, requests: int, origins: int) -> Counter[str]:
    each = requests // CLIENTS
    models = [f"m-{n * origins // each}" for n in range(each)]
    keys = itertools.islice(itertools.cycle(KEYS), CLIENTS)
    tallies = await asyncio.gather(
        *(client(gateway, key, models, n * each) for n, key in enumerate(keys))
    )
    return sum(tallies, Counter())


def measure(kind: str, reuse: str, requests: int, origins: int) -> dict[str, int]:
    """One attack on a new gateway."""
    option = "" if reuse == "default" else f'connection_reuse = "{reuse}"\n'
    Attacked.attack, Attacked.connections, Attacked.patient = kind, 0, origins > 1
    Attacked.strayed.clear()
    environment = {f"BRIDGE_KEY_{name.upper()}": secret for name, secret in KEYS.items()}
    keys = "".join(KEY.format(name=name, upper=name.upper()) for name in KEYS)
    with Upstream(origins) as ports, tempfile.TemporaryDirectory() as folder:
        upstreams = (UPSTREAM.format(n=n, port=port, reuse=option) for n, port in enumerate(ports))
        config = "".join(upstreams) + TEAM + keys
        with Gateway(Path(folder), config, environment, key=KEYS["ada"]) as gateway:
            found = asyncio.run(attack(gateway, requests, origins))
            numbers = gateway.request("GET", "/metrics").body.decode()
    counted = sum(int(number) for number in STRAYS.findall(numbers))
    return {**found, "counted": counted, "connections": Attacked.connections}


COLUMNS: Final = ("own", "stray", "stray, another key", "shifted", "shifted, another key", "error",
                  "counted", "connections")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--origins", type=int, default=1, help="more than 1: one stray for each")
    parser.add_argument("--reuse", default="shared,key,never", help="default: as configured")
    options = parser.parse_args()
    print("| attack | connection_reuse |", " | ".join(COLUMNS), "|")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for kind, reuse in itertools.product(("after", "before"), options.reuse.split(",")):
        found = measure(kind, reuse, options.requests, options.origins)
        print(f"| {kind} | {reuse} |", " | ".join(str(found.get(n, 0)) for n in COLUMNS), "|")


if __name__ == "__main__":
    main()
