"""The notices at the top of every admin page: failures, missing prices and spent budgets.

Collecting the notices takes a fixed number of cheap queries, and each user's result is cached for
some seconds.
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

from proxy.admin.core.number_format import plural
from proxy.admin.core.time_zone import local_text
from proxy.admin.dashboard.budget_status import budget_statuses
from proxy.counters.backends import shared_store
from proxy.ledger.recorder import recorder
from proxy.live.credential_states import STATES
from proxy.models import DrainWatermark, Pause, Upstream
from proxy.models.encrypted_text import MISSING
from proxy.models.setup.config_row_validation import SKIPPED
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions.row_permissions import (
    Reader,
    can_open_admin,
    reader_of_user,
    visible_budgets,
)
from proxy.secrets import ConfigError

from .dashboard import queries

# A longer delay of a drainer (which posts journal records to the database) gets a notice.
MAX_DRAIN_DELAY: Final = timedelta(seconds=60)
MAX_WATERMARK_AGE: Final = timedelta(minutes=10)
UNPRICED_DAYS: Final = 7
MAX_NAMED: Final = 4
MAX_CACHED_USERS: Final = 500


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. ``tone`` is bad (something fails), warn or info."""

    tone: str
    text: str
    url: str = ""
    link: str = ""


cached_notices: Final[dict[int, tuple[float, list[Notice]]]] = {}
"""User id -> until when the notices are fresh, and the notices."""
SANDBOX: Final = "Some routes use the sandbox: its responses come from a script, not from a model."


def context(request: HttpRequest) -> dict[str, Any]:
    """Return the notices as template context of every admin page (``GLOBAL_CALLBACK``).

    ``has_search_box``: whether the header has the search box.
    """
    return {
        "banner": notices_for(request),
        "has_search_box": request.user.is_authenticated and can_open_admin(request.user),
    }


def environment(request: HttpRequest) -> tuple[str, str] | None:
    """Return text and color of the badge in the page header, or None for no badge."""
    is_sandbox = any(notice.text == SANDBOX for notice in notices_for(request))
    return ("Sandbox", "warning") if is_sandbox else None


def notices_for(request: HttpRequest) -> list[Notice]:
    """Return the notices for the signed-in user, cached for up to ``BANNER_FRESH_S`` seconds."""
    user = request.user
    if not user.is_authenticated or not can_open_admin(user):
        return []
    at = time.monotonic()
    cached = getattr(request, "bridge_notices", None) or cached_notices.get(user.pk)
    if cached is None or cached[0] <= at:
        if len(cached_notices) >= MAX_CACHED_USERS:
            cached_notices.clear()
        cached = (at + settings.BANNER_FRESH_S, collect_notices(user, reader_of_user(user)))
        if settings.BANNER_FRESH_S:
            cached_notices[user.pk] = cached
    request.bridge_notices = (at + 60, cached[1])  # type: ignore[attr-defined]  # for other calls in this request
    return cached[1]


def collect_notices(user: Any, reader: Reader) -> list[Notice]:
    """Return the notices that the user may see. More rows do not take more queries."""
    used = list(
        Upstream.objects.filter(enabled=True, routetarget__isnull=False)
        .distinct()
        .only("name", "secret", "base_url")
    )
    notices = list(_recording_notices())
    pauses = reverse("admin:proxy_pause_changelist") if user.has_perm("proxy.view_pause") else ""
    for pause in Pause.active()[:MAX_NAMED]:  # so that none is forgotten
        ends = f" until {local_text(pause.ends, '%Y-%m-%d %H:%M')}" if pause.ends else ""
        text = f"Paused{ends}: {pause}. {pause.message}"
        notices.append(Notice("warn", text, pauses, "Open" if pauses else ""))
    if reader.everything:
        notices += _unreadable_row_notices()
        if missing := MISSING.ids:
            keys = ", ".join(missing)
            text = f"Texts that were encrypted with these keys cannot be read: {keys}."
            notices.append(Notice("warn", text))
    if user.has_perm("proxy.view_upstream"):
        notices += _unusable_upstream_notices(used)
    if user.has_perm("proxy.view_price"):
        notices += _unpriced_model_notices(reader)
    notices += _budget_notices(reader, link=user.has_perm("proxy.view_budget"))
    if any(upstream.name in SANDBOXES for upstream in used):
        may_view = user.has_perm("proxy.view_route")
        url = reverse("admin:proxy_route_changelist") if may_view else ""
        notices.append(Notice("info", SANDBOX, url, "Routes"))
    return notices


