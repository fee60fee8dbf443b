"""Each page in light and dark mode: axe finds no violation, and the CSP blocks nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from tests.fakes.servers.gateway import Gateway
from tests.lanes import repeat

from .conftest import assert_no_violations, log_in

PAGES = {
    "dashboard": "",
    "requests": "proxy/exchange/",
    "sessions": "sessions/?span=7d",
    "search": "search/texts/?q=test",
    "live": "live/",
    "drift": "proxy/drift/",
    "keys": "proxy/apikey/",
    "new key": "proxy/apikey/add/",
    "teams": "proxy/team/",
    "routes": "proxy/route/",
    "upstreams": "proxy/upstream/",
    "policies": "proxy/upstreampolicy/",
    "prices": "proxy/price/",
    "budgets": "proxy/budget/",
    "webhooks": "proxy/webhook/",
    "new webhook": "proxy/webhook/add/",
    "deliveries": "proxy/webhookdelivery/",
    "reports": "proxy/savedreport/",
    "new report": "proxy/savedreport/add/",
    "storage": "storage/",
    "purge": "storage/purge/",
    "users": "auth/user/",
    "reading reason": "reading-reason/?kind=session&id=s1",
}
MORE_PAGES = {
    "comparison": "comparison/",
    "comparison chart": "comparison/?show=chart",
    "stop reasons": "stop-reasons/?by=tool",
    "outcomes": "outcomes/?by=session",
    "audit log": "proxy/auditentry/",
    "my readings": "my-readings/",
    "my page": "me/",
    "invitation": "people/invite/",
    "time zone": "time-zone/",
    "pauses": "proxy/pause/",
    "new pause": "proxy/pause/add/",
    "new upstream": "proxy/upstream/add/",
}
"""Pages of the slow lane."""
INNER_PAGES = {
    "transcript": ("proxy/exchange/", "#result_list tbody tr:nth-child(4) a"),
    "session": ("sessions/?span=7d&sort=cost", "table tbody a"),
    "upstream": ("proxy/upstream/", "#result_list tbody th a"),
    "key": ("proxy/apikey/", "#result_list tbody th a"),
    "admission dry run": (
        "proxy/apikey/", "#result_list tbody th a", "a[href$='/rehearsal/']", ".mb-bar-form button",
    ),
}  # fmt: skip
LIST = ".simplebar-content-wrapper:has(#result_list)"
REQUESTS = {"requests": ("proxy/exchange/", ".mb-rows")}
TABLES = {
    **REQUESTS,
    "sessions": ("sessions/?span=7d", ".mb-scroll"),
    "audit log": ("proxy/auditentry/", ".mb-rows"),
    "comparison": ("comparison/", ".mb-scroll"),
    "outcomes": ("outcomes/", ".mb-scroll"),
    "stop reasons": ("stop-reasons/", ".mb-scroll"),
    "keys": ("proxy/apikey/", LIST),
    "users": ("auth/user/", LIST),
    "drift": ("proxy/drift/", LIST),
}
"""Page -> its path, and the element that would scroll if its table were too wide."""
KERNING = "element => getComputedStyle(element).fontKerning"
IMPACTS = ("moderate", "serious", "critical")
"""Minor violations are left out: the theme's tables in forms have a header cell without text."""
ALL_RULES: dict[str, Any] = {"resultTypes": ["violations"]}
RULES = {"light": ALL_RULES, "dark": {**ALL_RULES, "runOnly": ["color-contrast"]}}
"""Color scheme -> the options of axe; in dark mode only the colors differ."""
OWN_STYLES = ("dashboard", "search", "live", "new key", "storage", "transcript", "session")
"""Pages that together have every style of this project, for the dark mode of the fast lane."""
IN_DARK_MODE = repeat(fast="own styles", slow="all")

T = TypeVar("T")


def chosen(pages: dict[str, T], scheme: str) -> dict[str, T]:
    """Return the pages to open in this color scheme."""
    every = scheme == "light" or IN_DARK_MODE == "all"
    return {name: page for name, page in pages.items() if every or name in OWN_STYLES}


@pytest.mark.repeated
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_has_a_violation(
    office: Gateway, window: Callable[..., BrowserContext], scheme: str
) -> None:
    page = window(color_scheme=scheme).new_page()
    page.goto(f"{office.url}/admin/login/")
    violations = {"sign-in": violations_on(page, scheme)}
    log_in(page, office)

    for name, path in chosen(PAGES | repeat(fast={}, slow=MORE_PAGES), scheme).items():
        page.goto(f"{office.url}/admin/{path}")
        violations[name] = violations_on(page, scheme)
        assert_no_violations(page)
    for name, (path, *links) in chosen(INNER_PAGES, scheme).items():
        page.goto(f"{office.url}/admin/{path}")
        for link in links:
            page.locator(link).first.click()
            page.wait_for_load_state()
        violations[name] = violations_on(page, scheme)
        assert_no_violations(page)

    assert {name: found for name, found in violations.items() if found} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_documentation_of_the_api_needs_no_other_host(
    office: Gateway, window: Callable[..., BrowserContext], scheme: str
) -> None:
    page = window(color_scheme=scheme).new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.set_viewport_size({"width": 390, "height": 860})
    page.goto(f"{office.url}/api/v1/docs/")
    page.locator("h3[data-tag=keys]").click()
    page.locator("#operations-keys-keys .opblock-summary-control").click()
    page.get_by_text("Only rows with these values of").first.wait_for()

    assert_no_violations(page)
    assert {url.startswith(office.url) for url in requested} == {True}
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    font = page.locator(".info .title").evaluate("one => getComputedStyle(one).fontFamily")
    assert font.startswith("Inter")


def violations_on(page: Page, scheme: str) -> list[str]:
    """Return one line for each violation: the rule, and its first element."""
    found = Axe().run(page, options=RULES[scheme]).response["violations"]
    return [
        f"{each['id']} ({len(each['nodes'])}): {each['nodes'][0]['html'][:160]}"
        for each in found
        if each["impact"] in IMPACTS
    ]


def test_on_a_phone_no_page_is_wider_than_the_screen(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    """Transcripts also have no kerning: with it, breaking 16,000 W's takes minutes."""
    page = window().new_page()
    log_in(page, office)
    page.set_viewport_size({"width": 390, "height": 860})
    wider = {}

    for name, (path, *links) in {
        "dashboard": ("",),
        "sessions": ("sessions/",),
        "search": ("search/texts/?q=test",),
        **INNER_PAGES,
    }.items():
        page.goto(f"{office.url}/admin/{path}")
        for link in links:
            page.locator(link).first.click()
            page.wait_for_load_state()
        if name == "transcript":
            kerning = page.locator(".mb-exchange pre").first.evaluate(KERNING)
        wider[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert {name: width for name, width in wider.items() if width > 0} == {}
    assert kerning == "none"


@pytest.mark.repeated
def test_no_column_is_cut_beside_the_sidebar(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    page = window().new_page()
    log_in(page, office)
    hidden = {}

    for name, (path, table) in repeat(fast=REQUESTS, slow=TABLES).items():
        page.goto(f"{office.url}/admin/{path}")
        for width in (1280, 1440, 2560):
            page.set_viewport_size({"width": width, "height": 860})
            beyond = page.locator(table).evaluate("e => e.scrollWidth - e.clientWidth")
            hidden[name, width] = beyond

    assert {where: beyond for where, beyond in hidden.items() if beyond > 0} == {}
