"""The sides of one exchange as panes of text: what was asked, sent on, heard, told; and replayed.

Each is the beginning of a text, small enough to show; the whole of it is a download.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from proxy.models import Exchange
from proxy.record.conversation import FailedAttempt
from proxy.record.replaying import CannotReplay, Comparison, compare
from proxy.record.transcripts import StoredTranscript
from translator.sse import format_sse

from .clips import beginning, dump, printable
from .sides import Side, upstream_request_of

logger = logging.getLogger(__name__)

SHOWN_CHARS: Final = 128 * 1024
BESIDE_CHARS: Final = 24 * 1024  # of each pane, where four are shown
SHOWN_READS: Final = 400
CURL_BODY: Final = 16 * 1024  # a longer body is a file beside the command
DIFF_CHARS: Final = 400_000  # comparing more than this line by line takes seconds

Read = tuple[str, int, str]  # when, how many bytes, and what


@dataclass(frozen=True, slots=True, kw_only=True)
class Pane:
    """One side. Either ``body`` or ``reads``, or a remark that says why there is neither."""

    slug: str
    title: str
    remark: str = ""
    body: str | None = None
    reads: Sequence[Read] = ()
    size: str = ""
    """Of the whole."""
    is_cut: bool = False


TITLES: Final[Mapping[str, str]] = {
    "request": "Client request",
    "upstream": "Upstream request",
    "stream": "Upstream stream",
    "sent": "Sent stream",
    "answer": "Answer",
}
BESIDE: Final = ("request", "upstream", "stream", "sent")
FAILED: Final = "An attempt that failed has its number, its upstream and the status of the answer."
ANEW: Final = "Made again from the upstream's stream by this version; timed as that was read."


class Sides:
    """All sides of one exchange; what is translated again is translated once."""

    def __init__(self, stored: StoredTranscript, row: Exchange) -> None:
        self.stored = stored
        self.row = row

    @cached_property
    def replayed(self) -> Comparison | str:
        """Today's translation of the stored stream; a text: why there is none."""
        try:
            return compare(self.stored, self.row.request_bytes)
        except CannotReplay as exc:
            return f"{str(exc)[:1].upper()}{str(exc)[1:]}."
        except Exception:  # a window must open whatever an older version has stored
            logger.exception("the stream of %s cannot be replayed", self.stored.exchange_id)
            return "This version cannot translate the stored stream."

    def upstream(self, *, made: bool = False) -> Side:
        """``made``: the stream is translated too, and with it the request."""
        found = self.replayed if made else ""
        body = None if isinstance(found, str) else found.again.body
        return upstream_request_of(self.stored, body)

    def pane(self, slug: str, room: int = SHOWN_CHARS, *, made: bool = False) -> Pane:
        match slug:
            case "request":
                size = f"{_request_size(self.stored):,} bytes"
                return _json_pane(slug, self.stored.request, room, size)
            case "upstream":
                side = self.upstream(made=made)
                return _json_pane(slug, side.body, room, f"{side.size:,} bytes", side.remark)
            case "stream":
                return _stream(self.stored, room)
            case "sent":
                return _sent(self.replayed, room)
            case _:
                return _json_pane(slug, self.stored.answer, room)

    def beside(self) -> list[Pane]:
        return [self.pane(slug, BESIDE_CHARS, made=True) for slug in BESIDE]


def _json_pane(slug: str, value: Any, room: int, size: str = "", remark: str = "") -> Pane:
    if value is None:
        return Pane(slug=slug, title=TITLES[slug], remark=remark or "Nothing is kept of this side.")
    text, cut = beginning(value, room)
    return Pane(slug=slug, title=TITLES[slug], remark=remark, body=text, size=size, is_cut=cut)


