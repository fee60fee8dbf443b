"""Translate the upstream scripts of the catalogue into steps of the scripted upstream.

A script is a list of step names (``"rst"``) and of tables whose first key is the step name
(``{ texts = 2 }``). Steps that send content encode it in the case's dialect.
"""

import json
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.script_steps import Script, Step
from tests.fakes.upstreams.stream_cuts import pieces
from tests.proxy.gateway import upstream_scripts

from .outcomes import finish

TEXTS = ("Hello", " there", ".")
GATE = threading.Event()
"""An upstream with the step "wait for gate" waits for this event; the client sets it."""
EVENTS_BY_DIALECT = {
    "chat": upstream_scripts.chat_events,
    "responses": upstream_scripts.responses_events,
    "anthropic": upstream_scripts.claude_events,
}
PROLOGUE = {"chat": 1, "responses": 3, "anthropic": 2}  # events before the first text
ENDS = {
    "epilogue",
    "epilogue at once",
    "whole",
    "deltas",
    "letters",
    "finish",
    "gzipped",
    "complete",
}
"""Step names that complete a response."""


class DefaultResponse(NamedTuple):
    """The default response in one dialect, event by event."""

    prologue: list[bytes]
    texts: list[bytes]
    epilogue: list[bytes]


@cache
def default_response(dialect: str) -> DefaultResponse:
    events = EVENTS_BY_DIALECT[dialect](TEXTS)
    at = PROLOGUE[dialect]
    return DefaultResponse(events[:at], events[at : at + len(TEXTS)], events[at + len(TEXTS) :])


def script(steps: list[Any], dialect: str) -> Script:
    """Return the steps of these names."""
    return [step for step in steps for step in _steps(step, dialect)]


def turns(steps: list[Any], dialect: str) -> list[Script]:
    """Return a script for each request in turn; a flat list is the only script."""
    parts = steps if steps and isinstance(steps[0], list) else [steps]
    return [script(part, dialect) for part in parts]


def _steps(step: Any, dialect: str) -> Iterator[Step]:
    if isinstance(step, str):
        yield from PLAIN_STEPS[step](dialect)
        return
    name, *_ = step
    yield from STEPS_WITH_ARGUMENTS[name](dialect, **step)


def _send_events(raw: list[bytes], cut: Any = "whole") -> Iterator[Step]:
    for event in raw:
        yield from (script_steps.chunk(piece) for piece in pieces(event, cut))


def _whole(dialect: str, *, whole: bool = True, cut: Any = "whole", encoding: str = "") -> Script:
    """Build the default response; ``encoding`` names a variant of the SSE encoding."""
    raw = b"".join(b"".join(part) for part in default_response(dialect))
    return script_steps.stream(ENCODINGS[encoding](raw), cut, pauses=0 if cut == "bytes" else 8)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "cr": lambda raw: raw.replace(b"\n", b"\r"),
    "bom": lambda raw: b"\xef\xbb\xbf" + raw,
    "comments": lambda raw: b": hello\n\n" + raw.replace(b"\n\n", b"\n\n: still here\n\n"),
    "no space": lambda raw: raw.replace(b"data: ", b"data:"),
    "lines": lambda raw: raw.replace(b'data: {"', b'data: {\ndata: "'),  # multi-line data
}


def _event(dialect: str, *, event: dict[str, Any]) -> Iterator[Step]:
    yield script_steps.chunk(upstream_scripts.sse(event, event.get("type", "")))


def _tool(dialect: str, *, tool: str, arguments: str = '{"city": "Oslo"}') -> Iterator[Step]:
    """Build a tool call: its start and its ``arguments`` (all, or the first "half")."""
    arguments = arguments[: len(arguments) // 2] if tool == "half" else arguments
    yield from _send_events(
        [
            upstream_scripts.sse(each, each.get("type", ""))
            for each in TOOL_CALLS[dialect](arguments)
        ]
    )


def _chat_call(arguments: str) -> list[dict[str, Any]]:
    opening = {"index": 0, "id": "call_1", "type": "function",
               "function": {"name": "weather", "arguments": ""}}  # fmt: skip
    more = {"index": 0, "function": {"arguments": arguments}}
    return [
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        for call in (opening, more)
    ]


def _responses_call(arguments: str) -> list[dict[str, Any]]:
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "weather",
            "arguments": "", "status": "in_progress"}  # fmt: skip
    place = {"output_index": 0, "item_id": "fc_1"}
    return [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", **place, "delta": arguments},
    ]


def _claude_call(arguments: str) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", arguments)]
    return [
        json.loads(default_response("anthropic").prologue[0].partition(b"data: ")[2]),
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
    ]


