"""A table of forgeries by somebody with the database, but without the key and the published heads.

Each is a finding of ``verifyledger``, or is among what it prints as not proven.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from proxy.audit_log.record import record
from proxy.ledger.maintenance import published_heads, retention, verifier
from proxy.ledger.maintenance.amendments import amend
from proxy.ledger.maintenance.verifier import claims_of
from proxy.ledger.posting.audit_links import subject_of
from proxy.ledger.posting.hash_chain import digest_of
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import (
    AuditEntry,
    Exchange,
    HashChainLink,
    LedgerHead,
    LinkKind,
    Part,
    StopReasonDay,
    Team,
    Transcript,
    UsageByCallerDay,
    UsageDay,
)
from proxy.models.audit import Action
from tests.proxy.ledger.amending import FOR_PRICES, FOR_PURGE, set_cost
from tests.proxy.ledger.factories import NOON, answer, closing, exchange_id, opening

from .test_forged_ledger import end, forge_link, post

pytestmark = pytest.mark.django_db
ROW = exchange_id(3)
LATER = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture
def heads(team: Team, tmp_path: Path) -> Path:
    """A ledger with ten requests, a new price, an audit entry, and a published head; then one more."""
    post(*range(10))
    set_cost(exchange_id(1), 7)
    record(Action.READ, detail="page")
    published_heads.publish(tmp_path / "heads")
    post(10)
    return tmp_path / "heads"


def verified(heads: Path) -> tuple[set[str], list[str]]:
    """Return the kinds of the findings, and what is not proven."""
    state = verifier.Checkpoint()
    for _ in verifier.steps(state):
        pass
    state.add([*verifier.check_published(heads)])
    claims = claims_of(state, published_heads.published(heads))
    return {one.what for one in state.findings}, claims.not_proven


def change_row(**columns: Any) -> Exchange:
    Exchange.objects.filter(pk=ROW).update(**columns)
    return Exchange.objects.get(pk=ROW)


def rewrite_row_and_append_a_link() -> None:
    forge_link(ROW, digest_of(change_row(model_requested="other")), "closed")


def rewrite_row_and_its_link() -> None:
    digest = digest_of(change_row(team="other"))
    HashChainLink.objects.filter(exchange_id=ROW).update(row_digest=digest)


def forge_an_amendment() -> None:
    note = HashChainLink.objects.get(kind="repriced").note
    forge_link(ROW, digest_of(change_row(cost_nanousd=1)), "repriced", note)


def let_the_gateway_amend_a_rewritten_row() -> None:
    """Change the digest of the newest link until the gateway has amended the row."""
    newest = HashChainLink.objects.get(exchange_id=ROW)
    rewrite_row_and_its_link()
    assert set_cost(ROW, 5)
    HashChainLink.objects.filter(pk=newest.pk).update(row_digest=newest.row_digest)


def let_the_gateway_amend_a_rewritten_transcript() -> None:
    newest = HashChainLink.objects.get(exchange_id=ROW)
    Transcript.objects.filter(pk=ROW).delete()
    HashChainLink.objects.filter(pk=newest.pk).update(body_digest=None)
    assert set_cost(ROW, 5)
    HashChainLink.objects.filter(pk=newest.pk).update(body_digest=newest.body_digest)


def let_the_gateway_end_a_rewritten_row_again() -> None:
    change_row(team="other", state="open", outcome="", finished=None)
    post(3)


def let_the_gateway_price_an_added_row() -> None:
    row = Exchange.objects.get(pk=ROW)
    row.pk = exchange_id(77)
    row.save(force_insert=True)
    amend([row.pk], lambda _: {"cost_nanousd": 1}, LinkKind.REPRICED, FOR_PRICES)


def forge_a_deletion() -> None:
    Transcript.objects.filter(pk=ROW).delete()
    note = retention.deletion_note(None, LATER + timedelta(days=1), 1)
    forge_link("purge_99", bytes(32), "purged", note)


def extend_a_deletion() -> None:
    list(retention.prune_transcripts(LATER, FOR_PURGE))
    Team.objects.update(retention_days=1)
    Transcript.objects.filter(pk=ROW).delete()
    link = HashChainLink.objects.exclude(note="").order_by("-sequence")[0]
    link.note = retention.deletion_note(None, LATER + timedelta(days=1), 1)
    link.kind = "purged"
    link.save()


def swap_ids() -> None:
    a, b = exchange_id(3), exchange_id(4)
    with connection.constraint_checks_disabled():
        for old, new in ((a, "spare"), (b, a), ("spare", b)):
            Exchange.objects.filter(pk=old).update(id=new)
            Transcript.objects.filter(pk=old).update(exchange_id=new)


def insert_again() -> None:
    row = Exchange.objects.get(pk=ROW)
    Exchange.objects.filter(pk=ROW).delete()
    row.total_ms = 1.0
    row.save(force_insert=True)


def delete_row_and_its_links() -> None:
    Exchange.objects.filter(pk=ROW).delete()
    HashChainLink.objects.filter(exchange_id=ROW).delete()


def change_histogram() -> None:
    row = next(one for one in UsageDay.objects.all() if one.latency)
    row.latency = {metric: {"1": 10} for metric in row.latency}
    row.save()


def change_audit_entry_with_a_link() -> None:
    entry = AuditEntry.objects.get(action=Action.READ)
    entry.detail = "another page"
    entry.save()
    forge_link(subject_of(entry), bytes(32), "audit")


def cut(sequence: int) -> None:
    """Delete all links after one, with what they cover."""
    kept = HashChainLink.objects.get(sequence=sequence)
    later = HashChainLink.objects.filter(sequence__gt=sequence)
    Exchange.objects.filter(pk__in=later.values("exchange_id")).delete()
    later.delete()
    LedgerHead.objects.update(sequence=sequence, digest=kept.digest)


def cut_published_links_and_go_on() -> None:
    cut(5)
    post(*range(20, 40))


def close_without_the_gateway() -> None:
    row = Exchange.objects.get(pk=ROW)
    row.pk = exchange_id(78)
    row.save(force_insert=True)


FINDINGS: list[tuple[Callable[[], object], str]] = [
    (rewrite_row_and_append_a_link, "signature"),
    (rewrite_row_and_its_link, "chain"),
    (lambda: change_row(user="eve"), "row"),
    (lambda: change_row(cost_nanousd=0), "row"),
    (forge_an_amendment, "signature"),
    (let_the_gateway_amend_a_rewritten_row, "amendment"),
    (let_the_gateway_amend_a_rewritten_transcript, "amendment"),
    (let_the_gateway_end_a_rewritten_row_again, "amendment"),
    (let_the_gateway_price_an_added_row, "unsealed"),
    (close_without_the_gateway, "unsealed"),
    (lambda: Transcript.objects.filter(pk=ROW).delete(), "body"),
    (lambda: Part.objects.all().delete(), "body"),
    (lambda: Transcript.objects.filter(pk=ROW).update(stream=b"made up"), "body"),
    (forge_a_deletion, "signature"),
    (extend_a_deletion, "chain"),
    (swap_ids, "row"),
    (insert_again, "row"),
    (lambda: Exchange.objects.filter(pk=ROW).delete(), "lost"),
    (delete_row_and_its_links, "chain"),
    (lambda: UsageDay.objects.update(team="other"), "sum"),
    (lambda: UsageByCallerDay.objects.update(user="eve"), "sum"),
    (lambda: StopReasonDay.objects.update(team="other"), "sum"),
    (lambda: UsageDay.objects.all().delete(), "sum"),
    (change_histogram, "sum"),
    (lambda: AuditEntry.objects.filter(action=Action.RUN).delete(), "audit"),
    (lambda: AuditEntry.objects.filter(action=Action.RUN).update(action=Action.READ), "cause"),
    (change_audit_entry_with_a_link, "signature"),
    (lambda: forge_link(ROW, bytes(32), "audit"), "audit"),
    (lambda: forge_link("audit_one", bytes(32), "audit"), "audit"),
    (lambda: forge_link("audit_" + "9" * 20, bytes(32), "audit"), "audit"),
    (lambda: forge_link("audit_" + "1" * 19 + "x", bytes(32), "audit"), "audit"),
    (lambda: forge_link(ROW, b"", "made up"), "signature"),
    (lambda: forge_link(ROW, bytes(32), "repriced", "no note"), "signature"),
    (lambda: forge_link(ROW, bytes(32), "repriced", '{"audit": "x", "before": 1}'), "signature"),
    (lambda: forge_link("purge_1", bytes(32), "purged", "no note"), "signature"),
    (lambda: forge_link("purge_1", bytes(32), "purged", '{"before": "never"}'), "signature"),
    (lambda: HashChainLink.objects.update(note="[" * 200), "chain"),
    (lambda: HashChainLink.objects.update(signature=b"short"), "signature"),
    (cut_published_links_and_go_on, "head"),
    (lambda: HashChainLink.objects.update(signature=None), "signature"),
]
"""What somebody does to the database, and a kind of finding that it causes."""

NOT_PROVEN: list[tuple[Callable[[], object], str]] = [
    (lambda: cut(end() - 1), "that no link after"),
    (
        lambda: AuditEntry.objects.create(action=Action.READ, detail="made up"),
        "1 entries of the audit",
    ),
    (lambda: Team.objects.update(retention_days=1), "tables that are not in the chain"),
]
"""What somebody does, and the beginning of the sentence that says that it is not proven."""


def _names(table: list[tuple[Callable[[], object], str]]) -> list[str]:
    return [f"{number}_{forge.__name__}_{what}" for number, (forge, what) in enumerate(table)]


@pytest.mark.parametrize(("forge", "what"), FINDINGS, ids=_names(FINDINGS))
def test_a_forgery_is_found(heads: Path, forge: Callable[[], object], what: str) -> None:
    assert verified(heads)[0] == set()

    forge()

    assert what in verified(heads)[0]
    record(Action.READ, detail="later")
    assert published_heads.publish(heads) is not None  # the gateway goes on


def other_value(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case dict():
            return {"made_up": {"1": 10}}
        case date():
            return value + timedelta(days=1)
        case str():
            return f"{value}x"
        case bool():
            return not value
        case _:
            return (value or 0) + 1


@pytest.mark.parametrize("table", [UsageDay, UsageByCallerDay, StopReasonDay])
def test_a_change_of_any_column_of_the_sums_is_found(heads: Path, table: Any) -> None:
    columns = [one for one in table._meta.fields if not one.primary_key]
    missed = []
    for column in columns:
        with transaction.atomic():
            changed = table.objects.first()
            value = other_value(getattr(changed, column.attname))
            table.objects.filter(pk=changed.pk).update(**{column.attname: value})
            if "sum" not in verified(heads)[0]:
                missed.append(column.name)
            transaction.set_rollback(True)

    assert missed == []
    assert verified(heads)[0] == set()


@pytest.mark.parametrize(("forge", "sentence"), NOT_PROVEN, ids=_names(NOT_PROVEN))
def test_what_is_not_found_is_printed(
    heads: Path, forge: Callable[[], object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forge()
    call_command("verifyledger", "--published", str(heads), "--no-sums")

    assert f"not proven: {sentence}" in capsys.readouterr().out


def test_an_older_database_in_its_place(heads: Path) -> None:
    """As after the old file was put back: what came later is gone, with its links."""
    published_heads.publish(heads)
    cut(end() - 1)

    assert "head" in verified(heads)[0]


def test_amendments_of_every_kind_prove_their_columns(heads: Path) -> None:
    """A row that was assumed to be interrupted, ended again and got two prices."""
    interrupted = closing(11, outcome="interrupted", status=0)
    write_to_database([ExchangeRecords(opening(11), [], interrupted)])
    write_to_database([ExchangeRecords(opening(11), [], closing(11, answer=answer("Paris")))])
    set_cost(exchange_id(11), 5)
    set_cost(exchange_id(11), 6)
    links = list(HashChainLink.objects.filter(exchange_id=exchange_id(11)))

    assert [link.kind for link in links] == ["closed", "closed", "repriced", "repriced"]
    row = Exchange.objects.get(pk=exchange_id(11))
    assert verifier.check_amendments(row, links) == ([], 0)
    assert verified(heads)[0] == set()


def test_each_amendment_names_the_entry_of_its_command(heads: Path) -> None:
    repriced = HashChainLink.objects.get(kind="repriced")
    entry = AuditEntry.objects.get(action=Action.RUN)

    assert verifier.note_in(repriced).audit == entry.pk
    assert HashChainLink.objects.get(exchange_id=subject_of(entry)).sequence < repriced.sequence
