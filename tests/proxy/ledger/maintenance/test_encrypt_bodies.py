"""The removal of the search index in batches; ``e2e/record/test_body_encryption.py`` has the rest."""

import pytest
from django.core.management import call_command
from django.db import connection

from proxy.ledger.maintenance import encrypt_bodies
from proxy.ledger.maintenance.search_reindex import reindex
from proxy.ledger.search.query import parse_query
from proxy.ledger.search.search import search
from proxy.models import Exchange, SearchEntry, SearchOccurrence
from tests.proxy.admin.factories import answer_body, record, request_body


@pytest.mark.django_db(transaction=True)
def test_the_search_index_is_deleted_in_batches_and_a_second_run_finishes_an_interrupted_one():
    for number in range(3):
        body = request_body(messages=[{"role": "user", "content": f"marmalade number {number}"}])
        record(body=body, answer=answer_body({"type": "text", "text": f"answer {number}"}))
    entries = SearchEntry.objects.count()
    assert entries > 5

    interrupted = encrypt_bodies.remove_search_index(size=2)
    assert next(interrupted) == 2
    assert not connection.in_atomic_block  # the ledger is free for the gateway between the batches
    interrupted.close()
    assert SearchEntry.objects.count() == entries - 2
    rest = list(encrypt_bodies.remove_search_index(size=2))

    assert sum(rest) == entries - 2
    assert max(rest) == 2
    assert not SearchEntry.objects.exists()
    assert not SearchOccurrence.objects.exists()
    list(reindex())
    assert len(search(parse_query("marmalade"), Exchange.objects.all(), limit=20).results) == 3
    call_command("verifyledger", verbosity=0)
