"""Join surrogate pairs that an upstream split between two events, as happens to emojis.

JSON can contain an unpaired surrogate, UTF-8 cannot. A high surrogate at the end of a text piece is
pending until the next event. If the same field of that event begins with the low surrogate, both
become one character there. Any other unpaired surrogate becomes U+FFFD.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from .tool_arguments import compact_json

Event = dict[str, Any]

SURROGATE: Final = re.compile("[\ud800-\udfff]")
HIGH_SURROGATE: Final = re.compile("[\ud800-\udbff]")
LOW_SURROGATE: Final = re.compile("[\udc00-\udfff]")
UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"

DELTA: Final = "delta"
"""In both OpenAI APIs, the key of text pieces that the next event may continue."""

STREAMED_FIELDS: Final = frozenset(
    {DELTA, "content", "refusal", "arguments", "text", "thinking", "summary"}
    | {"reasoning", "reasoning_content", "reasoning_text"}
)
"""Fields of a delta that contain a piece of text; the values of other fields are complete."""

LOCATION_FIELDS: Final = frozenset(
    {"type", "index", "output_index", "content_index", "summary_index"}
)
"""Fields that locate a text piece: consecutive pieces of one text have equal values."""

COPIED_FIELDS: Final = LOCATION_FIELDS | {"id", "item_id"}
"""Fields copied to the event of a pending surrogate. Ids are not compared, because some servers
send a new id with each event."""


def replace_surrogates(value: Any) -> Any:
    """Return the same JSON value with each surrogate replaced, so that UTF-8 can encode it."""
    return _split_pending(value, "", pieces=False)[0]


class SurrogateJoiner:
    """Takes the events of one stream and returns them without surrogates."""

    def __init__(self) -> None:
        self._pending: Any = None  # an event with only the pending surrogates, each in its field

    def join(self, event: Event) -> list[Event]:
        """Return the event without surrogates, after a pending surrogate that found no pair."""
        if self._pending is None and SURROGATE.search(compact_json(event)) is None:
            return [event]
        event, unpaired = _join_pending(self._pending, event)
        self._pending = unpaired
        flushed = self.flush()
        event, self._pending = _split_pending(event, "", pieces=not _is_last(event))
        return [*flushed, event]

    def flush(self) -> list[Event]:
        """Return the pending surrogates as an event, because no second half can follow."""
        pending, self._pending = self._pending, None
        return [] if pending is None else [replace_surrogates(_drop_gaps(pending))]


def _is_last(event: Event) -> bool:
    """Return whether no text can follow this event, because it has a finish reason."""
    choices = event.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )


def _split_pending(value: Any, name: str, *, pieces: bool, inside: bool = False) -> tuple[Any, Any]:
    """Split a JSON value into the value without surrogates and the pending surrogates.

    The pending surrogates, at the ends of text pieces, remain in their fields; None if there are
    none. ``name`` is the key of the value; ``inside`` means that the value is inside a delta.
    """
    inside = inside or name == DELTA
    if isinstance(value, str):
        pending = None
        if pieces and inside and name in STREAMED_FIELDS and HIGH_SURROGATE.match(value[-1:]):
            value, pending = value[:-1], value[-1]
        return SURROGATE.sub(UNKNOWN, value), pending
    if isinstance(value, list):
        results = [_split_pending(item, name, pieces=pieces, inside=inside) for item in value]
        pending_items = [pending for _, pending in results]
        return [item for item, _ in results], pending_items if any(pending_items) else None
    if isinstance(value, dict):
        results_by_key = {
            SURROGATE.sub(UNKNOWN, key): _split_pending(item, key, pieces=pieces, inside=inside)
            for key, item in value.items()
        }
        pending_fields = {
            key: pending for key, (_, pending) in results_by_key.items() if pending is not None
        }
        complete = {key: item for key, (item, _) in results_by_key.items()}
        if pending_fields:
            pending_fields |= {key: complete[key] for key in COPIED_FIELDS & complete.keys()}
        return complete, pending_fields or None
    return value, None


def _join_pending(pending: Any, value: Any) -> tuple[Any, Any]:
    """Put pending surrogates in front of the text pieces of ``value``.

    Returns the new value and the surrogates that remain unpaired.
    """
    if isinstance(pending, str):
        if isinstance(value, str) and LOW_SURROGATE.match(value):
            pair = (pending + value[0]).encode("utf-16", "surrogatepass").decode("utf-16")
            return pair + value[1:], None
    elif isinstance(pending, list):
        if isinstance(value, list):
            results = [
                _join_pending(unpaired_item, item)
                for unpaired_item, item in zip(pending, value, strict=False)
            ]
            joined = [item for item, _ in results] + value[len(pending) :]
            unpaired = [unpaired_item for _, unpaired_item in results] + pending[len(value) :]
            is_paired = all(unpaired_item is None for unpaired_item in unpaired)
            return joined, None if is_paired else unpaired
    elif (
        isinstance(pending, Mapping) and isinstance(value, dict) and _same_location(pending, value)
    ):
        joined_event, unpaired_fields = dict(value), dict[str, Any]()
        for key in pending.keys() - COPIED_FIELDS:
            joined_value, unpaired_item = _join_pending(pending[key], value.get(key))
            if key in value:
                joined_event[key] = joined_value
            if unpaired_item is not None:
                unpaired_fields[key] = unpaired_item
        if unpaired_fields:
            unpaired_fields |= {key: pending[key] for key in COPIED_FIELDS & pending.keys()}
        return joined_event, unpaired_fields or None
    return value, pending


def _drop_gaps(pending: Any) -> Any:
    """Remove the None items of all lists."""
    if isinstance(pending, list):
        return [_drop_gaps(item) for item in pending if item is not None]
    if isinstance(pending, dict):
        return {key: _drop_gaps(item) for key, item in pending.items()}
    return pending


def _same_location(pending: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return all(
        value.get(key) in (None, "", pending[key]) for key in LOCATION_FIELDS & pending.keys()
    )
