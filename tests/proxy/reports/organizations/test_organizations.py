"""Anthropic's Admin API on the ledger, read by raw requests."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User

from proxy.models import ApiKey
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
USAGE = "/v1/organizations/usage_report/messages"
COST = "/v1/organizations/cost_report"
PAST = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def admin_key():
    return factories.key("finance", scopes=["admin"])[1]


@pytest.fixture
def get_report(client, admin_key):
    def get_report(url, **query):
        return client.get(url, query, headers={"authorization": f"Bearer {admin_key}"})

    return get_report


def rows(answer):
    return [row for bucket in answer.json()["data"] for row in bucket["results"]]


def test_a_row_has_every_dimension_null_unless_grouped_by(get_report):
    ci, _ = factories.key("ci")
    factories.record(key=ci)

    answer = get_report(
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
def test_all_widths_and_groups_have_the_same_sums(get_report, width, group):
    ci, _ = factories.key("ci")
    for minutes in (0, 1, 61, 95):
        factories.record(
            at=factories.NOON + timedelta(minutes=minutes),
            key=ci,
            opening={"session_id": f"s{minutes % 2}"},
        )
    query = {
        "starting_at": "2026-11-20T12:00:00Z",
        "ending_at": "2026-11-20T13:40:00Z",
        "bucket_width": width,
        "limit": {"1d": 1, "1h": 2, "1m": 100}[width],
    }

    result_rows = rows(get_report(USAGE, group_by=group, **query))

    assert sum(row["uncached_input_tokens"] for row in result_rows) == 400
    assert sum(row["output_tokens"] for row in result_rows) == 200


@pytest.mark.parametrize("report", [USAGE, COST])
@pytest.mark.parametrize("last", [[], ["session"]])
def test_two_names_of_one_dimension_can_be_grouped_by(get_report, report, last):
    factories.record(opening={"user": "ben"})
    query = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}
    names = ["account_id", "user", "workspace_id", "team", *last]

    (row,) = rows(get_report(report, group_by=names, **query))

    assert (row["account_id"], row["user"]) == ("user_ben", "ben")
    assert (row["workspace_id"], row["team"]) == ("wrkspc_platform", "platform")


def test_pages_are_contiguous_buckets(get_report):
    for day in range(5):
        factories.record(at=factories.NOON - timedelta(days=day))
    query = {"starting_at": "2026-11-16T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z", "limit": 2}

    starts, page = [], ""
    for _ in range(3):
        answer = get_report(USAGE, page=page, **query).json()
        starts += [bucket["starting_at"] for bucket in answer["data"]]
        page = answer["next_page"] or ""

    assert starts == [f"2026-11-{day}T00:00:00Z" for day in range(16, 21)]
    assert not page


@pytest.mark.parametrize(
    ("query", "message"),
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
            "limit: 0 is too small; the minimum is 1",
        ),
        ({"starting_at": "2026-11-20T00:00:00Z", "model": "x"}, "model: Extra inputs"),
    ],
)
def test_an_invalid_parameter_is_named(get_report, query, message):
    answer = get_report(USAGE, **query)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert message in answer.json()["error"]["message"]


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
def test_a_filter_returns_only_matching_rows(get_report, filter_, width):
    ci, _ = factories.key("ci")
    factories.record(key=ci, opening={"user": "ben"})
    factories.record(
        team="research",
        opening={"key_id": 999, "user": "cleo"},
        body=factories.request_body(model="claude-haiku-5"),
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

    result_rows = rows(
        get_report(
            USAGE,
            starting_at="2026-11-20T12:00:00Z",
            ending_at="2026-11-20T12:30:00Z",
            bucket_width=width,
            **{f"{filter_}[]": value},
        )
    )

    expected = 0 if filter_ == "inference_geos" else 100
    assert sum(row["uncached_input_tokens"] for row in result_rows) == expected


@pytest.mark.parametrize("width", ["1d", "1m"])
def test_models_have_the_clients_name_or_the_upstreams(get_report, width):
    factories.price()
    factories.record(body=factories.request_body(model="claude-opus"))
    factories.record(body=factories.request_body(model="claude-haiku"))
    span = {"starting_at": "2026-11-20T12:00:00Z", "ending_at": "2026-11-20T12:10:00Z"}
    upstream_query = {**span, "bucket_width": width, "models_as": "upstream"}

    requested = rows(get_report(USAGE, group_by="model", **span | {"bucket_width": width}))
    served = rows(get_report(USAGE, group_by=["model", "model_upstream"], **upstream_query))
    matching = rows(get_report(USAGE, **{"models[]": "gpt-5.2"}, **upstream_query))
    others = rows(get_report(USAGE, **{"models[]": "claude-opus"}, **upstream_query))

    assert [row["model"] for row in requested] == ["claude-haiku", "claude-opus"]
    assert [(row["model"], row["model_upstream"]) for row in served] == [("gpt-5.2", "gpt-5.2")]
    assert matching[0]["output_tokens"] == served[0]["output_tokens"] == 100
    assert others == []


@pytest.mark.parametrize("group", ["model", "description"])
def test_costs_can_have_the_upstreams_model_name(get_report, group):
    factories.price()
    factories.record(body=factories.request_body(model="claude-opus"))
    factories.record(body=factories.request_body(model="claude-haiku"))
    day = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    result_rows = rows(get_report(COST, group_by=group, models_as="upstream", **day))

    assert {row["model"] for row in result_rows} == {"gpt-5.2"}
    assert sum(Decimal(row["amount"]) for row in result_rows) == Decimal("0.15")


def test_costs_are_decimal_cents_and_parts_add_up(get_report):
    factories.price()
    for _ in range(3):
        factories.record()
    query = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    (whole,) = rows(get_report(COST, **query))
    parts = rows(get_report(COST, group_by=["description", "workspace_id"], **query))

    assert whole["amount"] == "0.225"  # 3 x 0.00075 dollars
    assert sum(Decimal(part["amount"]) for part in parts) == Decimal("0.225")
    assert {part["token_type"] for part in parts} == {
        "uncached_input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
    }
    assert {part["workspace_id"] for part in parts} == {"wrkspc_platform"}


def test_a_cost_without_a_price_is_null_and_counted(get_report):
    factories.record()

    (row,) = rows(
        get_report(COST, starting_at="2026-11-20T00:00:00Z", ending_at="2026-11-21T00:00:00Z")
    )

    assert row["amount"] is None
    assert row["unpriced_requests"] == 1


def test_the_claude_code_report_has_one_row_per_key(get_report):
    factories.price()
    ci, _ = factories.key("ci")
    factories.record(key=ci, opening={"session_id": "a"})
    factories.record(key=ci, opening={"session_id": "b"})
    factories.record(key=ci, opening={"client_name": "curl"})

    (row,) = get_report(
        "/v1/organizations/usage_report/claude_code", starting_at="2026-11-20"
    ).json()["data"]

    assert row["actor"] == {"type": "api_actor", "api_key_name": "platform/ci"}
    assert row["core_metrics"]["num_sessions"] == 2
    assert row["model_breakdown"][0]["tokens"]["input"] == 200
    assert row["model_breakdown"][0]["estimated_cost"] == {"amount": "0.15", "currency": "USD"}


def test_the_status_of_a_key_is_the_gateways_decision(get_report):
    factories.key("valid")
    factories.key("expired", expires=PAST)
    factories.key("revoked", revoked=PAST, expires=PAST)
    factories.key("left", user=User.objects.create(username="left", is_active=False))
    empty, _ = factories.key("empty")
    ApiKey.objects.filter(pk=empty.pk).update(prefix="", digest=None)
    rotated, _ = factories.key("rotated")
    old, _ = rotated.rotate(timedelta(hours=1))
    ApiKey.objects.filter(pk=rotated.pk).update(revoked=PAST)

    data = get_report("/v1/organizations/api_keys", limit=100).json()["data"]

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
