"""The dashboard: the numbers of the reports, their links, and permissions."""

import csv
import html
import io
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import (
    DrainWatermark,
    UsageByCallerDay,
    UsageByCallerQuarterHour,
    UsageByModelDay,
    UsageByModelQuarterHour,
    UsageDay,
    UsageQuarterHour,
)
from proxy.permissions.roles import MEMBER
from tests.proxy.admin import factories, session_factories
from tests.proxy.admin.hostile import TESTED
from tests.proxy.admin.test_hostile import outline

pytestmark = pytest.mark.django_db
URL = "/admin/"
DOWNLOAD = re.compile(r'<a class="mb-link" href="([^"]+)" download>([^<]+)</a>')


def seed(count, *, hours=1.0, **fields):
    records = [
        factories.exchange_records(at=now() - timedelta(hours=hours, seconds=n), **fields)
        for n in range(count)
    ]
    write_to_database(records)
    return records


def cards(answer):
    return {card.label: card for card in answer.context["cards"]}


def rows_behind(client, url):
    """Return the number of requests in the list behind a link."""
    answer = client.get(url)
    assert answer.status_code == 200
    return len(answer.context["cl"].result_list)


def test_the_cards_show_the_totals_of_the_ledger(root):
    factories.price()
    seed(3)
    seed(2, closing={"outcome": "upstream_error", "status": 529, "usage": {}, "stop_reason": ""})
    seed(1, closing={"outcome": "client_gone", "stop_reason": ""})

    found = cards(root.get(URL))

    assert found["Requests"].value == "6"
    assert found["Requests"].detail == "1 cancelled by the client"
    assert found["Errors"].value == "2"
    assert found["Errors"].detail == "33 % of all requests"
    assert found["Tokens"].value == "4,600"  # 4 * (100 input + 50 output + 1,000 cached)
    assert found["Cost"].value == "$0.0030"
    assert found["Cache-hit rate"].value == "90.9 %"
    assert found["First byte, p95"].value.endswith(" ms")


def test_every_number_links_to_its_requests(root):
    factories.price()
    ci, _ = factories.key("ci")
    seed(3, key=ci)
    seed(2, closing={"outcome": "upstream_error", "status": 529, "usage": {}, "stop_reason": ""})
    page = root.get(URL)

    found = cards(page)
    assert rows_behind(root, found["Requests"].url) == 5
    assert rows_behind(root, found["Errors"].url) == 2
    by = {ranking["slug"]: ranking["rows"] for ranking in page.context["rankings"]}
    assert [rows_behind(root, row["url"]) for row in by["team"]] == [5]
    assert [rows_behind(root, row["url"]) for row in by["model"]] == [5]
    assert sorted((row["name"], rows_behind(root, row["url"])) for row in by["stop_reason"]) == [
        ("end_turn", 3),
        ("none (incomplete or failed)", 2),
    ]
    assert rows_behind(root, by["key"][0]["url"]) == 3
    assert rows_behind(root, by["team"][0]["errors_url"]) == 2
    charts = {chart.name: chart for chart in page.context["charts"]}
    assert rows_behind(root, charts["cost"].bars[0].url) == 5
    assert [rows_behind(root, bar.url) for bar in charts["requests"].bars if bar.slug == "bad"] == [
        2
    ]
    assert rows_behind(root, charts["first-byte"].dots[0].url) == 5


def test_a_missing_price_does_not_show_as_zero(root):
    seed(3)
    page = root.get(URL)

    spend = cards(page)["Cost"]
    assert spend.value == "no price"
    assert spend.detail == "3 requests without a price"
    assert rows_behind(root, spend.detail_url) == 3
    assert page.context["rankings"][0]["rows"][0]["cost"] == "no price"


def test_changes_compare_with_the_previous_range(root):
    seed(4, hours=1)
    seed(2, hours=26)
    page = root.get(URL, {"range": "24h"})

    assert cards(page)["Requests"].change == "100 % more"
    assert page.context["before_text"] == "the 24 hours before"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("range_", ["24h", "7d", "30d"])
