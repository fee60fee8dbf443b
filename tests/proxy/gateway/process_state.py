"""Replace everything that a gateway keeps in its process, so that two test files share nothing.

Ids of rows start at 1 in each new ledger. Whatever is stored by id or by name outside the ledger
(budget counters, rate limits, the configuration snapshot) would therefore belong to other rows.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.test import override_settings

from proxy.counters import backends
from proxy.gateway.admission import budgets, rate_limits
from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.gateway.admission.cooldown import cooldown
from proxy.gateway.admission.load_shedding import load_shedder
from proxy.gateway.endpoints import count_tokens, health
from proxy.gateway.http.request_body import body_memory
from proxy.gateway.request import ledger_records
from proxy.gateway.request.session_calls import known_origins
from proxy.gateway.request.tracing import tracing
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.gateway.upstream import client, model_memory
from proxy.gateway.webhooks import webhook_sender
from proxy.ledger.maintenance.purge_jobs import nightly
from proxy.ledger.posting import budget_sync
from proxy.ledger.posting.drainer import Pace
from proxy.ledger.posting.drift import new_name_recorder
from proxy.ledger.recorder import recorder
from proxy.live import shared_live_view
from proxy.live.live_view_sync import live_view_sync
from proxy.live.running_requests import RUNNING
from proxy.models.setup.config_row_validation import SKIPPED
from proxy.secrets import SECRET_FILES

SERVICES: tuple[Any, ...] = (
    SECRET_FILES, rate_limits.limits, cooldown, budget_maintenance, load_shedder, directory, new_name_recorder,
    SKIPPED, health.metrics_cache, body_memory, known_origins,
    count_tokens.correction_factors, model_memory.memory,
)  # fmt: skip
"""Objects whose attributes are the state of the process. ``directory`` reads ``SECRET_FILES``."""
COLLECTIONS: tuple[Any, ...] = (
    ledger_records.unpriced_models,
    count_tokens.without_endpoint, rate_limits.shared_limiters, budget_sync.DIRTY,
)  # fmt: skip
STORES: tuple[Any, ...] = (
    backends.shared_store, backends.call_store,
    shared_live_view.shared_states,
)  # fmt: skip
"""Functions that cache the store of this process."""
NO_RESTS: Final = Pace(min_rest_s=0.01, max_rest_s=0.01)
"""Tests wait for rows, so the drainer does not save CPU time for streams."""


@contextlib.contextmanager
def new_process_state(folder: Path) -> Iterator[None]:
    """Use ``folder`` as the data directory, with the state that a new process has."""
    _reset()
    recorder.pace = NO_RESTS
    with override_settings(DATA_DIR=folder):
        try:
            yield
        finally:
            _stop()
            _reset()
            recorder.pace = Pace()


def _stop() -> None:
    """Stop what the server has not stopped; tests may have started services without a server."""
    assert not RUNNING, f"requests without an end: {[*RUNNING]}"
    open_pools = [loop for loop in client.pools if not loop.is_closed()]
    assert not open_pools, "an event loop of a test still has connections to upstreams"
    client.pools.clear()
    for service in (
        nightly, webhook_sender, live_view_sync, tracing, recorder, budget_maintenance, directory
    ):  # fmt: skip
        service.stop()
    # These threads live as long as the process. They may have connections to the old ledger.
    for thread in (budgets.thread, rate_limits.thread, SyncToAsync.single_thread_executor):
        thread.submit(connections.close_all).result(60)


def _reset() -> None:
    assert not recorder.state()["started"], "the journal of another test is open"
    if backends.shared_store.cache_info().currsize:
        backends.shared_store().close()
    for store in STORES:
        store.cache_clear()
    for service in SERVICES:
        vars(service).clear()
        service.__init__()
    for collection in COLLECTIONS:
        collection.clear()
    ContentType.objects.clear_cache()
