"""What frames each page of the admin: policy, sidebar, and the notices on top."""

import re
from datetime import date, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now

from proxy.admin import banner
from proxy.counters.failover import FailoverBudgets
from proxy.counters.redis_store import RedisBudgets
from proxy.counters.shared import budget_store
from proxy.counters.sqlite_store import SqliteBudgets
from proxy.gateway import configuration
from proxy.models import Budget, DrainMark, Price, Route, RouteTarget, Upstream
from proxy.models.routes import SEALED
from proxy.record.posting import post
from proxy.roles import AUDITOR, MEMBER, OWNER
from proxy.sealing import seal
from proxy.soundness import SEEN
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
PAGES = (
    "/admin/",
    "/admin/login/",
    "/admin/proxy/exchange/",
    "/admin/proxy/apikey/",
    "/admin/proxy/apikey/add/",
    "/admin/proxy/budget/",
    "/admin/proxy/budget/add/",
    "/admin/proxy/team/",
    "/admin/proxy/route/add/",
    "/admin/proxy/upstream/add/",
    "/admin/proxy/price/",
    "/admin/auth/user/",
    "/admin/auth/user/add/",
    "/admin/auth/group/",
    "/admin/password_change/",
    "/admin/search/?s=key",
)


def notices(client, url="/admin/password_change/"):
    return [one.text for one in client.get(url).context["banner"]]


@pytest.mark.parametrize("url", PAGES)
def test_no_page_allows_or_holds_inline_script_or_style(client, url):
    if "login" not in url:
        client.force_login(cast.superuser())
    answer = client.get(url)
    page = answer.content.decode()
    policy = answer["Content-Security-Policy"]

    assert answer.status_code == 200
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "<style" not in page
    assert not re.search(r"<[^>]*\sstyle=", page)
    assert not re.search(r"<[^>]*\son[a-z]+=", page)
    assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", page)


def test_neither_does_one_of_an_object_that_is_only_shown(root):
    """JSON that nobody may change here is text; the theme's own would colour it inline."""
    odd = {"odd": "<b style=x>&"}
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://vllm/v1", managed=True, extra_body=odd
    )
    team = cast.team("ada", managed=True, limits={"rpm": 60})

    for kind, one in (("upstream", upstream), ("team", team)):
        page = root.get(f"/admin/proxy/{kind}/{one.pk}/change/").content.decode()
        assert not re.search(r"<[^>]*\sstyle=", page)
        assert '<pre class="mb-json">' in page
        assert "<b style" not in page


def test_what_is_missing_or_forbidden_is_said_on_a_page_of_ours(client):
    client.force_login(cast.staff("olga"))
    missing, forbidden = client.get("/admin/nowhere/"), client.get("/admin/proxy/team/")

    assert (missing.status_code, forbidden.status_code) == (404, 403)
    assert "There is no such page" in missing.content.decode()
    assert "Your account may not do this" in forbidden.content.decode()
    assert "unsafe" not in missing["Content-Security-Policy"]


def test_pages_outside_the_admin_keep_their_own_policy(client):
    answer = client.get("/api/v1/docs/")

    assert "script-src 'self'; style-src 'self'; img-src" not in answer.headers.get(
        "Content-Security-Policy", ""
    )


@pytest.mark.parametrize(
    ("role", "seen", "unseen"),
    [
        (MEMBER, {"Dashboard", "Requests", "Keys", "Budgets"}, {"Teams", "Upstreams", "Users"}),
        (AUDITOR, {"Dashboard", "Teams", "Upstreams", "Prices", "Users"}, set()),
        (OWNER, {"Dashboard", "Teams", "Keys", "Users"}, set()),
        (None, set(), {"Dashboard", "Requests", "Keys", "Users"}),
    ],
)
def test_the_sidebar_names_what_opens(client, role, seen, unseen):
    client.force_login(cast.staff("sam", groups=(role,) if role else ()))
    page = client.get("/admin/")
    links = {
        item["title"]: item["link"]
        for group in page.context["sidebar_navigation"]
        for item in group["items"]
    }

    assert seen <= set(links)
    assert not unseen & set(links)
    assert [client.get(link).status_code for link in links.values()] == [200] * len(links)


def test_all_is_well_and_nothing_is_said(root):
    assert notices(root) == []


def test_models_without_a_price_are_named_until_they_have_one(root):
    post([cast.story(at=now() - timedelta(hours=1)) for _ in range(2)])

    assert notices(root) == ["2 requests of the last 7 days without a price: gpt-5.2 at openai."]
    listed = root.get(root.get("/admin/").context["banner"][0].url)
    assert len(listed.context["cl"].result_list) == 2
    lacking = root.get("/admin/proxy/price/").context["lacking"]
    assert [(one["model"], one["upstream"], one["count"]) for one in lacking] == [
        ("gpt-5.2", "openai", 2)
    ]


