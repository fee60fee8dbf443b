"""A newcomer's walk: sign in, look around, find what cost most, issue a key, watch, stop, revoke."""

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.fakes.gateway import Gateway

from .conftest import log_in, picture, secrets_of, untroubled


@pytest.fixture
def page(office: Gateway, window: Callable[..., BrowserContext]) -> Iterator[Page]:
    page = window().new_page()
    log_in(page, office)
    yield page
    untroubled(page)


def go(page: Page, place: str) -> None:
    """By the sidebar, as people go."""
    page.get_by_role("navigation").get_by_role("link", name=place, exact=True).first.click()


def search(page: Page, words: str) -> None:
    """Until what was found is there: the list as it was before is no longer to be clicked at."""
    page.get_by_placeholder(re.compile("session id")).fill(words)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(words))


class Client(threading.Thread):
    """Asks for a stream and hears it to its end."""

    def __init__(self, gateway: Gateway, key: str, model: str) -> None:
        super().__init__(daemon=True)
        self.gateway, self.key, self.model = gateway, key, model
        self.heard = b""
        self.status = 0

    def run(self) -> None:
        body = {
            "model": self.model, "max_tokens": 500, "stream": True,
            "messages": [{"role": "user", "content": "Take your time. " * 20}],
        }  # fmt: skip
        link = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=120)
        with contextlib.closing(link):
            link.request("POST", "/v1/messages", json.dumps(body), {"x-api-key": self.key})
            with link.getresponse() as answer:
                self.status = answer.status
                while piece := answer.read1():
                    self.heard += piece