def test_each_range_and_zone_has_the_same_total(root, range_, zone):
    factories.price()
    seed(3, hours=2)
    page = root.get(URL, {"range": range_, "tz": zone})

    assert cards(page)["Requests"].value == "3"
    charts = {chart.name: chart for chart in page.context["charts"]}
    counted = sum(int(cells[0].text) for _, cells in charts["requests"].rows if cells[0].text)
    assert counted == 3
    assert charts["cost"].rows
    assert page.content.decode().count("<svg") >= 3


def test_the_zone_is_stored_in_the_session(root):
    root.get(URL, {"tz": "Asia/Tokyo"})

    assert str(root.get(URL).context["params"].zone) == "Asia/Tokyo"


@pytest.mark.parametrize(
    "query",
    [
        "range=custom",
        "range=custom&from=yesterday",
        "range=custom&from=2026-11-20&to=2026-11-01",
        "tz=Mars/Olympus",
        "range=forever",
        "range=custom&from=1900-01-01&to=2026-01-01",
        "tz=../../etc/passwd",
    ],
)
def test_an_invalid_range_shows_an_error_and_the_default(root, query):
    page = root.get(f"{URL}?{query}")

    assert page.status_code == 200
    params = page.context["params"]
    assert params.error or query == "range=forever"
    assert params.range == "7d"


def test_custom_days_are_whole_days_of_the_zone(root):
    noon = (now() - timedelta(days=1)).replace(hour=12)
    write_to_database(
        [factories.exchange_records(at=noon + timedelta(hours=hours)) for hours in (-11, 0, 11, 13)]
    )
    day = noon.date().isoformat()
    page = root.get(URL, {"range": "custom", "from": day, "to": day})

    time_range = page.context["params"].time_range
    assert time_range.end - time_range.start == timedelta(days=1)
    assert cards(page)["Requests"].value == "3"


def test_the_page_shows_the_time_of_its_data(root):
    assert "No request has been posted yet" in root.get(URL).content.decode()
    DrainWatermark.objects.create(journal="here", as_of=now(), seen=now())

    assert "As of" in root.get(URL).content.decode()


def test_an_empty_ledger_shows_instructions(root):
    page = root.get(URL).content.decode()

    assert "No requests in this range" in page
    assert "No requests in the 7 days before to compare with" in page


def test_the_number_of_queries_is_independent_of_the_number_of_rows(
    root, django_assert_num_queries
):
    seed(5, key=factories.key("first")[0])
    root.get(URL)
    with CaptureQueriesContext(connection) as few:
        root.get(URL)
    for n in range(10):
        key, _ = factories.key(f"key-{n}")
        seed(19, key=key, body=factories.request_body(model=f"model-{n}"), hours=n * 3)
    with django_assert_num_queries(len(few)):
        root.get(URL)

    assert "proxy_exchange" not in " ".join(query["sql"] for query in few.captured_queries)


def test_a_member_sees_only_their_own_requests(client):
    ben = factories.staff("ben", groups=(MEMBER,))
    mine, _ = factories.key("ben", user=ben)
    seed(2, key=mine, opening={"user": "ben"})
    seed(3, opening={"user": "cleo"}, body=factories.request_body(model="secret-model"))
    client.force_login(ben)
    page = client.get(URL)

    assert cards(page)["Requests"].value == "2"
    assert "your own requests" in page.content.decode()
    assert "secret-model" not in page.content.decode()


def test_a_team_lead_sees_the_team(client):
    seed(2)
    seed(3, team="research")
    client.force_login(factories.ada())

    assert cards(client.get(URL))["Requests"].value == "2"


def test_a_user_without_permissions_gets_a_message(client):
    seed(2)
    client.force_login(factories.staff("olga"))
    page = client.get(URL)

    assert page.status_code == 200
    assert "You have no permissions on this gateway" in page.content.decode()
    assert "cards" not in page.context


