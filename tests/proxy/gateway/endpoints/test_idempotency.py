"""The stored response of an ``idempotency-key``."""

import contextlib
import sqlite3
import threading

from tests.fakes.upstreams.script_steps import WaitForGate
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message
from tests.waiting import until

KEY = {"idempotency-key": "stored before it is sent"}


def test_response_is_stored_before_the_client_receives_it(gateway, scripted, database):
    model, gate = "chat-stored-first", threading.Event()
    scripted.on(model, [WaitForGate(gate), *upstream_scripts.chat()])
    statuses: list[int] = []

    def post() -> None:
        statuses.append(gateway.post(message(model), **KEY).status)

    with contextlib.closing(sqlite3.connect(database / "replies.sqlite3")) as store:
        client = threading.Thread(target=post)
        client.start()
        until(lambda: scripted.requests_for(model))
        store.execute("BEGIN IMMEDIATE")  # the gateway cannot store the response
        gate.set()
        client.join(timeout=0.5)
        received_early = list(statuses)
        store.rollback()
        client.join()

    again = gateway.post(message(model), **KEY)
    assert (received_early, statuses) == ([], [200])
    assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
    assert len(scripted.requests_for(model)) == 1
