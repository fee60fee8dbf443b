"""Build the search index for transcripts that were stored without it."""

from collections.abc import Iterator, Sequence

import msgspec
import zstandard
from django.db import transaction

from proxy.ledger.posting.hash_chain import lock_ledger
from proxy.ledger.search import indexer
from proxy.ledger.search.indexer import NewParts, new_parts
from proxy.ledger.transcripts.encoding import ANSWER
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.ledger.transcripts.storage import fields_in
from proxy.models import SearchOccurrence, Transcript


def reindex(batch: int = 100) -> Iterator[int]:
    """Index all transcripts that are not indexed, oldest first; yield the size of each batch.

    The gateway may run meanwhile. An interrupted call is continued by the next one, which skips the
    transcripts that are indexed already.
    """
    last = ""
    columns = ("pk", "manifest", "exchange__team", "exchange__new_from", "exchange__previous_id")
    while True:
        with transaction.atomic():
            lock_ledger()
            rows = Transcript.objects.filter(pk__gt=last).order_by("pk")
            some = list(rows.values_list(*columns)[:batch])
            _index_batch(some)
        if not some:
            return
        last = some[-1][0]
        yield len(some)


def _index_batch(some: Sequence[tuple[str, bytes, str, int, str]]) -> None:
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
        single = [content[name] for name in ("raw", ANSWER) if name in content]
        found.append(NewParts(pk, team, *new_parts(single, fields_in(content), first)))
    indexer.index_parts(found)
