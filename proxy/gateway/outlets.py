"""Where an answer leaves: as a stream of events, or folded into one JSON message.

Both take the same events (D6). Until an outlet is ``committed`` the client has seen nothing, so a
failure can still become an HTTP error or another target's answer.
"""

import asyncio
from typing import Any, Final, Protocol

import msgspec

from proxy.conf import conf
from translator.errors import BadUpstream

from .base import EVENT_STREAM
from .extras import metadata_event
from .frames import PING, frame, frames
from .ledger import Exchange

ENDINGS: Final = frozenset({"message_stop", "error"})
_encode: Final = msgspec.json.Encoder().encode
CONTENT: Final = frozenset({"content_block_start", "message_delta"})
"""What commits us to 200: before these, ``message_start`` alone promises nothing."""


class Outlet(Protocol):
    @property
    def committed(self) -> bool: ...
    async def take(
        self, events: list[dict[str, Any]], *, last: bool, raw: bytes | None = None
    ) -> None:
        """Events that follow; ``last``: the answer ends with them.

        ``raw`` is what to send for them, where an upstream's own bytes are handed on.
        """
        ...

    @property
    def flows(self) -> bool:
        """The client is in the middle of its answer and need not be waited for: ``flow`` may do."""
        ...

    def flow(self, events: list[dict[str, Any]], now: float) -> None:
        """``take`` events that are not the last, at once; ``now`` by the event loop's clock."""
        ...

    def dressing(self, events: list[dict[str, Any]]) -> bytes:
        """What to send just before these events."""
        ...

    def tick(self, now: float) -> None: ...


class EventOutlet:
    """A streaming client: one write for each upstream read, pings while the upstream is silent."""

    def __init__(self, entry: Exchange, *, metadata: bool) -> None:
        self.committed = False
        self._entry = entry
        self._consumer = entry.consumer
        self._metadata = metadata
        self._held = b""
        self._wrote_at = self._consumer.watch.now()
        self._writing = False
        self._aside: asyncio.Task[None] | None = None  # a ping, or the commit after the hold
        self._cycle: Any = None  # the client's, from the first content on

    async def take(
        self, events: list[dict[str, Any]], *, last: bool, raw: bytes | None = None
    ) -> None:
        self._entry.fold.feed(*events)
        if raw is None:
            raw = self._frames(events) if last else frames(events)
        if not self.committed and not last and not any(e["type"] in CONTENT for e in events):
            self._held += raw
            return
        if not raw and not self._held and not last:
            return
        self._writing = True
        if self._aside is not None:  # it tells what is held, so that is looked at afterwards
            await self._aside
        if self._held:
            raw, self._held = self._held + raw, b""
        if self._entry.first_content is None:
            self._entry.spoke()
        if not self.committed:
            await self._commit()
        await self._consumer.write(raw, more=not last)
        self._wrote_at = self._consumer.watch.now()
        self._writing = False
        self._cycle = self._consumer.cycle

    @property
    def flows(self) -> bool:
        return self._cycle is not None and self._aside is None and self._cycle.keeps_up

    def flow(self, events: list[dict[str, Any]], now: float) -> None:
        self._entry.fold.feed(*events)
        body = frames(events)
        self._consumer.response_bytes += len(body)
        self._cycle.put(body, more=True)
        self._wrote_at = now

    def dressing(self, events: list[dict[str, Any]]) -> bytes:
        if not self._metadata:
            return b""
        return b"".join(
            frame(metadata_event(self._entry, event))
            for event in events
            if event["type"] in ENDINGS
        )

    def _frames(self, events: list[dict[str, Any]]) -> bytes:
        """The end of an answer: an error names its request, metadata comes just before."""
        for event in events:
            if event["type"] == "error":
                event["request_id"] = self._entry.head.request_id
        if not self._metadata:
            return frames(events)
        return b"".join([self.dressing([event]) + frame(event) for event in events])

    def tick(self, now: float) -> None:
        """Called a few times a second: break the silence when it is time to."""
        if self._writing or self._aside is not None or self._consumer.complete:
            return
        if not self.committed:
            if now - self._entry.began < conf.hold_s:
                return
        elif now - self._wrote_at < conf.ping_interval_s:
            return
        self._aside = asyncio.create_task(self._ping())

    async def _commit(self) -> None:
        self.committed = True
        self._consumer.may_ping(PING)
        await self._consumer.begin(200, EVENT_STREAM)

    async def _ping(self) -> None:
        try:
            if self._consumer.begun and not self.committed:
                return  # by a refusal, which a slow client is still being told
            held, self._held = self._held, b""
            if not self.committed:
                await self._commit()
            await self._consumer.write(held + PING, more=True)
            self._wrote_at = self._consumer.watch.now()
        finally:
            self._aside = None


class MessageOutlet:
    """A client that waits for the whole message; what fails before is an HTTP error."""

    def __init__(self, entry: Exchange) -> None:
        self.committed = False
        self._entry = entry

    async def take(
        self, events: list[dict[str, Any]], *, last: bool, raw: bytes | None = None
    ) -> None:
        entry = self._entry
        entry.fold.feed(*events)
        if not raw and entry.fold.full:
            raise BadUpstream("upstream's answer is too large")
        if last:
            entry.spoke()
            self.committed = True
            entry.message = entry.fold.message
            await entry.consumer.respond(200, raw or _encode(entry.message))

    @property
    def flows(self) -> bool:
        return not self._entry.fold.full

    def flow(self, events: list[dict[str, Any]], now: float) -> None:
        self._entry.fold.feed(*events)

    def dressing(self, events: list[dict[str, Any]]) -> bytes:
        """A whole answer has no place for extras."""
        return b""

    def tick(self, now: float) -> None:
        """A whole answer has nothing to say before its end."""
