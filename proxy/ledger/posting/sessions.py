"""Sessions: link the requests of one conversation, and find the messages that each one adds."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Final

from proxy.encryption.bodies import known_digests
from proxy.ledger.database.bulk_sql import MAX_KEYS, padded_keys
from proxy.ledger.transcripts.encoding import Conversation
from proxy.models import Transcript
from translator.request.session_id import session_id_in

from .exchange_columns import AnyRow

LOOK_BACK: Final = 64  # message prefixes to look up; with more new messages, no link is found
IMAGE: Final = b'"type":"image"'  # this text occurs in the JSON of a message with an image


def request_columns(one: Conversation, row: AnyRow) -> dict[str, Any]:
    """Return the columns of a ledger row that come from the request body."""
    if one.request is None:
        return {}
    return {
        "message_count": len(one.messages),
        "session_id": row.session_id or session_id_in(one.request.values.get("metadata")),
        "has_images": row.has_images or any(IMAGE in piece.text for piece in one.messages),
        "preview": one.request.summary.preview,
        "prompt": one.request.summary.prompt,
    }


class SessionLinker:
    """Finds the previous request of a conversation: the one with the longest common prefix.

    Only requests with the same gateway key are compared: another client's conversation must not
    become visible, even if it begins with the same messages.
    """

    def __init__(self, conversations: Iterable[Conversation] = ()) -> None:
        """Load the stored prefixes of all ``conversations`` that will be linked.

        One query loads all prefixes: a query per conversation took half of the time of a batch.
        """
        # (key id, team, prefix) -> id of the request.
        self._fresh: dict[tuple[int | None, str, bytes], str] = {}
        prefixes = {prefix for one in conversations for prefix in _before(one.chain)}
        self._stored = _latest_by_prefix(sorted(prefixes))

    def find_previous(self, one: Conversation, row: AnyRow) -> dict[str, Any]:
        """Return the columns ``previous_id`` and ``new_from`` (index of the first new message)."""
        chain = one.chain
        if not chain:
            return {}
        found = {"previous_id": "", "new_from": 0}
        for known, prefix in product((self._fresh, self._stored), reversed(_before(chain))):
            if previous := known.get((row.key_id, row.team, prefix)):
                found = {"previous_id": previous, "new_from": chain.index(prefix) + 1}
                break
        self._fresh[row.key_id, row.team, chain[-1]] = row.pk
        return found


def _before(chain: Sequence[bytes]) -> Sequence[bytes]:
    """Return the prefixes that may be all messages of an earlier request of this conversation."""
    return chain[:-1][-LOOK_BACK:]


def _latest_by_prefix(prefixes: Sequence[bytes]) -> dict[tuple[int | None, str, bytes], str]:
    """Map key id, team and prefix to the latest request that consists of these messages."""
    latest: dict[tuple[int | None, str, bytes], str] = {}
    plain = {stored: prefix for prefix in prefixes for stored in known_digests(prefix)}
    stored_prefixes = sorted(plain)
    for at in range(0, len(stored_prefixes), MAX_KEYS):
        some = padded_keys(stored_prefixes[at : at + MAX_KEYS])
        rows = Transcript.objects.filter(prefix__in=some).values_list(
            "exchange__key_id", "exchange__team", "prefix", "exchange_id"
        )
        for key_id, team, prefix, pk in rows:
            own = (key_id, team, plain[bytes(prefix)])
            latest[own] = max(pk, latest.get(own, ""))
    return latest
