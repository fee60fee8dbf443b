"""Verify the ledger: the hash chain, the rows and bodies that it covers, and the rollups.

Nobody without the key can sign a link, but somebody with the database could change a row, let the
gateway amend it, and put everything else back. So each amendment has the digests of its groups of
columns before the change, with which the row must give the digest of the link before.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from heapq import merge
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from django.db import transaction
from django.db.models import Count, Exists, Max, Min, OuterRef, Q

from proxy.audit_log import Action
from proxy.conf import conf
from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.archive.reading import (
    bounds,
    removed_months,
    rows_between,
    rows_by_id,
    transcripts_by_id,
)
from proxy.ledger.posting.audit_links import (
    AUDIT,
    digest_of_entry,
    entry_of,
    last_linked,
    not_linked,
    subject_of,
)
from proxy.ledger.posting.hash_chain import (
    Digests,
    Note,
    combined,
    group_digests,
    is_digest_of,
    is_signed,
    link_digest,
    lock_ledger,
    public_keys,
    with_groups_before,
)
from proxy.ledger.posting.rollups import ALL_TABLES, counts_of, grouped, merge_line
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import StoredPart
from proxy.ledger.usage.latency_histogram import merge_histograms
from proxy.models import (
    AuditEntry,
    Exchange,
    HashChainLink,
    LedgerHead,
    LinkKind,
    State,
    Transcript,
)

from .published_heads import HEAD, PublishedHead, published
from .retention import PURGES, expired

ACTIONS: Final[Mapping[str, Action]] = {
    LinkKind.SETTLED: Action.RUN,
    LinkKind.REPRICED: Action.RUN,
    LinkKind.ENCRYPTED: Action.RUN,
    LinkKind.ERASED: Action.ERASE,
    LinkKind.PURGED: Action.PURGE,
}
"""The action of the audit entry that a link of this kind names."""
FIRST: Final = frozenset({LinkKind.CLOSED, LinkKind.SETTLED, ""})
"""The kinds of a row's first link; 1.0 wrote no kinds."""


class Proof(NamedTuple):
    """What is wrong with the amendments of a row, and how many of them prove nothing."""

    differences: Sequence[str]
    unproven: int = 0


def check_amendments(row: Exchange, links: Sequence[HashChainLink]) -> Proof:
    """Check the links of a row, oldest first, of which the newest has the row's digest."""
    if links[0].kind not in FIRST:
        return Proof([f"its first link is {links[0].kind}"])
    digests: Digests = group_digests(row)
    unproven = len(links) - 1
    for before, link in reversed([*pairwise(links)]):
        if not before.kind or not link.kind:
            break  # the digests of 1.0 have no groups
        kind, note = LinkKind(link.kind), note_in(link)
        if not _has_body_of(before, link):
            return Proof([f"link {link.sequence} has another transcript"], unproven)
        if kind == LinkKind.ERASED and not note.was:
            break  # in an archived month
        if kind == LinkKind.SETTLED or not note.was:
            return Proof([f"link {link.sequence} does not say what it changed"], unproven)
        try:
            digests = with_groups_before(digests, kind, note.groups_before)
        except ValueError:
            return Proof([f"link {link.sequence} does not say what it changed"], unproven)
        if combined(digests) != bytes(before.row_digest):
            why = f"link {link.sequence} ({kind}) hides a change of other columns"
            return Proof([why], unproven)
        unproven -= 1
    return Proof([], unproven)


def _has_body_of(before: HashChainLink, link: HashChainLink) -> bool:
    """Return whether an amendment keeps the transcript; a second end and an erasure do not."""
    if link.kind == LinkKind.CLOSED:
        return True
    kept = None if link.kind == LinkKind.ERASED else before.body_digest
    return bytes(link.body_digest or b"") == bytes(kept or b"")


def links_by_row(ids: Iterable[str]) -> dict[str, list[HashChainLink]]:
    """Return the links of rows that have several, oldest first."""
    found: dict[str, list[HashChainLink]] = {}
    for link in HashChainLink.objects.filter(exchange_id__in=list(ids)).order_by("sequence"):
        found.setdefault(link.exchange_id, []).append(link)
    return found


