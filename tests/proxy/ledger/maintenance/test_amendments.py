"""Rows that no running process will ever close."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxy.ledger.journal.journal import append_durably
from proxy.ledger.maintenance import amendments as module
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Exchange, Price
from tests.proxy.ledger.factories import NOON, closing, opening


@pytest.mark.django_db
def test_old_open_rows_are_closed_in_parts(tmp_path: Path, django_assert_num_queries):
    closed = module.MAX_ROWS + 1
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=1)
    write_to_database([ExchangeRecords(opening(n), []) for n in range(1, closed + 2)])
    at = datetime.fromtimestamp(NOON + closed + 1, UTC)
    later = at + timedelta(hours=1)
    write_to_database([ExchangeRecords(opening(0), [], closing(0))])

    assert module.close_stale_rows(tmp_path, at, later) == (0, closed)

    found = Exchange.objects.order_by("pk")
    assert [row.outcome for row in found] == ["completed", *["interrupted"] * closed, ""]
    assert [row.finished for row in found][1:] == [*[later] * closed, None]
    why = "the process that served the request is gone, and its journal with it"
    assert [found[1].status, found[1].error_type, str(found[1].error_message)] == [
        0,
        "api_error",
        why,
    ]
    assert (found[1].error_source, found[1].detail, found[1].delivered) == (
        "gateway",
        "settled",
        False,
    )
    with django_assert_num_queries(2):  # nothing is locked where nothing is open
        assert module.close_stale_rows(tmp_path, at) == (0, 0)


@pytest.mark.django_db
def test_open_row_under_a_hard_budget_is_charged_its_worst_case(tmp_path: Path):
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=10)
    worst = {"input": 70, "output": 900, "source": "estimated"}
    write_to_database(
        [ExchangeRecords(opening(1, worst_case=worst), []), ExchangeRecords(opening(2), [])]
    )
    at = datetime.fromtimestamp(NOON + 6, UTC)
    assert [row.output_source for row in Exchange.objects.order_by("pk")] == [
        "estimated",
        "missing",
    ]

    assert module.close_stale_rows(tmp_path, at) == (0, 2)

    hard, soft = Exchange.objects.order_by("pk")
    assert (hard.input_tokens, hard.output_tokens, hard.output_source) == (70, 900, "estimated")
    assert hard.cost_nanousd == 70 * 1_000 + 900 * 10_000
    assert (soft.input_tokens, soft.output_source, soft.cost_nanousd) == (None, "missing", None)


@pytest.mark.django_db
def test_usage_of_the_close_record_replaces_the_worst_case():
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=10)
    worst = {"input": 70, "output": 900, "source": "estimated"}
    write_to_database([ExchangeRecords(opening(1, worst_case=worst), [])])

    write_to_database([ExchangeRecords(opening(1, worst_case=worst), [], closing(1, usage={}))])

    stored = Exchange.objects.get()
    assert (stored.input_tokens, stored.output_tokens, stored.output_source) == (
        None,
        None,
        "missing",
    )
    assert stored.cost_nanousd is None


def test_abandoned_journals_are_drained_first(tmp_path: Path, team):
    (tmp_path / "journal-0").mkdir()
    append_durably(tmp_path / "journal-0", opening(1), closing(1))

    assert module.close_stale_rows(tmp_path, datetime.now(UTC)) == (1, 0)

    assert Exchange.objects.get().outcome == "completed"
