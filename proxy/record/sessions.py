"""Sessions: which exchanges belong to one conversation, and what each turn adds to it."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from proxy.models import Transcript

from .conversation import Conversation
from .rows import AnyRow
from .statements import MOST_KEYS, evened

# How Claude Code wrote it before it became JSON: user_<hash>_account_<uuid>_session_<uuid>
OLD_USER_ID: Final = re.compile(r"_session_([0-9a-fA-F-]{8,64})$")
LOOK_BACK: Final = 64  # prefixes tried: a client that drops more turns starts a new branch
PREVIEW: Final = 200
LONGEST: Final = 200  # characters of a session's id; cut, it could be another's
IMAGE: Final = b'"type":"image"'  # as pieces are written


def session_id_of(user_id: object) -> str:
    """The session in ``metadata.user_id``: JSON with ``session_id``, or the older plain form."""
    if not isinstance(user_id, str):
        return ""
    if user_id.startswith("{"):
        try:
            session = msgspec.json.decode(user_id).get("session_id")
        except (msgspec.MsgspecError, AttributeError):
            return ""
        return session if isinstance(session, str) and len(session) <= LONGEST else ""
    found = OLD_USER_ID.search(user_id)
    return found[1] if found else ""


def described(one: Conversation, row: AnyRow) -> dict[str, Any]:
    """What the request's body says about the row."""
    if one.request is None:
        return {}
    metadata = one.request.asked.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    return {
        "message_count": len(one.messages),
        "session_id": row.session_id or session_id_of(user_id),
        "has_images": row.has_images or any(IMAGE in piece.text for piece in one.messages),
        "preview": preview(one.request.newest),
    }


def preview(message: Any) -> str:
    """The first words of a message, on one line. Tool results stand as ``[tool result]``."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return _line(content)
    blocks = [block for block in content or () if isinstance(block, dict)]
    said = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    shown = [text for text in said if not text.lstrip().startswith("<system-reminder>")]
    if shown or said:
        return _line((shown or said)[-1])
    return f"[{str(blocks[0].get('type')).replace('_', ' ')}]" if blocks else ""


def _line(text: str) -> str:
    return " ".join(text[: PREVIEW * 8].split())[:PREVIEW]


class Turns:
    """Finds the exchange that a request goes on from: the longest common beginning wins.

    Only exchanges of the same key are looked at: a stranger's conversation must not show, however
    alike it begins.
    """

    def __init__(self, conversations: Iterable[Conversation] = ()) -> None:
        """Look up all that is known of the ``conversations`` that will be placed.

        At once: a query for each of them took half of the time of a posting.
        """
        self._fresh: dict[tuple[int | None, bytes], str] = {}  # of this posting
        wanted = {prefix for one in conversations for prefix in _before(one.chain)}
        self._known = _known(sorted(wanted))

    def place(self, one: Conversation, row: AnyRow) -> dict[str, Any]:
        """``previous_id`` and ``new_from`` of a new row."""
        chain = one.chain
        if not chain:
            return {}
        before = _before(chain)
        found = self._in_posting(row, before) or self._in_database(row, before)
        self._fresh[(row.key_id, chain[-1])] = row.pk
        if found is None:
            return {"previous_id": "", "new_from": 0}
        previous, prefix = found
        return {"previous_id": previous, "new_from": chain.index(prefix) + 1}

    def _in_posting(self, row: AnyRow, chain: Sequence[bytes]) -> tuple[str, bytes] | None:
        for prefix in reversed(chain):
            if previous := self._fresh.get((row.key_id, prefix)):
                return previous, prefix
        return None

    def _in_database(self, row: AnyRow, chain: Sequence[bytes]) -> tuple[str, bytes] | None:
        for prefix in reversed(chain):
            if previous := self._known.get((row.key_id, row.team, prefix)):
                return previous, prefix
        return None


def _before(chain: Sequence[bytes]) -> Sequence[bytes]:
    """Where an earlier exchange of the same conversation may have ended."""
    return chain[:-1][-LOOK_BACK:]


def _known(prefixes: Sequence[bytes]) -> dict[tuple[int | None, str, bytes], str]:
    """The latest exchange of each key and team that ends in one of these."""
    latest: dict[tuple[int | None, str, bytes], str] = {}
    for at in range(0, len(prefixes), MOST_KEYS):
        some = evened(prefixes[at : at + MOST_KEYS])
        rows = Transcript.objects.filter(prefix__in=some).values_list(
            "exchange__key_id", "exchange__team", "prefix", "exchange_id"
        )
        for key_id, team, prefix, pk in rows.order_by("pk"):
            latest[(key_id, team, bytes(prefix))] = pk
    return latest
