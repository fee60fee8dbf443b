"""The words of an upstream's script in the catalogue -> steps of the scripted upstream.

A script is a list of words (``"rst"``) and of tables whose first key is the word
(``{ texts = 2 }``). Words that speak do it in the dialect that is being played.
"""

import json
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.fakes import steps
from tests.fakes.cuts import pieces
from tests.fakes.steps import Script, Step
from tests.proxy.gateway import scripts

from .endings import finish

TEXTS = ("Hello", " there", ".")
GATE = threading.Event()
"""What an upstream that holds waits for, until the client lets it go on."""
SPOKEN = {
    "chat": scripts.chat_events,
    "responses": scripts.responses_events,
    "anthropic": scripts.claude_events,
}
PROLOGUE = {"chat": 1, "responses": 3, "anthropic": 2}  # events before the first text
ENDS = {"epilogue", "epilogue at once", "whole", "said", "letters", "finish", "gzipped", "well"}
"""Words that bring an answer to its end."""


class Voice(NamedTuple):
    """The usual answer as one dialect says it, event by event."""

    prologue: list[bytes]
    texts: list[bytes]
    epilogue: list[bytes]


@cache
def voice(dialect: str) -> Voice:
    events = SPOKEN[dialect](TEXTS)
    at = PROLOGUE[dialect]
    return Voice(events[:at], events[at : at + len(TEXTS)], events[at + len(TEXTS) :])


def script(words: list[Any], dialect: str) -> Script:
    """The steps that these words stand for."""
    return [step for word in words for step in _steps(word, dialect)]


def turns(words: list[Any], dialect: str) -> list[Script]:
    """A script for each request in turn; a script that is not split is all there is."""
    parts = words if words and isinstance(words[0], list) else [words]
    return [script(part, dialect) for part in parts]


def _steps(word: Any, dialect: str) -> Iterator[Step]:
    if isinstance(word, str):
        yield from PLAIN[word](dialect)
        return
    name, *_ = word
    yield from SAYING[name](dialect, **word)


def _told(raw: list[bytes], cut: Any = "whole") -> Iterator[Step]:
    for event in raw:
        yield from (steps.chunk(piece) for piece in pieces(event, cut))


def _whole(dialect: str, *, whole: bool = True, cut: Any = "whole", by: str = "") -> Script:
    """The usual answer; ``by``: "crlf" or "cr" as line ends, or other marks of odd servers."""
    raw = b"".join(b"".join(part) for part in voice(dialect))
    return steps.stream(ODD[by](raw), cut, pauses=0 if cut == "bytes" else 8)


ODD: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "cr": lambda raw: raw.replace(b"\n", b"\r"),
    "bom": lambda raw: b"\xef\xbb\xbf" + raw,
    "comments": lambda raw: b": hello\n\n" + raw.replace(b"\n\n", b"\n\n: still here\n\n"),
    "tight": lambda raw: raw.replace(b"data: ", b"data:"),
    "lines": lambda raw: raw.replace(b'data: {"', b'data: {\ndata: "'),  # multi-line data
}


def _event(dialect: str, *, event: dict[str, Any]) -> Iterator[Step]:
    yield steps.chunk(scripts.sse(event, event.get("type", "")))


def _tool(dialect: str, *, tool: str, arguments: str = '{"city": "Oslo"}') -> Iterator[Step]:
    """A tool call: its opening, and ``arguments`` (all of them, or the first "half")."""
    said = arguments[: len(arguments) // 2] if tool == "half" else arguments
    yield from _told([scripts.sse(each, each.get("type", "")) for each in CALLING[dialect](said)])


def _chat_call(said: str) -> list[dict[str, Any]]:
    opening = {"index": 0, "id": "call_1", "type": "function",
               "function": {"name": "weather", "arguments": ""}}  # fmt: skip
    more = {"index": 0, "function": {"arguments": said}}
    return [
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        for call in (opening, more)
    ]


def _responses_call(said: str) -> list[dict[str, Any]]:
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "weather",
            "arguments": "", "status": "in_progress"}  # fmt: skip
    place = {"output_index": 0, "item_id": "fc_1"}
    return [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", **place, "delta": said},
    ]


