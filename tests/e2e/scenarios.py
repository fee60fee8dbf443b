"""The scripts of the scripted upstream by model name.

A model is named ``<dialect>-<ending>-<number>``. ``ending`` is ``stream`` or ``json`` (the complete
recording), or ``fin`` or ``rst`` (its first half, then the end of the connection). The number counts
the recordings of that kind. The gateway routes by the dialect and sends the name unchanged.
"""

from pathlib import Path
from typing import NamedTuple

from tests.fakes.upstreams import recordings, script_steps
from tests.fakes.upstreams.upstream import ReceivedRequest

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


class RecordedScenario(NamedTuple):
    """One recording under one model name."""

    model: str
    path: Path
    ending: str

    @property
    def id(self) -> str:
        return f"{self.ending}-{self.path.parent.name}-{self.path.stem}"


def _scenarios(ending: str, folder: str) -> list[RecordedScenario]:
    dialect = folder.partition("-")[0]
    return [
        RecordedScenario(f"{dialect}-{ending}-{n}", path, ending)
        for n, path in enumerate(recordings.recordings(folder))
    ]


STREAMS = [*_scenarios("stream", "responses-stream"), *_scenarios("stream", "chat-stream")]
WHOLE = [*_scenarios("json", "responses-json"), *_scenarios("json", "chat-json")]
CUT = [
    scenario
    for ending in ("fin", "rst")
    for folder in ("responses-stream", "chat-stream")
    for scenario in _scenarios(ending, folder)
]
_BY_MODEL = {scenario.model: scenario for scenario in (*STREAMS, *WHOLE, *CUT)}


def script_for(request: ReceivedRequest) -> script_steps.Script | None:
    """Return the script for a recording's model, with cuts that differ for each request."""
    scenario = _BY_MODEL.get(request.model)
    if scenario is None:
        return None
    raw = scenario.path.read_bytes()
    seed = request.connection + len(request.body)
    match scenario.ending:
        case "stream":
            return script_steps.stream(raw, seed)
        case "fin":
            return script_steps.stream(first_half(raw), seed, ending=[script_steps.Close()])
        case "rst":
            return script_steps.stream(
                first_half(raw), seed, ending=[script_steps.Sleep(0.02), script_steps.Reset()]
            )
    return script_steps.json_response(raw)


def first_half(raw: bytes) -> bytes:
    """Return the first half of the bytes before the recording's end, cut inside an event."""
    markers = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b'"error"')
    finishes = (b'"finish_reason":"', b'"finish_reason": "')
    ends = [at for mark in (*markers, *finishes) if (at := raw.find(mark)) > 0]
    return raw[: min(ends, default=len(raw)) // 2]
