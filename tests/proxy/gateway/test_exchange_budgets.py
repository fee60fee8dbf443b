"""What a hard budget changes in an exchange and its records."""

from datetime import date

import pytest

from proxy.gateway import entries, ledger
from proxy.gateway.budgets import Hold
from proxy.gateway.dialects import DIALECTS
from proxy.models import Price
from proxy.record.pricing import PriceList
from translator.anthropic.usage import Usage
from translator.dialect import AnswerContext

from .exchanges import Asked

HARD = Hold("req_1", ("1:0",), {"input": 70, "output": 9})
SOFT = Hold("req_1", ("1:0",))


@pytest.mark.parametrize(
    ("hold", "sent", "refused", "on"),
    [
        (HARD, True, False, True), (HARD, False, False, False), (HARD, True, True, False),
        (SOFT, True, False, False), (None, True, False, False),
    ],
)  # fmt: skip
def test_a_hard_budget_reads_the_upstream_to_the_end(hold, sent, refused, on):
    one = Asked()
    one.hold = hold
    one.dial(100.0)
    one.dials[-1].sent, one.dials[-1].refused = sent, refused

    assert one.goes_on() is on
    assert one.all_notes() == ([ledger.FOR_BUDGET] if on else [])


@pytest.mark.parametrize(
    ("hold", "sent", "priced", "charge"),
    [
        (HARD, True, True, 70 * 1_000 + 9 * 10_000), (HARD, False, True, None),
        (HARD, True, False, None), (SOFT, True, True, None), (None, True, True, None),
    ],
)  # fmt: skip
def test_a_failed_attempt_keeps_what_it_may_have_cost(hold, sent, priced, charge):
    since = date(2026, 1, 1)
    prices = [Price(model="gpt-x", since=since, input=1, output=10)] if priced else []
    one = Asked()
    one.created, one.prices, one.hold = 1_800_000_000.0, PriceList(prices), hold
    one.charge_attempt()  # nothing was sent yet
    one.dial(100.0)
    one.dials[-1].sent = sent

    one.charge_attempt()

    kept = one.dials[-1].as_record(100.0)
    assert kept.get("cost_nanousd") == charge
    assert ("usage" in kept) is (charge is not None)


@pytest.mark.parametrize("hold", [None, SOFT, HARD])
def test_the_open_record_tells_what_a_hard_budget_reserved(hold):
    one = Asked()
    one.hold = hold

    kept = entries.open_record(one, None).worst_case

    assert kept == ({"input": 70, "output": 9, "source": "estimated"} if hold is HARD else {})


def test_a_hard_budget_estimates_nothing_before_anything_was_sent():
    one = Asked()
    one.hold = HARD
    one.stream = DIALECTS["chat"].stream(AnswerContext(message_id="msg_1", model="claude-x"))
    assert one.usage() == Usage()
    one.dial(100.0)
    assert one.usage() == Usage()
    one.dials[-1].sent = True
    assert (one.usage().input, one.usage().output) == (70, 9)
