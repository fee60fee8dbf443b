"""The WebSocket ``/ws/live/``: sends the rows of the live view to staff users.

The consumer sends at most two messages a second, with only the changed rows. It checks the user's
Django session and permissions before each message, so a user who signs out gets no more messages.
"""

import asyncio
import contextlib
import logging
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host

from proxy.permissions.row_permissions import can_open_admin, reader_of_user

from .views import Cells, LiveView, finished_rows, load_live_view

log = logging.getLogger("proxy.live")

UPDATE_INTERVAL_S: Final = 0.5
MAX_POSTING_DELAY_S: Final = 15.0
"""How long the feed waits for the ledger row of an ended request, to send its outcome."""
INTERNAL_ERROR: Final = 1011
SIGNED_OUT: Final = 4401
FORBIDDEN: Final = 4403


class LiveFeedConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """The WebSocket connection of one open live page."""

    async def connect(self) -> None:
        self._sent: dict[str, Cells] = {}
        # id of an ended request that is not in the ledger yet -> its end time.
        self._unposted: dict[str, float] = {}
        self._sent_totals: tuple[int, bool] | None = None
        self._task: asyncio.Task[None] | None = None
        if not _same_origin(self.scope) or await self._authorized_user() is None:
            await self.close(FORBIDDEN)  # closing before accept() gives the client a 403
            return
        await self.accept()
        self._task = asyncio.create_task(self._run())

    async def disconnect(self, code: int) -> None:
        if self._task is not None:
            self._task.cancel()

    async def receive(self, text_data: Any = None, bytes_data: Any = None, **_: Any) -> None:
        """Ignore messages from the browser."""

    async def _run(self) -> None:
        """Send the changes at a fixed interval, until the user has signed out."""
        try:
            while True:
                # While the database is down, the connection stays open and nothing is sent.
                with contextlib.suppress(DatabaseError):
                    updates = await self._load_updates()
                    if updates is None:
                        break
                    if message := self._changes(*updates):
                        await self.send_json(message)
                await asyncio.sleep(UPDATE_INTERVAL_S)
            await self.close(SIGNED_OUT)
        except Exception:  # nothing awaits this task, so close the connection here
            log.exception("live: the feed of a page failed")
            await self.close(INTERNAL_ERROR)

    @database_sync_to_async  # type: ignore[untyped-decorator]  # Channels has no types
    def _authorized_user(self) -> Any:
        return _authorized_user(self.scope)

    @database_sync_to_async  # type: ignore[untyped-decorator]  # Channels has no types
    def _load_updates(self) -> tuple[LiveView, list[Cells]] | None:
        """Return the running requests and the rows of ended ones; None if the user signed out."""
        user = _authorized_user(self.scope)
        if user is None:
            return None
        reader = reader_of_user(user)
        view = load_live_view(user, reader)
        running = {row["id"] for row in view.rows}
        gone = [name for name in (*self._sent, *self._unposted) if name not in running]
        return view, finished_rows(reader, gone) if gone else []

    def _changes(self, view: LiveView, ended: list[Cells]) -> dict[str, Any]:
        """Return the next message to send; it is empty if nothing changed."""
        now = asyncio.get_running_loop().time()
        rows = {row["id"]: row for row in view.rows}
        changed = [row for name, row in rows.items() if _without_age(row) != self._sent.get(name)]
        gone = self._sent.keys() - rows.keys()
        self._unposted = dict.fromkeys(gone, now) | {
            name: since
            for name, since in self._unposted.items()
            if now - since < MAX_POSTING_DELAY_S and name not in rows
        }
        for row in ended:
            self._unposted.pop(row["id"], None)
        self._sent = {name: _without_age(row) for name, row in rows.items()}
        last_totals, self._sent_totals = self._sent_totals, (view.count, view.incomplete)
        if not (changed or gone or ended or last_totals != self._sent_totals):
            return {}
        return {
            "rows": changed,
            "gone": sorted(gone),
            "ended": ended,
            "count": view.count,
            "incomplete": view.incomplete,
        }


def _without_age(row: Cells) -> Cells:
    """Return the row without its age, because the page's script advances the age itself."""
    return {name: value for name, value in row.items() if name not in {"age_ms", "age"}}


def _authorized_user(scope: Any) -> Any:
    """Return the user of the session cookie; None unless this user may see requests."""
    cookie = SimpleCookie()
    with contextlib.suppress(CookieError):
        cookie.load(_header(scope, b"cookie"))
    if settings.SESSION_COOKIE_NAME not in cookie:
        return None
    request = HttpRequest()
    engine = import_module(settings.SESSION_ENGINE)
    request.session = engine.SessionStore(cookie[settings.SESSION_COOKIE_NAME].value)
    user = get_user(request)
    return user if user.is_active and user.is_staff and can_open_admin(user) else None


def _same_origin(scope: Any) -> bool:
    """Whether the Origin header is this host or one of Django's ``CSRF_TRUSTED_ORIGINS``."""
    origin, host = _header(scope, b"origin"), _header(scope, b"host")
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    domain, _ = split_domain_port(host)
    try:
        page = urlsplit(origin)
    except ValueError:
        return False
    return (
        page.scheme in {"http", "https"}
        and page.netloc.lower() == host.lower() != ""
        and validate_host(domain, settings.ALLOWED_HOSTS)
    )


def _header(scope: Any, name: bytes) -> str:
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""