TOOL_CALLS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "chat": _chat_call,
    "responses": _responses_call,
    "anthropic": _claude_call,
}


def _json(
    dialect: str, *, json: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Script:
    return script_steps.json_response(json, status, headers)


def _answer(
    dialect: str,
    *,
    answer: int,
    body: str = "",
    hex: str = "",  # noqa: A002 - the name in the catalogue
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Script:
    raw = bytes.fromhex(hex) if hex else body.encode()
    return script_steps.response(answer, raw, kind, headers)


def _times(dialect: str, *, times: int, of: list[Any]) -> Script:
    return list(script(of, dialect)) * times


def _raw(dialect: str, *, raw: str) -> Iterator[Step]:
    yield script_steps.Send(raw.encode("latin-1"))


def _data(dialect: str, *, data: str) -> Iterator[Step]:
    r"""Send one event with this data; ``\xff`` and the like are bytes."""
    yield script_steps.chunk(b"data: " + data.encode("latin-1") + b"\n\n")


def _gzipped(dialect: str, *, gzipped: bool, layers: int = 1) -> Script:
    return script_steps.gzipped_stream(
        b"".join(b"".join(part) for part in default_response(dialect)), "bytes"
    )


def _flood(dialect: str, *, flood: int) -> Script:
    """Send ``flood`` text deltas of one letter, a hundred in each write."""
    at = PROLOGUE[dialect]
    return [script_steps.chunk(EVENTS_BY_DIALECT[dialect](["w"])[at] * 100)] * (flood // 100)


PLAIN_STEPS: dict[str, Callable[[str], Any]] = {
    "rst": lambda _: [script_steps.Reset()],
    "fin": lambda _: [script_steps.Close()],
    "stall": lambda _: [script_steps.Stall()],
    "wait for gate": lambda _: [script_steps.WaitForGate(GATE)],
    "short pause": lambda _: [
        script_steps.Sleep(0.05)
    ],  # so that the gateway reads earlier bytes first
    "end": lambda _: [script_steps.LAST_CHUNK],
    "stream": lambda _: [script_steps.stream_head()],
    "prologue": lambda dialect: _send_events(default_response(dialect).prologue),
    "texts": lambda dialect: _send_events(default_response(dialect).texts),
    "epilogue": lambda dialect: _send_events(default_response(dialect).epilogue),
    "epilogue at once": lambda dialect: _send_events(
        [b"".join(default_response(dialect).epilogue)]
    ),
    "whole": _whole,
    "gzip bomb": lambda _: script_steps.gzip_bomb(),
    "complete": lambda _: [],  # marks that the script completes the response
    "not http": lambda _: script_steps.not_http(),
}
STEPS_WITH_ARGUMENTS: dict[str, Callable[..., Any]] = {
    "whole": _whole,
    "stream": lambda _, stream: [script_steps.stream_head(stream)],
    "head": lambda _, head, headers=None: [script_steps.head(head, headers)],
    "texts": lambda dialect, texts: _send_events(default_response(dialect).texts[:texts]),
    "again": lambda dialect, again: _send_events([default_response(dialect).texts[again]]),
    "from": lambda dialect, **step: _send_events(default_response(dialect).texts[step["from"] :]),
    "deltas": lambda dialect, deltas, cut="whole": _send_events(
        EVENTS_BY_DIALECT[dialect](deltas), cut
    ),
    "letters": lambda dialect, letters: _send_events(EVENTS_BY_DIALECT[dialect](["w" * letters])),
    "letter": lambda dialect, letter: _send_events(
        EVENTS_BY_DIALECT[dialect](["w" * letter])[PROLOGUE[dialect] :][:1]
    ),
    "flood": _flood,
    "finish": finish,
    "json": _json,
    "answer": _answer,
    "page": lambda _, page, size=2_000: script_steps.html_response(page, size=size),
    "event": _event,
    "data": _data,
    "tool": _tool,
    "raw": _raw,
    "chunk": lambda _, chunk: [script_steps.chunk(chunk.encode("latin-1"))],
    "filler": lambda _, filler: [script_steps.chunk(b"x" * filler)],
    "sleep": lambda _, sleep: [script_steps.Sleep(sleep)],
    "times": _times,
    "gzipped": _gzipped,
}


def completes_response(steps: list[Any]) -> bool:
    """Return whether a script completes the response; only then a row may be ``completed``."""
    return any(
        completes_response(step) if isinstance(step, list) else _step_name(step) in ENDS
        for step in steps
    )


def _step_name(step: Any) -> str:
    return str(step if isinstance(step, str) else next(iter(step)))
