"""What each exchange added to its session: new messages and an answer, not the history they repeat.

Reads of a transcript what is new in it, and of the rest only which parts it names: a session of a
hundred turns is as cheap to read as the one transcript that it amounts to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zstandard

from proxy.models import Exchange, Part, Transcript

from . import frames, parts
from .conversation import summed, unpack

MOST_MESSAGES: Final = 60
"""New messages of one exchange: one that goes on with a long history nobody saw brings it all."""
MOST_NAMES: Final = 500  # in one query: SQLite takes 999 variables in old versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """``messages`` are numbered from ``first`` in their request."""

    messages: Sequence[Any] = ()
    first: int = 0
    skipped: int = 0
    """New messages before ``first`` that are left out."""
    answer: Mapping[str, Any] | None = None
    kept: bool = True
    """Whether a transcript is there and whole."""
    history: tuple[int, ...] = ()
    """Parts of the messages, of all of them: equal numbers are equal texts."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    """Parts of ``system`` and ``tools``, likewise."""


NOTHING: Final = Addition(kept=False)


def additions(
    rows: Iterable[Exchange], most: int = MOST_MESSAGES, *, words: bool = True
) -> dict[str, Addition]:
    """What each of the rows added, by its id.

    ``words`` False: only which parts they are made of.
    """
    known = {row.pk: row for row in rows}
    manifests = dict(_manifests({*known, *(row.previous_id for row in known.values())} - {""}))
    starts = {pk: _start(row, manifests) for pk, row in known.items()}
    wanted: set[int] = set()
    for pk, start in starts.items() if words else ():
        manifest = manifests.get(pk, {})
        wanted.update(_new(manifest, start, most)[1])
        if "said" in manifest:
            wanted.add(manifest["said"])
    texts = _texts(wanted)
    return {
        pk: _addition(manifests.get(pk), start, most, texts, words=words)
        for pk, start in starts.items()
    }


def _start(row: Exchange, manifests: Mapping[str, Mapping[str, Any]]) -> int:
    """The first new message; an answer that the client repeats as it was is none."""
    history = _history(manifests.get(row.pk, {}))
    said = manifests.get(row.previous_id, {}).get("said")
    at = row.new_from
    return at + 1 if said is not None and history[at : at + 1] == [said] else at


def _manifests(ids: Iterable[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    rows = Transcript.objects.filter(pk__in=list(ids)).values_list("exchange_id", "manifest")
    for exchange_id, packed in rows:
        try:
            yield exchange_id, unpack(frames.plain(bytes(packed)))
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError):
            continue  # as good as not there: its own page says that it is damaged


def _history(manifest: Mapping[str, Any]) -> list[int]:
    held = manifest.get("fields", {}).get("messages")
    return summed(held) if isinstance(held, list) else []


def _new(manifest: Mapping[str, Any], start: int, most: int) -> tuple[int, list[int]]:
    """Number of the first new message that is read, and their parts."""
    history = _history(manifest)
    first = max(start, len(history) - most)
    return first, history[first:]


def _texts(wanted: Iterable[int]) -> dict[int, Any]:
    """Values by part; a part that is gone or damaged is not in it."""
    found: dict[int, Any] = {}
    ordered = sorted(wanted)
    for at in range(0, len(ordered), MOST_NAMES):
        some = Part.objects.filter(pk__in=ordered[at : at + MOST_NAMES])
        for pk, packed in some.values_list("id", "data"):
            try:
                found[pk] = parts.decode_json(frames.plain(bytes(packed)))
            except (zstandard.ZstdError, msgspec.MsgspecError):
                continue
    return found


def _addition(
    manifest: Mapping[str, Any] | None,
    start: int,
    most: int,
    texts: Mapping[int, Any],
    *,
    words: bool,
) -> Addition:
    if manifest is None:
        return NOTHING
    first, names = _new(manifest, start, most)
    fields = manifest.get("fields", {})
    answer = manifest.get("answer")
    if words and answer is not None:
        said = texts.get(manifest.get("said", -1), {})
        answer = {**answer, "content": said.get("content")}
    return Addition(
        messages=[texts[name] for name in names if name in texts] if words else (),
        first=first,
        skipped=first - min(start, first),
        answer=answer if words else None,
        kept=not words or all(name in texts for name in names),
        history=tuple(_history(manifest)),
        setting={name: fields.get(name) for name in ("system", "tools")},
    )
