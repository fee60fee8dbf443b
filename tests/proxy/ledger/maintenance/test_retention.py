"""Expired transcripts and their unused parts are deleted; rows and sums stay."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.ledger.maintenance import retention
from proxy.ledger.maintenance.retention import sizes
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.ledger.transcripts import storage
from proxy.models import Exchange, Part, Team, Transcript, UsageQuarterHour
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.database.tables import following_ids
from tests.proxy.ledger.factories import NOON, answer, body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
START = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture
def ledger() -> None:
    Team.objects.create(name="short", ledger_id="short", retention_days=2)
    Team.objects.create(name="long", ledger_id="long", retention_days=60)
    shared = body("shared by both", system="the same system prompt")
    own = body("only from the short team", system="the same system prompt")
    batch = [
        ExchangeRecords(opening(1, team="short", body=shared), [], closing(1, answer=None)),
        ExchangeRecords(
            opening(2, team="short", body=own), [], closing(2, answer=answer("of two"))
        ),
        ExchangeRecords(opening(3, team="long", body=shared), [], closing(3, answer=None)),
    ]
    write_to_database(batch, START)


def prune(now: datetime) -> tuple[int, int]:
    return sum(retention.prune_transcripts(now, FOR_PURGE, 1)), sum(retention.prune_parts(now, 2))


def test_each_team_has_its_own_retention(ledger) -> None:
    parts = Part.objects.count()

    assert prune(START + timedelta(days=1)) == (0, 0)
    deleted, dropped = prune(START + timedelta(days=3))

    assert deleted == 2
    assert dropped == 2  # the message of the short team only, and its response
    assert Part.objects.count() == parts - 2
    stored = storage.read(exchange_id(3))
    assert stored is not None
    assert stored.request["messages"] == [{"role": "user", "content": "shared by both"}]
    assert Exchange.objects.count() == 3
    assert sum(UsageQuarterHour.objects.values_list("requests", flat=True)) == 3


def test_parts_are_pruned_in_ranges_of_ids(ledger) -> None:
    following_ids(Part, Part.objects.earliest("pk").pk + retention.RANGE)
    batch = [
        ExchangeRecords(opening(4, team="short", body=body("short")), [], closing(4, answer=None)),
        ExchangeRecords(opening(5, team="long", body=body("long")), [], closing(5, answer=None)),
    ]
    write_to_database(batch, START)
    parts = Part.objects.count()

    assert prune(START + timedelta(days=3)) == (3, 3)

    assert Part.objects.count() == parts - 3
    for number in (3, 5):
        assert storage.read(exchange_id(number)) is not None


def test_no_content_is_left_when_all_is_past_retention(ledger) -> None:
    prune(START + timedelta(days=100))

    assert not Transcript.objects.exists()
    assert not Part.objects.exists()


def test_a_recently_used_part_is_not_pruned(ledger) -> None:
    Transcript.objects.all().delete()
    late = START + timedelta(days=3)
    Part.objects.filter(pk=Part.objects.order_by("pk").first().pk).update(used=late)

    list(retention.prune_parts(late + timedelta(hours=1)))

    assert Part.objects.count() == 1


def test_a_new_transcript_updates_the_use_of_its_parts(ledger) -> None:
    later = START + timedelta(days=1)

    write_to_database(
        [ExchangeRecords(opening(4, team="long", body=body("shared by both")), [])], later
    )

    assert Part.objects.filter(used__gte=later - timedelta(hours=1)).exists()


def test_every_table_has_a_size(ledger) -> None:
    found = {size.table: size for size in sizes()}

    assert found["proxy_exchange"].rows == 3
    assert found.keys() >= {"proxy_drift", "django_session", "django_admin_log", "proxy_export"}
    assert all(size.bytes > 0 for size in found.values())
