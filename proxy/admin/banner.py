"""What everybody who looks after the gateway must see, on top of every page of the admin.

A fixed number of cheap queries, and not even those more often than each few seconds.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.timezone import now

from proxy.counters.shared import budget_store
from proxy.models import DrainMark, Upstream
from proxy.record.recorder import recorder
from proxy.sandbox import UPSTREAMS as SANDBOXES
from proxy.secrets import ConfigError
from proxy.soundness import SEEN
from proxy.visibility import Reader, may_open_windows, reader_of_user, visible_budgets

from . import books
from .standings import states_of

LATE: Final = timedelta(seconds=60)  # a drainer is behind when it has not booked for so long
SILENT: Final = timedelta(minutes=10)
UNPRICED_DAYS: Final = 7
MOST_NAMED: Final = 4
MOST_KEPT: Final = 500


@dataclass(frozen=True, slots=True)
class Notice:
    """One line. ``tone``: bad (something fails), warn, or info."""

    tone: str
    text: str
    url: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    notices: tuple[Notice, ...] = ()
    sandbox: bool = False


_kept: Final[dict[int, tuple[float, Told]]] = {}
NOTHING: Final = Told()


def context(request: HttpRequest) -> dict[str, Any]:
    """For every page that shows the admin's frame."""
    return {"banner": told(request).notices}


def environment(request: HttpRequest) -> tuple[str, str] | None:
    """The badge in the header."""
    return ("Sandbox", "warning") if told(request).sandbox else None


def told(request: HttpRequest) -> Told:
    """What this user is told, a few seconds old at most."""
    user = request.user
    if not user.is_authenticated or not may_open_windows(user):
        return NOTHING
    at = time.monotonic()
    known = getattr(request, "bridge_told", None) or _kept.get(user.pk)
    if known is None or known[0] <= at:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        known = (at + settings.BANNER_FRESH_S, _told(user, reader_of_user(user)))
        if settings.BANNER_FRESH_S:
            _kept[user.pk] = known
    request.bridge_told = (at + 60, known[1])  # type: ignore[attr-defined]  # for this page
    return known[1]


def _told(user: Any, reader: Reader) -> Told:
    used = list(
        Upstream.objects.filter(enabled=True, routetarget__isnull=False)
        .distinct()
        .only("name", "secret", "base_url")
    )
    sandbox = any(upstream.name in SANDBOXES for upstream in used)
    notices = [
        *_recording(),
        *(_unread() if reader.everything else ()),
        *(_unusable(used) if user.has_perm("proxy.view_upstream") else ()),
        *(_unpriced(reader) if user.has_perm("proxy.view_price") else ()),
        *_budgets(reader, link=user.has_perm("proxy.view_budget")),
        *(_sandbox(link=user.has_perm("proxy.view_route")) if sandbox else ()),
    ]
    return Told(tuple(notices), sandbox)


def _recording() -> Iterator[Notice]:
    """Whether requests reach the ledger: this process's own word, and every drainer's mark."""
    state = recorder.state()
    if not state["spool"]:
        yield Notice("bad", "The spool cannot be written: no request is accepted.")
    if not state["database"]:
        yield Notice(
            "bad", "The database cannot be written: the spool keeps the ledger until it can."
        )
    if state.get("set_aside"):
        count = state["set_aside"]
        yield Notice("bad", f"The database refuses {count:,} records; they are set aside.")
    if getattr(budget_store(), "degraded", False):
        yield Notice(
            "warn", "Redis cannot be reached: each machine counts limits and budgets for itself."
        )
    at = now()
    behind = [
        mark
        for mark in DrainMark.objects.filter(backlog__gt=0)
        if at - mark.as_of > LATE or at - mark.seen > SILENT
    ]
    if behind:
        records = sum(mark.backlog for mark in behind)
        oldest = min(mark.as_of for mark in behind)
        yield Notice(
            "warn",
            f"{records:,} records wait to be booked, the oldest since "
            f"{oldest:%H:%M:%S} UTC: newer figures are incomplete.",
        )


def _unread() -> Iterator[Notice]:
    """Rows that this process' gateway leaves out, since somebody's hand made them unreadable."""
    for one in SEEN.unread[:MOST_NAMED]:
        url = reverse(f"admin:proxy_{one.model}_change", args=[one.id]) if one.opens else ""
        yield Notice("bad", f"{str(one).capitalize()}; it is left out.", url, "Open it")
    if len(SEEN.unread) > MOST_NAMED:
        yield Notice("bad", f"{len(SEEN.unread):,} rows cannot be read and are left out.")


def _unusable(upstreams: list[Upstream]) -> Iterator[Notice]:
    for upstream in upstreams:
        try:
            upstream.credential()
        except ConfigError as exc:
            url = reverse("admin:proxy_upstream_change", args=[upstream.pk])
            text = f"Upstream {upstream.name} cannot be used: {exc}."
            yield Notice("bad", text, url, "Open it")


def _unpriced(reader: Reader) -> Iterator[Notice]:
    """Models that were used of late and have no price: their cost is unknown, not nothing."""
    found = books.unpriced_in(reader, books.last_days(UNPRICED_DAYS))
    if not found:
        return
    named = [f"{model} at {upstream}" for (model, upstream), _ in found[:MOST_NAMED]]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    count = sum(number for _, number in found)
    url = f"{reverse('admin:proxy_exchange_changelist')}?cost=none&within={UNPRICED_DAYS}d"
    requests = "1 request" if count == 1 else f"{count:,} requests"
    yield Notice(
        "warn",
        f"{requests} of the last {UNPRICED_DAYS} days without a price: {', '.join(named)}{more}.",
        url,
        "See them",
    )


def _budgets(reader: Reader, *, link: bool) -> Iterator[Notice]:
    budgets = list(visible_budgets(reader).prefetch_related("key__retiring"))
    states = states_of(budgets)
    url = reverse("admin:proxy_budget_changelist") if link else ""
    for budget in budgets:
        state = states.get(budget.pk)
        if state is not None and state.tone != "ok":
            over = state.tone == "over"
            yield Notice(
                "bad" if over and budget.hard else "warn",
                f"The {budget.get_period_display().lower()}'s budget of {budget.owner} is "
                f"{'spent' if over else f'{state.used_percent:.0f} % spent'} "
                f"({state.left_text}); it begins anew {state.resets_text}.",
                url,
                "Budgets",
            )


def _sandbox(*, link: bool) -> Iterator[Notice]:
    yield Notice(
        "info",
        "Some routes lead to the sandbox: its answers come from a script, not from a model.",
        reverse("admin:proxy_route_changelist") if link else "",
        "Routes",
    )