def test_a_drainer_that_is_behind_is_told(root):
    DrainMark.objects.create(
        spool="a", as_of=now() - timedelta(minutes=5), backlog=1200, seen=now()
    )
    DrainMark.objects.create(spool="b", as_of=now(), backlog=3, seen=now())

    [told] = notices(root)
    assert told.startswith("1,200 records wait to be booked, the oldest since")


def test_a_redis_that_is_away_is_told(root, monkeypatch, tmp_path):
    shared, local = RedisBudgets("redis://127.0.0.1:1/0"), SqliteBudgets(tmp_path / "counters")
    away = FailoverBudgets(shared, local)
    monkeypatch.setattr(banner, "budget_store", lambda: away)
    assert notices(root) == []
    away.held("x")  # is asked, and does not answer

    [told] = notices(root)
    assert told.startswith("Redis cannot be reached")
    shared.close()
    local.close()


def test_the_sandbox_has_a_badge_and_a_line(root):
    sandbox = Upstream.objects.create(
        name="sandbox", dialect="responses", base_url="http://127.0.0.1:1/v1"
    )
    assert notices(root) == []
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=sandbox)

    [told] = notices(root)
    assert "sandbox" in told
    assert (
        ">\n    Sandbox" in root.get("/admin/").content.decode()
        or "Sandbox" in root.get("/admin/").content.decode().split("</header>", maxsplit=1)[0]
    )


def test_a_line_leads_only_where_its_reader_may_go(root, client):
    sandbox = Upstream.objects.create(
        name="sandbox", dialect="responses", base_url="http://127.0.0.1:1/v1"
    )
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=sandbox)
    ben = cast.staff("ben", groups=("member",))
    Budget.objects.create(user=ben, usd=0, period="day")
    [*_, of_root] = root.get("/admin/").context["banner"]
    client.force_login(ben)

    [of_budget, of_ben] = client.get("/admin/").context["banner"]

    assert of_root.url == "/admin/proxy/route/"
    assert (of_ben.text, of_ben.url) == (of_root.text, "")
    assert client.get(of_budget.url).status_code == 200


def test_rows_that_cannot_be_read_are_told_to_whoever_sees_all(root, client):
    key, _ = cast.key("ci", limits=[60])
    upstream = Upstream.objects.create(name="v", dialect="chat", base_url="http://v", secret=5)
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=upstream)
    SEEN.tell(configuration.read().unread)
    try:
        lines = root.get("/admin/password_change/").context["banner"]
        pages = [root.get(line.url).status_code for line in lines]
        lists = [root.get(f"/admin/proxy/{name}/").status_code for name in ("apikey", "upstream")]
        SEEN.tell([*SEEN.unread] * 3)
        many = notices(root)
        client.force_login(cast.staff("ben", groups=(MEMBER,)))
        of_member = notices(client)
    finally:
        SEEN.tell(())

    assert [line.text for line in lines] == [
        f"Key {key.pk}: limits cannot be read; it is left out.",
        f"Upstream {upstream.pk}: secret cannot be read; it is left out.",
        'Upstream v cannot be used: a secret is {"env": "NAME"} or {"file": "/path"}.',
    ]
    assert of_member == []
    assert (pages, lists) == ([200] * 3, [200] * 2)
    assert many[4] == "6 rows cannot be read and are left out."


def test_an_upstream_without_its_secret_is_told_by_the_variables_name(root, monkeypatch):
    monkeypatch.delenv("NOBODY_SETS_THIS", raising=False)
    vllm = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="https://v/v1", secret={"env": "NOBODY_SETS_THIS"}
    )
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=vllm)

    [told] = notices(root)
    assert told.startswith("Upstream vllm cannot be used")
    assert "NOBODY_SETS_THIS" in told


def test_a_sealed_secret_is_a_secret(root):
    url = "https://v/v1"
    sealed = {SEALED: seal("sk-of-vllm", url)}
    vllm = Upstream.objects.create(name="vllm", dialect="chat", base_url=url, secret=sealed)
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=vllm)
    assert notices(root) == []
    Upstream.objects.update(base_url="https://elsewhere/v1")

    [told] = notices(root)
    assert told.startswith("Upstream vllm cannot be used")
    assert "sk-of-vllm" not in told


