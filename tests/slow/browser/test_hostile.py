"""Payloads in every stored text field stay text in a real browser (threat T26)."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request

from tests.fakes.servers.gateway import Gateway
from tests.lanes import repeat
from tests.proxy.admin.hostile import PAYLOADS, TESTED

from .conftest import assert_no_violations, gateway_with, new_context, signed_in

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


class Watched(NamedTuple):
    """A signed-in page, and the dialogs and requests to other hosts that it had so far."""

    page: Page
    seen: list[str]


@pytest.fixture(scope="module")
def watched(strange: Gateway, chromium: Browser) -> Iterator[Watched]:
    """A page whose handlers only record: an exception in a handler does not reach the test."""
    seen: list[str] = []
    home = (f"{strange.url}/", f"ws://127.0.0.1:{strange.port}/", "data:")

    def record_request(request: Request) -> None:
        if not request.url.startswith(home):
            seen.append(request.url)

    def record_dialog(dialog: Dialog) -> None:
        seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    with new_context(chromium, storage_state=signed_in(strange)) as context:
        page = context.new_page()
        page.on("request", record_request)
        page.on("dialog", record_dialog)
        yield Watched(page, seen)


@pytest.fixture
def page(watched: Watched) -> Iterator[Page]:
    yield watched.page
    assert watched.seen == []


def test_there_are_at_least_a_hundred_payloads() -> None:
    assert len(set(PAYLOADS)) >= 100


@pytest.mark.repeated
def test_no_payload_changes_a_transcript(strange: Gateway, page: Page) -> None:
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


LISTS = ("?range=30d", "proxy/exchange/", "sessions/?span=7d")
MORE_LISTS = (
    "", "live/", "outcomes/?by=session", "proxy/price/", "proxy/budget/", "stop-reasons/?by=tool",
    "stop-reasons/?by=client_version",
)  # fmt: skip
NAMED = repeat(fast=("apikey", "upstream"), slow=("apikey", "team", "route", "upstream"))
"""Objects that have a payload as their name; each has a list and a form."""


@pytest.mark.repeated
def test_no_payload_runs_in_a_list_or_a_form(strange: Gateway, page: Page) -> None:
    forms = [f"proxy/{name}/" for name in NAMED]
    for path in (*LISTS, *repeat(fast=(), slow=MORE_LISTS), *forms):
        page.goto(f"{strange.url}/admin/{path}")
        assert_no_violations(page)
        assert (
            page.locator("iframe, main script:not([src]), base, main link, main meta").count() == 0
        )
        assert (
            page.locator("[onload], [onerror], [onmouseover], [onfocus], [autofocus]").count() <= 1
        )
        if path in forms:
            page.locator("#result_list tbody th a").first.click()
            page.wait_for_load_state()
            assert_no_violations(page)