def _claude_call(said: str) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", said)]
    return [
        json.loads(voice("anthropic").prologue[0].partition(b"data: ")[2]),
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
    ]


CALLING: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "chat": _chat_call,
    "responses": _responses_call,
    "anthropic": _claude_call,
}


def _json(
    dialect: str, *, json: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Script:
    return steps.json_answer(json, status, headers)


def _answer(
    dialect: str,
    *,
    answer: int,
    body: str = "",
    hex: str = "",  # noqa: A002 - the catalogue's word
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Script:
    raw = bytes.fromhex(hex) if hex else body.encode()
    return steps.answer(answer, raw, kind, headers)


def _times(dialect: str, *, times: int, of: list[Any]) -> Script:
    return list(script(of, dialect)) * times


def _raw(dialect: str, *, raw: str) -> Iterator[Step]:
    yield steps.Send(raw.encode("latin-1"))


def _data(dialect: str, *, data: str) -> Iterator[Step]:
    r"""The bytes of one event's data; ``\xff`` and the like are bytes."""
    yield steps.chunk(b"data: " + data.encode("latin-1") + b"\n\n")


def _gzipped(dialect: str, *, gzipped: bool, layers: int = 1) -> Script:
    return steps.gzipped_stream(b"".join(b"".join(part) for part in voice(dialect)), "bytes")


def _flood(dialect: str, *, flood: int) -> Script:
    """So many texts of one letter, a hundred in a write."""
    at = PROLOGUE[dialect]
    return [steps.chunk(SPOKEN[dialect](["w"])[at] * 100)] * (flood // 100)


PLAIN: dict[str, Callable[[str], Any]] = {
    "rst": lambda _: [steps.Reset()],
    "fin": lambda _: [steps.Close()],
    "stall": lambda _: [steps.Stall()],
    "hold": lambda _: [steps.Hold(GATE)],
    "breath": lambda _: [steps.Sleep(0.05)],  # so that what was said is read before what follows
    "end": lambda _: [steps.LAST_CHUNK],
    "stream": lambda _: [steps.stream_head()],
    "prologue": lambda dialect: _told(voice(dialect).prologue),
    "texts": lambda dialect: _told(voice(dialect).texts),
    "epilogue": lambda dialect: _told(voice(dialect).epilogue),
    "epilogue at once": lambda dialect: _told([b"".join(voice(dialect).epilogue)]),
    "whole": _whole,
    "gzip bomb": lambda _: steps.gzip_bomb(),
    "well": lambda _: [],  # what was said is an end
    "garbage": lambda _: steps.garbage(),
}
SAYING: dict[str, Callable[..., Any]] = {
    "whole": _whole,
    "stream": lambda _, stream: [steps.stream_head(stream)],
    "head": lambda _, head, headers=None: [steps.head(head, headers)],
    "texts": lambda dialect, texts: _told(voice(dialect).texts[:texts]),
    "again": lambda dialect, again: _told([voice(dialect).texts[again]]),
    "from": lambda dialect, **word: _told(voice(dialect).texts[word["from"] :]),
    "said": lambda dialect, said, cut="whole": _told(SPOKEN[dialect](said), cut),
    "letters": lambda dialect, letters: _told(SPOKEN[dialect](["w" * letters])),
    "letter": lambda dialect, letter: _told(
        SPOKEN[dialect](["w" * letter])[PROLOGUE[dialect] :][:1]
    ),
    "flood": _flood,
    "finish": finish,
    "json": _json,
    "answer": _answer,
    "page": lambda _, page, size=2_000: steps.html_answer(page, size=size),
    "event": _event,
    "data": _data,
    "tool": _tool,
    "raw": _raw,
    "chunk": lambda _, chunk: [steps.chunk(chunk.encode("latin-1"))],
    "filler": lambda _, filler: [steps.chunk(b"x" * filler)],
    "sleep": lambda _, sleep: [steps.Sleep(sleep)],
    "times": _times,
    "gzipped": _gzipped,
}


def ends_well(words: list[Any]) -> bool:
    """Whether such a script brings the answer to its end: only then a row may say so."""
    return any(ends_well(word) if isinstance(word, list) else _word(word) in ENDS for word in words)


def _word(word: Any) -> str:
    return str(word if isinstance(word, str) else next(iter(word)))
