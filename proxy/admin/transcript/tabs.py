"""The bodies of one exchange (request and response) as text panes, and a replay of its stream.

A replay translates the stored upstream stream again. A pane shows the beginning of a body; the
whole body is available as a download.

The upstream request is not stored, because it can be computed from the client's request and the
target. The stored SHA-256 of the request that was sent shows whether the result is byte for byte
the same.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from proxy.ledger.maintenance.replay_comparison import CannotReplay, Comparison, compare
from proxy.ledger.transcripts.storage import StoredTranscript
from proxy.ledger.transcripts.stream_replay import DIALECTS, target_of
from proxy.limited_work import TooBusy, WorkFailed
from proxy.models import Exchange
from translator.errors import TranslatorError
from translator.stream.sse import format_sse

from .truncation import json_prefix, printable

logger = logging.getLogger(__name__)

SHOWN_CHARS: Final = 128 * 1024
SIDE_BY_SIDE_CHARS: Final = 24 * 1024  # limit of each of the four panes on the tab "Side by side"
SHOWN_READS: Final = 400
CURL_BODY: Final = 16 * 1024  # the curl command reads a longer body from a file
DIFF_LINES: Final = 4000

SAME: Final = "Translated again; byte for byte what was sent."
OTHER: Final = (
    "Translated again by this version. It may differ from what was sent in fixed fields of the "
    "upstream, in reasoning that only the gateway can decrypt, or after an upgrade."
)

ShownRead = tuple[str, int, str]  # (time or failed attempt, size in bytes, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pane:
    """One body to show: its text, the ``reads`` of its stream, or the reason why it is missing."""

    slug: str
    remark: str = ""
    body: str | None = None
    reads: Sequence[ShownRead] = ()
    size: str = ""
    """Size of the whole body, as text."""
    is_truncated: bool = False

    @property
    def title(self) -> str:
        return TITLES[self.slug]


TITLES: Final[Mapping[str, str]] = {
    "request": "Client request",
    "upstream": "Upstream request",
    "stream": "Upstream stream",
    "sent": "Sent stream",
    "answer": "Answer",
}
SIDE_BY_SIDE: Final = ("request", "upstream", "stream", "sent")
FAILED_ATTEMPTS_REMARK: Final = (
    "Failed attempts and responses before a web search come first, with their number, upstream "
    "and status."
)
SENT_STREAM_REMARK: Final = (
    "Translated again from the upstream's stream by this version; the times are those of its reads."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRequest:
    """A rebuilt request body.

    ``remark`` states whether the body equals the sent one, or why it could not be rebuilt.
    """

    body: Any = None
    remark: str = ""
    size: int = 0
    """Size of the encoded body, in bytes."""
    is_sent: bool = False
    """Whether the body equals the sent one."""


def rebuild_upstream_request(stored: StoredTranscript, body: Any = None) -> RebuiltRequest:
    """Translate the stored client request again, for the target that answered it.

    If the caller has the translated request already, it is passed as ``body``.
    """
    if not stored.target.get("dialect"):
        remark = "The request reached no upstream, so there is no upstream request."
        return RebuiltRequest(remark=remark)
    try:
        if body is None:
            dialect = DIALECTS[str(stored.target["dialect"])]
            body = dialect.build_request(stored.request, target_of(stored.target)).body
    except TranslatorError as exc:
        return RebuiltRequest(remark=f"This version cannot translate the stored request: {exc}.")
    except Exception:  # the page must open for data of any older version
        logger.exception("the upstream request of %s cannot be rebuilt", stored.exchange_id)
        return RebuiltRequest(remark="This version cannot translate the stored request.")
    raw = msgspec.json.encode(body)
    is_sent = hashlib.sha256(raw).hexdigest() == stored.upstream_request_sha256
    remark = SAME if is_sent else OTHER
    return RebuiltRequest(body=body, size=len(raw), remark=remark, is_sent=is_sent)


class TranscriptBodies:
    """All bodies of one exchange. The stored stream is translated again at most once."""

    def __init__(self, stored: StoredTranscript) -> None:
        self.stored = stored

    @cached_property
    def replay(self) -> Comparison | str:
        """The stored upstream stream translated by this version, or the reason why it cannot be."""
        try:
            return compare(self.stored)
        except CannotReplay as exc:
            return f"{str(exc)[:1].upper()}{str(exc)[1:]}."
        except Exception:  # the page must open for data of any older version
            logger.exception("the stream of %s cannot be replayed", self.stored.exchange_id)
            return "This version cannot translate the stored stream."

    def upstream_request(self, *, with_stream: bool = False) -> RebuiltRequest:
        """Return the rebuilt upstream request; with ``with_stream``, use the replay's request."""
        comparison = self.replay if with_stream else ""
        body = None if isinstance(comparison, str) else comparison.replayed.body
        return rebuild_upstream_request(self.stored, body)

    def pane(self, slug: str, max_chars: int = SHOWN_CHARS, *, with_stream: bool = False) -> Pane:
        match slug:
            case "request":
                size = f"{_request_size(self.stored):,} bytes"
                return _json_pane(slug, self.stored.request, max_chars, size)
            case "upstream":
                rebuilt = self.upstream_request(with_stream=with_stream)
                size = f"{rebuilt.size:,} bytes"
                return _json_pane(slug, rebuilt.body, max_chars, size, rebuilt.remark)
            case "stream":
                return _upstream_stream_pane(self.stored, max_chars)
            case "sent":
                return _sent_stream_pane(self.replay, max_chars)
            case _:
                return _json_pane(slug, self.stored.answer, max_chars)

    def side_by_side(self) -> list[Pane]:
        return [self.pane(slug, SIDE_BY_SIDE_CHARS, with_stream=True) for slug in SIDE_BY_SIDE]


