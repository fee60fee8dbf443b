"""Many clients at once, each with one streaming request after the other, and what became of them.

Every request has a number. It is in the session header, so that the row in the ledger has it, and
in the message, so that the upstream's tally has it: the three can be compared one by one.
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

from .steps import LAST_CHUNK, Script, Send, Sleep, chunk, stream_head
from .upstream import Asked

Ending = Literal["whole", "error", "refused", "cut"]
NUMBER = re.compile(rb"request number (\d+)\.")
SESSION = "crowd-session-"


class Sent(NamedTuple):
    """One request as its client saw it; ``refused`` is any status but 200."""

    number: int
    ending: Ending
    status: int  # 0: no answer at all
    raw: bytes


@dataclass
class Crowd:
    """``size`` clients in a thread of their own; use it as a context manager."""

    port: int
    key: str
    model: str
    size: int
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    pause_s: float = 0.0  # at most so long between two requests of one client
    others: Sequence[int] = ()  # further ports, each asked in turn
    stays: bool = False  # a client whose answer was cut goes on with its next request
    sent: list[Sent] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _turn: int = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No client begins anything new; what runs is heard to its end."""
        self._enough.set()
        assert self._thread is not None
        self._thread.join(90)
        assert not self._thread.is_alive(), "a client still waits for its answer"

    async def _all(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self.size)))

    async def _one(self) -> None:
        while not self._enough.is_set():
            number = next(self.numbers)
            try:
                raw = await self._ask(number)
            except ConnectionRefusedError:
                return  # nobody is there any more
            except OSError:
                raw = b""
            self.sent.append(Sent(number, *_judged(raw), raw))
            if not raw and not self.stays:
                return
            await asyncio.sleep(random.random() * self.pause_s)  # noqa: S311 -- chance, not secrecy

    async def _ask(self, number: int) -> bytes:
        reader, writer = await self._connected()
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
            pass  # it was killed: what was heard until then counts
        writer.close()
        return bytes(raw)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As a load balancer does: ports take turns, and one where nobody listens is passed over."""
        ports = (self.port, *self.others)
        self._turn += 1
        for port in (*ports[self._turn % len(ports) :], *ports[: self._turn % len(ports)]):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError


def _judged(raw: bytes) -> tuple[Ending, int]:
    line = raw.partition(b"\r\n")[0].split()
    status = int(line[1]) if len(line) > 1 else 0
    if status == 0:
        return "cut", 0
    if status != 200:
        return "refused", status
    if b"event: message_stop" in raw:
        return "whole", status
    return ("error" if b"event: error" in raw else "cut"), status


def number_of(asked: Asked) -> int:
    """Which request of the crowd reached the upstream."""
    found = NUMBER.search(asked.body)
    assert found, asked.body[:200]
    return int(found[1])


def tokens_of(number: int) -> tuple[int, int]:
    """Input and output tokens that the upstream reports for this request."""
    return 100 + number, 1 + number % 40


def chat_answer(asked: Asked) -> Script:
    """A chat stream of 1 to 40 deltas within two seconds, the same for the same number."""
    number = number_of(asked)
    prompt, completion = tokens_of(number)
    pace = Sleep(random.Random(number).random() * 2 / completion)  # noqa: S311 -- chance, not secrecy
    told = [_choice({"content": f"word {n} "}) for n in range(completion)]
    told.append(_choice({}, finish_reason="stop"))
    told.append(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )
    steps: list[Any] = [stream_head()]
    for one in told:
        steps += [chunk(b"data: %b\n\n" % json.dumps(one).encode()), pace]
    # At once: who hears the last event and no end for a while hangs up.
    return [*steps, Send(chunk(b"data: [DONE]\n\n").raw + LAST_CHUNK.raw)]


def _choice(delta: Mapping[str, str], **more: str) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, **more}]}


class Verdict(NamedTuple):
    """Numbers of requests. All but the first three must be empty."""

    sent: set[int]
    dialled: set[int]
    completed: set[int]
    lost: set[int]  # the upstream or the client saw it accepted, and there is no row
    doubled: set[int]  # more than one row, or more than one call of the upstream
    left_open: set[int]
    wrong: set[int]  # completed, but not with the tokens that the upstream told

    @property
    def faults(self) -> dict[str, set[int]]:
        named = ("lost", "doubled", "left_open", "wrong")
        return {name: found for name in named if (found := getattr(self, name))}


def judge(
    sent: Iterable[Sent], asked: Iterable[Asked], rows: Iterable[Mapping[str, Any]]
) -> Verdict:
    """Compare what clients saw, what the upstream was asked, and what the ledger says."""
    sent = list(sent)
    calls = Counter(number_of(each) for each in asked)
    books: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if (row["session_id"] or "").startswith(SESSION):
            books.setdefault(int(row["session_id"].removeprefix(SESSION)), []).append(row)
    accepted = {each.number for each in sent if each.status == 200} | set(calls)
    completed = {n for n, (row, *_) in books.items() if row["outcome"] == "completed"}
    return Verdict(
        sent={each.number for each in sent},
        dialled=set(calls),
        completed=completed,
        lost=accepted - set(books),
        doubled={n for n, found in books.items() if len(found) > 1}
        | {n for n, times in calls.items() if times > 1},
        left_open={n for n, (row, *_) in books.items() if row["outcome"] in (None, "", "open")},
        wrong={n for n in completed if _tokens_in(books[n][0]) != tokens_of(n)},
    )


def _tokens_in(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["input_tokens"], row["output_tokens"]
