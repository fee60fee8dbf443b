"""Each page of the admin shows its times in the zone of the viewer (here Asia/Kolkata, UTC+5:30)."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.urls import get_resolver
from django.utils import timezone

from proxy.ledger.webhooks import record_test_event
from proxy.models import (
    ActorKind,
    AuditEntry,
    Budget,
    Drift,
    Pause,
    Purge,
    Route,
    Upstream,
    Webhook,
)  # fmt: skip
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories
from tests.urls import url_routes

pytestmark = pytest.mark.django_db

ZONE = "Asia/Kolkata"
YESTERDAY = timezone.now().date() - timedelta(days=2)
EVENING = datetime(YESTERDAY.year, YESTERDAY.month, YESTERDAY.day, 20, 7, tzinfo=UTC)
"""At 20:07 in UTC, the next day has begun in India: it is 1:37."""
LOCAL, IN_UTC = "01:37", "20:07"
SESSION = "?id=s1"

TIMES = {
    "admin/proxy/exchange/": "",
    "admin/proxy/exchange/<path:object_id>/change/": "",
    "admin/sessions/": "?span=7d",
    "admin/sessions/one/": SESSION,
    "admin/proxy/auditentry/": "",
    "admin/my-readings/": "",
    "admin/search/texts/": "?q=files",
    "admin/storage/": "",
    "admin/proxy/apikey/": "",
    "admin/proxy/apikey/<path:object_id>/change/": "",
    "admin/proxy/drift/": "",
    "admin/proxy/pause/": "",
    "admin/proxy/pause/<path:object_id>/change/": "",
    "admin/auth/user/": "",
    "admin/auth/user/<path:object_id>/change/": "",
    "admin/people/team/<int:team_id>/": "",
    "admin/people/user/<int:user_id>/": "",
    "admin/me/": "",
    "admin/proxy/webhook/": "",
    "admin/proxy/webhookdelivery/": "",
    "admin/proxy/webhookdelivery/<path:object_id>/change/": "",
}
"""Pages with times -> their query."""
HISTORY = "/history/"
WITHOUT_TIMES = {
    # forms and questions
    "/add/", "/delete/", "/password/", "/rotate/", "/revoke/", "/invite/", "/test/", "/forget/", "password_change/",
    "password_change/done/", "admin/time-zone/", "admin/storage/purge/", "admin/reading-reason/", "admin/live/stop/",
    # answers that are no pages: redirects, files, JSON, the frame for PDFs
    "admin/login/", "admin/logout/", "admin/jsi18n/", "admin/autocomplete/", "admin/search/go/",
    "admin/search/", "/stop/", "/send/", "/media/", "/part/", "/body/<str:side>/", "export.csv", "export/<str:kind>/", "/views/", "admin/pdf-viewer/",
    "sessions/export/", "admin/live/rows/", "(?P<url>.*)$", "<path:object_id>/",
    "^(?P<app_label>auth|proxy)/$", "^(?P<app_label>proxy|auth)/$",
    # charts and sums: the zone of the dashboard has its own tests; these sum whole UTC days and say so
    "admin/", "admin/comparison/", "admin/outcomes/", "admin/stop-reasons/",
    # durations and settings only
    "admin/live/", "/dry-run/", "proxy/budget/", "proxy/team/", "proxy/route/", "proxy/upstream/",
    "proxy/upstreampolicy/", "proxy/price/", "auth/group/", "proxy/savedreport/",
}  # fmt: skip
"""The ends of the other URLs."""
SETTINGS_ONLY = re.compile(
    r"admin/proxy/(budget|team|route|upstream|upstreampolicy|price|drift|auditentry|webhook|savedreport)/.*/change/$|"
    r"admin/auth/group/.*/change/$"
)


@pytest.fixture
def urls() -> dict[str, str]:
    """Create rows whose times are ``EVENING``; return the ids for the patterns of the URLs."""
    root = factories.superuser()
    root.last_login = root.date_joined = EVENING
    root.save()
    key, _ = factories.key("ci", user=root)
    type(key).objects.update(last_used=EVENING, created=EVENING, expires=EVENING.replace(year=2090))
    row = factories.record(at=EVENING, key=key, opening={"session_id": "s1", "user": "root"})
    Budget.objects.create(team=key.team, usd=9)
    Route.objects.create(model="claude-*")
    Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    Drift.objects.create(kind="beta", name="b", first_seen=EVENING, last_seen=EVENING)
    pause = Pause.objects.create(model="m", message="later", ends=EVENING.replace(year=2090))
    Purge.objects.create(username="ada", state="done", created=EVENING, seen=EVENING)
    webhook = Webhook.objects.create(name="ops", url="https://ops.example.com/hook")
    delivery = record_test_event(webhook)
    type(delivery.event).objects.update(created=EVENING)
    type(delivery).objects.update(attempted=EVENING, state="delivered")
    AuditEntry.objects.all().delete()  # the entries on the rows above state times with an offset
    AuditEntry.objects.create(
        user="ada", actor_kind=ActorKind.USER, action="read", model="request", subject="root"
    )
    AuditEntry.objects.update(created=EVENING)
    return {
        "apikey": str(key.pk), "exchange": row.pk, "pause": str(pause.pk), "webhookdelivery": str(delivery.pk), "auth/user": str(root.pk),
        "<int:team_id>": str(key.team.pk), "<int:user_id>": str(root.pk),
    }  # fmt: skip


def shown_times(page: str) -> str:
    """Return the text of the page without the machine-readable times and the values of forms."""
    return re.sub(r"<[^>]*>", " ", page)


def test_each_page_shows_its_times_in_the_zone_of_the_viewer(urls) -> None:
    client = ServedClient()
    client.force_login(User.objects.get(username="root"))
    client.cookies["bridge_time_zone"] = ZONE
    wrong = {}

    for pattern, query in TIMES.items():
        path = pattern
        for name, value in urls.items():
            path = path.replace(name, value) if name.startswith("<") else path
            if f"/{name}/" in path:
                path = path.replace("<path:object_id>", value)
        answer = client.get(f"/{path}{query}")
        page = answer.content.decode()
        found = (answer.status_code, LOCAL in page, IN_UTC in shown_times(page), "(UTC)" in page)
        if found != (200, True, False, False):
            wrong[pattern] = found

    assert wrong == {}


def test_each_page_of_the_admin_is_in_one_of_the_tables() -> None:
    routes = set(url_routes(get_resolver("bridge_project.urls").url_patterns))
    pages = {route for route in routes if route.startswith("admin/")} - set(TIMES)
    others = {
        route
        for route in pages
        if not route.endswith((HISTORY, *WITHOUT_TIMES - {"admin/"})) and route != "admin/"
    }

    assert {route for route in others if not SETTINGS_ONLY.match(route)} == set()
    assert set(TIMES) <= routes


def test_days_begin_in_the_zone_of_the_viewer(urls, client) -> None:
    client.force_login(User.objects.get(username="root"))
    local_day, utc_day = (EVENING + timedelta(days=1)).date(), EVENING.date()

    found = {}
    for zone in (ZONE, "UTC"):
        client.cookies["bridge_time_zone"] = zone
        for day in (local_day, utc_day):
            sessions = client.get(f"/admin/sessions/?day={day}").context["sessions"]
            texts = client.get(f"/admin/search/texts/?q=files&since={day}&until={day}").context[
                "results"
            ]
            listed = (
                client.get(f"/admin/proxy/exchange/?since={day}T00:00&until={day}T23:59")
                .context["cl"]
                .result_list
            )
            found[zone, day] = (len(sessions), bool(texts), len(listed))

    assert found == {
        (ZONE, local_day): (1, True, 1), (ZONE, utc_day): (0, False, 0),
        ("UTC", utc_day): (1, True, 1), ("UTC", local_day): (0, False, 0),
    }  # fmt: skip


def test_the_bars_of_the_dashboard_begin_at_midnight_of_the_viewer(urls, client) -> None:
    client.force_login(User.objects.get(username="root"))
    client.cookies["bridge_time_zone"] = ZONE

    charts = client.get("/admin/?range=30d").context["charts"]

    (requests,) = [chart for chart in charts if chart.name == "requests"]
    [(stamp, _)] = requests.rows
    assert stamp == f"{EVENING + timedelta(days=1):%a %d %b}"


def test_a_link_of_a_figure_finds_the_same_requests_in_every_zone(urls, client) -> None:
    client.force_login(User.objects.get(username="root"))
    counts = []
    for zone in ("UTC", ZONE, "America/New_York"):
        client.cookies["bridge_time_zone"] = zone
        card = next(
            c for c in client.get("/admin/?range=30d").context["cards"] if c.label == "Requests"
        )
        page = client.get(card.url)
        shown = next(f for f in page.context["main_fields"] + page.context["more_fields"]
                     if f.parameter_name == "since")  # fmt: skip
        counts.append((card.value, len(page.context["cl"].result_list)))
        assert shown.title == f"from ({zone})"
        assert shown.value.endswith("T00:00")

    assert counts == [("1", 1)] * 3


def test_the_choice_is_remembered_and_leads_back(root) -> None:
    page = root.get("/admin/time-zone/?next=/admin/sessions/%3Fspan%3D7d").content.decode()
    answer = root.post("/admin/time-zone/?next=/admin/sessions/%3Fspan%3D7d", {"zone": ZONE})
    cookie = answer.cookies["bridge_time_zone"]
    elsewhere = root.post("/admin/time-zone/?next=https://example.com/", {"zone": "UTC"})

    assert f'value="{ZONE}"' in page
    assert answer["Location"] == "/admin/sessions/?span=7d"
    assert (cookie.value, cookie["max-age"], cookie["samesite"]) == (ZONE, 31_536_000, "Lax")
    assert cookie["httponly"]
    assert elsewhere["Location"] == "/admin/"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "x" * 5000, "UTC\x00"])
def test_an_unknown_zone_is_utc_and_is_not_stored(root, zone) -> None:
    root.cookies["bridge_time_zone"] = zone
    page = root.get("/admin/sessions/", {"tz": zone})

    assert page.context["viewer_zone"] == "UTC"
    assert "bridge_time_zone" not in page.cookies
    assert root.post("/admin/time-zone/", {"zone": zone}).status_code == 200


def test_the_zone_ends_with_the_request(root) -> None:
    root.cookies["bridge_time_zone"] = ZONE
    root.get("/admin/sessions/")

    assert timezone.get_current_timezone_name() == "UTC"
