"""The live view with a running gateway: permissions, the feed, and stopping a request."""

import contextlib
import json
import re
import threading

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.admin.live.live_fixtures import (
    SignedInUser,
    browser,
    completed,
    live_request,
    open_feed,
    receive_until,
    running,
    stalled,
    streaming_then_stalled,
)
from tests.proxy.gateway.http_client import read_until
from tests.waiting import until


@pytest.fixture(scope="module")
def scripted():
    with ScriptedUpstream() as upstream:
        upstream.on("stalling", streaming_then_stalled())
        upstream.on("stalled", stalled())
        upstream.on("completed", completed())
        yield upstream


@pytest.fixture(scope="module")
def gateway(scripted, tmp_path_factory):
    with running(tmp_path_factory.mktemp("live") / "one", scripted) as started:
        yield started


@pytest.fixture(scope="module")
def admin(gateway):
    return SignedInUser(gateway)


def row_in(message, model):
    return next((row for row in message["rows"] if row["model"] == model), None)


def tokens_in(message, model):
    """Return the output tokens so far."""
    row = row_in(message, model)
    return int(row["output"].removeprefix("≈ ")) if row else 0


def stopped(gateway, admin, model):
    """Wait in the feed for the request of this model, stop it, and return id and response."""
    with admin.open_feed() as feed:
        row = row_in(receive_until(feed, lambda message: row_in(message, model)), model)
    return row["id"], admin.post(row["stop_url"], accept="application/json")


