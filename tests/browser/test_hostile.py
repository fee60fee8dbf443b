"""Text from strangers in every stored field, seen by a real browser: it stays text (T26, G22)."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, Request

from tests.fakes.gateway import Gateway
from tests.proxy.admin.hostile import PAYLOADS

from .conftest import gateway_with, log_in, untroubled

SHAPE = """
() => [...document.querySelector('main').querySelectorAll('*')].map(
  e => e.tagName + '[' + e.getAttributeNames().sort().join(' ') + ']'
)
"""
"""The elements of a page and their attributes' names: what a payload must not change."""


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway_with(tmp_path_factory.mktemp("hostile"), "hostile") as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway_with(tmp_path_factory.mktemp("harmless"), "harmless") as running:
        yield running


@pytest.fixture
def opened(window: Callable[..., BrowserContext]) -> Iterator[Callable[[Gateway], Page]]:
    """A signed-in page. At the end: it opened no dialog and spoke to its own gateway only.

    Kept and judged here, for what a handler raises does not reach the test.
    """
    seen: list[str] = []

    def open_page(gateway: Gateway) -> Page:
        page = window().new_page()
        home = (f"{gateway.url}/", f"ws://127.0.0.1:{gateway.port}/", "data:")

        def met(request: Request) -> None:
            if not request.url.startswith(home):
                seen.append(request.url)

        def asked(dialog: Dialog) -> None:
            seen.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", met)
        page.on("dialog", asked)
        log_in(page, gateway)
        return page

    yield open_page
    assert seen == []


def test_there_are_a_hundred() -> None:
    assert len(set(PAYLOADS)) >= 100


def test_no_payload_changes_a_transcript(
    strange: Gateway, plain: Gateway, opened: Callable[[Gateway], Page]
) -> None:
    harmless = opened(plain)
    harmless.goto(f"{plain.url}/admin/proxy/exchange/req_{0:026d}/change/")
    expected = harmless.evaluate(SHAPE)
    assert len(expected) > 80, "a transcript has more elements than that"
    page = opened(strange)

    for n, payload in enumerate(PAYLOADS):
        page.goto(f"{strange.url}/admin/proxy/exchange/req_{n:026d}/change/")
        untroubled(page)
        assert page.evaluate(SHAPE) == expected, payload


def test_no_payload_runs_in_a_list_or_a_form(
    strange: Gateway, opened: Callable[[Gateway], Page]
) -> None:
    page = opened(strange)
    for path in (
        "", "?range=30d", "proxy/exchange/", "sessions/?span=7d", "live/", "proxy/apikey/", "proxy/team/",
        "proxy/route/", "proxy/upstream/", "proxy/price/", "proxy/budget/",
    ):  # fmt: skip
        page.goto(f"{strange.url}/admin/{path}")
        untroubled(page)
        assert (
            page.locator("iframe, main script:not([src]), base, main link, main meta").count() == 0
        )
        assert (
            page.locator("[onload], [onerror], [onmouseover], [onfocus], [autofocus]").count() <= 1
        )
    for path in ("apikey", "team", "route", "upstream"):
        page.goto(f"{strange.url}/admin/proxy/{path}/")
        page.locator("#result_list tbody th a").first.click()
        page.wait_for_load_state()
        untroubled(page)
