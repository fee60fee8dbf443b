"""The effect of a hard budget on a request and its records."""

from datetime import date

from proxy.gateway.admission.budgets import Reservation
from proxy.gateway.request import ledger_records
from proxy.gateway.request.request import READ_FOR_BUDGET
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.ledger.usage.pricing import PriceList
from proxy.models import Price
from tests.for_each import for_each
from tests.proxy.gateway.request_factory import RecordedRequest
from translator.anthropic.usage import Usage
from translator.dialect import ResponseContext

HARD = Reservation("req_1", {}, {"input": 70, "output": 9})
SOFT = Reservation("req_1", {})


@for_each(
    ("reservation", "sent", "refused", "drains"),
    [
        (HARD, True, False, True), (HARD, False, False, False), (HARD, True, True, False),
        (SOFT, True, False, False), (None, True, False, False),
    ],
)  # fmt: skip
def test_a_hard_budget_reads_the_upstream_to_the_end(reservation, sent, refused, drains):
    request = RecordedRequest()
    request.reservation = reservation
    request.start_attempt(100.0)
    request.attempts.records[-1].sent, request.attempts.records[-1].refused = sent, refused

    assert request.should_drain_upstream() is drains
    assert request.all_notes() == ([READ_FOR_BUDGET] if drains else [])


@for_each(
    ("reservation", "sent", "priced", "charge"),
    [
        (HARD, True, True, 70 * 1_000 + 9 * 10_000), (HARD, False, True, None),
        (HARD, True, False, None), (SOFT, True, True, None), (None, True, True, None),
    ],
)  # fmt: skip
def test_a_failed_attempt_stores_its_possible_cost(reservation, sent, priced, charge):
    since = date(2026, 1, 1)
    prices = [Price(model="gpt-x", since=since, input=1, output=10)] if priced else []
    request = RecordedRequest()
    request.created, request.prices, request.reservation = (
        1_800_000_000.0,
        PriceList(prices),
        reservation,
    )
    request.charge_attempt()  # no attempt has started
    request.start_attempt(100.0)
    request.attempts.records[-1].sent = sent

    request.charge_attempt()

    record = request.attempts.records[-1].as_record(100.0)
    assert record.get("cost_nanousd") == charge
    assert ("usage" in record) is (charge is not None)


@for_each("reservation", [None, SOFT, HARD])
def test_the_open_record_has_the_worst_case_of_a_hard_budget(reservation):
    request = RecordedRequest()
    request.reservation = reservation

    record = ledger_records.open_record(request, None).worst_case

    assert record == (
        {"input": 70, "output": 9, "source": "estimated"} if reservation is HARD else {}
    )


def test_a_hard_budget_has_no_usage_before_the_request_is_sent():
    request = RecordedRequest()
    request.reservation = HARD
    request.attempts.stream = DIALECTS["chat"].stream(
        ResponseContext(message_id="msg_1", model="claude-x")
    )
    assert request.usage() == Usage()
    request.start_attempt(100.0)
    assert request.usage() == Usage()
    request.attempts.records[-1].sent = True
    assert (request.usage().input, request.usage().output) == (70, 9)
