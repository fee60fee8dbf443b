"""A cost on every screen: the report's own, unknown where nobody knows it, never $0 for that."""

from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.admin.figures import duration
from proxy.models import Budget
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

USED = {"input": 100, "output": 50, "cache_read": 1000, "cache_write_5m": 700,
        "cache_write_1h": 200, "source": "reported"}  # fmt: skip
FAILED = {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {},
          "error_type": "overloaded_error"}  # fmt: skip


def talk(session, **closing):
    return cast.record(opening={"session_id": session}, closing=closing)


def listed(client):
    page = client.get("/admin/sessions/?day=2026-11-20")
    return {one["id"]: one for one in page.context["sessions"]}


def reported(client):
    found = client.get("/api/v1/sessions/?from=2026-11-20&to=2026-11-21").json()["data"]
    return {one["session_id"]: one for one in found}


def test_a_session_without_any_price_costs_what_nobody_knows(root):
    talk("unpriced", usage=USED)

    assert (listed(root)["unpriced"]["cost"], listed(root)["unpriced"]["floor"]) == (
        "no price",
        False,
    )
    assert reported(root)["unpriced"]["cost_usd"] is None
    page = root.get("/admin/sessions/one/?id=unpriced").content.decode()
    assert "<h1>no price <span" in page
    assert "at least" not in page


def test_a_session_with_some_prices_costs_at_least_so_much(root):
    talk("some", usage=USED)
    cast.price()
    talk("some", usage=USED)

    assert listed(root)["some"]["cost"].startswith("$0.00")
    assert listed(root)["some"]["floor"] is True
    assert (
        "at least: some have no price" in root.get("/admin/sessions/one/?id=some").content.decode()
    )


def test_what_is_written_to_a_cache_was_sent_and_not_read_from_it(root):
    talk("writes", usage=USED)

    one = listed(root)["writes"]
    page = root.get("/admin/sessions/one/?id=writes").context["totals"]
    assert (one["input"], one["cached"]) == (page["input"], page["cached"]) == ("2,000", "50 %")
    row = reported(root)["writes"]
    assert (row["cache_write_5m_tokens"], row["cache_write_1h_tokens"]) == (700, 200)


def test_a_session_lasts_until_its_last_request_has_ended(root):
    talk("long", usage=USED)

    page = root.get("/admin/sessions/one/?id=long")
    assert listed(root)["long"]["length"] == page.context["totals"]["length"] == "10.0 s"


def test_of_many_models_three_are_named_and_the_rest_counted(root):
    for n in range(5):
        cast.record(opening={"session_id": "many"}, body=cast.request_body(model=f"claude-{n}"))

    page = root.get("/admin/sessions/?day=2026-11-20").content.decode()

    assert page.count('class="mb-model"') == 3
    assert "and 2 more" in page


def test_what_failed_before_a_token_is_not_called_unpriced(root):
    row = talk("failed", **FAILED)

    page = root.get(f"/admin/proxy/exchange/{row.pk}/change/")
    lines = root.get("/admin/proxy/exchange/").context["lines"]

    assert page.context["cost"] == lines[0].cost == "—"
    assert not root.get("/admin/proxy/exchange/?cost=none").context["lines"]


def test_keys_of_the_same_name_are_told_apart_by_their_team(root):
    for team in ("platform", "research"):
        cast.record(at=now() - timedelta(hours=1), team=team, key=cast.key("ci", of=team)[0])

    rankings = {one.slug: one for one in root.get("/admin/").context["rankings"]}

    assert {row.name for row in rankings["key"].rows} == {"platform / ci", "research / ci"}


def test_forms_that_take_money_say_of_what(root):
    price = root.get("/admin/proxy/price/add/").content.decode()
    budget = Budget.objects.create(team=cast.team(), usd="400")
    page = root.get(f"/admin/proxy/budget/{budget.pk}/change/").content.decode()

    assert "Input, $ per million tokens" in price
    assert "Empty: charged as input." in price
    assert "Limit, $" in page
    assert 'value="400"' in page
    assert "400 USD a month" in page


def test_a_price_is_told_with_what_it_is_for(root):
    cast.price()
    row = talk("priced", usage=USED)

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
def test_a_length_of_time_has_the_units_that_it_needs(ms, words):
    assert duration(ms) == words
