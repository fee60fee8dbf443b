"""Filters of the request list: each recorded column has one, and it returns only matching rows."""

from datetime import timedelta

import pytest
from django.db import connection

from proxy.models import Exchange
from proxy.reports.core.query_parameters import FILTERS
from proxy.reports.requests import filters
from tests.fakes.stopped_queries import stopped_queries
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}
RARE = {  # column -> the query that selects its rare value
    "outcome": {"outcome": "upstream_error"},
    "status": {"status": "529"},
    "stop_reason": {"stop_reason": "rare"},
    "error_type": {"error_type": "overloaded_error"},
    "error_message": {"error_message": "MUCH to do"},
    "error_source": {"error_source": "upstream"},
    "detail": {"error_code": "rare"},
    "finished": {"finished_from": "2026-11-20T15:00:00+01:00", "finished_to": "2026-11-21"},
    "queue_ms": {"min_queue_ms": "70"},
    "ttft_ms": {"min_ttft_ms": "70000"},
    "total_ms": {"min_total_ms": "70000", "max_total_ms": "80000"},
    "upstream_ms": {"min_upstream_ms": "70000"},
    "overhead_ms": {"min_overhead_ms": "70"},
    "team": {"team": "rare"},
    "key_id": {"key_id": "apikey_77"},
    "user": {"user": "rare"},
    "session_id": {"session_id": "rare"},
    "agent_id": {"agent_id": "rare"},
    "parent_agent_id": {"parent_agent_id": "rare"},
    "ip": {"ip": "10.7.7.7"},
    "user_agent": {"user_agent": "rare/1"},
    "client_name": {"client": "rare"},
    "client_version": {"client_version": "7.7"},
    "api_version": {"api_version": "2026-10-21"},
    "betas": {"beta": "rare-2026"},
    "tags": {"tag": "ticket:B-7"},
    "traceparent": {"traceparent": "00-rare"},
    "endpoint": {"endpoint": "count_tokens"},
    "stream": {"stream": "false"},
    "model_requested": {"model": "rare"},
    "model_upstream": {"model_upstream": "rare"},
    "upstream": {"upstream": "rare"},
    "dialect": {"dialect": "chat"},
    "upstream_status": {"upstream_status": "529"},
    "upstream_request_id": {"upstream_request_id": "rare"},
    "attempts": {"retried": "true"},
    "notes": {"has_notes": "true"},
    "unknown_events": {"has_unknown_events": "true"},
    "input_tokens": {"min_input_tokens": "7000"},
    "input_source": {"input_source": "estimated"},
    "output_tokens": {"min_output_tokens": "7000"},
    "output_source": {"output_source": "estimated"},
    "cache_read_tokens": {"min_cache_read_input_tokens": "7000"},
    "cache_read_source": {"cache_read_source": "estimated"},
    "cache_write_5m_tokens": {"min_cache_write_5m_tokens": "7000"},
    "cache_write_1h_tokens": {"min_cache_write_1h_tokens": "7000"},
    "cache_write_source": {"cache_write_source": "estimated"},
    "reasoning_tokens": {"min_reasoning_tokens": "7000"},
    "reasoning_source": {"reasoning_source": "estimated"},
    "web_searches": {"min_web_search_requests": "7"},
    "service_tier": {"service_tier": "flex"},
    "speed": {"speed": "fast"},
    "inference_geo": {"inference_geo": "us"},
    "iterations": {"has_iterations": "true"},
    "cost_nanousd": {"min_cost_usd": "7", "max_cost_usd": "7.5", "priced": "true"},
    "price": {"price_id": "77"},
    "message_count": {"min_message_count": "77"},
    "tool_calls": {"min_tool_calls": "7"},
    "tool_names": {"tool": "Räre"},
    "has_images": {"has_images": "true"},
    "has_thinking": {"has_thinking": "true"},
    "request_bytes": {"min_request_bytes": "7000"},
    "response_bytes": {"min_response_bytes": "7000"},
    "delivered": {"delivered": "false"},
    "worker": {"worker": "rare"},
    "previous_id": {"previous_request_id": "req_before"},
    "new_from": {"min_new_from": "7"},
}
VALUES = {
    "finished": factories.NOON + timedelta(hours=3),
    "betas": ["rare-2026", "other"],
    "tags": {"ticket": "B-7"},
    "tool_names": ["Räre"],
    "attempts": [{"ms": 1}, {"ms": 2}],
    "notes": [{"path": "top_k", "fate": "dropped", "reason": "unknown"}],
    "unknown_events": {"new.event": 1},
    "iterations": [{"type": "compaction", "input_tokens": 1}],
    "cost_nanousd": 7_100_000_000,
    "key_id": 77,
    "price": {"id": 77, "model": "m", "since": "2026-01-01", "input": "1", "output": "2"},
    "stream": False,
    "delivered": False,
    "has_images": True,
    "has_thinking": True,
    "error_message": "Too much to do",
}


