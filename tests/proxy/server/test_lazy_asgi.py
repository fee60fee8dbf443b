"""Pages are loaded once, by their first request, and not at the start of the gateway."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from proxy.server.lazy_asgi import LazyApplication

ROOT = Path(__file__).parents[3]
LAZY_MODULES = (
    "daphne", "django.test", "drf_spectacular.openapi", "httpx", "proxy.admin", "proxy.reports",
    "proxy.bootstrap.sandbox.app", "psycopg", "rest_framework.views", "rich", "twisted", "unfold.admin",
    "unfold.sites", "websockets", "xml.dom", "yaml",
)  # fmt: skip
OPTIONAL_MODULES = ("azure.identity", "botocore", "pyarrow", "google.auth")
PROGRAM = f"""
import sys
sys.argv = ["manage.py", "serve"]
import bridge_project.asgi
import proxy.management.commands.serve
from proxy.gateway.snapshot import config_cache
config_cache.save_cached(config_cache.Configuration(1, {{config_cache.ApiKey: []}}))
print(*(name for name in {LAZY_MODULES!r} if name in sys.modules))

import django.core.asgi
django.core.asgi.get_asgi_application()
from django.urls import reverse
reverse("admin:index")  # loads the pages
print(*(name for name in ("daphne", "twisted") if name in sys.modules))

import proxy.gateway.endpoints.messages, proxy.bootstrap.doctor, proxy.reports.urls
print(*(name for name in {OPTIONAL_MODULES!r} if name in sys.modules))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Modules of a process: the lazy ones at its start, those of daphne with pages, the optional ones."""
    result = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "BRIDGE_DATA_DIR": str(tmp_path_factory.mktemp("data")),
             "DATABASE_URL": "sqlite:///:memory:", "DJANGO_SETTINGS_MODULE": "bridge_project.settings"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.split("\n")[:-1]]


def test_the_start_does_not_import_modules_that_only_pages_need(loaded: list[list[str]]) -> None:
    assert loaded[0] == []


def test_serve_never_imports_daphne_and_twisted(loaded: list[list[str]]) -> None:
    assert loaded[1] == []


def test_the_gateway_imports_no_optional_library(loaded: list[list[str]]) -> None:
    assert loaded[2:] == [[]]


async def respond(scope: Any, receive: Any, send: Any) -> None:
    await send(scope["path"])


def request(application: LazyApplication, *paths: str) -> list[str]:
    responses: list[str] = []

    async def send(message: str) -> None:
        responses.append(message)

    async def run_all() -> None:
        await asyncio.gather(*(application({"path": path}, None, send) for path in paths))

    asyncio.run(run_all())
    return sorted(responses)


def test_concurrent_first_requests_load_once_in_a_thread() -> None:
    loaded_in = []

    def load() -> Any:
        loaded_in.append((threading.current_thread(), gc.isenabled()))
        return respond

    application = LazyApplication(load)

    assert request(application, "a", "b", "c") == ["a", "b", "c"]
    assert request(application, "d") == ["d"]
    ((thread, gc_enabled),) = loaded_in
    assert thread is not threading.main_thread()
    assert not gc_enabled
    assert gc.isenabled()


def test_a_failed_load_is_retried() -> None:
    tries = iter([ImportError("not now"), None])

    def load() -> Any:
        if wrong := next(tries):
            raise wrong
        return respond

    application = LazyApplication(load)

    with pytest.raises(ImportError):
        request(application, "a")
    assert gc.isenabled()
    assert request(application, "b") == ["b"]


READ_FILE = """
import os, signal, sys, threading
import bridge_project.asgi
from pathlib import Path
from proxy.config import load
from proxy.secrets import ConfigError

if "killed" in sys.argv:  # such as for want of memory; both kinds of children execute this line
    load.read_file = lambda path: os.kill(os.getpid(), signal.SIGKILL)

def read():
    try:
        print([team["name"] for team in load.read_in_child(Path(sys.argv[1])).teams])
    except ConfigError as mistake:
        print(mistake)

if __name__ == "__main__":  # a spawned child imports this program
    read()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    print("rest_framework.serializers" in sys.modules)
"""


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ('[[teams]]\nname = "a"\n', "read", "['a']"),
        ('[[teams]]\nname = "a"\nrpm = 5\n', "read", "{path}: teams[0]: unknown key 'rpm'"),
        ("", "killed", "{path}: the process that reads it ended with exit code -9"),
    ],
    ids=["a valid file", "a mistake", "a killed child"],
)
def test_a_configuration_file_is_read_without_importing_the_serializers(
    tmp_path: Path, text: str, what: str, expected: str
) -> None:
    """At a start (forked) and while threads run (spawned)."""
    file, program = tmp_path / "bridge.toml", tmp_path / "program.py"
    file.write_text(text)
    program.write_text(READ_FILE)

    result = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, str(program), str(file), what],
        cwd=ROOT,
        env={**os.environ, "BRIDGE_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT),
             "DATABASE_URL": "sqlite:///:memory:", "DJANGO_SETTINGS_MODULE": "bridge_project.settings"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    forked, spawned, imported = result.stdout.splitlines()
    assert forked.startswith(expected.format(path=file)), result.stderr
    assert (spawned, imported) == (forked, "False")
