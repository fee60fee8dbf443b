"""The frame of each admin page: the CSP, the sidebar and the notices."""

import re
from datetime import date, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now

from proxy.admin import site_notices
from proxy.counters.backends import shared_store
from proxy.counters.failover import FailoverStore
from proxy.counters.redis_store import RedisStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.encryption.upstream_secrets import encrypt_secret
from proxy.gateway.snapshot import config_cache
from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import Budget, DrainWatermark, Price, Route, RouteTarget, Upstream, Webhook
from proxy.models.setup.columns import SEALED
from proxy.models.setup.config_row_validation import SKIPPED
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.clock import Clock

from . import factories

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
    "/admin/search/texts/?q=key",
)


def notices(client, url="/admin/password_change/"):
    return [notice.text for notice in client.get(url).context["banner"]]


@pytest.mark.parametrize("url", PAGES)
def test_no_page_has_or_allows_inline_scripts_or_styles(client, url):
    if "login" not in url:
        client.force_login(factories.superuser())
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


def test_a_read_only_object_has_no_inline_styles(root):
    """Read-only JSON is plain text; the theme would color it by inline styles."""
    body = {"field": "<b style=x>&"}
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://vllm/v1", managed=True, extra_body=body
    )
    team = factories.team("ada", managed=True, limits={"rpm": 60})

    for kind, obj in (("upstream", upstream), ("team", team)):
        page = root.get(f"/admin/proxy/{kind}/{obj.pk}/change/").content.decode()
        assert not re.search(r"<[^>]*\sstyle=", page)
        assert '<pre class="mb-json">' in page
        assert "<b style" not in page


def test_404_and_403_use_the_projects_own_pages(client):
    client.force_login(factories.staff("olga"))
    missing, forbidden = client.get("/admin/nowhere/"), client.get("/admin/proxy/team/")

    assert (missing.status_code, forbidden.status_code) == (404, 403)
    assert "The page does not exist" in missing.content.decode()
    assert "Your account lacks the permission" in forbidden.content.decode()
    assert "unsafe" not in missing["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("role", "seen", "unseen"),
    [
        (MEMBER, {"Dashboard", "Requests", "Keys", "Budgets"}, {"Teams", "Upstreams", "Users"}),
        (AUDITOR, {"Dashboard", "Teams", "Upstreams", "Prices", "Users"}, set()),
        (OWNER, {"Dashboard", "Teams", "Keys", "Users"}, set()),
        (None, set(), {"Dashboard", "Requests", "Keys", "Users"}),
    ],
)
def test_the_sidebar_links_only_to_permitted_pages(client, role, seen, unseen):
    client.force_login(factories.staff("sam", groups=(role,) if role else ()))
    page = client.get("/admin/")
    links = {
        item["title"]: item["link"]
        for group in page.context["sidebar_navigation"]
        for item in group["items"]
    }

    assert seen <= set(links)
    assert not unseen & set(links)
    assert [client.get(link).status_code for link in links.values()] == [200] * len(links)


def test_without_problems_there_are_no_notices(root):
    assert notices(root) == []


def test_models_without_a_price_are_listed(root):
    write_to_database([factories.exchange_records(at=now() - timedelta(hours=1)) for _ in range(2)])

    assert notices(root) == ["2 requests of the last 7 days without a price: gpt-5.2 at openai."]
    listed = root.get(root.get("/admin/").context["banner"][0].url)
    assert len(listed.context["cl"].result_list) == 2
    unpriced = root.get("/admin/proxy/price/").context["unpriced_models"]
    assert [(row["model"], row["upstream"], row["count"]) for row in unpriced] == [
        ("gpt-5.2", "openai", 2)
    ]


def test_a_late_drainer_has_a_notice(root):
    DrainWatermark.objects.create(
        journal="a", as_of=now() - timedelta(minutes=5), backlog=1200, seen=now()
    )
    DrainWatermark.objects.create(journal="b", as_of=now(), backlog=3, seen=now())

    [notice] = notices(root)
    assert notice.startswith("1,200 records wait to be posted, the oldest since")


def test_an_unreachable_redis_has_a_notice(root, monkeypatch, tmp_path):
    shared, local = RedisStore("redis://127.0.0.1:1/0"), SqliteStore(tmp_path / "counters")
    failover = FailoverStore(shared, local, Clock(1.0))  # a page may take longer than the pause
    # The store of the settings cannot be closed with its connections.
    monkeypatch.setattr(site_notices, "shared_store", lambda: failover)
    assert notices(root) == []
    failover.standing("x")  # the call fails over to the local store

    [notice] = notices(root)
    assert notice.startswith("Redis cannot be reached")
    shared.close()
    local.close()


