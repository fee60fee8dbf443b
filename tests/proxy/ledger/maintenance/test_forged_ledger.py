"""verifyledger finds what an attacker with full write access to the database, without the key, did."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction

from proxy.audit_log.record import record
from proxy.conf import conf
from proxy.ledger.maintenance import published_heads, retention, verifier
from proxy.ledger.maintenance.amendments import amend
from proxy.ledger.posting.hash_chain import digest_of, link_digest, lock_ledger
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import (
    AuditEntry,
    Exchange,
    HashChainLink,
    LedgerHead,
    LinkKind,
    StopReasonDay,
    Team,
    Transcript,
    UsageByCallerDay,
    UsageDay,
    Webhook,
    WebhookEvent,
)
from proxy.models.audit import Action
from tests.proxy.ledger.amending import FOR_PRICES, FOR_PURGE, set_cost
from tests.proxy.ledger.factories import NOON, answer, closing, exchange_id, opening

pytestmark = pytest.mark.django_db
LATER = datetime.fromtimestamp(NOON, UTC)


def post(*numbers: int) -> None:
    write_to_database(
        [ExchangeRecords(opening(n), [], closing(n, answer=answer(f"Paris {n}"))) for n in numbers]
    )


@pytest.fixture
def heads(team: Team, tmp_path: Path) -> Path:
    """A ledger of ten requests with an entry of the audit log, and the file of its heads."""
    post(*range(5))
    post(*range(5, 10))
    record(Action.READ, detail="page")
    published_heads.publish(tmp_path / "heads")
    return tmp_path / "heads"


def findings(heads: Path | None = None) -> set[str]:
    state = verifier.Checkpoint()
    for _ in verifier.steps(state):
        pass
    state.add([*verifier.check_published(heads)] if heads else [])
    return {f"{one.what}: {one.where}" for one in state.findings}


def end() -> int:
    """Return the sequence of the last link."""
    return LedgerHead.objects.get().sequence


def forge_link(subject: str, row_digest: bytes, kind: str, note: str = "") -> None:
    """Append a link as the gateway does, but without a valid signature; move the head too."""
    with transaction.atomic():
        head = lock_ledger()
        sequence = head.sequence + 1
        digest = link_digest(bytes(head.digest), sequence, subject, row_digest, None, kind, note)
        old = HashChainLink.objects.exclude(signature=None).first()
        HashChainLink.objects.create(
            sequence=sequence, day=LATER.date(), exchange_id=subject, row_digest=row_digest,
            kind=kind, note=note, digest=digest, signature=old and old.signature,
        )  # fmt: skip
        LedgerHead.objects.update(sequence=sequence, digest=digest)


def test_an_honest_ledger_has_no_finding(heads: Path) -> None:
    set_cost(exchange_id(1), 1)
    post(11)

    assert findings(heads) == set()


@pytest.mark.parametrize("kind", ["repriced", ""])
def test_a_rewritten_row_with_a_link_of_its_own(heads: Path, kind: str) -> None:
    """Also when the gateway goes on after it, and publishes its link."""
    Transcript.objects.filter(pk=exchange_id(3)).delete()
    Exchange.objects.filter(pk=exchange_id(3)).update(model_requested="other")
    forge_link(exchange_id(3), digest_of(Exchange.objects.get(pk=exchange_id(3))), kind)

    forged = {f"signature: link {end()}", f"signature: link {end() + 1}"}
    assert forged & findings()
    post(11)
    published_heads.publish(heads)
    assert forged & findings(heads)


def test_a_published_head_is_no_signature_of_links(heads: Path) -> None:
    forge_link(exchange_id(3), bytes(32), "repriced")
    head = published_heads.publish(heads)
    assert head is not None
    HashChainLink.objects.filter(sequence=end()).update(signature=bytes.fromhex(head.signature))

    assert f"signature: link {end()}" in findings()


def test_a_deleted_transcript_without_a_record_of_its_deletion(heads: Path) -> None:
    Transcript.objects.filter(pk=exchange_id(3)).delete()
    Team.objects.update(retention_days=1)
    assert f"body: {exchange_id(3)}" in findings()

    note = retention.deletion_note(None, datetime.now(UTC) + timedelta(days=1), 1)
    forge_link("purge_12", bytes(32), "purged", note)
    assert f"signature: link {end()}" in findings()


def test_a_recorded_deletion_is_no_finding(heads: Path, team: Team) -> None:
    late = LATER + timedelta(days=team.retention_days + 1)
    assert sum(retention.prune_transcripts(late, FOR_PURGE)) == 10

    assert findings(heads) == set()


@pytest.mark.parametrize("table", [UsageDay, UsageByCallerDay, StopReasonDay])
def test_requests_moved_between_teams_in_the_sums(heads: Path, table: type) -> None:
    moved = table.objects.filter(team="platform").update(team="other")

    assert moved
    assert any(one.startswith(f"sum: {table.__name__}") for one in findings())


def test_a_changed_histogram(heads: Path) -> None:
    row = next(one for one in UsageDay.objects.all() if one.latency)
    row.latency = {metric: {"1": 10} for metric in row.latency}
    row.save()

    assert any(one.startswith("sum: UsageDay") for one in findings())


@pytest.mark.parametrize(
    "change",
    [
        lambda: AuditEntry.objects.update(detail="another page"),
        lambda: AuditEntry.objects.all().delete(),
        lambda: AuditEntry.objects.create(pk=-1, action=Action.READ, detail="before the others"),
    ],
    ids=["changed", "deleted", "added"],
)
def test_a_changed_audit_log(heads: Path, change: Callable[[], object]) -> None:
    change()

    assert any(one.startswith("audit: audit_") for one in findings(heads))


def test_links_that_were_cut_off_or_written_again(heads: Path) -> None:
    kept, before = HashChainLink.objects.get(sequence=5), end()
    for number in range(5, 10):
        Transcript.objects.filter(pk=exchange_id(number)).delete()
        Exchange.objects.filter(pk=exchange_id(number)).delete()
    HashChainLink.objects.filter(sequence__gt=5).delete()
    LedgerHead.objects.update(sequence=5, digest=kept.digest)

    assert f"head: link {before}" in findings(heads)
    post(*range(20, 30))
    assert f"head: link {before}" in findings(heads)


def test_the_command_checks_the_heads_of_the_data_directory_and_says_what_is_proven(
    heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("verifyledger", "--published", str(heads), "--no-sums")
    shown = capsys.readouterr().out

    assert f"proven: links 1 to {end()} are those published at 20" in shown
    assert not (conf.data_dir / published_heads.FILE).exists()


def test_an_amendment_changes_its_own_columns_of_an_unchanged_row_only(heads: Path) -> None:
    with pytest.raises(ValueError, match="repriced may not change team"):
        amend([exchange_id(1)], lambda _: {"team": "other"}, LinkKind.REPRICED, FOR_PRICES)
    Exchange.objects.filter(pk=exchange_id(1)).update(model_requested="other")

    assert set_cost(exchange_id(1), 1) == []
    assert f"row: {exchange_id(1)}" in findings()


def test_a_published_head_is_an_event_that_verifies_as_a_line_of_the_file(
    heads: Path, tmp_path: Path
) -> None:
    Webhook.objects.create(name="heads", url="https://hooks.example.com", events=["ledger.head"])
    post(11)
    head = published_heads.publish(heads)
    copy = tmp_path / "copy"
    copy.write_text(json.dumps(json.loads(WebhookEvent.objects.get().body)["data"]))

    assert published_heads.publish(heads) is None
    assert published_heads.published(copy) == [head]
    assert findings(copy) == set()