def causes_missing(links: Iterable[HashChainLink]) -> Iterator[tuple[HashChainLink, str]]:
    """Yield the amendments and deletions that name no earlier audit entry of a command for them."""
    named = {}
    for link in links:
        note = note_in(link)
        if link.kind in ACTIONS or (link.kind == LinkKind.AUDIT and note.audit):
            named[link.sequence] = (link, note.audit)
    subjects = {f"{AUDIT}{audit:020}": audit for _, audit in named.values()}
    rows = HashChainLink.objects.filter(exchange_id__in=list(subjects)).values_list("exchange_id")
    first = {subjects[name]: sequence for name, sequence in rows.annotate(Min("sequence"))}
    actions = dict(
        AuditEntry.objects.filter(pk__in=list(subjects.values())).values_list("pk", "action")
    )
    for link, audit in named.values():
        expected = ACTIONS.get(link.kind, Action.ERASE)
        if first.get(audit, link.sequence) >= link.sequence:
            yield link, f"it is {link.kind}, but names no audit entry with a link before it"
        elif actions.get(audit, expected) != expected:
            yield link, f"it is {link.kind}, but audit entry {audit} is {actions[audit]}"


def note_in(link: HashChainLink) -> Note:
    """Return the note of a link; an empty one if it has none that can be read."""
    try:
        return msgspec.json.decode(link.note, type=Note) if link.note else Note()
    except msgspec.MsgspecError:
        return Note()


BATCH: Final = 1000
MAX_FINDINGS: Final = 1000
MAX_PER_TABLE: Final = 100  # findings of one table and day


class Finding(NamedTuple):
    """An inconsistency that the verification found.

    ``what`` is its kind: chain, signature, head, row, amendment, cause (an amendment without an
    audit entry), unsealed (a row without a link), lost (a missing row), body, audit or sum.
    ``where`` names the affected link, row or table.
    """

    what: str
    where: str
    why: str


class DayRange(NamedTuple):
    """UTC days from ``since`` up to, not including, ``until``; None: no bound."""

    since: date | None = None
    until: date | None = None

    def filter(self, field: str) -> Q:
        bounds = {f"{field}__gte": self.since, f"{field}__lt": self.until}
        return Q(**{name: day for name, day in bounds.items() if day is not None})


EVERYTHING: Final = DayRange()


class VerifyProgress(NamedTuple):
    """The last verified link, and the links and findings since the previous progress report."""

    sequence: int
    links: int
    findings: list[Finding]
    encrypted: Mapping[str, int] = {}
    """The number of transcripts that could not be verified, by the id of the missing body key."""
    unproven: int = 0
    """The number of amendments of which the changed columns are not proven."""


class Checkpoint(msgspec.Struct):
    """How far a verification has come: its options, its position in each step, its findings."""

    days: DayRange = EVERYTHING
    bodies: bool = True
    sums: bool = True
    sequence: int = 0
    """The last verified link."""
    rows_until: date | None = None
    """Rows that were created before this day have a link."""
    sums_until: date | None = None
    """The sums of the days before this one are verified."""
    links: int = 0
    findings: list[Finding] = []
    """The first ``MAX_FINDINGS`` findings."""
    found: int = 0
    """The number of all findings."""
    encrypted: dict[str, int] = {}
    """The number of transcripts that could not be verified, by the id of the missing body key."""
    unproven: int = 0
    """The number of amendments of which the changed columns are not proven."""

    def add(self, findings: list[Finding]) -> None:
        self.found += len(findings)
        self.findings += findings[: MAX_FINDINGS - len(self.findings)]

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the stored checkpoint; None if there is none, or if it cannot be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None

    def save(self, path: Path) -> None:
        """Store the checkpoint; a kill leaves the old or the new one."""
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.encode(self))
        new.replace(path)


