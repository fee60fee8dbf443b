"""Anthropic's Admin API on our books: its own SDK reads it, a collector's raw calls too."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import anthropic
import pytest
from django.contrib.auth.models import User

from proxy.models import ApiKey, Budget
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
USAGE = "/v1/organizations/usage_report/messages"
COST = "/v1/organizations/cost_report"
PAST = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def admin_key():
    return cast.key("finance", scopes=["admin"])[1]


@pytest.fixture
def ask(client, admin_key):
    def ask(url, **query):
        return client.get(url, query, headers={"authorization": f"Bearer {admin_key}"})

    return ask


def rows(answer):
    return [row for bucket in answer.json()["data"] for row in bucket["results"]]


def test_a_row_has_every_dimension_null_unless_grouped_by(ask):
    ci, _ = cast.key("ci")
    cast.record(key=ci)

    answer = ask(
        USAGE,
        starting_at="2026-11-19T10:00:00Z",
        ending_at="2026-11-22T00:00:00Z",
        **{"group_by[]": ["api_key_id", "service_tier"]},
    )

    empty, full, after = answer.json()["data"]
    assert (empty["starting_at"], empty["results"]) == ("2026-11-19T00:00:00Z", [])
    assert (after["ending_at"], after["results"]) == ("2026-11-22T00:00:00Z", [])
    assert full["results"] == [
        {
            "uncached_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "cache_read_input_tokens": 1000,
            "output_tokens": 50,
            "server_tool_use": {"web_search_requests": 0},
            "account_id": None,
            "api_key_id": f"apikey_{ci.pk}",
            "context_window": None,
            "inference_geo": None,
            "model": None,
            "service_account_id": None,
            "service_tier": "standard",
            "speed": None,
            "workspace_id": None,
        }
    ]
    assert answer.json()["has_more"] is False
    assert answer.json()["next_page"] is None


@pytest.mark.parametrize("width", ["1d", "1h", "1m"])
@pytest.mark.parametrize(
    "group", ["model", "workspace_id", "context_window", "session", "stop_reason", "inference_geo"]
)
def test_widths_and_groups_add_up_to_the_same(ask, width, group):
    ci, _ = cast.key("ci")
    for minutes in (0, 1, 61, 95):
        cast.record(
            at=cast.NOON + timedelta(minutes=minutes),
            key=ci,
            opening={"session_id": f"s{minutes % 2}"},
        )
    query = {
        "starting_at": "2026-11-20T12:00:00Z",
        "ending_at": "2026-11-20T13:40:00Z",
        "bucket_width": width,
        "limit": {"1d": 1, "1h": 2, "1m": 100}[width],
    }

    found = rows(ask(USAGE, group_by=group, **query))

    assert sum(row["uncached_input_tokens"] for row in found) == 400
    assert sum(row["output_tokens"] for row in found) == 200


def test_pages_are_contiguous_buckets(ask):
    for day in range(5):
        cast.record(at=cast.NOON - timedelta(days=day))
    query = {"starting_at": "2026-11-16T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z", "limit": 2}

    starts, page = [], ""
    for _ in range(3):
        answer = ask(USAGE, page=page, **query).json()
        starts += [bucket["starting_at"] for bucket in answer["data"]]
        page = answer["next_page"] or ""

    assert starts == [f"2026-11-{day}T00:00:00Z" for day in range(16, 21)]
    assert not page


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "starting_at: This field is required."),
        ({"starting_at": "soon"}, "starting_at: "),
        ({"starting_at": "2026-11-20T00:00:00Z", "bucket_width": "5m"}, "bucket_width: "),
        (
            {"starting_at": "2026-11-20T00:00:00Z", "limit": "32"},
            "limit: at most 31 for bucket_width 1d, not 32",
        ),
        (
            {"starting_at": "2026-11-20T00:00:00Z", "bucket_width": "1h", "limit": "169"},
            "limit: at most 168",
        ),
        ({"starting_at": "2026-11-20T00:00:00Z", "group_by[]": "shoe"}, "group_by: "),
        (
            {"starting_at": "2026-11-20T00:00:00Z", "page": "x"},
            "page: expected the next_page of an earlier answer, not 'x'",
        ),
        ({"starting_at": "2026-11-20T00:00:00Z", "page": "page_NQ"}, "page: "),
        (
            {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-19T00:00:00Z"},
            "ending_at: must be later than starting_at: 2026-11-19T00:00:00Z is not after 2026-11-20",
        ),
        ({"starting_at": "2026-11-20T00:00:00Z", "models_as": "x"}, "known: requested, upstream"),
        (
            {"starting_at": "2026-11-20T00:00:00Z", "limit": "0"},
            "limit: 0 is too little; 1 or more",
        ),
        ({"starting_at": "2026-11-20T00:00:00Z", "model": "x"}, "model: Extra inputs"),
    ],
)
def test_a_wrong_parameter_is_named(ask, query, words):
    answer = ask(USAGE, **query)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "filter_",
    [
        "models",
        "workspace_ids",
        "api_key_ids",
        "account_ids",
        "service_tiers",
        "context_window",
        "inference_geos",
    ],
)
@pytest.mark.parametrize("width", ["1d", "1m"])
def test_filters_keep_what_they_name(ask, filter_, width):
    ci, _ = cast.key("ci")
    cast.record(key=ci, opening={"user": "ben"})
    cast.record(
        team="research",
        opening={"key_id": 999, "user": "cleo"},
        body=cast.request_body(model="claude-haiku-5"),
        closing={
            "usage": {"input": 250_000, "output": 1, "service_tier": "flex", "source": "reported"}
        },
    )
    value = {
        "models": "claude-opus-5-5",
        "workspace_ids": "wrkspc_platform",
        "api_key_ids": f"apikey_{ci.pk}",
        "account_ids": "user_ben",
        "service_tiers": "standard",
        "context_window": "0-200k",
        "inference_geos": "us",
    }[filter_]

    found = rows(
        ask(
            USAGE,
            starting_at="2026-11-20T12:00:00Z",
            ending_at="2026-11-20T12:30:00Z",
            bucket_width=width,
            **{f"{filter_}[]": value},
        )
    )

    expected = 0 if filter_ == "inference_geos" else 100
    assert sum(row["uncached_input_tokens"] for row in found) == expected


@pytest.mark.parametrize("width", ["1d", "1m"])
def test_models_go_by_the_clients_name_or_by_the_upstreams(ask, width):
    cast.price()
    cast.record(body=cast.request_body(model="claude-opus"))
    cast.record(body=cast.request_body(model="claude-haiku"))
    span = {"starting_at": "2026-11-20T12:00:00Z", "ending_at": "2026-11-20T12:10:00Z"}
    theirs = {**span, "bucket_width": width, "models_as": "upstream"}

    asked = rows(ask(USAGE, group_by="model", **span | {"bucket_width": width}))
    served = rows(ask(USAGE, group_by=["model", "model_upstream"], **theirs))
    kept = rows(ask(USAGE, **{"models[]": "gpt-5.2"}, **theirs))
    others = rows(ask(USAGE, **{"models[]": "claude-opus"}, **theirs))

    assert [row["model"] for row in asked] == ["claude-haiku", "claude-opus"]
    assert [(row["model"], row["model_upstream"]) for row in served] == [("gpt-5.2", "gpt-5.2")]
    assert kept[0]["output_tokens"] == served[0]["output_tokens"] == 100
    assert others == []


@pytest.mark.parametrize("group", ["model", "description"])
def test_costs_go_by_the_upstreams_model_as_well(ask, group):
    cast.price()
    cast.record(body=cast.request_body(model="claude-opus"))
    cast.record(body=cast.request_body(model="claude-haiku"))
    day = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    found = rows(ask(COST, group_by=group, models_as="upstream", **day))

    assert {row["model"] for row in found} == {"gpt-5.2"}
    assert sum(Decimal(row["amount"]) for row in found) == Decimal("0.15")


def test_costs_are_decimal_cents_and_parts_add_up(ask):
    cast.price()
    for _ in range(3):
        cast.record()
    query = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    (whole,) = rows(ask(COST, **query))
    parts = rows(ask(COST, group_by=["description", "workspace_id"], **query))

    assert whole["amount"] == "0.225"  # 3 x 0.00075 dollars
    assert sum(Decimal(part["amount"]) for part in parts) == Decimal("0.225")
    assert {part["token_type"] for part in parts} == {
        "uncached_input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
    }
    assert {part["workspace_id"] for part in parts} == {"wrkspc_platform"}


def test_a_cost_without_a_price_is_null_and_told(ask):
    cast.record()

    (row,) = rows(ask(COST, starting_at="2026-11-20T00:00:00Z", ending_at="2026-11-21T00:00:00Z"))

    assert row["amount"] is None
    assert row["unpriced_requests"] == 1


def test_claude_code_by_key(ask):
    cast.price()
    ci, _ = cast.key("ci")
    cast.record(key=ci, opening={"session_id": "a"})
    cast.record(key=ci, opening={"session_id": "b"})
    cast.record(key=ci, opening={"client_name": "curl"})

    (row,) = ask("/v1/organizations/usage_report/claude_code", starting_at="2026-11-20").json()[
        "data"
    ]

    assert row["actor"] == {"type": "api_actor", "api_key_name": "platform/ci"}
    assert row["core_metrics"]["num_sessions"] == 2
    assert row["model_breakdown"][0]["tokens"]["input"] == 200
    assert row["model_breakdown"][0]["estimated_cost"] == {"amount": "0.15", "currency": "USD"}


@pytest.mark.django_db(transaction=True)
def test_the_official_sdk_reads_ours_unchanged(served_url):
    """Typed resources where it has them; ``_strict_response_validation`` makes it check shapes."""
    cast.price()
    ben = cast.staff("ben")
    ci, _ = cast.key("ci", user=ben)
    for number in range(3):
        cast.key(f"k{number}")
    _, secret = cast.key("finance", scopes=["admin"])
    cast.record(key=ci, at=cast.NOON, opening={"session_id": "s1"})
    Budget.objects.create(team=ci.team, usd=5)
    Budget.objects.create(user=ben, usd=7, period="week")
    sdk = anthropic.Anthropic(
        base_url=served_url, api_key=secret, max_retries=0, _strict_response_validation=True
    ).beta.organization
    span = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    keys = list(sdk.api_keys.list(limit=2))
    usage = list(sdk.analytics.usage.list(group_by=["model", "actor", "session_id"], **span))
    cost = list(sdk.analytics.cost.list(group_by=["workspace_id"], **span))

    assert sdk.retrieve().type == "organization"
    assert [key.name for key in keys] == ["finance", "k2", "k1", "k0", "ci"]
    assert keys[-1].principal.user_id == "user_ben"
    assert sdk.api_keys.retrieve(keys[0].id).status == "active"
    assert [user.id for user in sdk.users.list()] == ["user_ben"]
    assert [team.name for team in sdk.workspaces.list()] == ["platform"]
    assert [m.user_id for m in sdk.workspaces.members.list("wrkspc_platform")] == ["user_ben"]
    assert [limit.amount for limit in sdk.spend_limits.list(limit=1)] == ["500", "700"]
    assert {row.actor.type for row in sdk.spend_limits.effective.list()} == {
        "user_actor",
        "scoped_api_key_actor",
    }
    assert usage[0].usage.uncached_input_tokens == 100
    assert usage[0].group.session_id == "s1"
    assert usage[0].group.actor.api_key_id == f"apikey_{ci.pk}"
    assert cost[0].cost.amount == "0.075"
    with pytest.raises(anthropic.NotFoundError):
        sdk.api_keys.retrieve("apikey_999999")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_the_official_sdk_reads_both_reports_page_by_page(served_url, header, version):
    """It has no method of its own for them, so these are raw calls: its URLs, headers and JSON."""
    cast.price()
    ci, _ = cast.key("ci")
    for day in range(3):
        cast.record(key=ci, at=cast.NOON - timedelta(days=day))
    _, secret = cast.key("finance", scopes=["admin"])
    told = secret if header == "x-api-key" else f"Bearer {secret}"
    sent = {"Authorization": anthropic.omit, "x-api-key": anthropic.omit}
    sent |= {header.title() if header == "authorization" else header: told}

    def pages(sdk, path, **query):
        page = {}
        while page is not None:
            options = {"params": query | page, "headers": sent | {"anthropic-version": version}}
            answer = sdk.get(path, cast_to=dict[str, object], options=options)
            yield from answer["data"]
            page = {"page": answer["next_page"]} if answer["has_more"] else None

    span = {"starting_at": "2026-11-18T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z", "limit": 2}
    with anthropic.Anthropic(base_url=served_url, api_key=secret, max_retries=0) as sdk:
        usage = list(pages(sdk, USAGE, **span, group_by=["model", "api_key_id"]))
        costs = list(pages(sdk, COST, **span, group_by=["description"]))

    assert [bucket["starting_at"][:10] for bucket in usage] == [
        f"2026-11-{d}" for d in (18, 19, 20)
    ]
    assert [len(bucket["results"]) for bucket in usage] == [1, 1, 1]
    assert usage[0]["results"][0]["api_key_id"] == f"apikey_{ci.pk}"
    assert sum(Decimal(row["amount"]) for day in costs for row in day["results"]) == Decimal(
        "0.225"
    )


def test_a_keys_status_is_what_the_gateway_decides(ask):
    cast.key("valid")
    cast.key("expired", expires=PAST)
    cast.key("revoked", revoked=PAST, expires=PAST)
    cast.key("left", user=User.objects.create(username="left", is_active=False))
    empty, _ = cast.key("empty")
    ApiKey.objects.filter(pk=empty.pk).update(prefix="", digest=None)
    rotated, _ = cast.key("rotated")
    old, _ = rotated.rotate(timedelta(hours=1))
    ApiKey.objects.filter(pk=rotated.pk).update(revoked=PAST)

    data = ask("/v1/organizations/api_keys", limit=100).json()["data"]

    statuses = {row["name"]: row["status"] for row in data}
    assert statuses == {
        "finance": "active",
        "valid": "active",
        "expired": "expired",
        "revoked": "inactive",
        "left": "inactive",
        "empty": "inactive",
        "rotated": "inactive",
        old.name: "inactive",
    }