def _recording_notices() -> Iterator[Notice]:
    """Yield notices about failures to record requests in the journal or the database.

    Failures of this process come from its own state. The watermarks of all drainers (the threads
    that post journal records to the database) show delays in any process.
    """
    state = recorder.state()
    if not state["journal"]:
        yield Notice("bad", "The journal cannot be written: no request is accepted.")
    if not state["database"]:
        yield Notice(
            "bad", "The database cannot be written: records wait in the journal until it can."
        )
    if state.get("set_aside"):
        count = state["set_aside"]
        yield Notice("bad", f"The database refuses {count:,} records; they are set aside.")
    if getattr(shared_store(), "degraded", False):
        yield Notice(
            "warn", "Redis cannot be reached: each machine counts limits and budgets for itself."
        )
    at = now()
    behind = [
        mark
        for mark in DrainWatermark.objects.filter(backlog__gt=0)
        if at - mark.as_of > MAX_DRAIN_DELAY or at - mark.seen > MAX_WATERMARK_AGE
    ]
    if behind:
        records = sum(mark.backlog for mark in behind)
        oldest = min(mark.as_of for mark in behind)
        yield Notice(
            "warn",
            f"{records:,} records wait to be posted, the oldest since "
            f"{local_text(oldest, '%H:%M:%S')}: newer figures are incomplete.",
        )


def _unreadable_row_notices() -> Iterator[Notice]:
    """Yield notices about configuration rows that the gateway skips as unreadable."""
    for row in SKIPPED.rows[:MAX_NAMED]:
        url = reverse(f"admin:proxy_{row.model}_change", args=[row.id]) if row.has_form else ""
        yield Notice("bad", f"{str(row).capitalize()}; it is skipped.", url, "Open")
    if len(SKIPPED.rows) > MAX_NAMED:
        yield Notice("bad", f"{len(SKIPPED.rows):,} rows cannot be read and are skipped.")


def _unusable_upstream_notices(upstreams: list[Upstream]) -> Iterator[Notice]:
    for upstream in upstreams:
        url = reverse("admin:proxy_upstream_change", args=[upstream.pk])
        state = STATES.get(upstream.name)
        try:
            upstream.credential()
        except ConfigError as exc:
            yield Notice("bad", f"Upstream {upstream.name} cannot be used: {exc}.", url, "Open")
        else:
            if state is not None and state.fault:
                what = f"The credential of upstream {upstream.name} cannot be refreshed"
                tone = "warn" if state.usable else "bad"
                yield Notice(tone, f"{what}: {state.fault}.", url, "Open")


def _unpriced_model_notices(reader: Reader) -> Iterator[Notice]:
    """Yield a notice if models without a price were used in the last days."""
    unpriced = queries.unpriced_in(reader, queries.last_days(UNPRICED_DAYS))
    if not unpriced:
        return
    named = [f"{model} at {upstream}" for (model, upstream), _ in unpriced[:MAX_NAMED]]
    more = f" and {len(unpriced) - MAX_NAMED} more" if len(unpriced) > MAX_NAMED else ""
    count = sum(number for _, number in unpriced)
    url = f"{reverse('admin:proxy_exchange_changelist')}?cost=none&within={UNPRICED_DAYS}d"
    yield Notice(
        "warn",
        f"{plural(count, 'request')} of the last {UNPRICED_DAYS} days without a price: "
        f"{', '.join(named)}{more}.",
        url,
        "Show them",
    )


def _budget_notices(reader: Reader, *, link: bool) -> Iterator[Notice]:
    budgets = list(visible_budgets(reader).prefetch_related("key__retiring"))
    states = budget_statuses(budgets)
    url = reverse("admin:proxy_budget_changelist") if link else ""
    for budget in budgets:
        state = states.get(budget.pk)
        if state is not None and state.tone != "ok":
            over = state.tone == "over"
            yield Notice(
                "bad" if over and budget.hard else "warn",
                f"The {budget.get_period_display().lower()}'s budget of {budget.owner}"
                f"{budget.models_text} is "
                f"{'spent' if over else f'{state.used_percent:.0f} % spent'} "
                f"({state.left_text}); it resets {state.resets_text}.",
                url,
                "Budgets",
            )
