"""What one finished request adds to the metrics."""

from proxy.ledger.journal.records import CloseRecord
from proxy.metrics.finished_request import FinishedRequest, count_request, field_of
from tests.for_each import for_each

from .samples import samples

PRICE = {"input": "1", "output": "10", "cache_read": None,
         "cache_write_5m": None, "cache_write_1h": None}  # fmt: skip


def finished_request(**fields) -> FinishedRequest:
    columns = {
        "id": "req_1", "finished": 1.0, "outcome": "completed", "status": 200,
        "ttft_ms": 120.0, "overhead_ms": 1.5, "upstream": "openai", "model_upstream": "gpt",
        "dialect": "chat", "attempts": [{"upstream": "openai", "status": 200}],
        "usage": {"input": 100, "output": 5, "source": "reported"}, "price": PRICE,
    } | fields  # fmt: skip
    closing = CloseRecord(**columns)
    return FinishedRequest(
        "messages", closing.status, closing.outcome, 0.5, "claude-*", "platform", closing
    )


def added_by(*requests: FinishedRequest) -> dict[str, float]:
    """Return the increase of each metric's sample by these requests."""
    before = samples()
    for request in requests:
        count_request(request)
    after = samples()
    return {
        name: round(value - before.get(name, 0), 9)
        for name, value in after.items()
        if value != before.get(name, 0) and "_bucket" not in name
    }


def test_each_part_of_a_close_record_is_counted():
    notes = [{"path": "messages.3.content.0.cache_control", "fate": "dropped", "reason": ""}]
    attempts = [{"upstream": "a", "status": None}, {"upstream": "openai", "status": 200}]

    added = added_by(
        finished_request(notes=notes, unknown_events={"response.new": 2}, attempts=attempts),
        finished_request(price=None),
    )

    model, tokens = 'model="gpt"', 'source="reported",upstream="openai"'
    assert added == {
        'bridge_requests_total{endpoint="messages",outcome="completed",route="claude-*",'
        'status="200",upstream="openai"}': 2,
        'bridge_upstream_attempts_total{status="0",upstream="a"}': 1,
        'bridge_upstream_attempts_total{status="200",upstream="openai"}': 2,
        f'bridge_tokens_total{{class="input",{model},{tokens}}}': 200,
        f'bridge_tokens_total{{class="output",{model},{tokens}}}': 10,
        f'bridge_cost_usd_total{{{model},team="platform",upstream="openai"}}': 0.00015,
        f'bridge_unpriced_requests_total{{{model},upstream="openai"}}': 1,
        'bridge_first_byte_seconds_count{upstream="openai"}': 2,
        'bridge_first_byte_seconds_sum{upstream="openai"}': 0.24,
        'bridge_team_requests_total{outcome="completed",team="platform",upstream="openai"}': 2,
        'bridge_team_first_byte_seconds_count{team="platform"}': 2,
        'bridge_team_first_byte_seconds_sum{team="platform"}': 0.24,
        'bridge_request_seconds_count{endpoint="messages",upstream="openai"}': 2,
        'bridge_request_seconds_sum{endpoint="messages",upstream="openai"}': 1,
        "bridge_overhead_seconds_count{}": 2,
        "bridge_overhead_seconds_sum{}": 0.003,
        'bridge_notes_total{fate="dropped",field="messages.content.cache_control"}': 1,
        'bridge_unknown_events_total{dialect="chat",kind="response.new"}': 2,
    }


def test_a_request_without_a_row_counts_as_a_request_only():
    added = added_by(FinishedRequest("models", 401, "refused", 0.25))

    assert added == {
        'bridge_requests_total{endpoint="models",outcome="refused",route="",'
        'status="401",upstream=""}': 1,
        'bridge_request_seconds_count{endpoint="models",upstream=""}': 1,
        'bridge_request_seconds_sum{endpoint="models",upstream=""}': 0.25,
    }


def test_an_error_of_an_upstream_is_counted_by_its_type():
    error = {"error_source": "upstream", "error_type": "overloaded_error"}

    added = added_by(
        finished_request(outcome="upstream_error", status=529, **error),
        finished_request(outcome="refused", status=400, error_source="client", error_type="x"),
    )

    errors = {name: value for name, value in added.items() if "upstream_errors" in name}
    assert errors == {
        'bridge_upstream_errors_total{error_type="overloaded_error",upstream="openai"}': 1
    }


def test_a_request_that_reached_no_upstream_adds_no_tokens_and_no_cost():
    added = added_by(finished_request(attempts=[], upstream="", outcome="refused", status=429))

    assert not any("tokens" in name or "cost" in name or "unpriced" in name for name in added)


def test_a_record_that_cannot_be_counted_does_not_affect_others(caplog):
    added = added_by(finished_request(attempts=[{}]), finished_request())

    requests = [value for name, value in added.items() if "bridge_requests_total" in name]
    assert requests == [2]
    assert "could not be counted" in caplog.text


@for_each(
    ("path", "field"),
    [
        ("top_k", "top_k"),
        ("messages.2.content.0.source", "messages.content.source"),
        ("tools[3].strict", "tools.strict"),
    ],
)
def test_the_field_of_a_note_has_no_indexes(path, field):
    assert field_of(path) == field
