"""Find what each request added to its session: its new messages and its response.

Only the new messages are loaded, so loading a session of 100 turns takes as much memory as its last
transcript.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zstandard

from proxy.encryption.bodies import MissingBodyKey
from proxy.models import Exchange, Transcript

from .body_parts import decode_json
from .encoding import ANSWER
from .part_codec import decode_manifest
from .storage import fields_in, readable_texts

MAX_MESSAGES: Final = 60
"""The maximum number of new messages of one request. The first request of a session may have a long
history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The new messages of one request, and its response.

    ``first``: the index of the first new message in the request's ``messages``.
    """

    messages: Sequence[Any] = ()
    first: int = 0
    skipped: int = 0
    """Number of new messages before ``first`` that are left out because of the limit."""
    answer: Mapping[str, Any] | None = None
    complete: bool = True
    """Whether the transcript exists, and all loaded messages could be read."""
    history: tuple[int, ...] = ()
    """Part ids of all messages of the request; equal ids mean equal messages."""
    settings_parts: Mapping[str, Any] = field(default_factory=dict)
    """Part ids of the request's fields ``system`` and ``tools``, to detect changes."""
    missing_key: str = ""
    """The id of the body key that is needed to read the transcript, if the gateway lacks it."""


def additions(
    rows: Iterable[Exchange], limit: int = MAX_MESSAGES, *, with_texts: bool = True
) -> dict[str, Addition]:
    """Return what each row added to its session, by exchange id.

    ``limit``: maximum of new messages of one row. ``with_texts=False``: return only part ids,
    without loading messages and responses.
    """
    known = {row.pk: row for row in rows}
    missing: dict[str, str] = {}
    manifests: dict[str, dict[str, Any]] = {}
    needed = {*known, *(row.previous_id for row in known.values())} - {""}
    stored = Transcript.objects.filter(pk__in=list(needed)).values_list("exchange_id", "manifest")
    for pk, data in stored:
        try:
            manifests[pk] = decode_manifest(pk, data)
        except MissingBodyKey as fault:
            missing[pk] = fault.key_id
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError):
            # Treat the transcript as missing; the page of this single request shows the error.
            continue
    spans: dict[str, tuple[int, int, list[int]]] = {}
    wanted: set[int] = set()
    for pk in known.keys() & manifests.keys():
        row, ids = known[pk], fields_in(manifests[pk]).get("messages")
        history = ids if isinstance(ids, list) else []
        # The response of the last turn, which the request repeats, is not new.
        repeated = manifests.get(row.previous_id, {}).get(ANSWER)
        is_repeated = repeated is not None and history[row.new_from : row.new_from + 1] == [
            repeated
        ]
        start = row.new_from + is_repeated
        first = max(start, len(history) - limit)
        spans[pk] = start, first, history
        wanted.update(history[first:], [manifests[pk][n] for n in (ANSWER,) if n in manifests[pk]])
    texts: dict[int, Any] = {}
    for part, text in readable_texts(wanted).items() if with_texts else ():
        with suppress(msgspec.MsgspecError, ValueError):
            texts[part] = decode_json(text)
    found = {}
    for pk in known:
        if pk not in spans:
            found[pk] = Addition(complete=False, missing_key=missing.get(pk, ""))
            continue
        manifest, (start, first, history) = manifests[pk], spans[pk]
        answer = manifest.get("answer") if with_texts else None
        if answer is not None:
            message = texts.get(manifest.get(ANSWER, -1), {})
            answer = {**answer, "content": message.get("content")}
        found[pk] = Addition(
            messages=[texts[part] for part in history[first:] if part in texts],
            first=first,
            skipped=first - min(start, first),
            answer=answer,
            complete=not with_texts or all(part in texts for part in history[first:]),
            history=tuple(history),
            settings_parts={
                name: manifest.get("fields", {}).get(name) for name in ("system", "tools")
            },
        )
    return found