@pytest.fixture
def get_ids(client):
    secret = factories.key("finance", scopes=["admin"])[1]

    def get_ids(**query):
        answer = client.get("/api/v1/requests/", DAY | query, headers={"x-api-key": secret})
        assert answer.status_code == 200, answer.content
        return [row["id"] for row in answer.json()["data"]]

    return get_ids


def stored_value(column, query):
    return VALUES.get(column, next(iter(query.values())))


def test_each_recorded_field_has_a_filter():
    columns = {field.attname for field in Exchange._meta.concrete_fields}

    # from and to; state and id have their own tests; only rows of earlier versions have key_name
    others = {"created", "state", "id", "key_name"}
    assert columns - others - {"preview", "prompt"} == set(RARE)


def test_the_filter_of_each_column_returns_only_matching_rows(get_ids):
    plain = factories.record(opening={"ip": "10.0.0.1"})
    rare = factories.record(at=factories.NOON + timedelta(minutes=1))
    row = Exchange.objects.filter(pk=rare.pk)

    assert get_ids() == [rare.pk, plain.pk]
    for column, query in RARE.items():
        row.update(**{column: stored_value(column, query)})
        assert get_ids(**query) == [rare.pk], column
        row.update(**{column: getattr(rare, column)})


@pytest.mark.parametrize("flag", filters.FLAGS)
def test_each_request_matches_a_flag_or_its_negation(get_ids, flag):
    factories.price()
    ids = {factories.record().pk, factories.record(closing={"attempts": [{"ms": 1}, {"ms": 2}]}).pk}

    assert {*get_ids(**{flag: "true"}), *get_ids(**{flag: "false"})} == ids


def test_a_tag_can_be_filtered_by_name_alone(get_ids):
    tagged = factories.record(opening={"tags": {"ticket": "B-7"}})
    factories.record(opening={"tags": {"other": "B-7"}})

    assert get_ids(tag="ticket") == [tagged.pk]
    assert get_ids(tag="ticket:C-8") == []


def test_requests_can_be_filtered_by_ids(get_ids):
    ids = [factories.record(at=factories.NOON + timedelta(minutes=n)).pk for n in range(3)]

    assert get_ids(id=",".join(ids[:2])) == ids[1::-1]


def test_open_requests_can_be_filtered_by_state(get_ids):
    open_request = factories.record(closed=False)
    factories.record()

    assert get_ids(state="open") == [open_request.pk]


def test_requests_have_all_filters_of_the_usage_reports():
    assert set(FILTERS) <= set(filters.RequestParameters().fields)


def test_a_search_finds_by_id_key_and_session_prefix(get_ids):
    key, _ = factories.key("laptop", of="rare")
    opening = {"session_id": "d0210c9f-77", "team": "rare"}
    exchange = factories.record(
        key=key, opening=opening, closing={"upstream_request_id": "chatcmpl-7"}
    )
    factories.record(opening={"session_id": "e0210c9f-77"})

    for term in (exchange.pk, "d0210", "d0210c9f-77", "laptop", "rare/laptop", "chatcmpl-7"):
        assert get_ids(q=term) == [exchange.pk], term
    for term in ("D0210", "0210", "platform/laptop", "chatcmpl"):
        assert get_ids(q=term) == [], term


def test_a_search_by_id_uses_the_primary_key(get_ids):
    exchange, other = factories.record(), factories.record()
    Exchange.objects.filter(pk=other.pk).update(upstream_request_id="req_upstream")

    assert get_ids(q="req_upstream") == [other.pk]
    for term, is_indexed in ((exchange.pk, True), ("req_upstream", False)):
        rows = Exchange.objects.filter(
            filters.search_condition(term), created__gte=exchange.created
        )
        plan = rows.order_by("-created", "-id").explain()
        if connection.vendor == "sqlite":
            assert ("(id=?)" in plan) is is_indexed, plan


def test_a_slow_page_is_stopped_with_a_message(get_report):
    with stopped_queries('"proxy_exchange"."user_agent"') as stopped:
        slow = get_report("requests", **DAY, user_agent="nobody")

    assert len(stopped) == 1
    assert slow.status_code == 503
    assert slow.json()["error"] == {
        "type": "overloaded_error",
        "message": "the query took too long and was stopped; choose a shorter time range or "
        "more filters",
    }
    assert get_report("requests", **DAY).status_code == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"min_cost": "cheap"}, "min_cost_usd: 'cheap' is not an amount of at most 18 digits"),
        ({"min_cost": "NaN"}, "min_cost_usd: 'NaN' is not an amount"),
        ({"has_images": "some"}, 'has_images: "some" is neither true nor false'),
        ({"min_ms": "1e3"}, "min_total_ms: '1e3' is not a whole number"),
        ({"page": "x"}, "page: expected the next_page of an earlier answer, not 'x'"),
    ],
)
def test_an_invalid_value_is_quoted_in_the_error(client, query, message):
    secret = factories.key("finance", scopes=["admin"])[1]

    answer = client.get("/api/v1/requests/", query, headers={"x-api-key": secret})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
