"""Search the transcripts that a reader may see, and log each search.

The admin, the reports API and the command ``searchtranscripts`` search through this module, so that
permissions, filters and the audit log are the same for all of them.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from proxy.conf import conf
from proxy.encryption.bodies import has_key
from proxy.ledger.maintenance.export import caller_references
from proxy.ledger.search.query import parse_query
from proxy.ledger.search.search import Page, Result, search
from proxy.models import Exchange
from proxy.models.ledger_names import LedgerNames, key_ids, person_ids, team_ids
from proxy.permissions.readings import SEARCHED_FOR, record_found, record_search
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.times import rfc3339


def off_reason() -> str:
    """Return why there is no search; "" if there is one."""
    if has_key():
        return "BRIDGE_BODY_KEYS encrypts the texts, and an index would contain their words"
    return "" if conf.search else "BRIDGE_SEARCH is 0"


class SearchSwitchedOff(Exception):
    """No index is written, because of a setting."""

    def __init__(self) -> None:
        super().__init__(f"the search is switched off: {off_reason()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Exact values of the requests to search; an empty value means any.

    ``model``: the requested model or the upstream's. ``since`` is inclusive, ``until`` exclusive.
    """

    team: str = ""
    key: str = ""
    user: str = ""
    model: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def condition(self) -> Q:
        condition = Q()
        if self.team:
            condition &= Q(team__in=team_ids(self.team))
        if self.key:
            condition &= Q(key_id__in=key_ids(self.key))
        if self.user:
            condition &= Q(user__in=person_ids(self.user))
        if self.model:
            condition &= Q(model_requested=self.model) | Q(model_upstream=self.model)
        if self.since is not None:
            condition &= Q(created__gte=self.since)
        if self.until is not None:
            condition &= Q(created__lt=self.until)
        return condition

    def __str__(self) -> str:
        """Return the filters for the audit log, such as ``team 'platform', user 'ada'``."""
        names = ("team", "key", "user", "model", "since", "until")
        values = ((name, getattr(self, name)) for name in names)
        return ", ".join(f"{name} {str(value)!r}" for name, value in values if value)


def result_row(result: Result) -> dict[str, Any]:
    """Return a result as the API and the command show it, with the matched parts of the passage."""
    row = result.exchange
    return {
        "request_id": row.pk,
        "created_at": rfc3339(row.created, "milliseconds"),
        **caller_references(row.names, row.key_id),
        "session_id": row.session_id or None,
        "model_requested": row.model_requested,
        "model_upstream": row.model_upstream or None,
        "kind": result.kind,
        "passage": [{"text": one.text, "matched": one.matched} for one in result.fragments],
        "cut_before": result.is_cut_before,
        "cut_after": result.is_cut_after,
    }


def search_transcripts(
    reader: Reader,
    text: str,
    filters: Filters,
    *,
    limit: int,
    below: int | None = None,
    reason: str = "",
) -> Page:
    """Return a page of results.

    The caller has checked that the reader may read transcripts. ``below``: the position of the
    page. ``reason``: why a command searches. Raises SearchSwitchedOff, InvalidQuery, SearchTooSlow
    or ReasonRequired.
    """
    if off_reason():
        raise SearchSwitchedOff
    query = parse_query(text)
    restriction = f" ({filters})" if str(filters) else ""
    record_search(
        reader,
        query.text,
        detail=f"{SEARCHED_FOR}{query.text!r}{restriction}",
        user=filters.user,
        team=filters.team,
        reason=reason,
    )
    page = search(
        query,
        visible_exchanges(reader).filter(filters.condition()),
        limit=limit,
        below=below,
        teams=team_ids(filters.team) if filters.team else [],
    )
    Exchange.load_names([one.exchange for one in page.results], LedgerNames())
    record_found(reader, query.text, [one.exchange for one in page.results], reason=reason)
    return page