def steps(state: Checkpoint, batch_size: int = BATCH) -> Iterator[None]:
    """Verify the links, then by month the rows without a link, then by day the sums.

    ``state`` contains the position and the findings at each yield.
    """
    for checked in verify(
        bodies=state.bodies, days=state.days, after=state.sequence, batch_size=batch_size
    ):
        state.links += checked.links
        state.sequence = checked.sequence
        state.add(checked.findings)
        state.unproven += checked.unproven
        state.encrypted = dict(Counter(state.encrypted) + Counter(checked.encrypted))
        yield
    days = _days_with_rows(state.days)
    if days is None:
        return
    first, last = days
    at = max(first, state.rows_until or first)
    while at <= last:
        end = min(bounds(at)[1].date(), last + timedelta(days=1))
        state.add(verify_links_of_rows(_midnight(at), _midnight(end)))
        state.rows_until = at = end
        yield
    at = max(first, state.sums_until or first)
    while state.sums and at <= last:
        end = at + timedelta(days=1)
        state.add(verify_sums(_midnight(at), _midnight(end)))
        state.sums_until = at = end
        yield


def _days_with_rows(days: DayRange) -> tuple[date, date] | None:
    """Return the first and the last UTC day with rows within ``days``; None: there are none.

    All days of an archived month count as days with rows.
    """
    found = Exchange.objects.aggregate(first=Min("created"), last=Max("created"))
    known = [at.astimezone(UTC).date() for at in found.values() if at is not None]
    for month in removed_months():
        known += [month, bounds(month)[1].date() - timedelta(days=1)]
    if not known:
        return None
    first = max(min(known), days.since or date.min)
    last = min(max(known), days.until - timedelta(days=1) if days.until else date.max)
    return (first, last) if first <= last else None


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time_of_day(), UTC)


def link_range(days: DayRange) -> tuple[int, int]:
    """Return the first and the last sequence number of the links of these days; (1, 0): none."""
    links = HashChainLink.objects.filter(days.filter("day"))
    found = links.aggregate(first=Min("sequence"), last=Max("sequence"))
    return found["first"] or 1, found["last"] or 0


def verify(
    *,
    bodies: bool = True,
    days: DayRange = EVERYTHING,
    after: int = 0,
    now: datetime | None = None,
    batch_size: int = BATCH,
) -> Iterator[VerifyProgress]:
    """Verify the hash chain, or the links of some days; yield the progress after each batch.

    ``bodies``: verify stored transcripts too. ``after``: the last link that was verified before.
    """
    retention = dict(expired(now or datetime.now(UTC))) if bodies else None
    head = LedgerHead.objects.filter(pk=1).first()
    deletions = Deletions.load()
    links = HashChainLink.objects.order_by("sequence")
    if days != EVERYTHING:
        first, last = link_range(days)
        links, after = links.filter(sequence__lte=last), max(after, first - 1)
    before = HashChainLink.objects.filter(sequence=after).first()
    signatures = Signatures(after)
    while True:
        batch = list(links.filter(sequence__gt=after)[:batch_size])
        rows = _Rows(retention, deletions)
        findings = [*_chain(before, batch), *signatures.check(batch), *rows.check(batch)]
        findings += [
            Finding("cause", f"link {link.sequence}", why) for link, why in causes_missing(batch)
        ]
        findings += _audit_entries(batch, now or datetime.now(UTC))
        if len(batch) < batch_size and days == EVERYTHING:
            findings += [*_head(head), *signatures.unsigned_end()]
            findings += [
                Finding("audit", subject_of(entry), "the entry of the audit log has no link")
                for entry in islice(not_linked(), 100)
            ]
        if batch:
            before, after = batch[-1], batch[-1].sequence
        yield VerifyProgress(after, len(batch), findings, rows.encrypted, rows.unproven)
        if len(batch) < batch_size:
            return


def _chain(before: HashChainLink | None, batch: list[HashChainLink]) -> Iterator[Finding]:
    for link in batch:
        where = f"link {link.sequence}"
        if before is None:
            sequence, digest = 0, bytes(32)
        else:
            sequence, digest = before.sequence, bytes(before.digest)
        if link.sequence != sequence + 1:
            yield Finding(
                "chain", where, f"{link.sequence - sequence - 1} links before it are missing"
            )
        else:
            body = None if link.body_digest is None else bytes(link.body_digest)
            expected = link_digest(
                digest, link.sequence, link.exchange_id, bytes(link.row_digest), body,
                link.kind, link.note,
            )  # fmt: skip
            if expected != bytes(link.digest):
                yield Finding("chain", where, f"its digest is not that of {link.exchange_id}")
        before = link


