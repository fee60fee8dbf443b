"""The URLs of the admin: the pages of this project, then the pages of Django's admin."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import admin
from django.http import HttpResponseBase
from django.urls import path

from . import search
from .audit import entry_admin, reading_reason
from .core.time_zone import time_zone_view
from .dashboard.comparison import comparison_view
from .dashboard.outcomes import outcomes_view
from .dashboard.stop_reasons import stop_reasons_view
from .live import views
from .people import invitation, overview, own_key_form
from .sessions import detail_view, list_view
from .setup import admission_dry_run, retention_views, upstream_probe
from .transcript.media import viewer_view

PAGES: Final[Mapping[str, tuple[str, Callable[..., HttpResponseBase]]]] = {
    "live": ("live/", views.live_view),
    "live_rows": ("live/rows/", views.rows_view),
    "live_stop_all": ("live/stop/", views.stop_all_view),
    "live_stop": ("live/<str:exchange_id>/stop/", views.stop_view),
    "upstream_probe": ("proxy/upstream/<int:upstream_id>/test/", upstream_probe.probe_view),
    "upstream_forget": ("proxy/upstream/<int:upstream_id>/forget/", upstream_probe.forget_view),
    "admission_dry_run": ("proxy/apikey/<int:key_id>/dry-run/", admission_dry_run.dry_run_view),
    "my_readings": ("my-readings/", entry_admin.my_readings_view),
    "reading_reason": ("reading-reason/", reading_reason.reading_reason_view),
    "me": ("me/", overview.me_view),
    "own_key": ("me/keys/add/", own_key_form.own_key_view),
    "invite": ("people/invite/", invitation.invitation_view),
    "team_overview": ("people/team/<int:team_id>/", overview.team_view),
    "user_overview": ("people/user/<int:user_id>/", overview.user_view),
    "sessions": ("sessions/", list_view.list_view),
    "session": ("sessions/one/", detail_view.session_view),
    "session_export": ("sessions/export/", detail_view.export_view),
    "comparison": ("comparison/", comparison_view),
    # Not "search/", which is a page of the theme.
    "search": ("search/texts/", search.search_view),
    "search_go": ("search/go/", search.go_view),
    "pdf_viewer": ("pdf-viewer/", viewer_view),
    "outcomes": ("outcomes/", outcomes_view),
    "stop_reasons": ("stop-reasons/", stop_reasons_view),
    "time_zone": ("time-zone/", time_zone_view),
    "storage": ("storage/", retention_views.storage_view),
    "storage_purge": ("storage/purge/", retention_views.purge_view),
}
"""Name of a URL without ``proxy_`` -> its path, and its view."""


def admin_urls() -> tuple[list[Any], str, str]:
    """Return the same triple as ``admin.site.urls``, with the pages of this project first.

    Django's URL patterns end with a catch-all pattern, so the project's patterns must precede them.
    """
    own = [
        path(route, admin.site.admin_view(view), name=f"proxy_{name}")
        for name, (route, view) in PAGES.items()
    ]
    # Drop Django's "view on site" URL ``r/<path>/<path>/``: matching a path of 64 KB takes seconds,
    # even without a sign-in, and no model here has a page outside the admin.
    django = [url for url in admin.site.get_urls() if getattr(url, "name", "") != "view_on_site"]
    return [*own, *django], "admin", admin.site.name
