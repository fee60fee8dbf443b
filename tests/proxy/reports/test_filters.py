"""Requests by any recorded field: each column has its filter, and each filter keeps what it names."""

from datetime import timedelta

import pytest

from proxy.models import Exchange
from proxy.reports import request_filters
from proxy.reports.parameters import FILTERS
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}
RARE = {  # what one row has and the other has not, and how it is asked for
    "outcome": {"outcome": "upstream_error"},
    "status": {"status": "529"},
    "stop_reason": {"stop_reason": "rare"},
    "error_type": {"error_type": "overloaded_error"},
    "error_message": {"error": "MUCH to do"},
    "error_source": {"error_source": "upstream"},
    "detail": {"detail": "rare"},
    "finished": {"finished_from": "2026-11-20T15:00:00+01:00", "finished_to": "2026-11-21"},
    "queue_ms": {"min_queue_ms": "70"},
    "ttft_ms": {"min_ttft_ms": "70000"},
    "total_ms": {"min_ms": "70000", "max_ms": "80000"},
    "upstream_ms": {"min_upstream_ms": "70000"},
    "overhead_ms": {"min_overhead_ms": "70"},
    "team": {"team": "rare"},
    "key_id": {"key_id": "77"},
    "key_name": {"key": "rare"},
    "user": {"user": "rare"},
    "session_id": {"session": "rare"},
    "agent_id": {"agent": "rare"},
    "parent_agent_id": {"parent_agent": "rare"},
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
    "cost_nanousd": {"min_cost": "7", "max_cost": "7.5", "priced": "true"},
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
    "finished": cast.NOON + timedelta(hours=3),
    "betas": ["rare-2026", "other"],
    "tags": {"ticket": "B-7"},
    "tool_names": ["Räre"],
    "attempts": [{"ms": 1}, {"ms": 2}],
    "notes": [{"path": "top_k", "fate": "dropped", "reason": "unknown"}],
    "unknown_events": {"new.event": 1},
    "cost_nanousd": 7_100_000_000,
    "price": {"id": 77, "model": "m", "since": "2026-01-01", "input": "1", "output": "2"},
    "stream": False,
    "delivered": False,
    "has_images": True,
    "has_thinking": True,
    "error_message": "Too much to do",
}


@pytest.fixture
def ask(client):
    secret = cast.key("finance", scopes=["admin"])[1]

    def ask(**query):
        answer = client.get("/api/v1/requests/", DAY | query, headers={"x-api-key": secret})
        assert answer.status_code == 200, answer.content
        return [row["id"] for row in answer.json()["data"]]

    return ask


def rare_value(column, query):
    return VALUES.get(column, next(iter(query.values())))


def test_each_recorded_field_has_a_filter():
    columns = {field.attname for field in Exchange._meta.concrete_fields}

    others = {"created", "state", "id"}  # from and to; the last two are tried below
    assert columns - others - {"preview"} == set(RARE)


@pytest.mark.parametrize("column", RARE)
def test_a_filter_keeps_the_rows_it_names(ask, column):
    plain = cast.record(opening={"ip": "10.0.0.1"})
    rare = cast.record(at=cast.NOON + timedelta(minutes=1))
    Exchange.objects.filter(pk=rare.pk).update(**{column: rare_value(column, RARE[column])})

    assert ask() == [rare.pk, plain.pk]
    assert ask(**RARE[column]) == [rare.pk]


@pytest.mark.parametrize("flag", request_filters.FLAGS)
def test_each_request_is_on_one_side_of_a_flag(ask, flag):
    cast.price()
    ids = {cast.record().pk, cast.record(closing={"attempts": [{"ms": 1}, {"ms": 2}]}).pk}

    assert {*ask(**{flag: "true"}), *ask(**{flag: "false"})} == ids


def test_a_tag_may_be_asked_for_by_its_name_alone(ask):
    tagged = cast.record(opening={"tags": {"ticket": "B-7"}})
    cast.record(opening={"tags": {"other": "B-7"}})

    assert ask(tag="ticket") == [tagged.pk]
    assert ask(tag="ticket:C-8") == []


def test_requests_are_asked_for_by_their_ids(ask):
    ids = [cast.record(at=cast.NOON + timedelta(minutes=n)).pk for n in range(3)]

    assert ask(id=",".join(ids[:2])) == ids[1::-1]


def test_open_requests_are_asked_for_by_their_state(ask):
    waiting = cast.record(closed=False)
    cast.record()

    assert ask(state="open") == [waiting.pk]


def test_the_filters_of_the_sums_are_filters_of_requests_too():
    assert set(FILTERS) <= set(request_filters.RequestParameters().fields)


def test_a_search_finds_by_id_key_and_the_beginning_of_a_session(ask):
    told = {"session_id": "d0210c9f-77", "key_name": "laptop", "team": "rare"}
    one = cast.record(opening=told, closing={"upstream_request_id": "chatcmpl-7"})
    cast.record(opening={"session_id": "e0210c9f-77"})

    for term in (one.pk, "d0210", "d0210c9f-77", "laptop", "rare/laptop", "chatcmpl-7"):
        assert ask(q=term) == [one.pk], term
    for term in ("D0210", "0210", "platform/laptop", "chatcmpl"):
        assert ask(q=term) == [], term


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"min_cost": "cheap"}, "min_cost: 'cheap' is no amount of at most 18 digits"),
        ({"min_cost": "NaN"}, "min_cost: 'NaN' is no amount"),
        ({"has_images": "some"}, 'has_images: "some" is neither true nor false'),
        ({"min_ms": "1e3"}, "min_ms: '1e3' is no whole number"),
        ({"page": "x"}, "page: expected the next_page of an earlier answer, not 'x'"),
    ],
)
def test_what_cannot_be_read_is_told_as_it_came(client, query, complaint):
    secret = cast.key("finance", scopes=["admin"])[1]

    answer = client.get("/api/v1/requests/", query, headers={"x-api-key": secret})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(complaint)