class Signatures:
    """Checks that the links of each transaction are signed, one after the other without a gap."""

    def __init__(self, after: int) -> None:
        """``after``: the last link that was verified before."""
        self._keys = public_keys()
        earlier = HashChainLink.objects.filter(sequence__lte=after).order_by("-sequence")
        last = earlier.filter(signature__isnull=False).first()
        self._is_any_signed = last is not None
        start = last or earlier.filter(kind="").first()
        self._first = 1 + (start.sequence if start else 0)
        self._last = after

    def check(self, batch: list[HashChainLink]) -> Iterator[Finding]:
        for link in batch:
            self._last, where = link.sequence, f"link {link.sequence}"
            if not link.kind:  # written by 1.0
                if self._is_any_signed:
                    yield Finding("signature", where, "it is unsigned and follows signed links")
                self._first = link.sequence + 1
            elif link.signature is not None:
                signature = bytes(link.signature)
                if not is_signed(self._first, bytes(link.digest), signature, self._keys):
                    why = f"no known key signed links {self._first} to {link.sequence} together"
                    yield Finding("signature", where, why)
                self._first, self._is_any_signed = link.sequence + 1, True

    def unsigned_end(self) -> Iterator[Finding]:
        if self._first <= self._last:
            yield Finding("signature", f"link {self._first}", "the links from it on are unsigned")


class Deletions(NamedTuple):
    """The recorded deletions of transcripts, and the end of the links without such records."""

    records: list[tuple[int, str | None, datetime]]
    """Sequence of the link, team (None: all) and time before which transcripts were deleted."""
    unrecorded_until: int
    """1.0 recorded no deletion: rows with a link up to this one are compared with retention."""

    @classmethod
    def load(cls) -> Self:
        records = []
        for link in HashChainLink.objects.filter(exchange_id__startswith=PURGES):
            try:
                note = msgspec.json.decode(link.note)
                at = datetime.fromisoformat(note["before"])
                records.append((link.sequence, note["team"], at))
            except (ValueError, KeyError, TypeError):
                continue  # a forged link: its signature is a finding
        first = HashChainLink.objects.exclude(kind="").order_by("sequence").first()
        if first is not None:
            return cls(records, first.sequence - 1)
        last = HashChainLink.objects.order_by("-sequence").first()
        return cls(records, last.sequence if last else 0)

    def cover(self, row: Exchange, first: int) -> bool:
        """Return whether the transcript of a row, whose first link this is, was deleted."""
        return any(
            sequence > first and team in {None, row.team} and row.created < before
            for sequence, team, before in self.records
        )


def _audit_entries(batch: list[HashChainLink], now: datetime) -> Iterator[Finding]:
    """Compare the entries of the audit log with their newest links. Old entries are deleted."""
    found = links_by_row({link.exchange_id for link in batch if link.kind == LinkKind.AUDIT})
    entries = AuditEntry.objects.in_bulk([entry_of(name) for name in found])
    kept_since = (now - timedelta(days=conf.audit_days)).date()
    for name, links in found.items():
        entry, newest = entries.get(entry_of(name)), links[-1]
        if entry is None and newest.day > kept_since:
            yield Finding("audit", name, "the entry of the audit log is missing")
        elif entry is not None and digest_of_entry(entry) != bytes(newest.row_digest):
            yield Finding("audit", name, "the entry differs from its link")
        if any(not note_in(link).audit for link in links[1:]):
            yield Finding("audit", name, "the entry has a second link that is not of an erasure")


