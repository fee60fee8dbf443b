"""Fixtures: a real browser (Chromium, by Playwright) and a real ``manage.py serve``."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.fakes.optional_tools import skip_or_fail
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.servers.web_session import WebSession

REPOSITORY: Final = Path(__file__).parents[3]
SCREENS: Final = REPOSITORY / "docs" / "images"
WRITE_SCREENS: Final = bool(os.environ.get("BRIDGE_WRITE_SCREENS"))
"""Write the screenshots of the docs: BRIDGE_WRITE_SCREENS=1 pytest -m "slow or not slow" tests/slow/browser"""

SIZE: Final = {"width": 1280, "height": 860}
TIMEOUT_MS: Final = 60_000
"""Long, since the browser may use all cores of the machine."""

expect.set_options(timeout=TIMEOUT_MS)
FLAGS: Final = (
    "--no-sandbox",  # CI runs as root, and the browser opens only pages of this project
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

RECORD_CSP_VIOLATIONS: Final = """
window.__blocked = [];
document.addEventListener('securitypolicyviolation',
  e => window.__blocked.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));
"""
"""Runs before all scripts of a page, and records what the CSP blocks."""


@contextlib.contextmanager
def gateway_with(folder: Path, dataset: str) -> Iterator[Gateway]:
    """Start a gateway with default configuration and a filled ledger (see ``seed``)."""
    quick = {"DJANGO_SETTINGS_MODULE": "tests.repo.access.quick_passwords_settings"}
    with Gateway(folder, environment=quick, key="") as running:
        program = f"from tests.slow.browser.seed import DATASETS; DATASETS[{dataset!r}]()"
        running.manage("shell", "--verbosity", "0", "-c", program)
        yield running


def secrets_of(gateway: Gateway) -> tuple[str, str]:
    """Return the gateway key from the log of the first start, and the admin's password."""
    key = re.search(r"Gateway key:\s+(\S+)", gateway.log)
    assert key, gateway.log
    return key[1], ADMIN_PASSWORD


@pytest.fixture(scope="package")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with the ledger of a small company, for all test files."""
    with gateway_with(tmp_path_factory.mktemp("office"), "office") as running:
        yield running


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        skip_or_fail("chromium is not installed (Debian package: chromium): no page is tested")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


def new_context(chromium: Browser, **options: Any) -> BrowserContext:
    """Open an isolated browser context."""
    context = chromium.new_context(viewport=SIZE, **options)  # type: ignore[arg-type]  # a size
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(RECORD_CSP_VIOLATIONS)
    return context


@pytest.fixture
def window(chromium: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that opens isolated browser contexts; all are closed at the end."""
    opened: list[BrowserContext] = []

    def open_context(**options: Any) -> BrowserContext:
        opened.append(new_context(chromium, **options))
        return opened[-1]

    yield open_context
    for context in opened:
        context.close()


def log_in(page: Page, gateway: Gateway) -> None:
    """Sign in: open the admin, fill in the sign-in form, press Enter."""
    page.goto(f"{gateway.url}/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(secrets_of(gateway)[1])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Dashboard").first.wait_for()


def signed_in(gateway: Gateway) -> Any:
    """Sign in without a browser; return the cookies as Playwright stores them."""
    cookies = WebSession(gateway).sign_in("admin", secrets_of(gateway)[1]).cookies
    shared = {"domain": "127.0.0.1", "path": "/", "expires": -1, "httpOnly": False,
              "secure": False, "sameSite": "Lax"}  # fmt: skip
    stored = [{"name": name, "value": value, **shared} for name, value in cookies.items()]
    return {"cookies": stored, "origins": []}


@pytest.fixture(scope="package")
def session(office: Gateway) -> Any:
    """The cookies of one sign-in, for all tests."""
    return signed_in(office)


@pytest.fixture(scope="package")
def tab(chromium: Browser, session: Any) -> Iterator[Page]:
    """A signed-in page for all tests; a context of its own would cost each of them two seconds."""
    with new_context(chromium, storage_state=session) as context:
        yield context.new_page()


def save_screenshot(page: Page, name: str, selector: str = "") -> None:
    """Write a screenshot of the page or of one element for the docs, if enabled."""
    if WRITE_SCREENS:
        SCREENS.mkdir(exist_ok=True)
        target = page.locator(selector) if selector else page
        target.screenshot(path=SCREENS / f"{name}.png", animations="disabled")


def assert_no_violations(page: Page) -> None:
    """Assert that no payload ran on the page and that the CSP blocked nothing."""
    assert page.evaluate("window.__blocked") == []
    assert page.evaluate("window.__pwned") is None
