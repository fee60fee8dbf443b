"""The configuration changes under a running stream (faults K05, K08, K09 and K10)."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.core.management import call_command

from proxy.gateway.admission.revocation_watcher import stop_revoked_requests
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.models import ApiKey, Exchange, Price, Route, Team, Upstream
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Sleep, chunk
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient, read_until


def paused_stream(pause_s: float):
    """Return a stream that sends ``first``, waits, and sends the rest."""
    head, *rest = upstream_scripts.chat_events(["first", "second"])
    return upstream_scripts.pieces(
        [head, rest[0]], Sleep(pause_s), *map(chunk, rest[1:]), LAST_CHUNK
    )


def id_of(received: bytes) -> str:
    return received.partition(b"request-id: ")[2].partition(b"\r\n")[0].decode()


def test_k05_a_request_without_a_price_has_a_null_cost(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    """The cost is null, not 0; /readyz lists the model, and ``reprice`` sets the cost."""
    scripted.on("chat-k05", upstream_scripts.chat())
    reply = gateway.post(message("chat-k05"))

    exchange = row(reply.id, outcome="completed", cost_nanousd=None, price=None)
    assert "chat chat-k05" in gateway.request("GET", "/readyz").json["unpriced_models"]

    chat = Upstream.objects.get(name="chat")
    Price.objects.create(upstream=chat, model="chat-k05", since="2026-01-01", input=1, output=2)
    call_command("reprice", "--since", exchange.created.isoformat())
    reload()

    filled = Exchange.objects.get(pk=reply.id)
    assert filled.cost_nanousd == 12 * 1_000 + 5 * 2_000
    assert row(gateway.post(message("chat-k05")).id).cost_nanousd == filled.cost_nanousd
    assert "chat chat-k05" not in gateway.request("GET", "/readyz").json["unpriced_models"]


@for_each("gone", ["route", "upstream"])
def test_k08_a_stream_ends_normally_when_its_route_or_upstream_is_deleted(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload, gone: str
):
    scripted.on("k08-m", paused_stream(0.5))
    upstream = add_upstream("k08", "chat", scripted.base_url)
    add_route("k08-*", upstream)
    reload()

    with gateway.open(message("k08-m", stream=True)) as connection:
        received = read_until(connection, b"first")
        (Route.objects.get(model="k08-*") if gone == "route" else upstream).delete()
        reload()
        read_until(connection, b"message_stop")

    row(id_of(received), outcome="completed", upstream="k08", model_upstream="k08-m")
    assert gateway.post(message("k08-m")).status == (404 if gone == "route" else 500)
    Upstream.objects.filter(name="k08").delete()
    Route.objects.filter(model="k08-*").delete()
    reload()


class TestK09:
    """A key is revoked during its stream."""

    @pytest.fixture
    def issued_key(self, scripted: ScriptedUpstream, reload) -> Iterator[tuple[ApiKey, str]]:
        upstream = add_upstream("k09", "chat", scripted.base_url)
        add_route("k09-*", upstream)
        issued = ApiKey.issue(Team.objects.get(name="platform"), "going", scopes=["messages"])
        reload()
        yield issued
        Route.objects.filter(model="k09-*").delete()
        upstream.delete()
        issued[0].delete()
        reload()

    def revoke(self, key: ApiKey) -> None:
        key.revoked = datetime.now(UTC)
        key.save(update_fields=["revoked"])

    def test_k09_the_stream_of_a_revoked_key_ends_normally(
        self, gateway: GatewayClient, scripted: ScriptedUpstream, issued_key, reload
    ):
        key, secret = issued_key
        scripted.on("k09-m", paused_stream(0.5))

        with gateway.open(message("k09-m", stream=True), x_api_key=secret) as connection:
            received = read_until(connection, b"first")
            self.revoke(key)
            reload()
            read_until(connection, b"message_stop")

        row(id_of(received), outcome="completed")
        assert gateway.post(message("k09-m"), x_api_key=secret).status == 401

    def test_k09_the_stream_of_a_revoked_key_is_stopped_if_configured(
        self, gateway: GatewayClient, scripted: ScriptedUpstream, issued_key
    ):
        key, secret = issued_key
        scripted.on("k09-m", paused_stream(600))
        scripted.on("k09-other", paused_stream(0.5))
        directory.listeners.append(stop_revoked_requests)
        try:
            with (
                gateway.open(message("k09-other", stream=True)) as other,
                gateway.open(message("k09-m", stream=True), x_api_key=secret) as connection,
            ):
                received = read_until(connection, b"first")
                self.revoke(key)  # the polling thread notices it
                rest = read_until(connection, b'"request_id"')
                assert b'"type":"permission_error"' in rest
                assert b"message_stop" not in rest
                read_until(other, b"message_stop")  # the stream of another key continues
        finally:
            directory.listeners.remove(stop_revoked_requests)

        row(id_of(received), outcome="refused", error_type="permission_error")


def test_k10_a_price_change_during_a_request_does_not_apply_to_it(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    scripted.on("chat-repriced", paused_stream(0.5))
    chat = Upstream.objects.get(name="chat")
    old = Price.objects.create(
        upstream=chat, model="chat-repriced", since="2026-01-01", input=1, output=1
    )
    reload()

    with gateway.open(message("chat-repriced", stream=True)) as connection:
        received = read_until(connection, b"first")
        Price.objects.create(
            upstream=chat, model="chat-repriced", since="2026-02-01", input=9, output=9
        )
        reload()
        read_until(connection, b"message_stop")

    exchange = row(id_of(received))
    assert exchange.price["id"] == old.pk
    assert exchange.cost_nanousd == 17 * 1_000
