"""The last look at a translated stream: what leaves is checked as it leaves.

The translator writes through a grammar of its own. This is a second one, which follows only what
is about to be sent: a bug of ours ends the stream in a correct error and never reaches a client.
"""

import logging
from typing import Any, Final

from translator.anthropic_upstream.guard import INSIDE, Guard
from translator.dialect import UpstreamError
from translator.errors import IllegalMove

log = logging.getLogger("proxy.gateway")

BUG: Final = UpstreamError(status=500, error_type="api_error", message="internal error")
ILLEGAL: Final = "illegal_move"

Events = list[dict[str, Any]]


class GrammarGuard(Guard):
    """Follows one answer, from ``message_start`` to its end."""

    def sound(self, events: Events) -> tuple[Events, IllegalMove | None]:
        """The events that may leave; and why the rest may not, where it may not."""
        try:
            self.check(*events)
        except (IllegalMove, LookupError, TypeError) as exc:
            log.exception("a translated stream broke the grammar; it is ended")
            cause = exc if isinstance(exc, IllegalMove) else IllegalMove(f"malformed: {exc!r}")
            return events[: self.passed], cause
        return events, None

    def closing(self) -> Events:
        """The error that ends the stream here, with the open block closed before it."""
        closing: Events = []
        if self.phase == INSIDE:
            closing.append({"type": "content_block_stop", "index": self.index})
        error = {"type": BUG.error_type, "message": BUG.message}
        return [*closing, {"type": "error", "error": error}]
