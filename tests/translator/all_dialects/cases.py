"""Read and run the cases: one folder for each unusual form of a response.

A folder contains ``request.json``, ``upstream.sse`` (a stream) or ``upstream.json`` (a whole
response), ``target.json`` if the profile matters, and the expected output. ``pytest
--rewrite-cases`` writes the expected output again; review the difference.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.anthropic_requests import KEYS
from translator.capabilities import profile_with
from translator.dialect import Dialect, TranslationTarget, UpstreamRequest
from translator.message_stream.events_to_message import fold
from translator.stream import reasoning_signature
from translator.stream.reasoning_signature import SigningKeys
from translator.stream.sse import SSEDecoder, format_sse

ROOT = Path(__file__).parents[2] / "cases"
ALL_AT_ONCE = 2**20


class CaseResult(NamedTuple):
    """The output of one case."""

    events: list[dict[str, Any]]
    notes: list[list[str]]
    unknown: dict[str, int]

    @property
    def summary(self) -> dict[str, Any]:
        """Return the message or the error, with the notes and the unknown events."""
        last = self.events[-1]
        failed = last["type"] == "error"
        end = {"error": last["error"]} if failed else {"message": fold(self.events)}
        return {**end, "notes": self.notes, "unknown": self.unknown}

    @property
    def frames(self) -> str:
        return "".join(format_sse(event["type"], event) for event in self.events)


@dataclasses.dataclass(frozen=True)
class Cases:
    """The cases of a dialect: their folder and the default target of their requests."""

    folder: str
    dialect: Dialect
    profile: str
    model: str
    keys: SigningKeys | None = None

    @property
    def all(self) -> list[Path]:
        return sorted(path for path in (ROOT / self.folder).iterdir() if path.is_dir())

    def build_request(self, case: Path) -> UpstreamRequest:
        settings = read(case, "target.json") if (case / "target.json").exists() else {}
        profile = profile_with(
            settings.get("profile", self.profile), settings.get("capabilities", {})
        )
        target = TranslationTarget(
            upstream="local", model=self.model, profile=profile, signing_keys=self.keys
        )
        return self.dialect.build_request(read(case, "request.json"), target)

    def run(self, case: Path, step: int = ALL_AT_ONCE) -> CaseResult:
        """Decode the bytes in reads of ``step`` bytes, translate the events and end the stream."""
        context = dataclasses.replace(
            self.build_request(case).response_context, message_id="msg_case"
        )
        stream = self.dialect.stream(context)
        if (case / "upstream.json").exists():
            events = stream.feed_body(read(case, "upstream.json"))
        else:
            events = [e for chunk in chunks_of(case, step) for e in stream.feed(chunk)]
            events += stream.end()
        notes = [[note.path, note.fate, note.reason] for note in stream.notes]
        return CaseResult([opened(e) for e in events], notes, dict(sorted(stream.unknown.items())))


def read(case: Path, name: str) -> Any:
    return json.loads((case / name).read_text())


def opened(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event with the content of its signature in readable form, if it has a valid one."""
    signature = event.get("delta", {}).get("signature")
    carrier = reasoning_signature.verify(signature, KEYS) if signature else None
    if carrier is None:
        return event
    shown = f"<{carrier.item_id} {carrier.encrypted_content} {carrier.text_kind} {list(carrier.part_lengths)}>"
    return event | {"delta": {"type": "signature_delta", "signature": shown}}


def chunks_of(case: Path, step: int) -> list[dict[str, Any]]:
    raw, decoder = (case / "upstream.sse").read_bytes(), SSEDecoder()
    reads = [raw[at : at + step] for at in range(0, len(raw), step)]
    frames = [frame for read in reads for frame in decoder.feed(read)] + decoder.end()
    return [json.loads(frame.data) for frame in frames if frame.data.strip() != b"[DONE]"]


def expect(path: Path, actual: str, *, rewrite: bool) -> None:
    if rewrite:
        path.write_text(actual)
    assert path.read_text() == actual


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