def _stream(stored: StoredTranscript, room: int) -> Pane:
    """The upstreams' bytes as they came: when, how many, and what, decoded leniently.

    Those of attempts that failed stand first, as they did.
    """
    title, reads = TITLES["stream"], stored.upstream_reads
    if not reads and not stored.failed:
        return Pane(slug="stream", title=title, remark="No bytes of the upstream are kept.")
    remark = FAILED if stored.failed else ""
    size = f"{len(stored.upstream_body):,} bytes"
    if reads:
        size += f" in {len(reads):,} reads"
    share = room // 4 if reads else room  # of each that failed: the answer needs the rest
    told = [
        *((_attempt(each), each.body.text, share) for each in stored.failed),
        *((f"{ms:,.1f} ms", chunk, room) for ms, chunk in reads),
    ]
    lenient = ((at, raw[:most].decode(errors="replace"), len(raw)) for at, raw, most in told)
    shown, cut = _shown(lenient, room)
    cut = cut or any(len(each.body.text) > share for each in stored.failed)
    return Pane(slug="stream", title=title, remark=remark, reads=shown, size=size, is_cut=cut)


def _attempt(one: FailedAttempt) -> str:
    return f"attempt {one.number + 1}, {one.upstream}: status {one.status}"


def _request_size(stored: StoredTranscript) -> int:
    one = stored.conversation
    besides = [*([one.said] if one.said else ()), *(each.body for each in one.failed)]
    return sum(len(p.text) for p in one.pieces()) - sum(len(p.text) for p in besides)


def _sent(found: Comparison | str, room: int) -> Pane:
    title = TITLES["sent"]
    if isinstance(found, str):
        return Pane(slug="sent", title=title, remark=found)
    told = (
        (f"{ms:,.1f} ms", text, len(text.encode(errors="replace")))
        for ms, text in sent_frames(found)
    )
    shown, cut = _shown(told, room)
    size = f"{len(found.again.events):,} events"
    return Pane(slug="sent", title=title, remark=ANEW, reads=shown, size=size, is_cut=cut)


def _shown(told: Iterable[tuple[str, str, int]], room: int) -> tuple[list[Read], bool]:
    """As many as there is room for, and whether there are more."""
    shown: list[Read] = []
    for at, text, size in told:
        if room <= 0 or len(shown) >= SHOWN_READS:
            return shown, True
        shown.append((printable(at), size, printable(text[:room])))
        room -= len(text)
    return shown, room < 0


def sent_frames(found: Comparison) -> Iterator[tuple[float, str]]:
    """What leaves for each read, as the client reads it."""
    for ms, events in found.again.told:
        if events:
            yield ms, "".join(format_sse(event["type"], event) for event in events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the replay page shows. ``lines``: kind (add, del, hunk, same) and text."""

    remark: str = ""
    same: bool = False
    lines: Sequence[tuple[str, str]] = ()
    events: int = 0
    same_request: bool = False


def replay_of(sides: Sides) -> Replay:
    found = sides.replayed
    if isinstance(found, str):
        return Replay(remark=found)
    remark, lines = "", []
    if not found.same and len(dump(found.then)) + len(dump(found.again.answer)) > DIFF_CHARS:
        remark = (
            "They differ, and are too long to be compared line by line here; see manage.py replay."
        )
    elif not found.same:
        lines = [(kind, printable(line)) for kind, line in found.marked()]
    return Replay(
        remark=remark,
        same=found.same,
        lines=lines[:4000],
        events=len(found.again.events),
        same_request="byte for byte" in sides.upstream(made=True).remark,
    )


def curl(exchange: Exchange, stored: StoredTranscript, base_url: str) -> str:
    """The request as a command line; the key is a variable, a long or odd body a file beside it."""
    odd = stored.conversation.raw is not None
    if odd or _request_size(stored) > CURL_BODY:
        given = f"@{exchange.pk}-request.{'txt' if odd else 'json'}"
    else:
        given = _quoted(json.dumps(stored.request))
    betas = exchange.betas if isinstance(exchange.betas, list) else []
    lines = [
        f"curl{' -N' if exchange.stream else ''} {_quoted(f'{base_url}/v1/messages')}",
        '-H "x-api-key: $ANTHROPIC_API_KEY"',
        f"-H {_quoted('anthropic-version: ' + (exchange.api_version or '2023-06-01'))}",
        *([f"-H {_quoted('anthropic-beta: ' + ','.join(map(str, betas)))}"] if betas else []),
        "-H 'content-type: application/json'",
        f"--data-binary {given}",
    ]
    return " \\\n  ".join(lines)


def _quoted(text: str) -> str:
    """For a POSIX shell: nothing in single quotes means anything but itself."""
    return "'" + printable(text).replace("'", "'\\''") + "'"