ROLLUPS = (
    UsageDay,
    UsageByModelDay,
    UsageByCallerDay,
    UsageQuarterHour,
    UsageByModelQuarterHour,
    UsageByCallerQuarterHour,
)


@pytest.mark.repeated
@pytest.mark.timeout(300)  # in the slow lane two pages for each of a hundred payloads
def test_hostile_names_change_no_element_on_pages_of_totals(root):
    def pages(text):
        for rollup in ROLLUPS:
            rollup.objects.all().delete()
        clean_text = text.encode(errors="replace").decode().replace("\x00", "")
        names = dict.fromkeys(
            ("team", "key_name", "user", "upstream", "model_upstream"), clean_text[:60]
        )
        seed(1, opening=names, body=factories.request_body(model=clean_text[:150] or "x"),
             closing={"stop_reason": clean_text[:30], "upstream": clean_text[:60],
                      "model_upstream": clean_text[:60]})  # fmt: skip
        return [outline(root.get(url)) for url in (URL, "/admin/proxy/price/")]

    expected = pages("plain words")
    for payload in TESTED:
        for found, plain in zip(pages(payload), expected, strict=True):
            assert not found.addresses & {"javascript", "data", "//evil.example"}, payload
            if payload.strip() and len(payload) < 30:
                assert found.seen == plain.seen, payload


def test_names_of_clients_are_escaped_in_charts_and_tables(root):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    factories.price()
    seed(2, body=factories.request_body(model=evil))
    page = root.get(URL).content.decode()

    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    href = next(r for r in root.get(URL).context["rankings"] if r["slug"] == "model")["rows"][0][
        "url"
    ]
    assert parse_qs(urlsplit(href).query)["model_requested"] == [evil]


def test_the_table_of_sessions_has_their_titles(root, client):
    session_factories.session(now() - timedelta(hours=3))
    title = "The tests of the tile cache fail since yesterday."

    read = root.get("/admin/?range=7d").content.decode()
    client.force_login(factories.staff("olga", "view_exchange", groups=("team:platform",)))
    unread = client.get("/admin/?range=7d").content.decode()

    assert title in read.split('id="ranking-session"')[1]
    assert session_factories.SESSION[:12] in unread.split('id="ranking-session"')[1]
    assert title not in unread


def test_a_week_has_bars_of_six_hours_and_percentiles_for_each(root):
    for hours in (1, 2, 30, 31, 100):
        factories.record(at=now() - timedelta(hours=hours), closing={"ttft_ms": 100.0 * hours})

    charts = {chart.name: chart for chart in root.get("/admin/?range=7d").context["charts"]}

    requests, first_byte = charts["requests"], charts["first-byte"]
    assert requests.title == "Requests per 6 hours"
    assert all(bar.width > 8 for bar in requests.bars)
    assert sum(int(cells[0].text) for _, cells in requests.rows) == 5
    assert first_byte.title == "Time to first byte, per 6 hours"
    assert len(first_byte.rows) == len(requests.rows)
    assert [label for label, _ in first_byte.rows] == [label for label, _ in requests.rows]


def test_the_usage_of_a_month_is_one_click(root):
    seed(2)

    page = root.get(f"{URL}?tz=Asia/Tokyo").content.decode()
    ((url, name), *rest) = DOWNLOAD.findall(page)
    file = root.get(html.unescape(url))

    assert name == f"{now().astimezone(ZoneInfo('Asia/Tokyo')):%B %Y}"
    assert len(rest) == 3
    assert file["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(b"".join(file.streaming_content).decode())))
    assert sum(int(row["requests"]) for row in rows) == 2


def test_a_member_without_reports_has_no_download():
    client = Client()
    client.force_login(factories.staff("ben", groups=(MEMBER,)))

    assert not DOWNLOAD.findall(client.get(URL).content.decode())
