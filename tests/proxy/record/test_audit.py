"""A flipped byte, a missing row, a mended sum: verifyledger finds each."""

import hashlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction
from django.db.models import F

from proxy.models import Exchange, LedgerHead, Part, QuarterUsage, Seal, Transcript
from proxy.record import audit, retention
from proxy.record.posting import Story, post
from proxy.record.seals import digest_of, hold_ledger

from .making import NOON, answer, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
DAY = datetime.fromtimestamp(NOON, UTC).replace(hour=0)


@pytest.fixture
def ledger(team) -> None:
    for at in range(0, 30, 7):
        numbers = range(at, min(at + 7, 30))
        post([Story(opening(n), [], closing(n, answer=answer(f"Paris {n}"))) for n in numbers])


def findings(now: datetime | None = None) -> list[str]:
    found = [f for checked in audit.verify(now=now) for f in checked.findings]
    found += audit.verify_sums(DAY, DAY + timedelta(days=1))
    return sorted({f"{finding.what}: {finding.where}" for finding in found})


def test_a_ledger_nobody_touched_has_no_findings(ledger) -> None:
    assert findings() == []
    assert [links for _, links, _ in audit.heads()] == [30]


@pytest.mark.parametrize(
    "change",
    [{"output_tokens": F("output_tokens") + 1}, {"key_name": "mallory"}, {"cost_nanousd": 0},
     {"error_message": "x"}, {"finished": DAY}, {"tags": {"a": "b"}}],
)  # fmt: skip
def test_a_changed_row_is_found(ledger, change) -> None:
    Exchange.objects.filter(pk=exchange_id(3)).update(**change)

    assert f"row: {exchange_id(3)}" in findings()


def test_a_row_that_is_gone_is_found(ledger) -> None:
    Transcript.objects.filter(pk=exchange_id(4)).delete()
    Exchange.objects.filter(pk=exchange_id(4)).delete()

    assert f"lost: {exchange_id(4)}" in findings()


def test_a_row_that_nobody_sealed_is_found(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(5))
    row.pk = exchange_id(99)
    row.save(force_insert=True)

    assert f"unsealed: {exchange_id(99)}" in findings()


def test_each_link_is_made_of_the_one_before(ledger) -> None:
    before, at = bytes(32), datetime.now(UTC)
    sealed = list(Seal.objects.order_by("sequence"))
    for sequence, one in enumerate(sealed, start=1):
        whole = before + sequence.to_bytes(8, "big") + one.exchange_id.encode()
        whole += bytes(one.row_digest) + bytes(one.body_digest or b"")
        assert one.sequence == sequence
        assert bytes(one.digest) == hashlib.sha256(whole).digest()
        assert bytes(one.row_digest) == digest_of(Exchange.objects.get(pk=one.exchange_id))
        assert abs(one.day - at.date()) <= timedelta(days=1)
        before = bytes(one.digest)

    head = LedgerHead.objects.get()
    assert (head.pk, head.sequence, bytes(head.digest)) == (1, 30, before)


def test_what_two_databases_give_back_of_a_row_has_one_digest(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(3))
    row.notes, row.price = [{"a": 1.0, "b": 100}], {"x": 0.5}
    first = digest_of(row)

    row.notes = [{"b": 1e2, "a": 1}]
    row.created = row.created.astimezone(timezone(timedelta(hours=2)))
    assert digest_of(row) == first
    for notes in ([{"b": 1e2, "a": 2}], [{"b": 1e2, "a": 1.5}], [], None):
        row.notes = notes
        assert digest_of(row) != first


def test_the_ledger_is_held_inside_a_transaction_only(ledger, monkeypatch) -> None:
    monkeypatch.setattr(transaction.get_connection(), "in_atomic_block", False)

    with pytest.raises(transaction.TransactionManagementError, match="inside a transaction only"):
        hold_ledger()


def test_a_changed_seal_breaks_the_chain(ledger) -> None:
    row = Exchange.objects.get(pk=exchange_id(6))
    row.output_tokens = 1
    row.save(update_fields=["output_tokens"])
    seal = Seal.objects.get(exchange_id=row.pk)
    Seal.objects.filter(pk=seal.pk).update(row_digest=digest_of(row))

    assert f"chain: seal {seal.sequence}" in findings()


def test_links_cut_out_or_cut_off_are_found(ledger) -> None:
    Seal.objects.filter(sequence=10).delete()
    Seal.objects.filter(sequence=30).delete()

    assert {"chain: seal 11", "head: seal 30"} <= set(findings())


def test_a_flipped_byte_in_a_body_is_found(ledger) -> None:
    part = Part.objects.order_by("pk").last()
    broken = bytearray(part.data)
    broken[-1] ^= 1
    Part.objects.filter(pk=part.pk).update(data=bytes(broken))

    assert any(finding.startswith("body: ") for finding in findings())


def test_a_body_that_is_gone_before_its_time_is_found_and_a_pruned_one_is_not(ledger, team) -> None:
    soon = datetime.fromtimestamp(NOON, UTC) + timedelta(days=1)
    late = soon + timedelta(days=team.retention_days)
    Transcript.objects.filter(pk=exchange_id(7)).delete()

    assert findings(soon) == [f"body: {exchange_id(7)}"]
    list(retention.prune_transcripts(late))
    assert findings(late) == []


def test_a_changed_sum_is_found(ledger) -> None:
    QuarterUsage.objects.update(output_reported=F("output_reported") - 1)

    assert findings() == [f"sum: QuarterUsage {DAY:%Y-%m-%d}"]


def test_an_amended_row_is_sealed_again(ledger) -> None:
    from proxy.record.amendment import amend

    amend([exchange_id(8)], lambda _: {"service_tier": "flex"})

    assert findings() == []
    assert Seal.objects.filter(exchange_id=exchange_id(8)).count() == 2
    assert QuarterUsage.objects.get(service_tier="flex").requests == 1
