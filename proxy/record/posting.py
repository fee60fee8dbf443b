"""Posting: what the spool says about some exchanges becomes rows, transcripts, rollups and seals.

One transaction, under the ledger's lock, keyed by the exchange's id: posting the same records
twice changes nothing the second time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import transaction

from proxy.models import Exchange, State

from . import drift, key_use, rollups, seals, sessions, spending, transcripts
from .conversation import Conversation, Packing, failed_of, reads_of
from .pricing import PriceList
from .records import Chunk, CloseRecord, OpenRecord, Record
from .rows import FIELDS, Row, apply, blank, closed, moment, opened, there
from .statements import write

CHANGING = [name for name in FIELDS if name != "id"]


@dataclass(slots=True)
class Story:
    """All that the spool knows of one exchange."""

    opening: OpenRecord
    chunks: list[Chunk]
    closing: CloseRecord | None = None
    _conversation: Conversation | None = None

    def conversation(self) -> Conversation | None:
        """What the transcripts keep, made once; None: its team keeps metadata only, no body."""
        if self._conversation is None and self.opening.body is not None:
            self._conversation = _conversation(self, self.opening.body)
        return self._conversation

    def pack(self, packing: Packing) -> None:
        """Let go of what was read, as far as it is not kept: the batch is decoded one by one."""
        one = self.conversation()
        if one is not None:
            one.pack(packing)
        self.chunks = []
        if self.closing is not None:
            self.closing.reads.clear()  # which were the last of the chunks


def story_of(records: Iterable[Record]) -> Story | None:
    """None: the open record is missing, so nothing was ever accepted. The first close counts."""
    opening, closing, chunks = None, None, []
    for record in records:
        match record:
            case OpenRecord():
                opening = opening or record
            case Chunk():
                chunks.append(record)
            case _:
                closing = _truer(closing, record)
    if closing is not None and closing.reads:
        chunks.append(_last_chunk(closing))
    return Story(opening, chunks, closing) if opening else None


def _last_chunk(closing: CloseRecord) -> Chunk:
    return Chunk(
        id=closing.id,
        reads=closing.reads,
        attempt=closing.attempt,
        target=closing.target,
        status=closing.upstream_status or 200,
    )


def _truer(first: CloseRecord | None, second: CloseRecord) -> CloseRecord:
    """A real ending beats the guess that its process had died."""
    if first is None or (first.outcome == "interrupted" != second.outcome):
        return second
    return first


def post(stories: Sequence[Story], now: datetime | None = None) -> int:
    """Bring the database up to date with the stories; the number of rows that were closed."""
    now = now or datetime.now(UTC)
    with transaction.atomic():
        head = seals.hold_ledger()
        known = there(story.opening.id for story in stories)
        due = [story for story in stories if _is_due(story, known.get(story.opening.id))]
        fresh = [story for story in due if story.opening.id not in known]
        prices = _prices(due)
        conversations = _conversations(due)
        new = {story.opening.id for story in fresh}
        follow = sessions.Turns(one for key, one in conversations.items() if key in new)
        rows: list[Row] = []
        for story in due:
            row = known.get(story.opening.id) or _new_row(story, conversations, follow)
            if story.closing:
                if row.state == State.CLOSED:  # an interrupted row whose process lived after all
                    rollups.add([row], -1)
                apply(row, closed(story.closing, row, prices))
            rows.append(row)
        write(Exchange, map(vars, rows), replaced=CHANGING)
        bodies = transcripts.store(list(conversations.values()), now)
        done = [row for row in rows if row.state == State.CLOSED]
        rollups.add(done)
        seals.seal(head, [(row, bodies.get(row.id)) for row in done], now)
        key_use.note(rows)
        spending.fold(done)
    drift.radar.note(
        (story.opening for story in fresh), (s.closing for s in due if s.closing is not None)
    )
    return len(done)


def _prices(stories: Iterable[Story]) -> PriceList:
    """Read only where a close record brings no price of its own: mostly the gateway knew it."""
    wanted = any(story.closing and story.closing.price is None for story in stories)
    return PriceList.load() if wanted else PriceList(())


def _is_due(story: Story, row: Row | None) -> bool:
    if row is None:
        return True
    if story.closing is None:
        return False
    guessed = row.outcome == "interrupted" and story.closing.outcome != "interrupted"
    return row.state == State.OPEN or guessed


def _conversations(stories: Iterable[Story]) -> dict[str, Conversation]:
    """The transcripts to keep, by exchange id."""
    told = ((story.opening.id, story.conversation()) for story in stories)
    return {exchange_id: one for exchange_id, one in told if one is not None}


def _conversation(story: Story, body: bytes) -> Conversation:
    opening, closing = story.opening, story.closing
    make = Conversation.faulty if opening.faulty else Conversation.of
    one = make(opening.id, moment(opening.created), body)
    one.target = opening.target
    if closing:
        one.take_answer(closing.answer)
        one.reads = reads_of(story.chunks, closing.attempt)
        one.failed = failed_of(story.chunks, opening.target, closing.attempt)
        one.target = closing.target or _last_target(story)
        one.upstream_request_sha256 = closing.upstream_request_sha256
    return one


def _last_target(story: Story) -> Mapping[str, object]:
    named = [chunk.target for chunk in story.chunks if chunk.target]
    return named[-1] if named else story.opening.target


def _new_row(
    story: Story, conversations: Mapping[str, Conversation], follow: "sessions.Turns"
) -> Row:
    row = blank(story.opening.id)
    apply(row, opened(story.opening))
    if one := conversations.get(row.id):
        apply(row, sessions.described(one, row))
        apply(row, follow.place(one, row))
    return row
