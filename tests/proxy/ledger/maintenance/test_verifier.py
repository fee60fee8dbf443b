"""verifyledger finds flipped bytes, missing rows and changed sums."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.db import transaction
from django.db.models import F

from proxy.ledger.maintenance import retention, verifier
from proxy.ledger.posting.hash_chain import digest_of, lock_ledger
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import (
    Exchange,
    HashChainLink,
    LedgerHead,
    Part,
    Transcript,
    UsageQuarterHour,
)
from tests.proxy.ledger.amending import FOR_PURGE, set_cost
from tests.proxy.ledger.factories import NOON, answer, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
DAY = datetime.fromtimestamp(NOON, UTC).replace(hour=0)


@pytest.fixture
def ledger(team) -> None:
    for at in range(0, 30, 7):
        numbers = range(at, min(at + 7, 30))
        write_to_database(
            [
                ExchangeRecords(opening(n), [], closing(n, answer=answer(f"Paris {n}")))
                for n in numbers
            ]
        )


def findings(now: datetime | None = None) -> list[str]:
    found = [f for checked in verifier.verify(now=now) for f in checked.findings]
    found += verifier.verify_links_of_rows(DAY, DAY + timedelta(days=1))
    found += verifier.verify_sums(DAY, DAY + timedelta(days=1))
    return sorted({f"{finding.what}: {finding.where}" for finding in found})


def test_an_unchanged_ledger_has_no_findings(ledger) -> None:
    assert findings() == []
    assert [links for _, links, _ in verifier.heads()] == [30]


@pytest.mark.parametrize(
    "change",
    [{"output_tokens": F("output_tokens") + 1}, {"key_name": "mallory"}, {"cost_nanousd": 0},
     {"error_message": "x"}, {"finished": DAY}, {"tags": {"a": "b"}}],
)  # fmt: skip
def test_a_changed_row_is_found(ledger, change) -> None:
    Exchange.objects.filter(pk=exchange_id(3)).update(**change)

    assert f"row: {exchange_id(3)}" in findings()


def test_a_missing_row_is_found(ledger) -> None:
    Transcript.objects.filter(pk=exchange_id(4)).delete()
    Exchange.objects.filter(pk=exchange_id(4)).delete()

    assert f"lost: {exchange_id(4)}" in findings()


def test_a_row_without_link_is_found(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(5))
    row.pk = exchange_id(99)
    row.save(force_insert=True)

    assert f"unsealed: {exchange_id(99)}" in findings()


def test_each_link_contains_the_digest_of_the_one_before(ledger) -> None:
    before, at = bytes(32), datetime.now(UTC)
    links = list(HashChainLink.objects.order_by("sequence"))
    for sequence, one in enumerate(links, start=1):
        linked = json.dumps(
            [
                before.hex(), sequence, one.exchange_id, bytes(one.row_digest).hex(),
                bytes(one.body_digest).hex(), "closed", "",
            ],
            separators=(",", ":"),
        ).encode()  # fmt: skip
        assert one.sequence == sequence
        assert bytes(one.digest) == hashlib.sha256(linked).digest()
        assert bytes(one.row_digest) == digest_of(Exchange.objects.get(pk=one.exchange_id))
        assert abs(one.day - at.date()) <= timedelta(days=1)
        before = bytes(one.digest)

    head = LedgerHead.objects.get()
    assert (head.pk, head.sequence, bytes(head.digest)) == (1, 30, before)


def test_a_row_from_both_databases_has_one_digest(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(3))
    row.notes, row.price = [{"a": 1.0, "b": 100}], {"x": 0.5}
    first = digest_of(row)

    row.notes = [{"b": 1e2, "a": 1}]
    row.created = row.created.astimezone(timezone(timedelta(hours=2)))
    assert digest_of(row) == first
    for notes in ([{"b": 1e2, "a": 2}], [{"b": 1e2, "a": 1.5}], [], None):
        row.notes = notes
        assert digest_of(row) != first


def test_the_ledger_is_locked_inside_a_transaction_only() -> None:
    # The connection of another thread is not in the transaction of the test.
    with ThreadPoolExecutor(1) as other_thread:
        locked = other_thread.submit(lock_ledger)

    with pytest.raises(transaction.TransactionManagementError, match="inside a transaction only"):
        locked.result()


def test_a_changed_link_breaks_the_chain(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(6))
    row.output_tokens = 1
    row.save(update_fields=["output_tokens"])
    link = HashChainLink.objects.get(exchange_id=row.pk)
    HashChainLink.objects.filter(pk=link.pk).update(row_digest=digest_of(row))

    assert f"chain: link {link.sequence}" in findings()


def test_missing_links_are_found(ledger) -> None:
    HashChainLink.objects.filter(sequence=10).delete()
    HashChainLink.objects.filter(sequence=30).delete()

    assert {"chain: link 11", "head: link 30"} <= set(findings())


def test_a_flipped_byte_in_a_body_is_found(ledger) -> None:
    part = Part.objects.order_by("pk").last()
    broken = bytearray(part.data)
    broken[-1] ^= 1
    Part.objects.filter(pk=part.pk).update(data=bytes(broken))

    assert any(finding.startswith("body: ") for finding in findings())


def test_a_missing_transcript_is_found_unless_its_retention_has_ended(ledger, team) -> None:
    soon = datetime.fromtimestamp(NOON, UTC) + timedelta(days=1)
    late = soon + timedelta(days=team.retention_days)
    Transcript.objects.filter(pk=exchange_id(7)).delete()

    assert findings(soon) == [f"body: {exchange_id(7)}"]
    list(retention.prune_transcripts(late, FOR_PURGE))
    assert findings(late) == []


def test_a_changed_sum_is_found(ledger) -> None:
    UsageQuarterHour.objects.update(output_reported=F("output_reported") - 1)

    assert findings() == [f"sum: UsageQuarterHour {DAY:%Y-%m-%d}"]


def test_an_amended_row_has_another_link(ledger) -> None:
    set_cost(exchange_id(8), 1)

    assert findings() == []
    assert HashChainLink.objects.filter(exchange_id=exchange_id(8)).count() == 2
    assert Exchange.objects.get(pk=exchange_id(8)).cost_nanousd == 1


def test_a_verification_continues_after_the_last_verified_link(ledger) -> None:
    HashChainLink.objects.filter(sequence=20).update(digest=bytes(32))
    whole = list(verifier.verify(batch_size=8))

    for done, checked in enumerate(whole):
        rest = list(verifier.verify(after=checked.sequence, batch_size=8))
        assert rest == whole[done + 1 :] or [each.links for each in rest] == [0]
    assert [each.sequence for each in whole] == [8, 16, 24, 30]
    assert [finding.where for each in whole for finding in each.findings] == ["link 20", "link 21"]


def test_a_verification_of_some_days_checks_their_links_only(ledger) -> None:
    HashChainLink.objects.filter(sequence__lte=10).update(day="2026-01-31")
    HashChainLink.objects.filter(sequence__gt=20).update(day="2026-02-02")
    HashChainLink.objects.filter(sequence__range=(11, 20)).update(day="2026-02-01")
    HashChainLink.objects.filter(sequence__in=[5, 15, 25]).update(row_digest=bytes(32))

    def broken(since: str, until: str) -> list[str]:
        days = verifier.DayRange(date.fromisoformat(since), date.fromisoformat(until))
        return [f.where for checked in verifier.verify(days=days) for f in checked.findings
                if f.what == "chain"]  # fmt: skip

    assert broken("2026-02-01", "2026-02-02") == ["link 15"]
    assert broken("2026-02-01", "2026-03-01") == ["link 15", "link 25"]
    assert broken("2026-03-01", "2026-04-01") == []
