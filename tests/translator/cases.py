"""One folder for each odd shape of an answer: what came in, what leaves, and why.

A folder holds ``request.json``, ``upstream.sse`` (a stream) or ``upstream.json`` (a whole answer),
``target.json`` where the profile matters, and what is expected. ``pytest --rewrite-cases`` writes
the expectations anew; a human reads the difference.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.translator.requests import KEYS
from translator import carrier
from translator.anthropic.fold import fold
from translator.carrier import CarrierKeys
from translator.dialect import Dialect, Target, UpstreamRequest
from translator.profiles import profile_with
from translator.sse import SSEDecoder, format_sse

ROOT = Path(__file__).parents[1] / "cases"
ALL_AT_ONCE = 2**20


class Heard(NamedTuple):
    """What one case became."""

    events: list[dict[str, Any]]
    notes: list[list[str]]
    unknown: dict[str, int]

    @property
    def summary(self) -> dict[str, Any]:
        """The message or the error, and what was noted beside it."""
        last = self.events[-1]
        failed = last["type"] == "error"
        end = {"error": last["error"]} if failed else {"message": fold(self.events)}
        return {**end, "notes": self.notes, "unknown": self.unknown}

    @property
    def frames(self) -> str:
        return "".join(format_sse(event["type"], event) for event in self.events)


@dataclasses.dataclass(frozen=True)
class Cases:
    """The cases of a dialect: its folder, and to whom its requests go where a case says nothing."""

    folder: str
    dialect: Dialect
    profile: str
    model: str
    keys: CarrierKeys | None = None

    @property
    def all(self) -> list[Path]:
        return sorted(path for path in (ROOT / self.folder).iterdir() if path.is_dir())

    def built(self, case: Path) -> UpstreamRequest:
        told = read(case, "target.json") if (case / "target.json").exists() else {}
        profile = profile_with(told.get("profile", self.profile), told.get("capabilities", {}))
        target = Target(upstream="local", model=self.model, profile=profile, carrier_keys=self.keys)
        return self.dialect.build_request(read(case, "request.json"), target)

    def heard(self, case: Path, step: int = ALL_AT_ONCE) -> Heard:
        """The whole way: bytes in reads of ``step``, decoded, translated, ended."""
        context = dataclasses.replace(self.built(case).answer, message_id="msg_case")
        stream = self.dialect.stream(context)
        if (case / "upstream.json").exists():
            events = stream.feed_whole(read(case, "upstream.json"))
        else:
            events = [e for chunk in chunks_of(case, step) for e in stream.feed(chunk)]
            events += stream.end()
        notes = [[note.path, note.fate, note.reason] for note in stream.notes]
        return Heard([opened(e) for e in events], notes, dict(sorted(stream.unknown.items())))


def read(case: Path, name: str) -> Any:
    return json.loads((case / name).read_text())


def opened(event: dict[str, Any]) -> dict[str, Any]:
    """The event with a carrier shown as what it carries."""
    signature = event.get("delta", {}).get("signature")
    kept = carrier.unseal(signature, KEYS) if signature else None
    if kept is None:
        return event
    shown = f"<{kept.item_id} {kept.encrypted_content} {kept.text_is} {list(kept.part_lengths)}>"
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
