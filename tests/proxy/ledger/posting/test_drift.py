"""New names: found in records, counted once for each request, limited in number."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from proxy.ledger.posting.drift import (
    MAX_NAMES,
    MAX_PER_REQUEST,
    OTHERS,
    NewNameRecorder,
    names_seen,
    new_name_recorder,
)
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Drift, Exchange, State
from tests.proxy.ledger.factories import body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
UNUSUAL = body(
    "Hello",
    {"role": "developer", "content": [{"type": "hologram"}, {"type": "text", "text": "x"}]},
    brand_new_field=1,
)


@pytest.fixture
def recorder() -> NewNameRecorder:
    return NewNameRecorder()


def seen(kind: str) -> dict[str, tuple[bool | None, int]]:
    return {row.name: (row.known, row.requests) for row in Drift.objects.filter(kind=kind)}


@pytest.fixture
def post(recorder: NewNameRecorder) -> Callable[..., None]:
    def post(number: int, **fields) -> None:
        recorder.note([opening(number, **fields)], [closing(number)])

    return post


def test_new_names_are_stored_with_their_first_request(post):
    post(1, betas=["context-1m-2025-08-07"], client_name="claude-cli", client_version="2.1.329")
    post(2, body=UNUSUAL)

    assert seen("beta") == {"context-1m-2025-08-07": (None, 1)}
    assert seen("client") == {"claude-cli 2.1.329": (None, 1)}
    assert seen("field")["brand_new_field"] == (False, 1)
    assert seen("field")["messages"][0] is True
    assert seen("block")["hologram"] == (False, 1)
    assert seen("role")["developer"] == (False, 1)
    assert Drift.objects.get(name="hologram").first_request == exchange_id(2)


def test_names_in_a_rejected_body_are_not_counted_again():
    betas = ["context-1m-2025-08-07"]

    assert {*names_seen(opening(1, body=UNUSUAL, betas=betas, faulty=True))} == {("beta", betas[0])}
    assert ("field", "brand_new_field") in {*names_seen(opening(1, body=UNUSUAL))}


def test_an_unknown_upstream_event_is_recorded(recorder):
    recorder.note([opening(1)], [closing(1, unknown_events={"response.sparkle": 7})])

    assert seen("event") == {"response.sparkle": (False, 1)}


def test_an_exchange_written_twice_is_counted_once(team):
    new_name_recorder.write(datetime.now(UTC))  # the counts of earlier tests
    Drift.objects.all().delete()
    records = ExchangeRecords(opening(1, betas=["b"]), [], closing(1))
    write_to_database([ExchangeRecords(records.opening, [])])  # still running
    write_to_database([records])
    write_to_database([records])
    new_name_recorder.write(datetime.now(UTC))

    assert seen("beta") == {"b": (None, 1)}


def test_counts_of_known_names_are_written_together_later(post, recorder):
    for number in range(1, 6):
        post(number, betas=["b"])
    before = seen("beta")["b"][1]
    recorder.write_interval_s = -1  # as if ten seconds had passed
    post(6, betas=["b"])

    assert before == 1
    assert seen("beta")["b"] == (None, 6)


def test_a_metadata_only_team_records_no_fields(post):
    post(1, body=None, betas=["b"])

    assert seen("field") == {}
    assert seen("beta") == {"b": (None, 1)}


def test_the_number_of_stored_names_is_limited(post):
    for number in range(3):
        names = [f"b-{number}-{n}" + "x" * 300 for n in range(MAX_NAMES // 2)]
        post(number + 1, betas=names)

    rows = Drift.objects.filter(kind="beta")
    assert rows.count() == MAX_NAMES + 1
    assert seen("beta")[OTHERS] == (None, MAX_NAMES // 2)
    assert max(len(row.name) for row in rows) == 100


def test_the_number_of_names_in_memory_is_limited(post, recorder):
    for number in range(4):
        post(number + 1, betas=[f"b-{number}-{n}" for n in range(MAX_NAMES)])

    assert sum(kind == "beta" for kind, _ in recorder._written) == MAX_NAMES + 1
    waiting = recorder._counts["beta", OTHERS]
    assert seen("beta")[OTHERS][1] + waiting == 3 * MAX_NAMES


def test_the_number_of_names_of_one_request_is_limited(post):
    fields = {f"field_{n}": n for n in range(2 * MAX_PER_REQUEST)}
    blocks = [{"type": f"kind_{n}"} for n in range(2 * MAX_PER_REQUEST)]
    roles = [{"role": f"role_{n}", "content": blocks} for n in range(2 * MAX_PER_REQUEST)]
    post(1, body=body("Hello", *roles, **fields))

    assert len(seen("field")) == len(seen("block")) == len(seen("role")) == MAX_PER_REQUEST


@pytest.mark.parametrize(
    "invalid", [b"", b"[]", b'{"messages": 3}', b"\xff", b'{"messages": [{}]}']
)
def test_names_outside_of_an_unreadable_body_are_recorded(invalid):
    assert all(kind for kind, _ in names_seen(opening(1, body=invalid)))


def test_a_record_without_valid_names_does_not_stop_the_ledger_writer(team, caplog):
    write_to_database([ExchangeRecords(opening(1, betas=[3]), [], closing(1))])

    assert "could not be processed" in caplog.text
    assert Exchange.objects.get().state == State.CLOSED
