"""The running requests, the health of the upstreams, and cooldowns on the dashboard."""

import re
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from proxy.gateway.admission.cooldown import Cooldown, cooldown
from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.live import cooldown_registry
from proxy.live.running_requests import RUNNING
from proxy.models import Route, RouteTarget, Upstream
from proxy.permissions.roles import MEMBER
from tests.proxy.admin import factories
from tests.proxy.admin.live.live_fixtures import FakeRunningRequest
from translator.dialect import UpstreamError

pytestmark = pytest.mark.django_db
URL = "/admin/"
DOWN = UpstreamError(status=503, error_type="api_error", message="down")
RATE_LIMITED = UpstreamError(status=429, error_type="rate_limit_error", message="limited")
FAILED = {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {}}


def seed(count, *, hours=0.0, upstream="openai", **closing):
    at = now() - timedelta(hours=hours)  # the same time, so that all are in one hour
    write_to_database(
        [
            factories.exchange_records(
                at=at,
                opening={"upstream": upstream, "user": "ben"},
                closing={"upstream": upstream, **closing},
            )
            for _ in range(count)
        ]
    )


def upstream_rows(answer):
    return {row["name"]: row for row in answer.context["health"]["upstreams"]}


def numbers(period):
    return period["requests"], period["errors"], period["first_byte"]


def rows_behind(client, url):
    return len(client.get(url).context["cl"].result_list)


@pytest.fixture
def running():
    """Add running requests; they are removed at the end."""
    yield lambda *rows: RUNNING.update({row.row["id"]: row for row in rows})
    RUNNING.clear()


@pytest.fixture
def registered_cooldown():
    """Register a cooldown beside that of the gateway; it is removed at the end."""
    known = Cooldown()
    cooldown_registry.SOURCES.append(known)
    yield known
    cooldown_registry.SOURCES.remove(known)


def test_an_upstream_shows_its_last_hour_and_day(root):
    seed(3, hours=0.2)
    seed(1, hours=0.2, **FAILED, ttft_ms=None)
    seed(4, hours=5, ttft_ms=2000.0)
    seed(2, hours=5, upstream="vllm")
    seed(9, hours=30)

    found = upstream_rows(root.get(URL))

    assert list(found) == ["openai", "vllm"]
    hour, day = found["openai"]["periods"]
    assert numbers(hour)[:2] == ("4", "25 %")
    assert numbers(day)[:2] == ("8", "12 %")
    assert hour["first_byte"].split(" / ")[0] != day["first_byte"].split(" / ")[1]
    assert numbers(found["vllm"]["periods"][0]) == ("0", "", "—")
    assert rows_behind(root, hour["url"]) == 4
    assert rows_behind(root, hour["errors_url"]) == 1
    assert rows_behind(root, day["url"]) == rows_behind(root, found["openai"]["url"]) == 8
    assert [rows_behind(root, bar.url) for bar in found["openai"]["bars"]] == [4, 4, 1]
    assert [bar.slug for bar in found["openai"]["bars"]] == ["good", "good", "bad"]


