"""Encrypt what is stored already: texts without encryption, or under an older body key.

Each batch is one transaction, and what is encrypted with the current key is left out. So an
interrupted run is continued by the next one, and all data can be read at any time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Substr

from proxy.audit_log import Action
from proxy.encryption.bodies import (
    HEAD_LENGTH,
    MissingBodyKey,
    current_head,
    current_text_head,
    decrypt_text,
    key_ids,
    stored_text,
)
from proxy.ledger.archive.reading import changeable_rows
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import BODY_TEXTS
from proxy.ledger.posting.hash_chain import lock_ledger
from proxy.ledger.search import term_index
from proxy.ledger.transcripts import storage
from proxy.models import (
    ArchivedMonth,
    BodyKeyUse,
    Exchange,
    LinkKind,
    Revision,
    SearchEntry,
    SearchOccurrence,
    State,
    Transcript,
)

from .amendments import amend

INDEX_BATCH: Final = 500
"""Entries of the search index in one transaction."""


def remove_search_index(size: int = INDEX_BATCH) -> Iterator[int]:
    """Delete the search index, which contains words of the texts; yield the size of each batch.

    The terms are deleted last, because a retention run that deletes a part at the same time removes
    the terms of its entry.
    """
    while True:
        with transaction.atomic():
            lock_ledger()
            batch = list(SearchEntry.objects.order_by("pk").values_list("pk", flat=True)[:size])
            SearchOccurrence.objects.filter(entry__in=batch).delete()
            SearchEntry.objects.filter(pk__in=batch).delete()
            if not batch:
                term_index.clear()
                return
        yield len(batch)


def old_transcripts() -> models.QuerySet[Transcript]:
    """Return the transcripts that are not encrypted with the current key."""
    head = Substr("manifest", 1, HEAD_LENGTH, output_field=models.BinaryField())
    return Transcript.objects.alias(head=head).exclude(head=current_head())


def old_rows() -> models.QuerySet[Exchange]:
    """Return the closed ledger rows with a text that is not encrypted with the current key."""
    plain = Q()
    for name in BODY_TEXTS:
        plain |= ~Q(**{name: ""}) & ~Q(**{f"{name}__startswith": current_text_head()})
    return Exchange.objects.filter(changeable_rows(), plain, state=State.CLOSED)


def encrypt_transcripts(missing: Counter[str], size: int) -> Iterator[int]:
    """Store the transcripts again, encrypted; yield the size of each batch.

    Their old parts stay until ``prune_parts`` deletes them. ``missing``: the transcripts that
    cannot be read are added to it, by the id of their key.
    """
    last = ""
    while True:
        with transaction.atomic():
            lock_ledger()
            batch = list(old_transcripts().filter(pk__gt=last).order_by("pk")[:size])
            found = []
            for row in batch:
                try:
                    found.append(storage.load(row).conversation)
                except storage.EncryptedTranscript as fault:
                    missing[fault.key_id] += 1
                except storage.BrokenTranscript:
                    continue  # verifyledger reports it
            storage.store(found, datetime.now(UTC))
        if not batch:
            return
        last = batch[-1].pk
        yield len(batch)


def encrypt_rows(size: int) -> Iterator[int]:
    """Encrypt the texts of ledger rows; yield the size of each batch.

    Each changed row gets a new link of the hash chain. Rows whose key is missing do not change.
    """
    last = ""
    cause = Cause(Action.RUN, f"encrypts the texts of requests with key {key_ids()[0]}")
    while True:
        ids = list(
            old_rows().filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:size]
        )
        if not ids:
            return
        amend(ids, _decrypted_texts, LinkKind.ENCRYPTED, cause)
        last = ids[-1]
        yield len(ids)


def _decrypted_texts(row: Exchange) -> Mapping[str, Any] | None:
    try:
        texts = {name: decrypt_text(stored_text(getattr(row, name))) for name in BODY_TEXTS}
    except MissingBodyKey:
        return None
    return {name: text for name, text in texts.items() if text} or None


def forget_unused_keys() -> None:
    """Delete the ids of older keys if nothing is encrypted with them any more.

    The files of archived months do not change, so with them the ids stay.
    """
    if not (old_transcripts().exists() or old_rows().exists() or ArchivedMonth.objects.exists()):
        BodyKeyUse.objects.exclude(key=key_ids()[0]).delete()
        Revision.bump()


def forget_key(key: str) -> bool:
    """Stop reporting that a key is missing; return whether its id was stored."""
    deleted = BodyKeyUse.objects.filter(key=key).delete()[0]
    Revision.bump()
    return bool(deleted)