def check_published(path: Path) -> Iterator[Finding]:
    """Compare the chain with heads that were published. Raises ConfigError for an unusable file."""
    heads = published(path)
    keys = public_keys() | {bytes.fromhex(head.key) for head in heads}
    for head in heads:
        where, digest = f"link {head.sequence}", bytes.fromhex(head.digest)
        if not is_signed(HEAD, digest, bytes.fromhex(head.signature), keys):
            yield Finding("head", where, f"the head published at {head.at} has a false signature")
            continue
        link = HashChainLink.objects.filter(sequence=head.sequence).first()
        if link is None or bytes(link.digest) != digest:
            why = f"the chain differs from the head published at {head.at:%Y-%m-%d %H:%M}"
            yield Finding("head", where, why)


class _Rows:
    """Compares each row of a batch with its newest link, if that link is in the batch."""

    def __init__(self, retention: Mapping[str, datetime] | None, deletions: Deletions) -> None:
        """``retention``: team -> time before which transcripts may be deleted; None: skip them."""
        self._retention, self._deletions = retention, deletions
        self.encrypted: Counter[str] = Counter()
        """The transcripts that cannot be read, by their missing key."""
        self.unproven = 0
        """The amendments of which the changed columns are not proven."""

    def check(self, batch: list[HashChainLink]) -> Iterator[Finding]:
        batch = [link for link in batch if link.kind not in {LinkKind.AUDIT, LinkKind.PURGED}]
        links = links_by_row({link.exchange_id for link in batch})
        newest = {
            link.exchange_id: link
            for link in batch
            if links[link.exchange_id][-1].sequence == link.sequence
        }
        rows = Exchange.objects.in_bulk(list(newest))
        archived = newest.keys() - rows.keys()
        rows |= {row.pk: row for row in rows_by_id(archived)}
        rows |= Exchange.objects.in_bulk(list(archived - rows.keys()))  # restored meanwhile
        stored = set()
        for body, parts in self._transcripts(newest.keys(), archived):
            stored.add(body.pk)
            yield from _body(newest[body.pk], body, parts, self.encrypted)
        for link in newest.values():
            own = links[link.exchange_id]
            row = rows.get(link.exchange_id)
            if row is None:
                yield Finding("lost", link.exchange_id, "the row is missing")
                continue
            if is_digest_of(bytes(link.row_digest), row, link.kind):
                proof = check_amendments(row, own)
                self.unproven += proof.unproven
                for why in proof.differences:
                    yield Finding("amendment", link.exchange_id, why)
            elif not _amended(link):
                yield Finding("row", link.exchange_id, "the row differs from its link")
            if (
                row.pk not in stored
                and link.body_digest
                and self._must_be_stored(row, own[0].sequence)
                and not Transcript.objects.filter(pk=row.pk).exists()  # restored meanwhile
            ):
                why = "the transcript is missing, and its deletion is not recorded"
                yield Finding("body", link.exchange_id, why)

    def _transcripts(
        self, ids: Collection[str], archived: Collection[str]
    ) -> Iterator[tuple[Transcript, list[StoredPart] | None]]:
        """Yield the transcripts of these requests; those of files with their parts."""
        if self._retention is not None:
            yield from ((row, None) for row in Transcript.objects.filter(pk__in=list(ids)))
            yield from transcripts_by_id(archived)

    def _must_be_stored(self, row: Exchange, first: int) -> bool:
        """Return whether the transcript of a row, whose first link this is, may not be missing."""
        if self._retention is None or self._deletions.cover(row, first):
            return False
        if first > self._deletions.unrecorded_until:
            return True
        since = self._retention.get(row.team)  # None: transcripts of a deleted team may be missing
        return since is not None and row.created >= since


def _amended(link: HashChainLink) -> bool:
    """Return whether the row was amended during the verification, so it differs from ``link``.

    The ledger lock prevents another amendment during this check.
    """
    with transaction.atomic():
        lock_ledger()
        if HashChainLink.objects.filter(
            exchange_id=link.exchange_id, sequence__gt=link.sequence
        ).exists():
            return True
        row = Exchange.objects.filter(pk=link.exchange_id).first()
        return row is not None and is_digest_of(bytes(link.row_digest), row, link.kind)


