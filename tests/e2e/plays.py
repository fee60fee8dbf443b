"""What the scripted upstream plays for which model name.

A model's name says everything: ``<dialect>-<what>-<number>``, where ``what`` is ``stream`` or ``json`` (a recording
as it is), ``fin`` or ``rst`` (its first half, then the connection ends) and the number counts the
recordings of that kind. The gateway routes by the dialect's prefix and keeps the name.
"""

from pathlib import Path
from typing import NamedTuple

from tests.fakes import recordings, steps
from tests.fakes.upstream import Asked

ROUTES = """
[[routes]]
model = "responses-*"
targets = [{ upstream = "responses" }]

[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]

[[routes]]
model = "anthropic-*"
targets = [{ upstream = "anthropic" }]
"""


class Play(NamedTuple):
    """One recording under one model name."""

    model: str
    path: Path
    what: str

    @property
    def id(self) -> str:
        return f"{self.what}-{self.path.parent.name}-{self.path.stem}"


def _plays(what: str, folder: str) -> list[Play]:
    dialect = folder.partition("-")[0]
    return [
        Play(f"{dialect}-{what}-{n}", path, what)
        for n, path in enumerate(recordings.recordings(folder))
    ]


STREAMS = [*_plays("stream", "responses-stream"), *_plays("stream", "chat-stream")]
WHOLE = [*_plays("json", "responses-json"), *_plays("json", "chat-json")]
CUT = [
    play
    for what in ("fin", "rst")
    for folder in ("responses-stream", "chat-stream")
    for play in _plays(what, folder)
]
_BY_MODEL = {play.model: play for play in (*STREAMS, *WHOLE, *CUT)}


def script_for(asked: Asked) -> steps.Script | None:
    """The script of a recording's model; each time cut at other places."""
    play = _BY_MODEL.get(asked.model)
    if play is None:
        return None
    raw = play.path.read_bytes()
    seed = asked.connection + len(asked.body)
    match play.what:
        case "stream":
            return steps.stream(raw, seed)
        case "fin":
            return steps.stream(first_half(raw), seed, ending=[steps.Close()])
        case "rst":
            return steps.stream(first_half(raw), seed, ending=[steps.Sleep(0.02), steps.Reset()])
    return steps.json_answer(raw)


def first_half(raw: bytes) -> bytes:
    """Half of what comes before the recording's end; it is torn in the middle of an event."""
    marks = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b'"error"')
    finishes = (b'"finish_reason":"', b'"finish_reason": "')
    ends = [at for mark in (*marks, *finishes) if (at := raw.find(mark)) > 0]
    return raw[: min(ends, default=len(raw)) // 2]
