"""The cost on every page equals that of the reports; an unknown cost does not show as $0."""

from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.admin.core.number_format import duration
from proxy.models import Budget
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

USED = {"input": 100, "output": 50, "cache_read": 1000, "cache_write_5m": 700,
        "cache_write_1h": 200, "source": "reported"}  # fmt: skip
FAILED = {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {},
          "error_type": "overloaded_error"}  # fmt: skip


def add_request(session, **closing):
    return factories.record(opening={"session_id": session}, closing=closing)


def listed(client):
    page = client.get("/admin/sessions/?day=2026-11-20")
    return {row["id"]: row for row in page.context["sessions"]}


def reported(client):
    found = client.get("/api/v1/sessions/?from=2026-11-20&to=2026-11-21").json()["data"]
    return {row["session_id"]: row for row in found}


def test_a_session_without_any_price_shows_no_price(root):
    add_request("unpriced", usage=USED)

    assert (listed(root)["unpriced"]["cost"], listed(root)["unpriced"]["is_minimum"]) == (
        "no price",
        False,
    )
    assert reported(root)["unpriced"]["cost_usd"] is None
    page = root.get("/admin/sessions/one/?id=unpriced").content.decode()
    assert "<h1>no price <span" in page
    assert "at least" not in page


def test_a_session_with_some_prices_shows_a_minimum_cost(root):
    add_request("some", usage=USED)
    factories.price()
    add_request("some", usage=USED)

    assert listed(root)["some"]["cost"].startswith("$0.00")
    assert listed(root)["some"]["is_minimum"] is True
    assert (
        "at least: some requests have no price"
        in root.get("/admin/sessions/one/?id=some").content.decode()
    )


def test_cache_writes_count_as_uncached_input(root):
    add_request("writes", usage=USED)

    session = listed(root)["writes"]
    page = root.get("/admin/sessions/one/?id=writes").context["totals"]
    assert (
        (session["input"], session["cached"])
        == (page["input"], page["cached"])
        == ("2,000", "50 %")
    )
    row = reported(root)["writes"]
    assert (row["cache_write_5m_tokens"], row["cache_write_1h_tokens"]) == (700, 200)


def test_a_session_lasts_until_its_last_request_ends(root):
    add_request("long", usage=USED)

    page = root.get("/admin/sessions/one/?id=long")
    assert listed(root)["long"]["length"] == page.context["totals"]["length"] == "10.0 s"


def test_three_models_are_named_and_the_others_counted(root):
    for n in range(5):
        factories.record(
            opening={"session_id": "many"}, body=factories.request_body(model=f"claude-{n}")
        )

    page = root.get("/admin/sessions/?day=2026-11-20").content.decode()

    assert page.count('class="mb-model"') == 3
    assert "and 2 more" in page


def test_a_failure_without_tokens_is_not_unpriced(root):
    row = add_request("failed", **FAILED)

    page = root.get(f"/admin/proxy/exchange/{row.pk}/change/")
    [group] = root.get("/admin/proxy/exchange/").context["groups"]
    rows = group["rows"]

    assert page.context["cost"] == rows[0]["cost"] == "—"
    assert not root.get("/admin/proxy/exchange/?cost=none").context["groups"]


def test_keys_of_the_same_name_show_their_team(root):
    for team in ("platform", "research"):
        factories.record(
            at=now() - timedelta(hours=1), team=team, key=factories.key("ci", of=team)[0]
        )

    rankings = {ranking["slug"]: ranking for ranking in root.get("/admin/").context["rankings"]}

    assert {row["name"] for row in rankings["key"]["rows"]} == {"platform / ci", "research / ci"}


def test_money_fields_show_their_unit(root):
    price = root.get("/admin/proxy/price/add/").content.decode()
    budget = Budget.objects.create(team=factories.team(), usd="400")
    page = root.get(f"/admin/proxy/budget/{budget.pk}/change/").content.decode()

    assert "Input, $ per million tokens" in price
    assert "Empty: charged as input." in price
    assert "Limit, $" in page
    assert 'value="400"' in page
    assert "$400.00 a month" in page


def test_the_record_shows_the_price_with_its_unit(root):
    factories.price()
    row = add_request("priced", usage=USED)

    page = root.get(f"/admin/proxy/exchange/{row.pk}/change/?tab=record").content.decode()

    assert (
        "gpt-5.2 since 2026-01-01: input $1.25, output $10, cache read $0.125 per million tokens"
        in page
    )


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (None, "—"),
        (999, "999 ms"),
        (59_900, "59.9 s"),
        (61_000, "1 min 01 s"),
        (3_600_000, "1 h 00 min"),
        (82_858_000, "23 h 00 min"),
        (180_000_000, "2 d 2 h"),
    ],
)
def test_durations_use_suitable_units(ms, words):
    assert duration(ms) == words
