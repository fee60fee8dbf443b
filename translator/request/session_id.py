"""Read the id of the client's session out of ``metadata``.

Claude Code sends it in ``metadata.user_id``: older versions as the end of that text
(``user_…_account_…_session_<id>``), newer ones as the field ``session_id`` of a JSON object.
"""

import json
import re
from typing import Any, Final

MAX_SESSION_ID: Final = 200
"""Maximum characters; a longer id is not truncated, because it could then equal another id."""
MAX_USER_ID: Final = 4_096
"""Maximum characters of a user id to read: an Anthropic upstream gets longer ones unchecked."""
MARK: Final = "session_"

_is_id: Final = re.compile(r"[0-9A-Za-z-]+").fullmatch


def session_id_in(metadata: Any) -> str:
    """Return the session id in the request field ``metadata``, of any shape; "" if it has none."""
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str) or len(user) > MAX_USER_ID:
        return ""
    _, mark, session = user.rpartition(MARK)
    if not (mark and _is_id(session)):
        session = _json_field(user) if "{" in user else ""
    return session if len(session) <= MAX_SESSION_ID else ""


def _json_field(user: str) -> str:
    try:
        document = json.loads(user)
    except (ValueError, RecursionError):
        return ""
    session = document.get("session_id") if isinstance(document, dict) else None
    return session if isinstance(session, str) else ""
