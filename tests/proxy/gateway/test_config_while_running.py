"""The configuration changes under a running stream: promises.md K05, K08, K09 and K10."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.core.management import call_command

from proxy.gateway.directory import directory
from proxy.gateway.revoked import end_revoked
from proxy.models import ApiKey, Exchange, Price, Route, Team, Upstream
from tests.fakes.steps import LAST_CHUNK, Sleep, chunk
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import add_route, add_upstream, message, row


def halves(pause_s: float):
    """A stream that says ``first``, waits, and says the rest."""
    head, *rest = scripts.chat_events(["first", "second"])
    return scripts.pieces([head, rest[0]], Sleep(pause_s), *map(chunk, rest[1:]), LAST_CHUNK)


def id_of(said: bytes) -> str:
    return said.partition(b"request-id: ")[2].partition(b"\r\n")[0].decode()


def test_k05_a_model_without_a_price_costs_nobody_knows_what(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    """Never 0: null, a line in /readyz for the banner, and ``reprice`` fills it."""
    scripted.on("chat-k05", scripts.chat())
    reply = gateway.post(message("chat-k05"))

    kept = row(reply.id, outcome="completed", cost_nanousd=None, price=None)
    assert "chat chat-k05" in gateway.ask("GET", "/readyz").json["unpriced_models"]

    chat = Upstream.objects.get(name="chat")
    Price.objects.create(upstream=chat, model="chat-k05", since="2026-01-01", input=1, output=2)
    call_command("reprice", "--since", kept.created.isoformat())
    reload()

    filled = Exchange.objects.get(pk=reply.id)
    assert filled.cost_nanousd == 12 * 1_000 + 5 * 2_000
    assert row(gateway.post(message("chat-k05")).id).cost_nanousd == filled.cost_nanousd
    assert "chat chat-k05" not in gateway.ask("GET", "/readyz").json["unpriced_models"]


@pytest.mark.parametrize("gone", ["route", "upstream"])
def test_k08_what_is_deleted_meanwhile_lets_the_stream_end(
    gateway: Browser, scripted: ScriptedUpstream, reload, gone: str
):
    scripted.on("k08-m", halves(0.5))
    upstream = add_upstream("k08", "chat", scripted.base_url)
    add_route("k08-*", upstream)
    reload()

    with gateway.open(message("k08-m", stream=True)) as connection:
        said = read_until(connection, b"first")
        (Route.objects.get(model="k08-*") if gone == "route" else upstream).delete()
        reload()
        read_until(connection, b"message_stop")

    row(id_of(said), outcome="completed", upstream="k08", model_upstream="k08-m")
    assert gateway.post(message("k08-m")).status == (404 if gone == "route" else 500)
    Upstream.objects.filter(name="k08").delete()
    Route.objects.filter(model="k08-*").delete()
    reload()


class TestK09:
    """A key is revoked while its stream runs."""

    @pytest.fixture
    def going(self, scripted: ScriptedUpstream, reload) -> Iterator[tuple[ApiKey, str]]:
        upstream = add_upstream("k09", "chat", scripted.base_url)
        add_route("k09-*", upstream)
        made = ApiKey.issue(Team.objects.get(name="platform"), "going", scopes=["messages"])
        reload()
        yield made
        Route.objects.filter(model="k09-*").delete()
        upstream.delete()
        made[0].delete()
        reload()

    def revoke(self, key: ApiKey) -> None:
        key.revoked = datetime.now(UTC)
        key.save(update_fields=["revoked"])

    def test_k09_the_stream_finishes_as_it_usually_does(
        self, gateway: Browser, scripted: ScriptedUpstream, going, reload
    ):
        key, secret = going
        scripted.on("k09-m", halves(0.5))

        with gateway.open(message("k09-m", stream=True), x_api_key=secret) as connection:
            said = read_until(connection, b"first")
            self.revoke(key)
            reload()
            read_until(connection, b"message_stop")

        row(id_of(said), outcome="completed")
        assert gateway.post(message("k09-m"), x_api_key=secret).status == 401

    def test_k09_the_stream_ends_where_the_operator_wants_that(
        self, gateway: Browser, scripted: ScriptedUpstream, going
    ):
        key, secret = going
        scripted.on("k09-m", halves(600))
        scripted.on("k09-other", halves(0.5))
        directory.listeners.append(end_revoked)
        try:
            with (
                gateway.open(message("k09-other", stream=True)) as other,
                gateway.open(message("k09-m", stream=True), x_api_key=secret) as connection,
            ):
                said = read_until(connection, b"first")
                self.revoke(key)  # the poller sees it by itself
                rest = read_until(connection, b'"request_id"')
                assert b'"type":"permission_error"' in rest
                assert b"message_stop" not in rest
                read_until(other, b"message_stop")  # another key's goes on
        finally:
            directory.listeners.remove(end_revoked)

        row(id_of(said), outcome="refused", error_type="permission_error")


def test_k10_a_price_that_changes_meanwhile_is_not_the_price_of_this_request(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    scripted.on("chat-repriced", halves(0.5))
    chat = Upstream.objects.get(name="chat")
    old = Price.objects.create(
        upstream=chat, model="chat-repriced", since="2026-01-01", input=1, output=1
    )
    reload()

    with gateway.open(message("chat-repriced", stream=True)) as connection:
        said = read_until(connection, b"first")
        Price.objects.create(
            upstream=chat, model="chat-repriced", since="2026-02-01", input=9, output=9
        )
        reload()
        read_until(connection, b"message_stop")

    kept = row(id_of(said))
    assert kept.price["id"] == old.pk
    assert kept.cost_nanousd == 17 * 1_000
