"""Build the search index for transcripts that were stored without it."""

from collections.abc import Iterator
from typing import Any

import msgspec
import zstandard
from django.db import transaction

from proxy.ledger.posting.hash_chain import lock_ledger
from proxy.ledger.search import indexer
from proxy.ledger.search.indexer import NewParts
from proxy.ledger.transcripts.encoding import ANSWER, running_totals
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.models import SearchOccurrence, Transcript


def reindex(batch: int = 100) -> Iterator[int]:
    """Index all transcripts that are not indexed, oldest first; yield the size of each batch.

    The gateway may run meanwhile. An interrupted call is continued by the next one, which skips the
    transcripts that are indexed already.
    """
    last = ""
    while True:
        with transaction.atomic():
            lock_ledger()
            count, last = _index_batch(last, batch)
        if not count:
            return
        yield count


def _index_batch(after: str, size: int) -> tuple[int, str]:
    rows = Transcript.objects.filter(pk__gt=after).order_by("pk")
    columns = ("pk", "manifest", "exchange__team", "exchange__new_from", "exchange__previous_id")
    some = list(rows.values_list(*columns)[:size])
    if not some:
        return 0, after
    ids = [row[0] for row in some]
    done = set(
        SearchOccurrence.objects.filter(exchange_id__in=ids).values_list("exchange_id", flat=True)
    )
    previous = {row[4] for row in some} - {""}
    stored = set(Transcript.objects.filter(pk__in=previous).values_list("pk", flat=True))
    found = []
    for pk, manifest, team, new_from, previous_id in some:
        if pk in done:
            continue
        # Without the previous transcript, no other one has the messages that both contain.
        first = new_from if previous_id in stored else 0
        try:
            content = decode_manifest(pk, manifest)
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError):
            continue  # it is encrypted, or damaged as verifyledger reports
        found.append(_new_parts(content, pk, team, first))
    indexer.index_parts(found)
    return len(some), ids[-1]


def _new_parts(manifest: dict[str, Any], exchange_id: str, team: str, new_from: int) -> NewParts:
    """Return the ids of the parts that ``indexer.new_pieces`` returns as pieces."""
    added = [manifest[name] for name in ("raw", ANSWER) if name in manifest]
    settings: list[int] = []
    messages: list[int] = []
    for name, value in manifest.get("fields", {}).items():
        ids = [value] if isinstance(value, int) else running_totals(value)
        if name == "messages" and isinstance(value, list):
            messages = ids
        else:
            settings += ids
    added += messages[new_from + 1 if new_from else 0 :]
    if new_from:
        return NewParts(exchange_id, team, added, settings + messages[new_from : new_from + 1])
    return NewParts(exchange_id, team, added + settings)
