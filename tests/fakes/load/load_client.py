"""Many concurrent clients, each with one streaming request after the other, and their results.

Every request has a number. The session header carries it into the ledger's row, and the message
carries it to the upstream, so a test can compare client, upstream and ledger request by request.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script, Send, Sleep, chunk, stream_head
from tests.fakes.upstreams.upstream import ReceivedRequest

Ending = Literal["whole", "error", "refused", "cut"]
NUMBER = re.compile(rb"request number (\d+)\.")
SESSION = "load-session-"


class Sent(NamedTuple):
    """One request as its client saw it; ``refused`` is any status other than 200."""

    number: int
    ending: Ending
    status: int  # 0: no response
    raw: bytes


@dataclass
class LoadClients:
    """``size`` concurrent clients in one background thread; use it as a context manager."""

    port: int
    key: str
    model: str
    size: int
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    pause_s: float = 0.0  # maximum pause between two requests of one client
    other_ports: Sequence[int] = ()  # further ports, used in turn
    continues_after_cut: bool = False  # a client whose response was cut sends its next request
    sent: list[Sent] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _turn: int = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run_all()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Start no more requests and wait until the running ones end."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(90)
        assert not self._thread.is_alive(), "a client still waits for its response"

    async def _run_all(self) -> None:
        await asyncio.gather(*(self._run_client() for _ in range(self.size)))

    async def _run_client(self) -> None:
        while not self._stop.is_set():
            number = next(self.numbers)
            try:
                raw = await self._send(number)
            except ConnectionRefusedError:
                return  # no server listens
            except OSError:
                raw = b""
            self.sent.append(Sent(number, *classify_response(raw), raw))
            if not raw and not self.continues_after_cut:
                return
            await asyncio.sleep(random.random() * self.pause_s)  # noqa: S311 -- the numbers are no secrets

    async def _send(self, number: int) -> bytes:
        reader, writer = await self._connect()
        body = json.dumps(
            {
                "model": self.model,
                "max_tokens": 999,
                "stream": True,
                "messages": [{"role": "user", "content": f"This is request number {number}."}],
            }
        )
        head = (
            "POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
            f"x-api-key: {self.key}\r\nx-claude-code-session-id: {SESSION}{number}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write((head + body).encode())
        raw = bytearray()
        try:
            while part := await reader.read(65_536):
                raw += part
        except OSError:
            pass  # the gateway was killed; evaluate the bytes received so far
        writer.close()
        return bytes(raw)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as a load balancer does: use the ports in turn and skip those that refuse."""
        ports = (self.port, *self.other_ports)
        self._turn += 1
        for port in (*ports[self._turn % len(ports) :], *ports[: self._turn % len(ports)]):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError


def classify_response(raw: bytes) -> tuple[Ending, int]:
    line = raw.partition(b"\r\n")[0].split()
    status = int(line[1]) if len(line) > 1 else 0
    if status == 0:
        return "cut", 0
    if status != 200:
        return "refused", status
    if b"event: message_stop" in raw:
        return "whole", status
    return ("error" if b"event: error" in raw else "cut"), status


def number_of(request: ReceivedRequest) -> int:
    """Return the number of the request that the upstream received."""
    match = NUMBER.search(request.body)
    assert match, request.body[:200]
    return int(match[1])


def tokens_of(number: int) -> tuple[int, int]:
    """Return the input and output tokens that the upstream reports for this request."""
    return 100 + number, 1 + number % 40


def chat_response(request: ReceivedRequest) -> Script:
    """Build a chat stream of 1 to 40 deltas within two seconds; deterministic for a number."""
    number = number_of(request)
    prompt, completion = tokens_of(number)
    pace = Sleep(random.Random(number).random() * 2 / completion)  # noqa: S311 -- the numbers are no secrets
    events = [_choice({"content": f"word {n} "}) for n in range(completion)]
    events.append(_choice({}, finish_reason="stop"))
    events.append(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )
    steps: list[Any] = [stream_head()]
    for event in events:
        steps += [chunk(b"data: %b\n\n" % json.dumps(event).encode()), pace]
    # In one write: a client that waits for the end after the last event could disconnect.
    return [*steps, Send(chunk(b"data: [DONE]\n\n").raw + LAST_CHUNK.raw)]


def _choice(delta: Mapping[str, str], **more: str) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, **more}]}


class Verdict(NamedTuple):
    """Sets of request numbers. All but the first three must be empty."""

    sent: set[int]
    called: set[int]
    completed: set[int]
    lost: set[int]  # the upstream or the client has them as accepted, but the ledger has no row
    duplicated: set[int]  # more than one row, or more than one call of the upstream
    left_open: set[int]
    wrong: set[int]  # completed, but with other tokens than the upstream reported

    @property
    def faults(self) -> dict[str, set[int]]:
        named = ("lost", "duplicated", "left_open", "wrong")
        return {name: numbers for name in named if (numbers := getattr(self, name))}


def compare_records(
    sent: Iterable[Sent], requests: Iterable[ReceivedRequest], rows: Iterable[Mapping[str, Any]]
) -> Verdict:
    """Compare the clients' results, the upstream's requests and the ledger's rows."""
    sent = list(sent)
    calls = Counter(number_of(each) for each in requests)
    rows_by_number: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if (row["session_id"] or "").startswith(SESSION):
            rows_by_number.setdefault(int(row["session_id"].removeprefix(SESSION)), []).append(row)
    accepted = {each.number for each in sent if each.status == 200} | set(calls)
    completed = {n for n, (row, *_) in rows_by_number.items() if row["outcome"] == "completed"}
    return Verdict(
        sent={each.number for each in sent},
        called=set(calls),
        completed=completed,
        lost=accepted - set(rows_by_number),
        duplicated={n for n, found in rows_by_number.items() if len(found) > 1}
        | {n for n, times in calls.items() if times > 1},
        left_open={
            n for n, (row, *_) in rows_by_number.items() if row["outcome"] in (None, "", "open")
        },
        wrong={n for n in completed if _tokens_in(rows_by_number[n][0]) != tokens_of(n)},
    )


def _tokens_in(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["input_tokens"], row["output_tokens"]