def test_the_sandbox_has_a_badge_and_a_notice(root):
    sandbox = Upstream.objects.create(
        name="sandbox", dialect="responses", base_url="http://127.0.0.1:1/v1"
    )
    assert notices(root) == []
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=sandbox)

    [notice] = notices(root)
    assert "sandbox" in notice
    assert (
        ">\n    Sandbox" in root.get("/admin/").content.decode()
        or "Sandbox" in root.get("/admin/").content.decode().split("</header>", maxsplit=1)[0]
    )


def test_a_notice_links_only_to_permitted_pages(root, client):
    sandbox = Upstream.objects.create(
        name="sandbox", dialect="responses", base_url="http://127.0.0.1:1/v1"
    )
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=sandbox)
    ben = factories.staff("ben", groups=("member",))
    Budget.objects.create(user=ben, usd=0, period="day")
    [*_, of_root] = root.get("/admin/").context["banner"]
    client.force_login(ben)

    [of_budget, of_ben] = client.get("/admin/").context["banner"]

    assert of_root.url == "/admin/proxy/route/"
    assert (of_ben.text, of_ben.url) == (of_root.text, "")
    assert client.get(of_budget.url).status_code == 200


def test_unreadable_rows_have_a_notice_for_users_who_see_everything(root, client):
    key, _ = factories.key("ci", limits=[60])
    upstream = Upstream.objects.create(name="v", dialect="chat", base_url="http://v", secret=5)
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=upstream)
    SKIPPED.update(config_cache.read_database().unreadable)
    try:
        listed = root.get("/admin/password_change/").context["banner"]
        pages = [root.get(notice.url).status_code for notice in listed]
        lists = [root.get(f"/admin/proxy/{name}/").status_code for name in ("apikey", "upstream")]
        SKIPPED.update([*SKIPPED.rows] * 3)
        many = notices(root)
        client.force_login(factories.staff("ben", groups=(MEMBER,)))
        of_member = notices(client)
    finally:
        SKIPPED.update(())

    assert [notice.text for notice in listed] == [
        f"Key {key.pk}: limits cannot be read; it is skipped.",
        f"Upstream {upstream.pk}: secret cannot be read; it is skipped.",
        'Upstream v cannot be used: a secret is { env = "NAME" } or { file = "/path" }.',
    ]
    assert of_member == []
    assert (pages, lists) == ([200] * 3, [200] * 2)
    assert many[4] == "6 rows cannot be read and are skipped."


@pytest.mark.parametrize("value", [7, "x", [7], {"a": 1}])
def test_lists_show_a_value_that_cannot_be_read(root, value):
    key, _ = factories.key("ci", scopes=value)
    budget = Budget.objects.create(team=key.team, usd=5, models_covered=value)
    Webhook.objects.create(name="w", url="https://x.example", secret={"env": "X"}, events=value)
    write_to_database([factories.exchange_records(at=now(), key=key)])

    for url in ("apikey/", "budget/", "webhook/", f"budget/{budget.pk}/change/"):
        page = root.get(f"/admin/proxy/{url}")

        assert page.status_code == 200
        assert "(cannot be read)" in page.content.decode()
    assert root.get("/admin/").status_code == 200


def test_a_missing_upstream_secret_has_a_notice_with_the_variable(root, monkeypatch):
    monkeypatch.delenv("UNSET_VARIABLE", raising=False)
    vllm = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="https://v/v1", secret={"env": "UNSET_VARIABLE"}
    )
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=vllm)

    [notice] = notices(root)
    assert notice.startswith("Upstream vllm cannot be used")
    assert "UNSET_VARIABLE" in notice


def test_an_encrypted_secret_works_only_for_its_base_url(root):
    url = "https://v/v1"
    sealed = {SEALED: encrypt_secret("sk-of-vllm", url)}
    vllm = Upstream.objects.create(name="vllm", dialect="chat", base_url=url, secret=sealed)
    RouteTarget.objects.create(route=Route.objects.create(model="q*"), upstream=vllm)
    assert notices(root) == []
    Upstream.objects.update(base_url="https://elsewhere/v1")

    [notice] = notices(root)
    assert notice.startswith("Upstream vllm cannot be used")
    assert "sk-of-vllm" not in notice


@pytest.mark.parametrize(
    ("usd", "text"),
    [("0.0050", None), ("0.0036", "83 % spent"), ("0.002", "is spent")],
)
def test_a_budget_near_its_limit_has_a_notice(root, usd, text):
    factories.price()
    team = factories.team()
    write_to_database(
        [factories.exchange_records(at=now() - timedelta(seconds=n)) for n in range(4)]
    )  # 0.003 dollars
    Budget.objects.create(team=team, usd=Decimal(usd), period="month")

    found = notices(root)
    assert [text in notice for notice in found] == ([True] if text else [])


