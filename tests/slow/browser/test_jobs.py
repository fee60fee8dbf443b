"""Ten jobs of an auditor, each walked from the first page of the admin in at most four clicks.

A click is a followed link, a chosen range or a sent form; no URL is typed.
"""

import csv
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.fakes.servers.gateway import Gateway

from .conftest import assert_no_violations

pytestmark = pytest.mark.slow

MAX_CLICKS: Final = 4


class Walk:
    """A page of the admin, and the number of clicks on it."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0
        self.main = page.locator("main")

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()

    def open(self, name: str) -> None:
        """Follow a link of the sidebar."""
        sidebar = self.page.get_by_role("navigation")
        self.click(sidebar.get_by_role("link", name=name, exact=True).first)

    def follow(self, name: str) -> None:
        self.click(self.main.get_by_role("link", name=name, exact=True).first)

    def send(self, name: str) -> None:
        """Send a form by its button."""
        self.click(self.page.get_by_role("button", name=name, exact=True).last)


@pytest.fixture(scope="module")
def yesterday(office: Gateway) -> datetime:
    """The day of the seeded sessions."""
    return datetime.now(UTC) - timedelta(days=1)


@pytest.fixture
def walk(office: Gateway, window: Callable[..., BrowserContext], session: Any) -> Iterator[Walk]:
    page = window(storage_state=session).new_page()
    page.goto(f"{office.url}/admin/")
    walk = Walk(page)
    yield walk
    assert walk.clicks <= MAX_CLICKS
    assert_no_violations(page)


def test_yesterdays_most_expensive_session(walk: Walk, yesterday: datetime) -> None:
    walk.open("Sessions")
    walk.follow("Yesterday")
    walk.follow("Most expensive")
    walk.click(walk.main.locator("tbody tr").first.get_by_role("link").first)

    expect(walk.main).to_contain_text("tests of the tile cache fail")


def test_why_a_request_failed(walk: Walk) -> None:
    walk.click(walk.main.get_by_role("link", name=re.compile("^Errors")).first)
    walk.click(walk.main.locator("#result_list tbody tr").first.get_by_role("link").first)

    expect(walk.main).to_contain_text(re.compile("overloaded_error|api_error"))


def test_who_used_most_this_month(walk: Walk) -> None:
    walk.click(walk.page.get_by_text("This month", exact=True))
    walk.send("Show")

    first = walk.page.get_by_role("region", name="By user").locator("tbody tr").first
    expect(first).to_contain_text(re.compile("ben|no user"))
    expect(walk.page).to_have_url(re.compile("range=month"))


def test_a_leaked_key_is_revoked(walk: Walk) -> None:
    walk.open("Keys")
    walk.follow("cleo")
    walk.click(walk.page.get_by_role("link", name="Revoke"))
    walk.click(walk.page.get_by_role("button", name="Revoke"))

    expect(walk.page.locator("body")).to_contain_text("is revoked")


def test_a_team_gets_a_budget(walk: Walk) -> None:
    walk.open("Budgets")
    walk.click(walk.page.locator("a.addlink"))
    walk.page.locator(".field-team .select2-selection").click()
    walk.page.keyboard.type("research")
    walk.page.get_by_role("option", name="research", exact=True).click()
    walk.page.locator("#id_usd").fill("75")
    walk.send("Save")

    expect(walk.main.locator("#result_list")).to_contain_text("$75.00 a month")


def test_a_month_as_csv(walk: Walk) -> None:
    walk.click(walk.page.get_by_text("This month", exact=True))
    walk.send("Show")
    walk.click(walk.main.get_by_role("link", name=re.compile("^Requests")).first)
    with walk.page.expect_download() as download:
        walk.click(walk.page.get_by_role("link", name="CSV"))

    lines = download.value.path().read_text().splitlines()
    months = {row["created_at"][:7] for row in csv.DictReader(lines)}
    assert months == {f"{datetime.now(UTC):%Y-%m}"}


def test_what_was_asked_at_a_time(walk: Walk, yesterday: datetime) -> None:
    walk.open("Requests")
    walk.page.get_by_text("More filters").click()  # opens the other fields of the same form
    walk.page.get_by_label(re.compile("^From")).fill(f"{yesterday:%Y-%m-%d}T14:10")
    walk.page.get_by_label(re.compile("^Until")).fill(f"{yesterday:%Y-%m-%d}T14:11")
    walk.send("Apply")
    walk.click(walk.main.locator("#result_list tbody tr").first.get_by_role("link").first)

    expect(walk.main).to_contain_text("How do tiles age? (10)")


def test_two_models_are_compared(walk: Walk) -> None:
    walk.open("Comparison")

    for name in ("claude-opus-5-5", "claude-sonnet-5"):
        expect(walk.main.get_by_role("row").filter(has_text=name)).to_contain_text("$")


def test_all_answers_that_were_cut_at_the_output_limit(walk: Walk) -> None:
    walk.follow("max_tokens")

    rows = walk.main.locator("#result_list tbody tr")
    expect(rows.first).to_contain_text("max_tokens")
    assert rows.count() == rows.filter(has_text="max_tokens").count() == 5


def test_an_upstream_is_added_and_tested(walk: Walk) -> None:
    walk.open("Upstreams")
    row = walk.main.locator("#result_list tr").filter(has_text="sandbox-chat")
    address = row.locator(".field-address").inner_text()
    walk.click(walk.page.locator("a.addlink"))
    walk.page.locator("#id_name").fill("second")
    walk.page.locator("#id_dialect").select_option("chat")
    walk.page.locator("#id_base_url").fill(address)
    walk.send("Save")
    walk.page.get_by_role("combobox", name="Model").fill("gpt-5.2")
    walk.send("Test")

    expect(walk.main).to_contain_text("A few words, streamed: passed")
