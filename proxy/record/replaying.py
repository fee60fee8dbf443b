"""What today's translator makes of a stored exchange, beside what was made of it then."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from translator.errors import TranslatorError

from .rebuild import Replayed, replay
from .transcripts import StoredTranscript

BYTES_PER_TOKEN: Final = 4  # as the gateway estimates

Line = tuple[str, str]
KINDS: Final[Mapping[str, str]] = {"+": "add", "-": "del", "@": "hunk"}


class CannotReplay(Exception):
    """Says why, in words for whoever asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    again: Replayed
    then: Mapping[str, Any] | None
    """The stored answer."""

    @property
    def same(self) -> bool:
        return bool(self.again.answer == self.then)

    def lines(self) -> Sequence[str]:
        """A unified diff from the stored answer to today's; empty: they are the same."""
        return list(
            difflib.unified_diff(
                pretty(self.then).split("\n"),
                pretty(self.again.answer).split("\n"),
                "stored",
                "today",
                lineterm="",
            )
        )

    def marked(self) -> Sequence[Line]:
        """The same, each line with its kind: add, del, hunk or same."""
        lines = self.lines()
        return [("hunk", line) for line in lines[:2]] + [
            (KINDS.get(line[:1], "same"), line) for line in lines[2:]
        ]


def compare(stored: StoredTranscript, request_bytes: int = 0) -> Comparison:
    """Translate the stored stream of the upstream again. Raises CannotReplay.

    ``request_bytes``: of the client's body, which the gateway estimated its tokens by.
    """
    if not stored.upstream_reads:
        raise CannotReplay(f"{_unanswered(stored)}: nothing to replay")
    message_id = str((stored.answer or {}).get("id") or "")
    try:
        again = replay(
            stored.request,
            stored.target,
            stored.upstream_reads,
            message_id=message_id,
            input_estimate=request_bytes // BYTES_PER_TOKEN,
        )
    except (LookupError, TranslatorError) as exc:
        told = f"{stored.target.get('dialect')!r} cannot translate it: {exc}"
        raise CannotReplay(told) from None
    return Comparison(again=again, then=stored.answer)


def _unanswered(stored: StoredTranscript) -> str:
    status = stored.failed[-1].status if stored.failed else 200
    if status == 200:  # of an answer that broke off; then nobody else answered
        return "the upstream never answered"
    return f"the upstream answered with status {status}"


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
