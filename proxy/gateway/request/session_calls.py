"""The record of a session's tool calls, as the translator needs it.

A call's id carries what must go back to the upstream with the call. What is too long for an id, or
arrives after the client received the id, is recorded when the response ends, and read when the
session's next request goes to the same upstream and model. Only the gateway key that made the
request can read the entry.

Nothing is recorded for requests without a session id, or of a team that stores only metadata.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable
from typing import Final

from proxy.counters.backends import call_store
from proxy.counters.failover import PAUSE_S
from proxy.counters.session_calls import MAX_CALL, Entries
from proxy.counters.store import StoreUnavailable
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import Target
from proxy.ledger.recorder import recorder
from translator.dialect import RecordedCalls, Stream, UpstreamCall
from translator.errors import BadUpstream
from translator.notes import Note

from .request import Request

log = logging.getLogger("proxy.gateway")

RECORDED: Final = Note(
    "content", "emulated", "the session's record keeps what the ids of the calls cannot carry"
)
TOO_LARGE: Final = Note(
    "content", "dropped", "what the ids of the calls cannot carry is too large for the record"
)
NOT_RECORDED: Final = Note(
    "content", "dropped", "what the ids of the calls cannot carry: the record is unavailable"
)
NOT_READ: Final = Note("messages", "dropped", "the session's record of calls is unavailable")

ABSENT_S: Final = 0.25
PRESENT_S: Final = 60.0
"""Seconds for which the answer whether an upstream has entries is not queried again. The record may
be shared with other nodes, so an absent entry is queried more often."""
MAX_ORIGINS: Final = 1_000


class KnownOrigins:
    """Which upstreams and models have entries, so that requests to all others read nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[bool, float]] = {}  # origin -> whether it has, until when

    def get(self, origin: str) -> bool | None:
        """Return whether the origin has entries; None: query the store."""
        has_calls, until = self._known.get(origin, (False, 0.0))
        return has_calls if self._clock() < until else None

    def was_present(self, origin: str) -> bool:
        return self._known.get(origin, (False, 0.0))[0]

    def set(self, origin: str, *, has_calls: bool, for_s: float | None = None) -> None:
        if len(self._known) >= MAX_ORIGINS:  # clients may choose the model
            self._known.clear()
        for_s = for_s or (PRESENT_S if has_calls else ABSENT_S)
        self._known[origin] = (has_calls, self._clock() + for_s)


known_origins: Final = KnownOrigins()


async def load_calls(request: Request, target: Target) -> RecordedCalls | None:
    """Return the recorded calls of the request's session; None if its calls are not recorded."""
    if not request.session_id or target.server.dialect_name == "anthropic":
        return None
    if not request.caller.team.store_full:
        return None
    origin, session = _keys(request, target)
    has_calls = known_origins.get(origin)
    if has_calls is False:
        return {}
    store = call_store(recorder.directory)

    def load() -> Entries | None:
        return store.load(origin, session) if has_calls or store.has_origin(origin) else None

    try:
        entries = await asyncio.to_thread(load)
    except StoreUnavailable as exc:
        log.warning("record of tool calls: %s", exc)
        if known_origins.was_present(origin):
            request.notes.append(NOT_READ)
        else:
            known_origins.set(origin, has_calls=False, for_s=PAUSE_S)
        return {}
    if not has_calls:
        known_origins.set(origin, has_calls=entries is not None)
    calls: dict[str, UpstreamCall | None] = {}
    for name, entry in (entries or {}).items():
        try:
            content = decode_json(entry.encode()) if entry is not None else None
        except BadUpstream:
            content = None
        match content:
            case [str(id_), dict(fields)]:
                calls[name] = UpstreamCall(id_, fields)
            case _:  # an entry that another program wrote counts as expired
                calls[name] = None
    return calls


async def save_calls(request: Request, target: Target, stream: Stream) -> None:
    """Record the calls of a response, and note on the row whether they were recorded."""
    encoded = {
        name: json.dumps(call, separators=(",", ":")) for name, call in stream.call_records.items()
    }
    entries = {name: entry for name, entry in encoded.items() if len(entry) <= MAX_CALL}
    notes = {TOO_LARGE} if len(entries) < len(encoded) else set()
    origin, session = _keys(request, target)
    store = call_store(recorder.directory)
    try:
        if entries:
            saved = await asyncio.to_thread(store.save, origin, session, entries)
            notes.add(RECORDED if saved else TOO_LARGE)
            known_origins.set(origin, has_calls=True)
    except StoreUnavailable as exc:
        log.warning("record of tool calls: %s", exc)
        notes.add(NOT_RECORDED)
    stream.notes += sorted(notes, key=lambda note: note.reason)


def _keys(request: Request, target: Target) -> tuple[str, str]:
    """Return the keys of the request's upstream and model, and of its session, in the store."""
    origin = f"{target.server.name}\n{target.model_for(request.model)}"
    session = f"{request.caller.key_id}\n{request.session_id}"
    return _digest(origin), _digest(session)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
