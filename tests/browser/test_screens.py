"""Each screen, light and dark: axe finds no serious fault, no policy stops anything."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from tests.fakes.gateway import Gateway

from .conftest import log_in, untroubled

PLACES = {
    "dashboard": "",
    "requests": "proxy/exchange/",
    "sessions": "sessions/?span=7d",
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
    "storage": "storage/",
    "purge": "storage/purge/",
    "users": "auth/user/",
}
INNER = {
    "transcript": ("proxy/exchange/", "#result_list tbody tr:nth-child(4) a"),
    "session": ("sessions/?span=7d&sort=cost", "table tbody a"),
    "upstream": ("proxy/upstream/", "#result_list tbody th a"),
    "key": ("proxy/apikey/", "#result_list tbody th a"),
    "what would happen": (
        "proxy/apikey/", "#result_list tbody th a", "a[href$='/rehearsal/']", ".mb-bar-form button",
    ),
}  # fmt: skip
KERNING = "element => getComputedStyle(element).fontKerning"
GRAVE = ("serious", "critical")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_has_a_serious_fault(
    office: Gateway, window: Callable[..., BrowserContext], scheme: str
) -> None:
    page = window(color_scheme=scheme).new_page()
    page.goto(f"{office.url}/admin/login/")
    faults = {"sign-in": serious(page)}
    log_in(page, office)

    for name, path in PLACES.items():
        page.goto(f"{office.url}/admin/{path}")
        faults[name] = serious(page)
        untroubled(page)
    for name, (path, *links) in INNER.items():
        page.goto(f"{office.url}/admin/{path}")
        for link in links:
            page.locator(link).first.click()
            page.wait_for_load_state()
        faults[name] = serious(page)
        untroubled(page)

    assert {name: found for name, found in faults.items() if found} == {}


def serious(page: Page) -> list[str]:
    """What axe says of the page, as one line for each fault: rule and the first place."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({len(one['nodes'])}): {one['nodes'][0]['html'][:160]}"
        for one in found
        if one["impact"] in GRAVE
    ]


def test_on_a_phone_nothing_is_wider_than_the_page(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    """Nor is a transcript set with kerning: 16,000 W's in one word then take minutes to break."""
    page = window().new_page()
    log_in(page, office)
    page.set_viewport_size({"width": 390, "height": 860})
    wider = {}

    for name, (path, *links) in {"dashboard": ("",), "sessions": ("sessions/",), **INNER}.items():
        page.goto(f"{office.url}/admin/{path}")
        for link in links:
            page.locator(link).first.click()
            page.wait_for_load_state()
        if name == "transcript":
            kerning = page.locator(".mb-exchange pre").first.evaluate(KERNING)
        wider[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert {name: width for name, width in wider.items() if width > 0} == {}
    assert kerning == "none"
