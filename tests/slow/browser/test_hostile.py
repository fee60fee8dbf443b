"""Payloads in every stored text field stay text in a real browser (T26, G22)."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, Request

from tests.fakes.servers.gateway import Gateway
from tests.lanes import repeat
from tests.proxy.admin.hostile import PAYLOADS, TESTED

from .conftest import assert_no_violations, gateway_with, log_in

SHAPE = """
() => [...document.querySelector('main').querySelectorAll('*')].map(
  e => e.tagName + '[' + e.getAttributeNames().sort().join(' ') + ']'
)
"""
"""Lists the elements of a page with their attribute names; a payload must not change them."""


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a request for each payload of the lane, in this order, and one without."""
    dataset = repeat(fast="hostile examples", slow="hostile")
    with gateway_with(tmp_path_factory.mktemp("hostile"), dataset) as running:
        yield running


@pytest.fixture
def opened(window: Callable[..., BrowserContext]) -> Iterator[Callable[[Gateway], Page]]:
    """Return a function that opens a signed-in page.

    At the end, asserts that no page opened a dialog or sent a request to another host. The handlers
    only record that: an exception in a handler does not reach the test.
    """
    seen: list[str] = []

    def open_page(gateway: Gateway) -> Page:
        page = window().new_page()
        home = (f"{gateway.url}/", f"ws://127.0.0.1:{gateway.port}/", "data:")

        def record_request(request: Request) -> None:
            if not request.url.startswith(home):
                seen.append(request.url)

        def record_dialog(dialog: Dialog) -> None:
            seen.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", record_request)
        page.on("dialog", record_dialog)
        log_in(page, gateway)
        return page

    yield open_page
    assert seen == []


def test_there_are_at_least_a_hundred_payloads() -> None:
    assert len(set(PAYLOADS)) >= 100


@pytest.mark.repeated
def test_no_payload_changes_a_transcript(
    strange: Gateway, opened: Callable[[Gateway], Page]
) -> None:
    page = opened(strange)

    def open_transcript(number: int) -> None:
        page.goto(f"{strange.url}/admin/proxy/exchange/req_{number:026d}/change/")

    open_transcript(len(TESTED))  # the one with plain text
    page.get_by_role("link", name="Raw", exact=True).click()  # Markdown would add elements
    expected = page.evaluate(SHAPE)
    assert len(expected) > 80, "a transcript has more elements than that"

    for number, payload in enumerate(TESTED):
        open_transcript(number)
        assert_no_violations(page)
        assert page.evaluate(SHAPE) == expected, payload


@pytest.mark.repeated
def test_no_payload_runs_in_a_list_or_a_form(
    strange: Gateway, opened: Callable[[Gateway], Page]
) -> None:
    page = opened(strange)
    for path in (
        "", "?range=30d", "proxy/exchange/", "sessions/?span=7d", "live/", "proxy/apikey/", "proxy/team/",
        "proxy/route/", "proxy/upstream/", "proxy/price/", "proxy/budget/", "stop-reasons/?by=tool",
        "stop-reasons/?by=client_version", "outcomes/?by=session",
    ):  # fmt: skip
        page.goto(f"{strange.url}/admin/{path}")
        assert_no_violations(page)
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
        assert_no_violations(page)
