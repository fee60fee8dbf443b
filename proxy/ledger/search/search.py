"""Search the texts of transcripts, newest first, and return the matched passages.

The database's index yields candidates. A candidate is a result only if a visible request sent it
whose transcript is still stored, and if its text contains all phrases of the query. No count is
returned: a count would include texts that the reader may not see.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import OuterRef, QuerySet, Subquery

from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.ledger.transcripts.storage import readable_texts
from proxy.models import Exchange, SearchEntry

from . import term_index
from .indexer import Passage, passages_of
from .query import Condition, Query, team_term

TIMEOUT_S: Final = 3.0
"""Limit of the database queries of one page."""
SCAN_S: Final = 1.0
"""After this time a page ends with the results found so far; the next page continues there."""
BATCH: Final = 64
"""Candidates that are checked together; each batch is twice as large as the one before it."""
MAX_BATCH: Final = 512
CONTEXT: Final = 120
"""Characters of a passage before its first match, and after it at least as many."""
PASSAGE: Final = 400


class SearchTooSlow(Exception):
    """The database stopped the search before it found the first candidates."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a passage; ``matched``: it is one of the searched phrases."""

    text: str
    matched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A text that matches, with the latest visible request that sent it."""

    entry_id: int
    exchange: Exchange
    kind: str
    fragments: Sequence[Fragment]
    """The passage around the first match."""
    is_cut_before: bool
    is_cut_after: bool


@dataclass(frozen=True, slots=True)
class Page:
    """The results of a page.

    ``next_position``: the position for the next page; None if everything was searched. A page may
    have fewer results than the limit, or none, and still a next page, after ``scan_s``.
    """

    results: Sequence[Result]
    next_position: int | None


def search(
    query: Query,
    visible: QuerySet[Exchange],
    *,
    limit: int,
    below: int | None = None,
    teams: Iterable[str] = (),
    scan_s: float = SCAN_S,
) -> Page:
    """Return one page of results. Raises SearchTooSlow.

    ``visible``: the requests that the reader may see, restricted by the filters. ``below``: the
    position of the page. ``teams``: if all visible requests are of these teams, the search reads
    only their part of the index. ``scan_s``: see ``SCAN_S``.
    """
    results: list[Result] = []
    position = below
    deadline = time.monotonic() + scan_s
    conditions = list(query.conditions)
    try:
        with with_query_timeout(TIMEOUT_S):
            for ids in _candidates(conditions, sorted(set(teams)), below):
                results += _results(query, visible, ids)
                position = ids[-1]
                if len(results) > limit or time.monotonic() > deadline:
                    break
            else:
                position = None
    except QueryTimeout:
        if position == below:
            raise SearchTooSlow from None
    if len(results) > limit:
        return Page(results[:limit], results[limit - 1].entry_id)
    return Page(results, position)


def _candidates(
    conditions: list[Condition], teams: Sequence[str], below: int | None
) -> Iterator[list[int]]:
    if len(teams) == 1:
        conditions = [Condition(team_term(teams[0]), prefix=False), *conditions]
    size = BATCH
    for ids in term_index.matches(conditions, below):
        at = 0
        while at < len(ids):
            yield ids[at : at + size]
            at += size
            size = min(2 * size, MAX_BATCH)


def _results(query: Query, visible: QuerySet[Exchange], ids: Sequence[int]) -> Iterator[Result]:
    """Yield the results among these entries, newest first."""
    latest = (
        visible.filter(occurrences__entry=OuterRef("pk"), transcript__isnull=False)
        .order_by("-occurrences__exchange_id")
        .values("pk")[:1]
    )
    entries = SearchEntry.objects.filter(pk__in=ids).annotate(latest=Subquery(latest))
    rows = {
        pk: (part, exchange_id)
        for pk, part, exchange_id in entries.values_list("pk", "part_id", "latest")
        if exchange_id is not None
    }
    texts = readable_texts({part for part, _ in rows.values()})
    found = {}
    for pk, (part, _) in rows.items():
        passage = _matching_passage(query, passages_of(texts.get(part, b"")))
        if passage is not None:
            found[pk] = passage
    exchanges = visible.in_bulk([rows[pk][1] for pk in found])
    for pk in sorted(found, reverse=True):
        exchange = exchanges.get(rows[pk][1])
        if exchange is not None:  # it is None if it was changed a moment ago
            yield _result(query, pk, exchange, found[pk])


def _matching_passage(query: Query, passages: Sequence[Passage]) -> Passage | None:
    """Return the passage with the most phrases; None if the passages lack one of the phrases."""
    lower = [passage.text.lower() for passage in passages]
    counts = [sum(phrase in text for phrase in query.phrases) for text in lower]
    if not all(any(phrase in text for text in lower) for phrase in query.phrases):
        return None
    return passages[counts.index(max(counts))]


def _result(query: Query, pk: int, exchange: Exchange, passage: Passage) -> Result:
    text = passage.text
    lower = text.lower()
    if len(lower) != len(text):  # a few letters change their number of characters
        text = lower
    first = min(at for phrase in query.phrases if (at := lower.find(phrase)) >= 0)
    start = max(0, first - CONTEXT)
    end = min(len(text), start + PASSAGE)
    return Result(
        entry_id=pk,
        exchange=exchange,
        kind=passage.kind,
        fragments=_fragments(text[start:end], lower[start:end], query.phrases),
        is_cut_before=start > 0,
        is_cut_after=end < len(text),
    )


def _fragments(text: str, lower: str, phrases: Sequence[str]) -> list[Fragment]:
    """Split a text at the matches of the phrases; overlapping matches become one fragment."""
    spans = sorted(span for phrase in phrases for span in _spans(lower, phrase))
    fragments, at = [], 0
    for start, end in spans:
        if end <= at:
            continue
        if start > at:
            fragments.append(Fragment(text[at:start], matched=False))
        fragments.append(Fragment(text[max(at, start) : end], matched=True))
        at = end
    if at < len(text):
        fragments.append(Fragment(text[at:], matched=False))
    return fragments


def _spans(text: str, phrase: str) -> Iterator[tuple[int, int]]:
    at = text.find(phrase)
    while at >= 0:
        yield at, at + len(phrase)
        at = text.find(phrase, at + len(phrase))