def _body(
    link: HashChainLink,
    stored: Transcript,
    parts: list[StoredPart] | None,
    encrypted: Counter[str],
) -> Iterator[Finding]:
    """Compare a transcript with its link. ``parts``: of one that is in a file."""
    try:
        digest = storage.load(stored, parts).conversation.digest()
    except storage.EncryptedTranscript as exc:
        encrypted[exc.key_id] += 1
        return
    except storage.BrokenTranscript as exc:
        yield Finding("body", link.exchange_id, str(exc))
        return
    if link.body_digest is None or digest != bytes(link.body_digest):
        yield Finding("body", link.exchange_id, "the transcript differs from its link")


def _head(head: LedgerHead | None) -> Iterator[Finding]:
    """Check the end of the chain. ``head`` was read before the links, so newer links may exist."""
    if head is None or head.sequence == 0:
        return
    last = HashChainLink.objects.filter(sequence=head.sequence).first()
    if last is None or bytes(last.digest) != bytes(head.digest):
        yield Finding("head", f"link {head.sequence}", "links at the end of the chain are missing")


def verify_links_of_rows(since: datetime, until: datetime) -> list[Finding]:
    """Return the closed rows of a time range without a link, at most 100.

    A range of at most a month lets PostgreSQL read one partition. ``NOT EXISTS`` is an anti-join;
    for ``NOT IN``, PostgreSQL would search all links again for each row.
    """
    links = HashChainLink.objects.filter(exchange_id=OuterRef("pk"))
    rows = Exchange.objects.filter(
        ~Exists(links), state=State.CLOSED, created__gte=since, created__lt=until
    )
    ids = rows.order_by("created").values_list("pk", flat=True)[:100]
    return [Finding("unsealed", pk, "the row is closed and has no link") for pk in ids]


def verify_sums(since: datetime, until: datetime) -> list[Finding]:
    """Compare each row of the rollup tables with the sum of its ledger rows, in all its columns.

    The range must consist of whole UTC days; one day at a time is best.
    """
    archived = removed_months()
    expected: dict[Any, dict[bytes, dict[str, Any]]] = {t: {} for t in ALL_TABLES}
    rows = Exchange.objects.filter(state=State.CLOSED, created__gte=since, created__lt=until)
    stored = rows.order_by("pk").iterator(chunk_size=BATCH)
    first = list(islice(stored, 1))  # the query begins before the files are read
    both = merge(chain(first, stored), rows_between(since, until), key=attrgetter("pk"))
    # While a month is removed or restored, some rows are on both sides.
    found = (next(same) for _, same in groupby(both, attrgetter("pk")))
    while batch := list(islice(found, BATCH)):
        for table, lines in grouped(batch).items():
            for line in lines.values():
                merge_line(table, expected[table], line)
    findings = [
        finding
        for table, lines in expected.items()
        for finding in islice(_differing_sums(table, lines, since, until), MAX_PER_TABLE)
    ]
    if findings and removed_months() != archived:  # a month was removed or restored meanwhile
        return verify_sums(since, until)
    return findings


def _differing_sums(
    table: Any, lines: dict[bytes, dict[str, Any]], since: datetime, until: datetime
) -> Iterator[Finding]:
    """Yield a finding for each row of a table that is not the sum of its ledger rows."""
    where = f"{table.__name__} {since:%Y-%m-%d}"
    missing = dict(lines)
    sums = table.objects.filter(start__gte=since, start__lt=until).order_by("pk")
    for stored in sums.values().iterator():
        key = stored["id"] = bytes(stored["id"])
        line = missing.pop(key, None)
        if "latency" in stored:
            stored["latency"] = merge_histograms([stored["latency"]])
        if line is None:
            line = dict.fromkeys(counts_of(table), 0) | (
                {"latency": {}} if "latency" in stored else {}
            )
        for name, value in line.items():
            if stored[name] != value:
                why = f"{name} is {stored[name]}, by its ledger rows it is {value}"
                yield Finding("sum", where, f"row {key.hex()}: {why}")
    for key in sorted(missing):
        yield Finding("sum", where, f"row {key.hex()} is missing")


