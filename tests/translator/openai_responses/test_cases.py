"""Every odd shape of a Responses answer, one folder each: what came in, what leaves, and why.

``pytest --rewrite-cases`` writes the expectations anew; a human reads the difference. A folder
holds ``upstream.sse`` (a stream) or ``upstream.json`` (a whole answer), and ``target.json`` where
the profile matters. Signatures are shown as what they carry.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.grammar import faults_of_events
from tests.translator.requests import KEYS
from translator import carrier
from translator.anthropic.fold import MessageFold
from translator.dialect import Target, UpstreamRequest
from translator.openai_responses import DIALECT
from translator.profiles import profile_with
from translator.sse import SSEDecoder, format_sse

from .strict_types import assert_valid

CASES = sorted(
    path
    for path in (Path(__file__).parents[2] / "cases" / "openai_responses").iterdir()
    if path.is_dir()
)


class Heard(NamedTuple):
    """What one case became."""

    events: list[dict[str, Any]]
    notes: list[list[str]]
    unknown: dict[str, int]

    @property
    def summary(self) -> dict[str, Any]:
        """The message or the error, and what was noted beside it."""
        fold = MessageFold()
        for event in self.events:
            fold.feed(event)
        last = self.events[-1]
        end = {"error": last["error"]} if last["type"] == "error" else {"message": fold.message}
        return {**end, "notes": self.notes, "unknown": self.unknown}


def read(case: Path, name: str) -> Any:
    return json.loads((case / name).read_text())


def built(case: Path) -> UpstreamRequest:
    told = read(case, "target.json") if (case / "target.json").exists() else {}
    profile = profile_with(told.get("profile", "openai"), told.get("capabilities", {}))
    target = Target(upstream="local", model="gpt-5.2", profile=profile, carrier_keys=KEYS)
    return DIALECT.build_request(read(case, "request.json"), target)


def heard(case: Path, step: int = 2**20) -> Heard:
    """The whole way: bytes in reads of ``step``, decoded, translated, ended."""
    context = dataclasses.replace(built(case).answer, message_id="msg_case")
    stream = DIALECT.stream(context)
    if (case / "upstream.json").exists():
        events = stream.feed_whole(read(case, "upstream.json"))
    else:
        events = [e for chunk in chunks_of(case, step) for e in stream.feed(chunk)] + stream.end()
    notes = [[note.path, note.fate, note.reason] for note in stream.notes]
    return Heard([opened(e) for e in events], notes, dict(sorted(stream.unknown.items())))


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


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite-cases"))


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_request_becomes_this_body(case, rewrite):
    body = built(case).body

    expect(case / "upstream_request.json", pretty(body), rewrite=rewrite)
    assert_valid(body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_becomes_this_stream(case, rewrite):
    told = heard(case)

    frames = "".join(format_sse(event["type"], event) for event in told.events)
    expect(case / "expected.sse", frames, rewrite=rewrite)
    expect(case / "expected.json", pretty(told.summary), rewrite=rewrite)
    raw = any("bad_tool_json" in reason for *_, reason in told.notes)
    assert faults_of_events(told.events, raw_tool_input=raw) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cutting_the_bytes_changes_nothing(case):
    assert heard(case, step=1) == heard(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_says_why_it_is_here(case):
    why = (case / "why.md").read_text().strip()

    assert why.endswith(".")
    assert "\n" not in why
