"""The main tasks in the admin: sign in, find the most expensive session, issue and revoke a key, stop."""

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.fakes.servers.gateway import Gateway
from tests.lanes import repeat

from .conftest import SIZE, assert_no_violations, log_in, save_screenshot, secrets_of

SMALL_PAGE = "proxy/price/"
"""Where the tests start; the dashboard would take a second of each."""


@pytest.fixture
def page(office: Gateway, tab: Page) -> Iterator[Page]:
    tab.set_viewport_size(SIZE)
    tab.goto(f"{office.url}/admin/{SMALL_PAGE}")
    yield tab
    assert_no_violations(tab)


def open_from_sidebar(page: Page, name: str) -> None:
    """Open a page by its link in the sidebar."""
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).first.click()


def search(page: Page, text: str) -> None:
    """Search, and wait until the list shows the results."""
    page.get_by_placeholder(re.compile("session id")).fill(text)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(text))


class StreamClient(threading.Thread):
    """Requests a stream and reads it to its end."""

    def __init__(self, gateway: Gateway, key: str, model: str) -> None:
        super().__init__(daemon=True)
        self.gateway, self.key, self.model = gateway, key, model
        self.received = b""
        self.status = 0

    def run(self) -> None:
        body = {
            "model": self.model, "max_tokens": 500, "stream": True,
            "messages": [{"role": "user", "content": "Take your time. " * 20}],
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/messages", json.dumps(body), {"x-api-key": self.key})
            with connection.getresponse() as answer:
                self.status = answer.status
                while piece := answer.read1():
                    self.received += piece


def wait_for_status(gateway: Gateway, key: str, status: int) -> StreamClient:
    """Repeat requests until one has this status: a key change takes effect within seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        client = StreamClient(gateway, key, "claude-sonnet-5")
        client.start()
        client.join(60)
        if client.status == status:
            return client
    raise AssertionError(f"still {client.status}, never {status}")


def test_the_sign_in_leads_to_the_dashboard(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    page = window().new_page()
    log_in(page, office)
    for card in ("Cost", "Tokens", "Requests", "Errors", "Cache-hit rate"):
        expect(page.locator("main").get_by_text(card, exact=True).first).to_be_visible()
    save_screenshot(page, "dashboard")
    expect(page.locator(".mb-upstreams")).to_contain_text("vllm")
    save_screenshot(page, "dashboard-upstreams", ".mb-upstreams")

    page.get_by_text("30 days", exact=True).click()
    page.get_by_role("button", name="Show", exact=True).click()

    expect(page).to_have_url(re.compile("range=30d"))
    assert_no_violations(page)


def test_yesterdays_most_expensive_session_can_be_found(page: Page) -> None:
    open_from_sidebar(page, "Sessions")
    page.get_by_role("link", name="Yesterday", exact=True).click()
    page.get_by_role("link", name="Most expensive", exact=True).click()
    save_screenshot(page, "sessions")

    page.locator("table tbody tr").first.get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("tests of the tile cache fail")
    save_screenshot(page, "session")


def test_a_transcript_reads_as_a_conversation(page: Page) -> None:
    open_from_sidebar(page, "Requests")
    save_screenshot(page, "requests")
    search(page, "d0210c9f")
    expect(page.locator("#result_list")).to_contain_text("tile cache")

    page.locator("#result_list tbody tr").nth(3).get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("new in this request")
    save_screenshot(page, "transcript")
    page.get_by_role("link", name="Show earlier messages").click()
    expect(page.locator("main")).to_contain_text("evict")


def test_a_key_is_issued_shown_once_used_and_revoked(page: Page, office: Gateway) -> None:
    open_from_sidebar(page, "Keys")
    page.locator("a.addlink").click()
    page.locator("#id_team").select_option(label="default")
    page.locator("#id_name").fill("walk")
    page.get_by_role("button", name="Save", exact=True).click()
    secret = page.locator("code.mb-secret").inner_text()
    assert secret.startswith("sk-br-")
    assert b"event: message_stop" in wait_for_status(office, secret, 200).received

    page.get_by_role("link", name="I have copied it").click()
    expect(page.locator("body")).not_to_contain_text(secret)
    save_screenshot(page, "keys")
    page.get_by_role("link", name="walk", exact=True).click()
    page.get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke").click()

    expect(page.locator("body")).to_contain_text("is revoked")
    wait_for_status(office, secret, 401)


def test_a_running_stream_is_watched_and_stopped(page: Page, office: Gateway) -> None:
    open_from_sidebar(page, "Live")
    expect(page.get_by_text("Connected")).to_be_visible()
    client = StreamClient(office, secrets_of(office)[0], "claude-slow")
    client.start()
    row = page.locator("tr[data-id]").filter(has_text="claude-slow").first
    expect(row).to_contain_text("default")
    expect(row).to_contain_text(re.compile(r"≈\s*[1-9]"))
    # Wait for the first content: before it, a stop is an HTTP 403 and not an event.
    expect(row).to_have_attribute("data-state", re.compile("thinking|answering"))
    save_screenshot(page, "live")

    row.get_by_role("button", name="Stop").click()

    client.join(90)
    assert not client.is_alive()
    assert b"event: error" in client.received
    assert b"message_stop" not in client.received
    expect(row.get_by_role("button", name="Stop")).to_be_hidden()


def test_an_upstream_can_be_tested(page: Page) -> None:
    open_from_sidebar(page, "Upstreams")
    page.locator("#result_list").get_by_role("link", name="sandbox").first.click()
    page.get_by_role("link", name="Test this upstream").click()
    page.get_by_role("combobox", name="Model").fill("gpt-5.2")
    page.get_by_role("button", name="Test", exact=False).last.click()

    expect(page.locator("main")).to_contain_text("A few words, streamed: passed")
    save_screenshot(page, "upstream-test")


def test_transcripts_past_retention_are_purged(page: Page) -> None:
    open_from_sidebar(page, "Storage")
    page.get_by_role("link", name="Purge…").click()
    expect(page.locator("main")).to_contain_text("4 transcripts of 1 team")
    save_screenshot(page, "purge")

    page.get_by_role("button", name="Purge", exact=True).click()

    expect(page.get_by_role("cell", name="done")).to_be_visible()
    expect(page.locator("main dl")).to_contain_text("nothing")


@pytest.mark.slow
def test_every_list_opens_from_the_sidebar(page: Page) -> None:
    for name in ("Budgets", "Prices", "Routes", "Teams", "Users"):
        open_from_sidebar(page, name)
        expect(page.get_by_role("heading", name=name).first).to_be_visible()
        if name in {"Budgets", "Prices"}:
            save_screenshot(page, name.lower())


def test_the_reports_open_from_the_sidebar(page: Page) -> None:
    for name, text in (
        ("Comparison", "claude-sonnet-5"), ("Outcomes", "Edits accepted"),
        ("Stop reasons", "end_turn"), ("Audit log", "Added"),
    ):  # fmt: skip
        open_from_sidebar(page, name)
        expect(page.locator("main")).to_contain_text(text)
        save_screenshot(page, name.lower().replace(" ", "-"))


def test_a_search_marks_what_it_found(page: Page) -> None:
    open_from_sidebar(page, "Search")
    page.get_by_label("Text", exact=True).fill("cache")
    page.get_by_role("button", name="Search", exact=True).click()

    expect(page.locator("mark").first).to_have_text("cache")
    save_screenshot(page, "search")


@pytest.mark.repeated
def test_without_javascript_every_page_is_readable(
    office: Gateway, window: Callable[..., BrowserContext], session: Any
) -> None:
    page = window(java_script_enabled=False, storage_state=session).new_page()
    page.goto(f"{office.url}/admin/{SMALL_PAGE}")
    for name in repeat(fast=["Requests"], slow=["Requests", "Live", "Keys"]):
        open_from_sidebar(page, name)
        expect(page.locator("main")).to_be_visible()
    open_from_sidebar(page, "Sessions")
    expect(page).to_have_url(re.compile("/sessions/"))
    page.locator("table tbody tr").first.get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("tile")


def test_the_keyboard_reaches_the_content_first(page: Page) -> None:
    page.keyboard.press("Tab")
    skip = page.evaluate("document.activeElement.getAttribute('href')")

    assert skip.startswith("#")
    assert page.locator(skip).count() == 1


def test_j_and_k_move_through_a_conversation(page: Page) -> None:
    open_from_sidebar(page, "Requests")
    search(page, "d0210c9f")
    page.locator("#result_list tbody tr").nth(3).get_by_role("link").first.click()
    page.locator(".mb-turn").nth(2).wait_for()
    page.wait_for_load_state()  # the script handles keys from then on
    focused = []
    for key in "jjjkj":
        page.keyboard.press(key)
        focused.append(page.evaluate(FOCUSED_TURN))

    assert focused == [0, 1, 2, 1, 2]


FOCUSED_TURN = "[...document.querySelectorAll('.mb-turn')].indexOf(document.activeElement)"
