"""A real browser (Debian's Chromium, driven by Playwright) before a real ``manage.py serve``."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.fakes.absent import absent
from tests.fakes.gateway import Gateway

REPOSITORY: Final = Path(__file__).parents[2]
SCREENS: Final = REPOSITORY / "docs" / "screens"
DRAWING: Final = bool(os.environ.get("BRIDGE_WRITE_SCREENS"))
"""Write the pictures of the docs anew: BRIDGE_WRITE_SCREENS=1 pytest tests/browser"""

SIZE: Final = {"width": 1280, "height": 860}
PATIENCE_MS: Final = 60_000
"""Two cores may be busy with the browser itself."""

expect.set_options(timeout=PATIENCE_MS)
FLAGS: Final = (
    "--no-sandbox",  # CI runs as root; what it opens are our own pages
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WATCH: Final = """
window.__blocked = [];
document.addEventListener('securitypolicyviolation',
  e => window.__blocked.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));
"""
"""Before any script of the page: what the content security policy stops, we hear of."""


@contextlib.contextmanager
def gateway_with(folder: Path, world: str) -> Iterator[Gateway]:
    """A gateway that was never configured, with some history in its ledger (see ``seed``)."""
    with Gateway(folder, key="") as running:
        seed(running, world)
        yield running


def seed(gateway: Gateway, world: str) -> None:
    ended = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "tests.browser.seed", world],
        cwd=REPOSITORY,
        env={**os.environ, "BRIDGE_DATA_DIR": str(gateway.folder / "data"),
             "DJANGO_SETTINGS_MODULE": "bridge_project.settings"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def secrets_of(gateway: Gateway) -> tuple[str, str]:
    """The gateway key and the admin's password, as the first start printed them."""
    key = re.search(r"Gateway key:\s+(\S+)", gateway.log)
    password = re.search(r"user admin, password (\S+)", gateway.log)
    assert key, gateway.log
    assert password, gateway.log
    return key[1], password[1]


@pytest.fixture(scope="package")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway_with(tmp_path_factory.mktemp("office"), "office") as running:
        yield running


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        absent("NO CHROMIUM HERE (Debian: chromium): no screen is tested")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def window(chromium: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Opens browser windows that know nothing of each other; all are closed at the end."""
    opened: list[BrowserContext] = []

    def open_window(**told: Any) -> BrowserContext:
        context = chromium.new_context(viewport=SIZE, **told)  # type: ignore[arg-type]  # a size
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(WATCH)
        opened.append(context)
        return context

    yield open_window
    for context in opened:
        context.close()


def log_in(page: Page, gateway: Gateway) -> None:
    """As anybody does: open the admin, be sent to the sign-in, type, press Enter."""
    page.goto(f"{gateway.url}/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(secrets_of(gateway)[1])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Dashboard").first.wait_for()


def picture(page: Page, name: str, place: str = "") -> None:
    """The page, or a place on it, as the docs show it, when they are written anew."""
    if DRAWING:
        SCREENS.mkdir(exist_ok=True)
        seen = page.locator(place) if place else page
        seen.screenshot(path=SCREENS / f"{name}.png", animations="disabled")


def untroubled(page: Page) -> None:
    """The page ran no script that it should not, and its policy had to stop nothing."""
    assert page.evaluate("window.__blocked") == []
    assert page.evaluate("window.__pwned") is None
