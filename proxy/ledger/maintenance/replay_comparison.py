"""Compare a stored response with the response that the current translator makes of its stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.ledger.transcripts.storage import StoredTranscript
from proxy.ledger.transcripts.stream_replay import Replayed, replay
from proxy.limited_work import run_limited
from translator.errors import TranslatorError

from .json_diff import diff_lines

DIFF: Final = "proxy.ledger.maintenance.json_diff:diff_of_pair"
Line = tuple[str, str]
KINDS: Final[Mapping[str, str]] = {"+": "add", "-": "del", "@": "hunk"}


class CannotReplay(Exception):
    """The stored stream cannot be translated again; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of translating a stored stream again, and the stored response."""

    replayed: Replayed
    stored_answer: Mapping[str, Any] | None

    @property
    def same(self) -> bool:
        return bool(self.replayed.answer == self.stored_answer)

    def lines(self) -> Sequence[str]:
        """Return a unified diff from the stored response to the replayed one; empty if equal."""
        return diff_lines(self.stored_answer, self.replayed.answer)

    def marked(self) -> Sequence[Line]:
        """Return the lines of the diff with their kinds: add, del, hunk or same.

        They are compared in a child process. Blocks; raises WorkFailed.
        """
        pair = msgspec.json.encode((self.stored_answer, self.replayed.answer))
        lines = msgspec.json.decode(run_limited(DIFF, pair), type=list[str])
        return [("hunk", line) for line in lines[:2]] + [
            (KINDS.get(line[:1], "same"), line) for line in lines[2:]
        ]


def compare(stored: StoredTranscript) -> Comparison:
    """Translate the stored upstream stream again. Raises CannotReplay."""
    if not stored.upstream_reads:
        status = stored.failed[-1].status if stored.failed else 200
        # 200: an interrupted stream without a later attempt
        answered = "never answered" if status == 200 else f"answered with status {status}"
        raise CannotReplay(f"the upstream {answered}: nothing to replay")
    content = (stored.answer or {}).get("content") or ()
    is_searched = any(block.get("type") == "server_tool_use" for block in content)
    if is_searched and any(each.status == 200 for each in stored.failed):
        raise CannotReplay("the answer continues after web searches, in several upstream responses")
    message_id = str((stored.answer or {}).get("id") or "")
    try:
        again = replay(
            stored.request,
            stored.target,
            stored.upstream_reads,
            message_id=message_id,
        )
    except (LookupError, TranslatorError) as exc:
        message = f"{stored.target.get('dialect')!r} cannot translate it: {exc}"
        raise CannotReplay(message) from None
    return Comparison(replayed=again, stored_answer=stored.answer)
