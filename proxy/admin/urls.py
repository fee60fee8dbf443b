"""The URLs of the admin: the pages of this project, then the pages of Django's admin."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpResponseBase
from django.urls import path

from .audit import entry_admin, reading_reason
from .core.time_zone import time_zone_view
from .dashboard.comparison import comparison_view
from .dashboard.outcomes import outcomes_view
from .dashboard.stop_reasons import stop_reasons_view
from .live import stop_all, views
from .people import invitation, overview, own_key_form
from .search import views as search_views
from .sessions import detail_view, list_view
from .setup import admission_dry_run, retention_views, upstream_lessons, upstream_probe
from .transcript.media import viewer_view


def _page(route: str, view: Callable[..., HttpResponseBase], name: str) -> Any:
    return path(route, admin.site.admin_view(view), name=name)


def admin_urls() -> tuple[list[Any], str, str]:
    """Return the same triple as ``admin.site.urls``, with the pages of this project first.

    Django's URL patterns end with a catch-all pattern, so the project's patterns must precede them.
    """
    own = [
        _page("live/", views.live_view, "proxy_live"),
        _page("live/rows/", views.rows_view, "proxy_live_rows"),
        _page("live/stop/", stop_all.stop_all_view, "proxy_live_stop_all"),
        _page("live/<str:exchange_id>/stop/", views.stop_view, "proxy_live_stop"),
        _page(
            "proxy/upstream/<int:upstream_id>/test/",
            upstream_probe.probe_view,
            "proxy_upstream_probe",
        ),
        _page(
            "proxy/upstream/<int:upstream_id>/forget/",
            upstream_lessons.forget_view,
            "proxy_upstream_forget",
        ),
        _page(
            "proxy/apikey/<int:key_id>/dry-run/",
            admission_dry_run.dry_run_view,
            "proxy_admission_dry_run",
        ),
        _page("my-readings/", entry_admin.my_readings_view, "proxy_my_readings"),
        _page("reading-reason/", reading_reason.reading_reason_view, "proxy_reading_reason"),
        _page("me/", overview.me_view, "proxy_me"),
        _page("me/keys/add/", own_key_form.own_key_view, "proxy_own_key"),
        _page("people/invite/", invitation.invitation_view, "proxy_invite"),
        _page("people/team/<int:team_id>/", overview.team_view, "proxy_team_overview"),
        _page("people/user/<int:user_id>/", overview.user_view, "proxy_user_overview"),
        _page("sessions/", list_view.list_view, "proxy_sessions"),
        _page("sessions/one/", detail_view.session_view, "proxy_session"),
        _page("sessions/export/", detail_view.export_view, "proxy_session_export"),
        _page("comparison/", comparison_view, "proxy_comparison"),
        # Not "search/", which is a page of the theme.
        _page("search/texts/", search_views.search_view, "proxy_search"),
        _page("search/go/", search_views.go_view, "proxy_search_go"),
        _page("pdf-viewer/", viewer_view, "proxy_pdf_viewer"),
        _page("outcomes/", outcomes_view, "proxy_outcomes"),
        _page("stop-reasons/", stop_reasons_view, "proxy_stop_reasons"),
        _page("time-zone/", time_zone_view, "proxy_time_zone"),
        _page("storage/", retention_views.storage_view, "proxy_storage"),
        _page("storage/purge/", retention_views.purge_view, "proxy_storage_purge"),
    ]
    # Drop Django's "view on site" URL ``r/<path>/<path>/``: matching a path of 64 KB takes seconds,
    # even without a sign-in, and no model here has a page outside the admin.
    django = [url for url in admin.site.get_urls() if getattr(url, "name", "") != "view_on_site"]
    return [*own, *django], "admin", admin.site.name
