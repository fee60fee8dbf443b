"""``/ws/live/``: the live view over a WebSocket, for staff. What is sent are the page's cells.

At most twice a second, and only what changed. Whoever watches is looked at anew before each
message: who signs out, is deactivated or loses a group sees nothing more.
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

from proxy.visibility import may_open_windows, reader_of_user

from .live import Cells, Look, look_for, settled

log = logging.getLogger("proxy.live")

EVERY_S: Final = 0.5
ROWS_LATE_S: Final = 15.0
"""How long a request that ended may take to reach the ledger's table."""
BROKEN: Final = 1011
SIGNED_OUT: Final = 4401
FORBIDDEN: Final = 4403


class LiveFeed(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One watcher."""

    async def connect(self) -> None:
        self._sent: dict[str, Cells] = {}
        self._ended: dict[str, float] = {}  # gone, not settled yet: since when
        self._told: tuple[int, bool] | None = None
        self._task: asyncio.Task[None] | None = None
        if not _same_origin(self.scope) or await self._watcher() is None:
            await self.close(FORBIDDEN)  # before accept: the client is answered 403
            return
        await self.accept()
        self._task = asyncio.create_task(self._run())

    async def disconnect(self, code: int) -> None:
        if self._task is not None:
            self._task.cancel()

    async def receive(self, text_data: Any = None, bytes_data: Any = None, **_: Any) -> None:
        """Nothing that a watcher says is asked for."""

    async def _run(self) -> None:
        try:
            while await self._told_news():  # noqa: ASYNC110 - a pace, not a wait
                await asyncio.sleep(EVERY_S)
            await self.close(SIGNED_OUT)
        except Exception:  # nobody awaits this task: a watcher must not wait for ever
            log.exception("live: the feed of a watcher has ended")
            await self.close(BROKEN)

    async def _told_news(self) -> bool:
        """Tell the watcher what is new. False: they are signed out."""
        try:
            seen = await self._look()
        except DatabaseError:
            return True  # nobody is judged by a database that is away; nothing is told either
        if seen is None:
            return False
        message = self._news(*seen)
        if message:
            await self.send_json(message)
        return True

    @database_sync_to_async  # type: ignore[untyped-decorator]  # Channels has no types
    def _watcher(self) -> Any:
        return _watcher(self.scope)

    @database_sync_to_async  # type: ignore[untyped-decorator]  # Channels has no types
    def _look(self) -> tuple[Look, list[Cells]] | None:
        """What there is to see now, and what became of requests that ended. None: signed out."""
        user = _watcher(self.scope)
        if user is None:
            return None
        reader = reader_of_user(user)
        look = look_for(user, reader)
        running = {row["id"] for row in look.rows}
        gone = [name for name in (*self._sent, *self._ended) if name not in running]
        return look, settled(reader, gone) if gone else []

    def _news(self, look: Look, ended: list[Cells]) -> dict[str, Any]:
        """What the watcher does not know yet; empty: nothing."""
        now = asyncio.get_running_loop().time()
        rows = {row["id"]: row for row in look.rows}
        changed = [row for name, row in rows.items() if _still(row) != self._sent.get(name)]
        gone = self._sent.keys() - rows.keys()
        self._ended = dict.fromkeys(gone, now) | {
            name: since
            for name, since in self._ended.items()
            if now - since < ROWS_LATE_S and name not in rows
        }
        for one in ended:
            self._ended.pop(one["id"], None)
        self._sent = {name: _still(row) for name, row in rows.items()}
        told, self._told = self._told, (look.count, look.away)
        if not (changed or gone or ended or told != self._told):
            return {}
        return {
            "rows": changed,
            "gone": sorted(gone),
            "settled": ended,
            "count": look.count,
            "away": look.away,
        }


def _still(row: Cells) -> Cells:
    """The row without what changes by itself."""
    return {name: value for name, value in row.items() if name not in {"age_ms", "age"}}


def _watcher(scope: Any) -> Any:
    """The signed-in staff user behind a session cookie, who may see requests; None: nobody."""
    cookie = SimpleCookie()
    with contextlib.suppress(CookieError):
        cookie.load(_header(scope, b"cookie"))
    if settings.SESSION_COOKIE_NAME not in cookie:
        return None
    request = HttpRequest()
    engine = import_module(settings.SESSION_ENGINE)
    request.session = engine.SessionStore(cookie[settings.SESSION_COOKIE_NAME].value)
    user = get_user(request)
    return user if user.is_active and user.is_staff and may_open_windows(user) else None


def _same_origin(scope: Any) -> bool:
    """Browsers name the page's origin; only ours may listen, or one that Django trusts."""
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