class TestTheFeed:
    def test_a_stream_appears_grows_and_ends(self, gateway, admin):
        with admin.open_feed() as feed:
            receive_until(feed, lambda message: message["count"] == 0)
            with browser(gateway).open(
                live_request("stalling"), x_claude_code_session_id="s-1"
            ) as client:
                read_until(client, b"canary39")
                # Messages from before the last chunk may still be in the socket.
                row = row_in(
                    receive_until(feed, lambda message: tokens_in(message, "stalling") > 40),
                    "stalling",
                )
                assert row["state"] == "answering"
                assert (row["caller"], row["upstream"]) == ("e2e / tests", "chat · stalling")
                assert row["session"] == "s-1"
                assert row["output"].startswith("≈ ")
                assert row["age_ms"] > 0
            gone = receive_until(feed, lambda message: row["id"] in message["gone"])
            ended = gone["ended"] or receive_until(feed, lambda message: message["ended"])["ended"]

        assert ended[0]["id"] == row["id"]
        assert ended[0]["text"] == "client gone"

    def test_the_feed_has_no_text_of_the_conversation(self, gateway, admin):
        raw = []
        with (
            admin.open_feed() as feed,
            browser(gateway).open(live_request("stalling", system="secretsystem")) as client,
        ):
            read_until(client, b"canary39")
            raw.append(json.dumps(receive_until(feed, lambda message: row_in(message, "stalling"))))
        page = admin.get("/admin/live/").body.decode()

        for secret in ("canary", "secretquestion", "secretsystem"):
            assert secret not in raw[0]
            assert secret not in page

    def test_at_most_two_messages_a_second(self):
        """Check the interval of the server; a measured rate would depend on the clock."""
        from proxy.admin.live import consumers

        assert consumers.UPDATE_INTERVAL_S >= 0.5

    def test_the_page_and_the_polled_rows_are_equal(self, gateway, admin):
        with browser(gateway).open(live_request("stalling")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            rows = json.loads(admin.get("/admin/live/rows/").body)

        row = row_in(rows, "stalling")
        assert f'data-id="{row["id"]}"' in page
        assert row["stop_url"] in page
        assert 'http-equiv="refresh"' in page
        known = f"/admin/live/rows/?known={row['id']}"
        ended = until(lambda: json.loads(admin.get(known).body)["ended"])
        assert ended[0]["text"] == "client gone"

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", None, "http://127.0.0.1:1"])
    def test_another_origin_is_rejected(self, gateway, admin, origin):
        with pytest.raises(InvalidStatus) as refused:
            open_feed(gateway, {"cookie": admin.cookie}, origin)

        assert refused.value.response.status_code == 403

    @pytest.mark.parametrize("cookie", ["", "sessionid=nonsense", 'sessionid="', "a=b; sessionid"])
    def test_the_feed_needs_a_sign_in(self, gateway, cookie):
        with pytest.raises(InvalidStatus) as refused:
            open_feed(gateway, {"cookie": cookie} if cookie else {})

        assert refused.value.response.status_code == 403

    def test_a_gateway_key_opens_no_feed(self, gateway):
        with pytest.raises(InvalidStatus) as refused:
            open_feed(gateway, {"x-api-key": gateway.key, "authorization": f"Bearer {gateway.key}"})

        assert refused.value.response.status_code == 403

    def test_another_path_opens_no_socket(self, gateway, admin):
        from websockets.sync.client import connect

        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{gateway.port}/v1/messages", proxy=None, open_timeout=90)

        assert refused.value.response.status_code == 403

    def test_a_sign_out_closes_the_feed(self, gateway):
        person = SignedInUser(gateway)
        with person.open_feed() as feed:
            receive_until(feed, bool)
            person.post("/admin/logout/")
            with pytest.raises(ConnectionClosed) as closed:
                list(feed)

        assert closed.value.rcvd.code == 4401

    def test_messages_of_the_client_are_ignored(self, gateway, admin):
        with admin.open_feed() as feed:
            for text in ("{", "[]", b"\x00", "x" * 4000):
                feed.send(text)
            with browser(gateway).open(live_request("stalling")) as client:
                read_until(client, b"canary39")
                receive_until(feed, lambda message: row_in(message, "stalling"))


class TestStopping:
    def test_a_stopped_stream_ends_in_an_error_and_only_the_audit_log_names_the_user(
        self, gateway, admin
    ):
        with browser(gateway).open(live_request("stalling")) as client:
            read_until(client, b"canary39")
            request_id, answer = stopped(gateway, admin, "stalling")
            rest = read_until(client, b'"permission_error"').decode()
            rest += read_until(client, b"\n\n").decode() if "\n\n" not in rest else ""

        assert answer.status == 200
        assert '"permission_error"' in rest
        assert "an administrator stopped this request" in rest
        assert "message_stop" not in rest
        row = until(lambda: closed(gateway, request_id))
        assert (row["outcome"], row["status"]) == ("refused", 200)
        assert row["error"]["source"] == "gateway"
        page = admin.get(f"/admin/proxy/exchange/{request_id}/change/?tab=record").body.decode()
        assert "stopped by an administrator" in page
        assert "stopped by" not in page.replace("stopped by an administrator", "")
        log = admin.get(f"/admin/proxy/auditentry/?object={request_id}&did=stop").body.decode()
        assert f">{request_id}</a>" in log

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_stop_before_the_first_byte_is_a_403_without_retry(self, gateway, admin, stream):
        replies = []
        client = threading.Thread(
            target=lambda: replies.append(
                browser(gateway).post(live_request("stalled", stream=stream))
            )
        )
        client.start()
        request_id, answer = stopped(gateway, admin, "stalled")
        client.join(90)

        assert answer.status == 200
        reply = replies[0]
        assert (reply.status, reply.id) == (403, request_id)
        assert reply.json["error"]["type"] == "permission_error"
        assert reply.headers["x-should-retry"] == "false"
        row = until(lambda: closed(gateway, request_id))
        assert (row["outcome"], row["status"]) == ("refused", 403)

    def test_without_javascript_the_button_is_a_form(self, gateway, admin):
        with browser(gateway).open(live_request("stalling")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            (url,) = re.findall(r'action="(/admin/live/req_[^"]+/stop/)"', page)
            answer = admin.post(url)
            read_until(client, b"event: error")

        assert (answer.status, answer.headers["location"]) == (302, "/admin/live/")

    def test_an_ended_request_cannot_be_stopped(self, gateway, admin):
        reply = browser(gateway).post(live_request("completed"))
        until(lambda: closed(gateway, reply.id))

        answer = admin.post(f"/admin/live/{reply.id}/stop/", accept="application/json")

        assert "already ended" in json.loads(answer.body)["message"]
        assert closed(gateway, reply.id)["outcome"] == "completed"

    def test_a_get_or_a_forged_post_stops_nothing(self, gateway, admin):
        with browser(gateway).open(live_request("stalling")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            (url,) = re.findall(r'action="(/admin/live/req_[^"]+/stop/)"', page)
            assert admin.get(url).status == 405
            forged = gateway.request("POST", url, b"", {"cookie": admin.cookie}, authorized=False)
            assert forged.status == 403
            assert json.loads(admin.get("/admin/live/rows/").body)["count"] == 1


def closed(gateway, request_id):
    """Return the row of the reports; None: it is still open."""
    answer = gateway.request("GET", f"/api/v1/requests/{request_id}/")
    row = json.loads(answer.body) if answer.status == 200 else {}
    return row if row.get("outcome") else None


@pytest.fixture(scope="module")
def two(scripted, tmp_path_factory):
    with running(tmp_path_factory.mktemp("live") / "two", scripted, workers=2) as started:
        yield started


def all_rows(admin, number):
    """Return the rows that one process shows; None: not yet the expected number."""
    data = json.loads(admin.get("/admin/live/rows/").body)
    return data["rows"] if data["count"] == number else None


def test_with_several_processes_every_page_shows_and_stops_all_requests(two):
    """With ten streams and five pages, both processes almost surely serve some of each."""
    admin = SignedInUser(two)
    with contextlib.ExitStack() as streams:
        clients = [
            streams.enter_context(browser(two).open(live_request("stalling"))) for _ in range(10)
        ]
        for client in clients:
            read_until(client, b"canary39")
        shown = [until(lambda: all_rows(admin, 10)) for _ in range(5)]
        rows = shown[-1]
        assert [len({row["id"] for row in page}) for page in shown] == [10] * 5
        for row in rows:
            url = row["stop_url"]
            until(lambda: admin.post(url, accept="application/json").status == 200)  # noqa: B023
        for client in clients:
            read_until(client, b"event: error")


def test_all_requests_of_a_team_and_of_a_key_are_stopped_in_every_process(two):
    admin = SignedInUser(two)
    token = {"content-type": "application/json", "x-csrftoken": admin.cookies["csrftoken"]}

    def stop_key():
        body = json.dumps({"kind": "key", "name": "e2e/tests"}).encode()
        return admin.send("POST", "/api/v1/stop", body, token | {"referer": two.url})

    def stop_team():
        return admin.post("/admin/live/stop/", {"kind": "team", "name": "e2e"})

    for stop, status in ((stop_key, 202), (stop_team, 302)):
        with contextlib.ExitStack() as streams:
            clients = [
                streams.enter_context(browser(two).open(live_request("stalling"))) for _ in range(8)
            ]
            for client in clients:
                read_until(client, b"canary39")

            assert stop().status == status

            for client in clients:
                read_until(client, b"event: error")

    completed = browser(two).post(live_request("completed", stream=False))
    assert completed.status == 200  # the orders do not apply to later requests