def heads() -> list[tuple[date, int, str]]:
    """Return (day, number of links, hex digest of the last link) of each day.

    A copy of this list outside of the database can prove later that no link was changed.
    """
    days = HashChainLink.objects.values("day").annotate(links=Count("*"), last=Max("sequence"))
    found = []
    for day in days.order_by("day"):
        last = HashChainLink.objects.get(pk=day["last"])
        found.append((day["day"], day["links"], bytes(last.digest).hex()))
    return found


NEVER: Final = (
    (
        "what was changed in a request before it ended, or that it was made up before then: "
        "its first link has the row as it was at its end"
    ),
    "that no entry of the audit log was made up, changed or deleted before its link was written",
    (
        "commands and purges that the gateway was made to run: their links name audit entries, "
        "which somebody must read"
    ),
    (
        "tables that are not in the chain: configuration, accounts, search index, outcomes of "
        "sessions, webhooks"
    ),
    "anything, if somebody else has the secret key",
)
"""What no verification proves."""


class Claims(NamedTuple):
    """What is proven, and what is not, in one sentence each."""

    proven: list[str]
    not_proven: list[str]


def claims_of(state: Checkpoint, heads: Sequence[PublishedHead]) -> Claims:
    """Return the claims of a complete verification. A finding ends the claims of its kind."""
    claims = Claims([], [])
    wrong = {finding.what for finding in state.findings}
    for text, is_checked, kinds in _claims(state, heads):
        if not is_checked:
            claims.not_proven.append(f"{text}: not checked")
        elif wrong & set(kinds):
            claims.not_proven.append(f"{text}: see the findings")
        else:
            claims.proven.append(text)
    claims.not_proven.extend([*_limits(state, heads), *NEVER])
    return claims


def _claims(
    state: Checkpoint, heads: Sequence[PublishedHead]
) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Yield each claim, whether it was checked, and the kinds of findings that refute it."""
    chain = ("chain", "signature", "head")
    yield f"{state.links} links follow one another, and this gateway signed them", True, chain
    yield "no closed request is missing or was added", True, (*chain, "lost", "unsealed")
    yield (
        (
            "all columns of the closed requests are those of their links; amendments changed only "
            "columns of their kind, and name an entry of the audit log"
        ),
        True,
        (*chain, "row", "amendment", "cause"),
    )
    yield (
        "transcripts and raw streams are as they were stored, or their deletion is recorded",
        state.bodies,
        (*chain, "body", "cause"),
    )
    yield (
        (
            "the sums are those of the requests, in all tables (all dimensions; caller; request; "
            "session; stop reason), with counts, tokens, money and histograms"
        ),
        state.sums,
        (*chain, "row", "lost", "unsealed", "sum"),
    )
    yield "entries of the audit log that have a link are as they were written", True, (
        *chain, "audit",
    )  # fmt: skip
    if heads:
        last, at = heads[-1], heads[-1].at.astimezone(UTC)
        yield (
            (
                f"links 1 to {last.sequence} are those published at {at:%Y-%m-%d %H:%M} UTC, "
                "so none of them was cut off, and no older database was put in place"
            ),
            True,
            ("head",),
        )


def _limits(state: Checkpoint, heads: Sequence[PublishedHead]) -> Iterator[str]:
    """Yield what this verification does not prove, with the numbers of this ledger."""
    if heads:
        yield f"that no link after {heads[-1].sequence} was cut off: it is not published yet"
    else:
        yield "that no link was cut off: no head is published"
    if state.days != EVERYTHING:
        yield "the links of other days"
    for key, count in state.encrypted.items():
        yield f"{count} transcripts not checked: {MissingBodyKey(key)}"
    if state.unproven:
        yield (
            f"which columns {state.unproven} amendments changed, as they are of requests of "
            "version 1.0 or in archived months"
        )
    if old := HashChainLink.objects.filter(kind="").count():
        yield f"that version 1.0 wrote its {old} links, which have no signature"
    if waiting := Exchange.objects.filter(state=State.OPEN).count():
        yield f"{waiting} requests that have not ended"
    if unlinked := AuditEntry.objects.filter(pk__gt=last_linked()).count():
        yield f"{unlinked} entries of the audit log, which get their links within an hour"