def test_an_upstream_in_use_is_shown_without_requests(root, client):
    upstream = Upstream.objects.create(
        name="spare", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    RouteTarget.objects.create(route=Route.objects.create(model="*"), upstream=upstream)
    seed(1)

    assert list(upstream_rows(root.get(URL))) == ["openai", "spare"]
    client.force_login(factories.ada())
    assert list(upstream_rows(client.get(URL))) == ["openai"]


def test_a_cooldown_is_shown_with_its_failures_and_time(root, registered_cooldown):
    seed(1)
    seed(1, upstream="vllm")
    began = time.monotonic()
    for _ in range(6):
        registered_cooldown.record_failure(("openai", "gpt-5.2"), DOWN)
    registered_cooldown.record_failure(("vllm", "qwen3"), DOWN)  # one failure starts no cooldown

    found = upstream_rows(root.get(URL))

    [shown] = found["openai"]["cooldowns"]
    left_s = re.fullmatch(r"gpt-5.2 is tried last for (\S+) s, after 6 failures in a row", shown)
    assert began + 40 - time.monotonic() <= float(left_s[1]) + 0.05
    assert float(left_s[1]) <= 40
    assert found["vllm"]["cooldowns"] == []


def test_the_time_of_a_cooldown_is_that_until_its_end(registered_cooldown):
    registered_cooldown.clock = lambda: 100.0
    registered_cooldown.record_failure(("openai", "gpt-5.2"), RATE_LIMITED)

    assert [entry.left_s for entry in cooldown_registry.cooling(101.0)] == [4.0]
    assert cooldown_registry.cooling(105.0) == []


def test_the_gateway_registers_its_cooldown():
    assert cooldown in cooldown_registry.SOURCES


def test_running_requests_are_counted_with_their_sessions(root, running):
    seed(1)
    running(
        *(
            FakeRunningRequest(f"req_{n}", session=f"session-{n % 5}", upstream="openai")
            for n in range(6)
        )
    )

    page = root.get(URL)

    now_ = page.context["health"]["running"]
    assert (now_["count"], len(now_["sessions"]), now_["more"]) == (6, 3, 2)
    assert upstream_rows(page)["openai"]["running"] == 6
    text = " ".join(page.content.decode().split())
    assert "6 running requests" in text
    assert "and 2 more" in text


def test_a_member_sees_only_their_own_running_requests(client, running):
    ben = factories.staff("ben", groups=(MEMBER,))
    running(
        FakeRunningRequest("req_1", user="ben"),
        FakeRunningRequest("req_2", user="cleo"),
        FakeRunningRequest("req_3", user="cleo"),
    )
    client.force_login(ben)

    text = " ".join(client.get(URL).content.decode().split())

    assert "1 running request," in text


def test_the_upstream_table_reads_no_exchange_rows(root, django_assert_num_queries):
    seed(2)
    root.get(URL)
    with CaptureQueriesContext(connection) as few:
        root.get(URL)
    for n in range(6):
        seed(5, hours=3 * n, upstream=f"upstream-{n}")
    with django_assert_num_queries(len(few)):
        root.get(URL)

    assert "proxy_exchange" not in " ".join(query["sql"] for query in few.captured_queries)


def test_users_and_sessions_are_ranked_with_links(root):
    factories.price()
    write_to_database(
        [
            factories.exchange_records(
                at=now() - timedelta(minutes=n),
                opening={"user": user, "session_id": f"session-of-{user}-{n // 4}"},
            )
            for n, user in enumerate(["ada", "ada", "ada", "ben"])
        ]
    )

    page = root.get(URL)

    by = {ranking["slug"]: ranking["rows"] for ranking in page.context["rankings"]}
    assert [(row["name"], row["requests"]) for row in by["user"]] == [("ada", "3"), ("ben", "1")]
    assert rows_behind(root, by["user"][0]["url"]) == 3
    assert [row["name"] for row in by["session"]] == ["Which files are here?"] * 2
    assert root.get(by["session"][0]["url"]).context["session"] == "session-of-ada-0"
    assert by["session"][0]["cost"] == by["user"][0]["cost"]
    assert "mb-failed" not in page.content.decode()  # a link needs a text


def test_requests_without_a_user_have_no_link(root):
    write_to_database([factories.exchange_records(at=now(), closing=FAILED)])

    by = {ranking["slug"]: ranking["rows"] for ranking in root.get(URL).context["rankings"]}

    assert [(row["name"], row["url"], row["errors_url"]) for row in by["user"]] == [
        ("no user", "", "")
    ]
    assert "session" not in by


def test_notices_dashboard_and_list_count_the_same_unpriced_requests(root):
    """Sandbox requests need no price; the range starts exactly 7 * 24 hours ago."""
    seed(2, hours=1)
    seed(3, hours=7 * 24 - 0.5)
    seed(4, hours=1, upstream="sandbox")

    page = root.get(URL)

    spend = {card.label: card for card in page.context["cards"]}["Cost"]
    assert spend.detail == "5 requests without a price"
    (notice,) = page.context["banner"]
    assert notice.text.startswith("5 requests of the last 7 days without a price")
    assert rows_behind(root, spend.detail_url) == rows_behind(root, notice.url) == 5


def test_sandbox_requests_need_no_price(root):
    seed(2, upstream="sandbox")

    page = root.get(URL)

    spend = {card.label: card for card in page.context["cards"]}["Cost"]
    assert spend.value == "no price"
    assert spend.detail == "2 requests of the sandbox, without a price"
    assert page.context["banner"] == []
