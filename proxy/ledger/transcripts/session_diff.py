"""Find what each request added to its session: its new messages and its response.

Only the new messages are loaded, so loading a session of 100 turns takes as much memory as its last
transcript.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zstandard

from proxy.encryption.bodies import MissingBodyKey
from proxy.models import Exchange, Part, Transcript

from . import body_parts
from .encoding import ANSWER, running_totals
from .part_codec import decode_manifest, decode_part

MAX_MESSAGES: Final = 60
"""The maximum number of new messages of one request. The first request of a session may have a long
history."""
MAX_IDS: Final = 500  # the maximum in one SQL query; old versions of SQLite allow 999 variables


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


NOTHING: Final = Addition(complete=False)


def additions(
    rows: Iterable[Exchange], limit: int = MAX_MESSAGES, *, with_texts: bool = True
) -> dict[str, Addition]:
    """Return what each row added to its session, by exchange id.

    ``limit``: maximum of new messages of one row. ``with_texts=False``: return only part ids,
    without loading messages and responses.
    """
    known = {row.pk: row for row in rows}
    missing: dict[str, str] = {}
    needed = {*known, *(row.previous_id for row in known.values())} - {""}
    manifests = dict(_manifests(needed, missing))
    starts = {pk: _start(row, manifests) for pk, row in known.items()}
    part_ids: set[int] = set()
    for pk, start in starts.items() if with_texts else ():
        manifest = manifests.get(pk, {})
        part_ids.update(_new(manifest, start, limit)[1])
        if ANSWER in manifest:
            part_ids.add(manifest[ANSWER])
    texts = _texts(part_ids)
    return {
        pk: Addition(complete=False, missing_key=missing[pk])
        if pk in missing
        else _addition(manifests.get(pk), start, limit, texts, with_texts=with_texts)
        for pk, start in starts.items()
    }


def _start(row: Exchange, manifests: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the index of the first new message after the repeated response of the last turn."""
    history = _history(manifests.get(row.pk, {}))
    answer = manifests.get(row.previous_id, {}).get(ANSWER)
    at = row.new_from
    return at + 1 if answer is not None and history[at : at + 1] == [answer] else at


def _manifests(ids: Iterable[str], missing: dict[str, str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the manifests by exchange id; add those that need a missing key to ``missing``."""
    rows = Transcript.objects.filter(pk__in=list(ids)).values_list("exchange_id", "manifest")
    for exchange_id, data in rows:
        try:
            yield exchange_id, decode_manifest(exchange_id, data)
        except MissingBodyKey as fault:
            missing[exchange_id] = fault.key_id
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError):
            # Treat the transcript as missing; the page of this single request shows the error.
            continue


def _history(manifest: Mapping[str, Any]) -> list[int]:
    ids = manifest.get("fields", {}).get("messages")
    return running_totals(ids) if isinstance(ids, list) else []


def _new(manifest: Mapping[str, Any], start: int, limit: int) -> tuple[int, list[int]]:
    """Return the index of the first message to show, and the part ids from that message on."""
    history = _history(manifest)
    first = max(start, len(history) - limit)
    return first, history[first:]


def _texts(part_ids: Iterable[int]) -> dict[int, Any]:
    """Load and decode parts of transcripts, by id; missing and damaged parts are left out."""
    found: dict[int, Any] = {}
    ordered = sorted(part_ids)
    for at in range(0, len(ordered), MAX_IDS):
        some = Part.objects.filter(pk__in=ordered[at : at + MAX_IDS])
        for pk, digest, data in some.values_list("id", "digest", "data"):
            try:
                found[pk] = body_parts.decode_json(decode_part(digest, data))
            except (zstandard.ZstdError, msgspec.MsgspecError, ValueError):
                continue
    return found


def _addition(
    manifest: Mapping[str, Any] | None,
    start: int,
    limit: int,
    texts: Mapping[int, Any],
    *,
    with_texts: bool,
) -> Addition:
    if manifest is None:
        return NOTHING
    first, ids = _new(manifest, start, limit)
    fields = manifest.get("fields", {})
    answer = manifest.get("answer")
    if with_texts and answer is not None:
        message = texts.get(manifest.get(ANSWER, -1), {})
        answer = {**answer, "content": message.get("content")}
    return Addition(
        messages=[texts[pk] for pk in ids if pk in texts] if with_texts else (),
        first=first,
        skipped=first - min(start, first),
        answer=answer if with_texts else None,
        complete=not with_texts or all(pk in texts for pk in ids),
        history=tuple(_history(manifest)),
        settings_parts={name: fields.get(name) for name in ("system", "tools")},
    )
