"""Pages are loaded by the first who asks, once, and the gateway starts without them."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from proxy.ondemand import OnDemand

ROOT = Path(__file__).parents[2]
FOR_LATER = (
    "daphne", "django.test", "drf_spectacular.openapi", "httpx", "proxy.admin", "proxy.reports",
    "proxy.sandbox.app", "psycopg", "rest_framework.views", "rich", "twisted", "unfold.admin",
    "unfold.sites", "websockets", "xml.dom", "yaml",
)  # fmt: skip
LOADED = f"""
import sys
sys.argv = ["manage.py", "serve"]
import bridge_project.asgi
import proxy.management.commands.serve
from proxy.gateway import configuration
configuration.keep(configuration.Configuration(1, {{configuration.ApiKey: []}}))
print(*(name for name in {FOR_LATER!r} if name in sys.modules))
"""


def test_a_gateway_starts_without_what_only_pages_need(tmp_path: Path) -> None:
    told = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-c", LOADED],
        cwd=ROOT,
        env={**os.environ, "BRIDGE_DATA_DIR": str(tmp_path), "DATABASE_URL": "sqlite:///:memory:",
             "DJANGO_SETTINGS_MODULE": "bridge_project.settings"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == []


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(scope["path"])


def ask(application: OnDemand, *paths: str) -> list[str]:
    heard: list[str] = []

    async def send(message: str) -> None:
        heard.append(message)

    async def all_at_once() -> None:
        await asyncio.gather(*(application({"path": path}, None, send) for path in paths))

    asyncio.run(all_at_once())
    return sorted(heard)


def test_several_who_ask_first_wait_for_one_loading_in_a_thread() -> None:
    loaded_in = []

    def load() -> Any:
        loaded_in.append((threading.current_thread(), gc.isenabled()))
        return answer

    application = OnDemand(load)

    assert ask(application, "a", "b", "c") == ["a", "b", "c"]
    assert ask(application, "d") == ["d"]
    ((thread, collects),) = loaded_in
    assert thread is not threading.main_thread()
    assert not collects
    assert gc.isenabled()


def test_what_could_not_be_loaded_is_tried_again() -> None:
    tries = iter([ImportError("not now"), None])

    def load() -> Any:
        if wrong := next(tries):
            raise wrong
        return answer

    application = OnDemand(load)

    with pytest.raises(ImportError):
        ask(application, "a")
    assert gc.isenabled()
    assert ask(application, "b") == ["b"]
