"""Each page in light and dark mode: axe finds no violation, and the CSP blocks nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, ViewportSize

from tests.fakes.servers.gateway import Gateway
from tests.lanes import is_slow, repeat

from .conftest import SIZE, assert_no_violations

PAGES = {
    "dashboard": [""],
    "requests": ["proxy/exchange/?team=research"],  # fewer rows, which axe checks one by one
    "sessions": ["sessions/?span=7d&team=research"],
    "search": ["search/texts/?q=test"],
    "live": ["live/"],
    "drift": ["proxy/drift/"],
    "keys": ["proxy/apikey/"],
    "new key": ["proxy/apikey/add/"],
    "teams": ["proxy/team/"],
    "routes": ["proxy/route/"],
    "upstreams": ["proxy/upstream/"],
    "policies": ["proxy/upstreampolicy/"],
    "prices": ["proxy/price/"],
    "budgets": ["proxy/budget/"],
    "webhooks": ["proxy/webhook/"],
    "new webhook": ["proxy/webhook/add/"],
    "deliveries": ["proxy/webhookdelivery/"],
    "reports": ["proxy/savedreport/"],
    "new report": ["proxy/savedreport/add/"],
    "storage": ["storage/"],
    "purge": ["storage/purge/"],
    "users": ["auth/user/"],
    "reading reason": ["reading-reason/?kind=session&id=s1"],
    "transcript": ["proxy/exchange/", "#result_list tbody tr:nth-child(4) a"],
    "session": ["sessions/?span=7d&sort=cost", "table tbody a"],
    "upstream": ["proxy/upstream/", "#result_list tbody th a"],
    "key": ["proxy/apikey/", "#result_list tbody th a"],
    "admission dry run": [
        "proxy/apikey/", "#result_list tbody th a", "a[href$='/dry-run/']", ".mb-bar-form button",
    ],
}  # fmt: skip
"""Page -> its path, and the links that lead from there to the page."""
MORE_PAGES = {
    "comparison": ["comparison/"],
    "comparison chart": ["comparison/?show=chart"],
    "stop reasons": ["stop-reasons/?by=tool"],
    "outcomes": ["outcomes/?by=session"],
    "audit log": ["proxy/auditentry/"],
    "my readings": ["my-readings/"],
    "my page": ["me/"],
    "invitation": ["people/invite/"],
    "time zone": ["time-zone/"],
    "pauses": ["proxy/pause/"],
    "new pause": ["proxy/pause/add/"],
    "new upstream": ["proxy/upstream/add/"],
}
"""Pages of the slow lane."""
ON_A_PHONE = (
    "dashboard", "sessions", "search", "transcript", "session", "upstream", "key", "admission dry run",
)  # fmt: skip
LIST = ".simplebar-content-wrapper:has(#result_list)"
TABLES = {
    "requests": ("proxy/exchange/", ".mb-rows"),
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
WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth - innerWidth"
KERNING = "element => getComputedStyle(element).fontKerning"
IMPACTS = ("moderate", "serious", "critical")
"""Minor violations are left out: the theme's tables in forms have a header cell without text."""
ALL_RULES: dict[str, Any] = {"resultTypes": ["violations"]}
CONTRAST = {**ALL_RULES, "runOnly": ["color-contrast"]}
"""The options of axe for dark mode, in which only the colors differ."""
PARTS: dict[str, Any] | None = repeat(fast={"exclude": [["tbody tr:nth-child(n + 5)"]]}, slow=None)
"""What axe checks of a page: in the fast lane only the first rows of a long table, which takes it
two seconds."""
IN_DARK_MODE = ("search", "transcript")
"""The pages that the fast lane also checks in dark mode; the slow lane checks all."""
PHONE: ViewportSize = {"width": 390, "height": 860}
ANIMATIONS_END = "Promise.all(document.getAnimations().map(one => one.finished))"


@pytest.fixture
def page(tab: Page) -> Page:
    tab.set_viewport_size(SIZE)
    return tab


def open_page(page: Page, office: Gateway, name: str) -> None:
    path, *links = (PAGES | MORE_PAGES)[name]
    page.goto(f"{office.url}/admin/{path}")
    for link in links:
        page.locator(link).first.click()
        page.wait_for_load_state()


def violations_on(page: Page, rules: dict[str, Any] = ALL_RULES) -> list[str]:
    """Return one line for each violation: the rule, and its first element."""
    found = Axe().run(page, context=PARTS, options=rules).response["violations"]
    return [
        f"{each['id']} ({len(each['nodes'])}): {each['nodes'][0]['html'][:160]}"
        for each in found
        if each["impact"] in IMPACTS
    ]


def violations_in_dark_mode(page: Page) -> list[str]:
    page.emulate_media(color_scheme="dark")
    page.evaluate(ANIMATIONS_END)
    violations = violations_on(page, CONTRAST)
    page.emulate_media(color_scheme="light")
    return violations


@pytest.mark.repeated
@pytest.mark.parametrize(
    "name", [*PAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_PAGES)]
)
def test_page_has_no_violation(office: Gateway, page: Page, name: str) -> None:
    """A page of ``ON_A_PHONE`` opens on a phone, where it is not wider than the screen."""
    if name in ON_A_PHONE:
        page.set_viewport_size(PHONE)
    open_page(page, office, name)
    if name in ON_A_PHONE:
        assert page.evaluate(WIDER_THAN_THE_SCREEN) <= 0
        page.set_viewport_size(SIZE)

    assert violations_on(page) == []
    if name in IN_DARK_MODE or is_slow():
        assert page.locator("html.dark").count() == 0
        assert violations_in_dark_mode(page) == []
    if name == "transcript":  # with kerning, breaking 16,000 W's takes minutes
        assert page.locator(".mb-exchange pre").first.evaluate(KERNING) == "none"
    assert_no_violations(page)


def test_sign_in_page_has_no_violation(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    page = window().new_page()
    page.goto(f"{office.url}/admin/login/")

    assert violations_on(page) == []
    assert violations_in_dark_mode(page) == []
    assert_no_violations(page)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_documentation_of_the_api_needs_no_other_host(
    office: Gateway, window: Callable[..., BrowserContext], scheme: str
) -> None:
    page = window(color_scheme=scheme).new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.set_viewport_size(PHONE)
    page.goto(f"{office.url}/api/v1/docs/")
    page.locator("h3[data-tag=keys]").click()
    page.locator("#operations-keys-keys .opblock-summary-control").click()
    page.get_by_text("Only rows with these values of").first.wait_for()

    assert_no_violations(page)
    assert {url.startswith(office.url) for url in requested} == {True}
    assert page.evaluate(WIDER_THAN_THE_SCREEN) <= 0
    font = page.locator(".info .title").evaluate("one => getComputedStyle(one).fontFamily")
    assert font.startswith("Inter")


@pytest.mark.repeated
@pytest.mark.parametrize(
    "name",
    ["requests", *(pytest.param(n, marks=pytest.mark.slow) for n in TABLES if n != "requests")],
)
def test_no_column_is_cut_beside_the_sidebar(office: Gateway, page: Page, name: str) -> None:
    path, table = TABLES[name]
    page.goto(f"{office.url}/admin/{path}")
    hidden = {}
    for width in repeat(fast=[1280], slow=[1280, 1440, 2560]):
        page.set_viewport_size({"width": width, "height": 860})
        hidden[width] = page.locator(table).evaluate("e => e.scrollWidth - e.clientWidth")

    assert {width: beyond for width, beyond in hidden.items() if beyond > 0} == {}