def _json_pane(slug: str, value: Any, max_chars: int, size: str = "", remark: str = "") -> Pane:
    if value is None:
        return Pane(slug=slug, remark=remark or "This body is not stored.")
    text, truncated = json_prefix(value, max_chars)
    return Pane(slug=slug, remark=remark, body=text, size=size, is_truncated=truncated)


def _upstream_stream_pane(stored: StoredTranscript, max_chars: int) -> Pane:
    """Return the bytes that the upstreams sent as a pane: time, size and text of each read.

    The response bodies of failed attempts come first. Invalid UTF-8 is replaced by U+FFFD.
    """
    reads = stored.upstream_reads
    if not reads and not stored.failed:
        return Pane(slug="stream", remark="No bytes of the upstream are stored.")
    remark = FAILED_ATTEMPTS_REMARK if stored.failed else ""
    size = f"{len(stored.upstream_body):,} bytes"
    if reads:
        size += f" in {len(reads):,} reads"
    error_chars = max_chars // 4 if reads else max_chars  # limit of each failed attempt's body
    parts = [
        *(
            (
                f"attempt {each.number + 1}, {each.upstream}: status {each.status}",
                each.body.text,
                error_chars,
            )
            for each in stored.failed
        ),
        *((f"{ms:,.1f} ms", chunk, max_chars) for ms, chunk in reads),
    ]
    decoded = ((at, raw[:limit].decode(errors="replace"), len(raw)) for at, raw, limit in parts)
    shown, truncated = _fit_reads(decoded, max_chars)
    truncated = truncated or any(len(each.body.text) > error_chars for each in stored.failed)
    return Pane(slug="stream", remark=remark, reads=shown, size=size, is_truncated=truncated)


def _request_size(stored: StoredTranscript) -> int:
    """Return the size of the client's request body: all stored parts except the responses."""
    conversation = stored.conversation
    others = [
        *([conversation.answer_piece] if conversation.answer_piece else ()),
        *(each.body for each in conversation.failed),
    ]
    return sum(len(p.text) for p in conversation.pieces()) - sum(len(p.text) for p in others)


def _sent_stream_pane(comparison: Comparison | str, max_chars: int) -> Pane:
    if isinstance(comparison, str):
        return Pane(slug="sent", remark=comparison)
    frames = (
        (f"{ms:,.1f} ms", text, len(text.encode(errors="replace")))
        for ms, text in sent_frames(comparison)
    )
    shown, truncated = _fit_reads(frames, max_chars)
    return Pane(
        slug="sent",
        remark=SENT_STREAM_REMARK,
        reads=shown,
        size=f"{len(comparison.replayed.events):,} events",
        is_truncated=truncated,
    )


def _fit_reads(
    reads: Iterable[tuple[str, str, int]], max_chars: int
) -> tuple[list[ShownRead], bool]:
    """Return the reads that fit into the limits of a pane, and whether any text was cut."""
    shown: list[ShownRead] = []
    for at, text, size in reads:
        if max_chars <= 0 or len(shown) >= SHOWN_READS:
            return shown, True
        shown.append((printable(at), size, printable(text[:max_chars])))
        max_chars -= len(text)
    return shown, max_chars < 0


def sent_frames(comparison: Comparison) -> Iterator[tuple[float, str]]:
    """Yield (ms, SSE text) of the events that the client gets after each upstream read."""
    for ms, events in comparison.replayed.events_by_read:
        if events:
            yield ms, "".join(format_sse(event["type"], event) for event in events)


def replay_result(bodies: TranscriptBodies) -> dict[str, Any]:
    """Return the template values of the replay tab.

    ``lines`` is the diff of the stored and the new answer: (kind, text), where ``kind`` is add,
    del, hunk or same.
    """
    comparison = bodies.replay
    if isinstance(comparison, str):
        return {"remark": comparison}
    remark, lines = "", []
    if not comparison.same:
        try:
            lines = [(kind, printable(line)) for kind, line in comparison.marked()[:DIFF_LINES]]
        except TooBusy:
            remark = (
                "The answers differ; other pages are being made, so reload this one for the diff."
            )
        except WorkFailed:
            remark = (
                "The answers differ and are too long for a diff on this page; use manage.py replay."
            )
    return {
        "remark": remark,
        "same": comparison.same,
        "lines": lines,
        "events": len(comparison.replayed.events),
        "same_request": bodies.upstream_request(with_stream=True).is_sent,
    }


def curl_command(exchange: Exchange, stored: StoredTranscript, base_url: str) -> str:
    """Return a curl command that sends the client's request, with a shell variable as the key.

    If the body is long or is not valid JSON, curl reads it from the downloaded file.
    """
    is_rejected = stored.conversation.raw_body is not None
    if is_rejected or _request_size(stored) > CURL_BODY:
        data = f"@{exchange.pk}-request.{'txt' if is_rejected else 'json'}"
    else:
        data = _shell_quote(json.dumps(stored.request))
    betas = exchange.betas if isinstance(exchange.betas, list) else []
    lines = [
        f"curl{' -N' if exchange.stream else ''} {_shell_quote(f'{base_url}/v1/messages')}",
        '-H "x-api-key: $ANTHROPIC_API_KEY"',
        f"-H {_shell_quote('anthropic-version: ' + (exchange.api_version or '2023-06-01'))}",
        *([f"-H {_shell_quote('anthropic-beta: ' + ','.join(map(str, betas)))}"] if betas else []),
        "-H 'content-type: application/json'",
        f"--data-binary {data}",
    ]
    return " \\\n  ".join(lines)


def _shell_quote(text: str) -> str:
    """Quote a text for a POSIX shell with single quotes, in which all characters are literal."""
    return "'" + printable(text).replace("'", "'\\''") + "'"