def test_a_member_gets_notices_of_their_own_budgets_only(client):
    factories.price()
    team = factories.team()
    ben = factories.staff("ben", groups=(MEMBER,))
    mine, _ = factories.key("ben", user=ben)
    records = [
        factories.exchange_records(
            at=now() - timedelta(seconds=n), key=mine, opening={"user": "ben"}
        )
        for n in range(4)
    ]
    write_to_database(records)
    Budget.objects.create(team=team, usd=Decimal("0.001"))
    Budget.objects.create(user=ben, usd=Decimal("0.001"), period="day")
    client.force_login(ben)

    assert [notice for notice in notices(client) if "team" in notice] == []
    assert len(notices(client)) == 1


def test_notices_take_a_limited_number_of_queries(root, django_assert_max_num_queries):
    def collect():
        site_notices.collect_notices(user, site_notices.reader_of_user(user))

    user = User.objects.get(username="root")
    factories.price()
    write_to_database([factories.exchange_records(at=now())])
    Budget.objects.create(team=factories.team(), usd=1)
    collect()
    # One query fewer in the first quarter hour of a day.
    with django_assert_max_num_queries(8):
        collect()
    for n in range(8):
        Budget.objects.create(team=factories.team(f"team-{n}"), usd=1)
        write_to_database(
            [
                factories.exchange_records(
                    at=now(), team=f"team-{n}", body=factories.request_body(model=f"m{n}")
                )
            ]
        )
    with django_assert_max_num_queries(8):
        collect()


def test_notices_are_cached_for_some_seconds(root, settings):
    settings.BANNER_FRESH_S = 60
    site_notices.cached_notices.clear()
    assert notices(root) == []
    write_to_database([factories.exchange_records(at=now())])

    assert notices(root) == []
    site_notices.cached_notices.clear()
    assert len(notices(root)) == 1
    site_notices.cached_notices.clear()


class TestBudgets:
    def test_the_usage_of_a_budget_equals_the_ledger(self, root):
        factories.price()
        team = factories.team()
        write_to_database(
            [factories.exchange_records(at=now() - timedelta(seconds=n)) for n in range(4)]
        )
        Budget.objects.create(team=team, usd=Decimal("0.01"), period="month", zone="Asia/Tokyo")
        page = root.get("/admin/proxy/budget/").content.decode()

        assert "$0.0030 spent" in page
        assert "$0.0070 left" in page
        assert "Asia/Tokyo" in page

    def test_the_reservations_of_running_requests_are_shown(self, root):
        from proxy.counters.budget_periods import window
        from proxy.counters.store import Take
        from proxy.ledger.posting.budget_sync import counter_name

        budget = Budget.objects.create(team=factories.team(), usd=2, period="day")
        name = counter_name(budget.pk, window("day", "UTC", now().timestamp()))
        shared_store().publish(name, 500_000_000)
        shared_store().take("req_1", "w1", [Take(name, 1_000_000_000)])
        try:
            page = root.get("/admin/proxy/budget/").content.decode()
        finally:
            shared_store().forget([name])

        assert "$0.5000 spent" in page
        assert "$1.00 reserved" in page

    def test_the_list_takes_a_fixed_number_of_queries(self, root, django_assert_num_queries):
        for n in range(2):
            Budget.objects.create(team=factories.team(f"team-{n}"), usd=1)
        root.get("/admin/proxy/budget/")
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as few:
            root.get("/admin/proxy/budget/")
        for n in range(9):
            Budget.objects.create(team=factories.team(f"more-{n}"), usd=1)
        with django_assert_num_queries(len(few)):
            root.get("/admin/proxy/budget/")


def test_keys_show_their_cost_of_30_days_and_no_zero(root):
    factories.price()
    ci, _ = factories.key("ci")
    factories.key("idle")
    write_to_database(
        [factories.exchange_records(at=now() - timedelta(days=d), key=ci) for d in (0, 20, 40)]
    )
    page = root.get("/admin/proxy/apikey/").content.decode()

    assert f"?key_id={ci.pk}&amp;within=30d" in page
    assert "$0.0015" in page  # of the last 30 days only
    assert "$0<" not in page


def test_prices_are_formatted_as_money(root):
    Price.objects.create(
        model="m", since=date(2026, 1, 1), input=Decimal("1.250000"), output=Decimal(10)
    )
    page = root.get("/admin/proxy/price/").content.decode()

    assert "1.25<" in page
    assert "10.00<" in page
    assert "as input" in page


def test_a_user_is_added_by_name(root):
    form = {"username": "zoe", "usable_password": "false"}

    assert root.post("/admin/auth/user/add/", form).status_code == 302

    assert User.objects.filter(username="zoe").exists()
