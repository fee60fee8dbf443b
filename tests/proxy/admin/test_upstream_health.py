"""The dashboard's view of now: what runs, how the upstreams do, which of them are tried last."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from proxy.gateway.cooldown import Cooldown, cooldown
from proxy.live import cooling
from proxy.live.running import RUNNING
from proxy.models import Route, RouteTarget, Upstream
from proxy.record.posting import post
from proxy.roles import MEMBER
from tests.proxy.admin import cast
from tests.proxy.admin.live_world import Still
from translator.dialect import UpstreamError

pytestmark = pytest.mark.django_db
URL = "/admin/"
DOWN = UpstreamError(status=503, error_type="api_error", message="down")
FAILED = {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {}}


def seed(count, *, hours=0.0, upstream="openai", **closing):
    at = now() - timedelta(hours=hours)  # all at once, so that no hour parts them
    post(
        [
            cast.story(
                at=at,
                opening={"upstream": upstream, "user": "ben"},
                closing={"upstream": upstream, **closing},
            )
            for _ in range(count)
        ]
    )


def servers(answer):
    return {server.name: server for server in answer.context["board"].servers}


def figures(stretch):
    return stretch.requests, stretch.errors, stretch.first_byte


def rows_behind(client, url):
    return len(client.get(url).context["cl"].result_list)


@pytest.fixture
def running():
    """Puts requests among those that run; they are taken out again."""
    yield lambda *rows: RUNNING.update({row.row["id"]: row for row in rows})
    RUNNING.clear()


@pytest.fixture
def troubles(monkeypatch):
    """A cool-down that stands still, instead of the gateway's own."""
    known = Cooldown(lambda: 100.0)
    monkeypatch.setattr(cooling, "KNOWN", [known])
    monkeypatch.setattr(cooling.time, "monotonic", lambda: 100.0)
    return known


def test_an_upstream_tells_its_last_hour_and_its_day(root):
    seed(3, hours=0.2)
    seed(1, hours=0.2, **FAILED, ttft_ms=None)
    seed(4, hours=5, ttft_ms=2000.0)
    seed(2, hours=5, upstream="vllm")
    seed(9, hours=30)

    found = servers(root.get(URL))

    assert list(found) == ["openai", "vllm"]
    hour, day = found["openai"].stretches
    assert figures(hour)[:2] == ("4", "25 %")
    assert figures(day)[:2] == ("8", "12 %")
    assert hour.first_byte.split(" / ")[0] != day.first_byte.split(" / ")[1]
    assert figures(found["vllm"].stretches[0]) == ("0", "", "—")
    assert rows_behind(root, hour.url) == 4
    assert rows_behind(root, hour.errors_url) == 1
    assert rows_behind(root, day.url) == rows_behind(root, found["openai"].url) == 8
    assert [rows_behind(root, bar.url) for bar in found["openai"].bars] == [4, 4, 1]
    assert [bar.slug for bar in found["openai"].bars] == ["good", "good", "bad"]


def test_an_upstream_in_use_is_shown_though_nobody_asked_it(root, client):
    upstream = Upstream.objects.create(
        name="spare", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    RouteTarget.objects.create(route=Route.objects.create(model="*"), upstream=upstream)
    seed(1)

    assert list(servers(root.get(URL))) == ["openai", "spare"]
    client.force_login(cast.ada())
    assert list(servers(client.get(URL))) == ["openai"]


def test_what_cools_is_said_with_its_reason_and_its_time(root, troubles):
    seed(1)
    seed(1, upstream="vllm")
    for _ in range(4):
        troubles.failed(("openai", "gpt-5.2"), DOWN)
    troubles.failed(("vllm", "qwen3"), DOWN)  # once is no cool-down

    found = servers(root.get(URL))

    assert found["openai"].cools == [
        "gpt-5.2 is tried last for 10.0 s, having failed 4 times in a row"
    ]
    assert found["vllm"].cools == []
    assert [one.left_s for one in cooling.cooling()] == [10.0]


def test_the_gateways_own_cooldown_is_the_one_that_is_asked():
    assert cooldown in cooling.KNOWN


def test_what_runs_is_counted_and_named_by_its_sessions(root, running):
    seed(1)
    running(*(Still(f"req_{n}", session=f"session-{n % 5}", upstream="openai") for n in range(6)))

    page = root.get(URL)

    now_ = page.context["board"].running
    assert (now_.count, len(now_.sessions), now_.more) == (6, 3, 2)
    assert servers(page)["openai"].running == 6
    text = " ".join(page.content.decode().split())
    assert "6 requests run right now" in text
    assert "and 2 more" in text


def test_what_others_run_is_not_a_members_to_see(client, running):
    ben = cast.staff("ben", groups=(MEMBER,))
    running(Still("req_1", user="ben"), Still("req_2", user="cleo"), Still("req_3", user="cleo"))
    client.force_login(ben)

    text = " ".join(client.get(URL).content.decode().split())

    assert "1 request runs right now" in text


def test_the_board_reads_no_request(root, django_assert_num_queries):
    seed(2)
    root.get(URL)
    with CaptureQueriesContext(connection) as few:
        root.get(URL)
    for n in range(6):
        seed(5, hours=3 * n, upstream=f"upstream-{n}")
    with django_assert_num_queries(len(few)):
        root.get(URL)

    assert "proxy_exchange" not in " ".join(query["sql"] for query in few.captured_queries)


def test_users_and_sessions_are_ranked_with_a_way_to_each(root):
    cast.price()
    post(
        [
            cast.story(
                at=now() - timedelta(minutes=n),
                opening={"user": user, "session_id": f"session-of-{user}-{n // 4}"},
            )
            for n, user in enumerate(["ada", "ada", "ada", "ben"])
        ]
    )

    page = root.get(URL)

    by = {one.slug: one.rows for one in page.context["rankings"]}
    assert [(row.name, row.requests) for row in by["user"]] == [("ada", "3"), ("ben", "1")]
    assert rows_behind(root, by["user"][0].url) == 3
    assert [row.name for row in by["session"]] == ["session-of-a…", "session-of-b…"]
    assert root.get(by["session"][0].url).context["session"] == "session-of-ada-0"
    assert by["session"][0].cost == by["user"][0].cost
    assert "mb-failed" not in page.content.decode()  # a link without a word is none


def test_what_no_user_made_has_no_list_of_its_own(root):
    post([cast.story(at=now(), closing=FAILED)])

    by = {one.slug: one.rows for one in root.get(URL).context["rankings"]}

    assert [(row.name, row.url, row.errors_url) for row in by["user"]] == [("no user", "", "")]
    assert "session" not in by


def test_banner_dashboard_and_list_count_the_same_without_a_price(root):
    """The sandbox's answers are nobody's to price; a day that began 7 times 24 hours ago is in."""
    seed(2, hours=1)
    seed(3, hours=7 * 24 - 0.5)
    seed(4, hours=1, upstream="sandbox")

    page = root.get(URL)

    spend = {card.label: card for card in page.context["cards"]}["Spend"]
    assert spend.detail == "5 requests without a price"
    (notice,) = page.context["banner"]
    assert notice.text.startswith("5 requests of the last 7 days without a price")
    assert rows_behind(root, spend.detail_url) == rows_behind(root, notice.url) == 5


def test_of_the_sandbox_alone_nothing_is_lacking(root):
    seed(2, upstream="sandbox")

    page = root.get(URL)

    spend = {card.label: card for card in page.context["cards"]}["Spend"]
    assert spend.value == "no price"
    assert spend.detail == "2 requests of the sandbox, without a price"
    assert page.context["banner"] == ()