@pytest.mark.parametrize(
    ("usd", "words"),
    [("0.0050", None), ("0.0036", "83 % spent"), ("0.002", "is spent")],
)
def test_a_budget_near_its_limit_is_told(root, usd, words):
    cast.price()
    team = cast.team()
    post([cast.story(at=now() - timedelta(seconds=n)) for n in range(4)])  # 0.003 dollars
    Budget.objects.create(team=team, usd=Decimal(usd), period="month")

    told = notices(root)
    assert [words in one for one in told] == ([True] if words else [])


def test_a_member_is_told_of_their_own_budgets_only(client):
    cast.price()
    team = cast.team()
    ben = cast.staff("ben", groups=(MEMBER,))
    mine, _ = cast.key("ben", user=ben)
    stories = [
        cast.story(at=now() - timedelta(seconds=n), key=mine, opening={"user": "ben"})
        for n in range(4)
    ]
    post(stories)
    Budget.objects.create(team=team, usd=Decimal("0.001"))
    Budget.objects.create(user=ben, usd=Decimal("0.001"), period="day")
    client.force_login(ben)

    assert [one for one in notices(client) if "team" in one] == []
    assert len(notices(client)) == 1


def test_notices_take_a_fixed_number_of_queries(root, django_assert_num_queries):
    def ask():
        banner._told(user, banner.reader_of_user(user))

    user = User.objects.get(username="root")
    cast.price()
    post([cast.story(at=now())])
    Budget.objects.create(team=cast.team(), usd=1)
    ask()
    with django_assert_num_queries(7):
        ask()
    for n in range(8):
        Budget.objects.create(team=cast.team(f"team-{n}"), usd=1)
        post([cast.story(at=now(), team=f"team-{n}", body=cast.request_body(model=f"m{n}"))])
    with django_assert_num_queries(7):
        ask()


def test_what_was_told_is_kept_for_some_seconds(root, settings):
    settings.BANNER_FRESH_S = 60
    banner._kept.clear()
    assert notices(root) == []
    post([cast.story(at=now())])

    assert notices(root) == []
    banner._kept.clear()
    assert len(notices(root)) == 1
    banner._kept.clear()


class TestBudgets:
    def test_each_stands_where_the_books_say(self, root):
        cast.price()
        team = cast.team()
        post([cast.story(at=now() - timedelta(seconds=n)) for n in range(4)])
        Budget.objects.create(team=team, usd=Decimal("0.01"), period="month", zone="Asia/Tokyo")
        page = root.get("/admin/proxy/budget/").content.decode()

        assert "$0.0030 spent" in page
        assert "$0.0070 left" in page
        assert "Asia/Tokyo" in page

    def test_what_running_requests_hold_is_shown(self, root):
        from proxy.counters.store import Ceiling
        from proxy.counters.windows import window
        from proxy.record.spending import counter_of

        budget = Budget.objects.create(team=cast.team(), usd=2, period="day")
        name = counter_of(budget.pk, window("day", "UTC", now().timestamp()))
        budget_store().publish(name, 500_000_000)
        budget_store().reserve("req_1", "w1", 1_000_000_000, [Ceiling(name, None)])
        try:
            page = root.get("/admin/proxy/budget/").content.decode()
        finally:
            budget_store().forget([name])

        assert "$0.5000 spent" in page
        assert "$1.00 held" in page

    def test_the_list_takes_a_fixed_number_of_queries(self, root, django_assert_num_queries):
        for n in range(2):
            Budget.objects.create(team=cast.team(f"team-{n}"), usd=1)
        root.get("/admin/proxy/budget/")
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as few:
            root.get("/admin/proxy/budget/")
        for n in range(9):
            Budget.objects.create(team=cast.team(f"more-{n}"), usd=1)
        with django_assert_num_queries(len(few)):
            root.get("/admin/proxy/budget/")


def test_keys_show_what_they_spent_lately_and_nothing_is_not_zero(root):
    cast.price()
    ci, _ = cast.key("ci")
    cast.key("idle")
    post([cast.story(at=now() - timedelta(days=d), key=ci) for d in (0, 20, 40)])
    page = root.get("/admin/proxy/apikey/").content.decode()

    assert f"?key_id={ci.pk}&amp;within=30d" in page
    assert "$0.0015" in page  # of the last 30 days only
    assert "$0<" not in page


def test_prices_read_as_money(root):
    Price.objects.create(
        model="m", since=date(2026, 1, 1), input=Decimal("1.250000"), output=Decimal(10)
    )
    page = root.get("/admin/proxy/price/").content.decode()

    assert "1.25<" in page
    assert "10.00<" in page
    assert "as input" in page


def test_a_user_is_added_by_name(root):
    told = {"username": "zoe", "usable_password": "false"}

    assert root.post("/admin/auth/user/add/", told).status_code == 302

    assert User.objects.filter(username="zoe").exists()
