"""A second generation in the stream of the first one.

Intermediaries that ask their server again after a broken connection send the new response into the
body of the old one; it was also reported of Anthropic's own streams (vercel/ai#18331). Merged, the
two are one message with the signed thinking of both, which the next request cannot send back, and
calls of which one is cut.
"""

from typing import Final

from translator.dialect import UpstreamError
from translator.notes import Note

SPLICED: Final = UpstreamError(
    status=529,
    error_type="overloaded_error",
    message="upstream began a second answer inside of the first one; ask again",
    code="spliced",
)
"""An error after which clients ask again."""

FIRST_DROPPED: Final = Note(
    "content", "dropped", "the upstream began a second answer; this is the second one alone"
)
