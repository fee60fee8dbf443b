"""The admin's addresses: pages of our own beside those of the models."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpResponseBase
from django.urls import path

from . import live, probes, rehearsal, session_list, sessions, storage


def _page(route: str, view: Callable[..., HttpResponseBase], name: str) -> Any:
    return path(route, admin.site.admin_view(view), name=name)


def admin_urls() -> tuple[list[Any], str, str]:
    """For ``path``: as ``admin.site.urls``, with ours first, since the admin's own end in all."""
    own = [
        _page("live/", live.live_view, "proxy_live"),
        _page("live/rows/", live.rows_view, "proxy_live_rows"),
        _page("live/<str:exchange_id>/stop/", live.stop_view, "proxy_live_stop"),
        _page("proxy/upstream/<int:upstream_id>/test/", probes.probe_view, "proxy_upstream_probe"),
        _page("proxy/apikey/<int:key_id>/rehearsal/", rehearsal.rehearsal_view, "proxy_rehearsal"),
        _page("sessions/", session_list.list_view, "proxy_sessions"),
        _page("sessions/one/", sessions.session_view, "proxy_session"),
        _page("sessions/export/", sessions.export_view, "proxy_session_export"),
        _page("storage/", storage.storage_view, "proxy_storage"),
        _page("storage/purge/", storage.purge_view, "proxy_storage_purge"),
    ]
    # ``r/<path>/<path>/`` takes seconds for a path of 64 KB, before anybody has signed in. None of
    # our models has a page outside the admin that it could lead to.
    theirs = [each for each in admin.site.get_urls() if getattr(each, "name", "") != "view_on_site"]
    return [*own, *theirs], "admin", admin.site.name
