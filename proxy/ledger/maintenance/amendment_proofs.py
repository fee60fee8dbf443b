"""Prove of amended rows what each link changed, and of which command it is.

Nobody without the key can sign a link, but somebody with the database could change a row, let the
gateway amend it, and put everything else back. So each amendment has the digests of its groups of
columns before the change, with which the row must give the digest of the link before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
from django.db.models import Min

from proxy.audit_log import Action
from proxy.ledger.posting.audit_links import AUDIT
from proxy.ledger.posting.hash_chain import Note
from proxy.ledger.posting.row_digests import (
    Digests,
    combined,
    group_digests,
    with_groups_before,
)
from proxy.models import AuditEntry, Exchange, HashChainLink, LinkKind

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
    return _bytes(link.body_digest) == _bytes(kept)


def _bytes(stored: bytes | memoryview | None) -> bytes | None:
    return None if stored is None else bytes(stored)


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
