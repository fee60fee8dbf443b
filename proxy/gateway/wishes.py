"""What a client or its key asked for beyond the answer itself (design.md 3.3)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from translator.errors import BadRequest

from .directory import Caller
from .head import Head

EVENTS: Final = frozenset({"metadata", "blocks"})
STRICT: Final = frozenset({"", "true", "false"})  # "": the header is not there


@dataclass(frozen=True, slots=True)
class Wishes:
    strict: bool  # refuse what cannot be translated without loss
    metadata: bool  # one ``bridge.metadata`` event before the end
    blocks: bool  # finished blocks on ``content_block_stop``

    @staticmethod
    def of(head: Head, caller: Caller) -> "Wishes":
        """Raises BadRequest for a wish that nobody knows: not heard, it would seem granted."""
        if b"x-bridge-strict" not in head.headers and b"x-bridge-events" not in head.headers:
            return _wishes(caller.strict, caller.events)
        strict = head.text(b"x-bridge-strict").lower()
        if strict not in STRICT:
            raise BadRequest("x-bridge-strict", f"{strict[:60]!r} is not known; say true or false")
        wished = head.wishes(b"x-bridge-events")
        if not wished <= EVENTS:
            strange = min(wished - EVENTS)[:60]
            known = "metadata, blocks or both, with a comma between"
            raise BadRequest("x-bridge-events", f"{strange!r} is not known; say {known}")
        return _wishes(caller.strict or strict == "true", wished | caller.events)


PLAIN: Final = Wishes(strict=False, metadata=False, blocks=False)


@lru_cache(maxsize=16)  # of few kinds
def _wishes(strict: bool, events: frozenset[str]) -> Wishes:
    return Wishes(strict=strict, metadata="metadata" in events, blocks="blocks" in events)