def answered(gateway: Gateway, key: str, status: int) -> Client:
    """The first answer with that status: a change of a key is known within two seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        client = Client(gateway, key, "claude-sonnet-5")
        client.start()
        client.join(60)
        if client.status == status:
            return client
    raise AssertionError(f"still {client.status}, never {status}")


def test_the_dashboard_is_where_a_sign_in_leads(page: Page) -> None:
    for card in ("Spend", "Tokens", "Requests", "Errors", "Cache-hit rate"):
        expect(page.locator("main").get_by_text(card, exact=True).first).to_be_visible()
    picture(page, "dashboard")
    expect(page.locator(".mb-servers")).to_contain_text("vllm")
    picture(page, "dashboard-upstreams", ".mb-servers")

    page.get_by_text("30 days", exact=True).click()
    page.get_by_role("button", name="Show", exact=True).click()

    expect(page).to_have_url(re.compile("range=30d"))


def test_yesterdays_most_expensive_session_is_found_and_read(page: Page) -> None:
    go(page, "Sessions")
    page.get_by_role("link", name="Yesterday", exact=True).click()
    page.get_by_role("link", name="Most expensive", exact=True).click()
    picture(page, "sessions")

    page.locator("table tbody tr").first.get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("tests of the tile cache fail")
    picture(page, "session")


def test_a_transcript_reads_as_a_conversation(page: Page) -> None:
    go(page, "Requests")
    picture(page, "requests")
    search(page, "d0210c9f")
    expect(page.locator("#result_list")).to_contain_text("tile cache")

    page.locator("#result_list tbody tr").nth(3).get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("new in this request")
    picture(page, "transcript")
    page.get_by_role("link", name="Show earlier messages").click()
    expect(page.locator("main")).to_contain_text("evict")


def test_a_key_is_issued_shown_once_used_and_revoked(page: Page, office: Gateway) -> None:
    go(page, "Keys")
    page.locator("a.addlink").click()
    page.locator("#id_team").select_option(label="default")
    page.locator("#id_name").fill("walk")
    picture(page, "key-new")
    page.get_by_role("button", name="Save", exact=True).click()
    secret = page.locator("code.mb-secret").inner_text()
    assert secret.startswith("sk-br-")
    assert b"event: message_stop" in answered(office, secret, 200).heard

    page.get_by_role("link", name="I have copied it").click()
    expect(page.locator("body")).not_to_contain_text(secret)
    picture(page, "keys")
    page.get_by_role("link", name="walk", exact=True).click()
    page.get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke").click()

    expect(page.locator("body")).to_contain_text("is revoked")
    answered(office, secret, 401)


def test_a_running_stream_is_watched_and_stopped(page: Page, office: Gateway) -> None:
    go(page, "Live")
    expect(page.get_by_text("Following")).to_be_visible()
    client = Client(office, secrets_of(office)[0], "claude-slow")
    client.start()
    row = page.locator("tr[data-id]").filter(has_text="claude-slow").first
    expect(row).to_contain_text("default")
    expect(row).to_contain_text(re.compile(r"≈\s*[1-9]"))
    # From its first words on; before them a stop is an HTTP 403, and no event.
    expect(row).to_have_attribute("data-state", re.compile("thinking|answering"))
    picture(page, "live")

    row.get_by_role("button", name="Stop").click()

    client.join(90)
    assert not client.is_alive()
    assert b"event: error" in client.heard
    assert b"message_stop" not in client.heard
    expect(row.get_by_role("button", name="Stop")).to_be_hidden()


def test_an_upstream_is_tried_before_it_is_trusted(page: Page) -> None:
    go(page, "Upstreams")
    page.locator("#result_list").get_by_role("link", name="sandbox").first.click()
    page.get_by_role("link", name="Test this upstream").click()
    page.get_by_label("Model").fill("gpt-5.2")
    page.get_by_role("button", name="Test", exact=False).last.click()

    expect(page.locator("main")).to_contain_text("A few words, streamed: passed")
    picture(page, "upstream-test")


def test_what_is_past_its_time_is_purged(page: Page) -> None:
    go(page, "Storage")
    page.get_by_role("link", name="Purge…").click()
    expect(page.locator("main")).to_contain_text("4 transcripts of 1 team")
    picture(page, "purge")

    page.get_by_role("button", name="Purge", exact=True).click()

    expect(page.get_by_role("cell", name="done")).to_be_visible()
    expect(page.locator("main dl")).to_contain_text("nothing")
    picture(page, "storage")


@pytest.mark.parametrize("place", ["Budgets", "Prices", "Routes", "Teams", "Users"])
def test_every_list_opens_from_the_sidebar(page: Page, place: str) -> None:
    go(page, place)

    expect(page.get_by_role("heading", name=place).first).to_be_visible()
    picture(page, place.lower())


def test_without_scripts_everything_can_still_be_read(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    page = window(java_script_enabled=False).new_page()
    log_in(page, office)
    for place in ("Requests", "Sessions", "Live", "Keys", "Budgets"):
        go(page, place)
        expect(page.locator("main")).to_be_visible()
    go(page, "Sessions")
    expect(page).to_have_url(re.compile("/sessions/"))
    page.locator("table tbody tr").first.get_by_role("link").first.click()

    expect(page.locator("main")).to_contain_text("tile")


def test_the_keyboard_reaches_the_content_first(page: Page) -> None:
    page.keyboard.press("Tab")
    skip = page.evaluate("document.activeElement.getAttribute('href')")

    assert skip.startswith("#")
    assert page.locator(skip).count() == 1


def test_j_and_k_walk_through_a_conversation(page: Page) -> None:
    go(page, "Requests")
    search(page, "d0210c9f")
    page.locator("#result_list tbody tr").nth(3).get_by_role("link").first.click()
    page.locator(".mb-turn").nth(2).wait_for()
    page.wait_for_load_state()  # its script listens to keys from then on
    walked = []
    for key in "jjjkj":
        page.keyboard.press(key)
        walked.append(page.evaluate(TURN_IN_HAND))

    assert walked == [0, 1, 2, 1, 2]


TURN_IN_HAND = "[...document.querySelectorAll('.mb-turn')].indexOf(document.activeElement)"
