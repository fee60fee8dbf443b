"""The live view against the running gateway: who sees what runs, and how one is stopped."""

import contextlib
import json
import re
import threading

import pytest
from django.contrib.admin.models import LogEntry
from websockets.exceptions import ConnectionClosed, InvalidStatus

from proxy.live.running import RUNNING
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.admin import cast
from tests.proxy.gateway.browser import read_until

from .live_world import (
    Person,
    Still,
    asked,
    browser,
    heard,
    held,
    listen,
    quick,
    running,
    silent,
    until,
)


@pytest.fixture(scope="module")
def scripted():
    with ScriptedUpstream() as upstream:
        upstream.on("held", held())
        upstream.on("silent", silent())
        upstream.on("quick", quick())
        yield upstream


@pytest.fixture(scope="module")
def gateway(scripted, tmp_path_factory):
    with running(tmp_path_factory.mktemp("live") / "one", scripted) as started:
        yield started


@pytest.fixture(scope="module")
def admin(gateway):
    return Person(gateway)


def row_in(told, model):
    return next((row for row in told["rows"] if row["model"] == model), None)


def words_in(told, model):
    """How much of it was said so far."""
    row = row_in(told, model)
    return int(row["output"].removeprefix("≈ ")) if row else 0


def stopped(gateway, admin, model):
    """The request of this model: awaited in the feed, then stopped."""
    with admin.watch() as feed:
        row = row_in(heard(feed, lambda told: row_in(told, model)), model)
    return row["id"], admin.post(row["stop_url"], accept="application/json")


class TestTheFeed:
    def test_a_stream_appears_grows_and_settles(self, gateway, admin):
        with admin.watch() as feed:
            heard(feed, lambda told: told["count"] == 0)
            with browser(gateway).open(asked("held"), x_claude_code_session_id="s-1") as client:
                read_until(client, b"canary39")
                # What was told before it had said all may still wait to be heard.
                row = row_in(heard(feed, lambda told: words_in(told, "held") > 40), "held")
                assert row["state"] == "answering"
                assert (row["caller"], row["by"]) == ("e2e / tests", "chat · held")
                assert row["session"] == "s-1"
                assert row["output"].startswith("≈ ")
                assert row["age_ms"] > 0
            gone = heard(feed, lambda told: row["id"] in told["gone"])
            ended = gone["settled"] or heard(feed, lambda told: told["settled"])["settled"]

        assert ended[0]["id"] == row["id"]
        assert ended[0]["word"] == "client gone"

    def test_no_word_of_a_conversation_is_sent(self, gateway, admin):
        raw = []
        with (
            admin.watch() as feed,
            browser(gateway).open(asked("held", system="secretsystem")) as client,
        ):
            read_until(client, b"canary39")
            raw.append(json.dumps(heard(feed, lambda told: row_in(told, "held"))))
        page = admin.get("/admin/live/").body.decode()

        for secret in ("canary", "secretquestion", "secretsystem"):
            assert secret not in raw[0]
            assert secret not in page

    def test_at_most_two_messages_a_second(self):
        """Counted by the pace that the server sets itself, not by a clock of ours."""
        from proxy.admin import feed

        assert feed.EVERY_S >= 0.5

    def test_the_page_and_the_polled_rows_show_the_same(self, gateway, admin):
        with browser(gateway).open(asked("held")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            rows = json.loads(admin.get("/admin/live/rows/").body)

        row = row_in(rows, "held")
        assert f'data-id="{row["id"]}"' in page
        assert row["stop_url"] in page
        assert 'http-equiv="refresh"' in page
        known = f"/admin/live/rows/?known={row['id']}"
        ended = until(lambda: json.loads(admin.get(known).body)["settled"])
        assert ended[0]["word"] == "client gone"

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", None, "http://127.0.0.1:1"])
    def test_another_origin_is_refused(self, gateway, admin, origin):
        with pytest.raises(InvalidStatus) as refused:
            listen(gateway, {"cookie": admin.cookie}, origin)

        assert refused.value.response.status_code == 403

    @pytest.mark.parametrize("cookie", ["", "sessionid=nonsense", 'sessionid="', "a=b; sessionid"])
    def test_nobody_listens_without_signing_in(self, gateway, cookie):
        with pytest.raises(InvalidStatus) as refused:
            listen(gateway, {"cookie": cookie} if cookie else {})

        assert refused.value.response.status_code == 403

    def test_a_gateway_key_opens_no_feed(self, gateway):
        with pytest.raises(InvalidStatus) as refused:
            listen(gateway, {"x-api-key": gateway.key, "authorization": f"Bearer {gateway.key}"})

        assert refused.value.response.status_code == 403

    def test_another_path_opens_no_socket(self, gateway, admin):
        from websockets.sync.client import connect

        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{gateway.port}/v1/messages", proxy=None, open_timeout=90)

        assert refused.value.response.status_code == 403

    def test_whoever_signs_out_hears_no_more(self, gateway):
        person = Person(gateway)
        with person.watch() as feed:
            heard(feed, bool)
            person.post("/admin/logout/")
            with pytest.raises(ConnectionClosed) as closed:
                list(feed)

        assert closed.value.rcvd.code == 4401

    def test_what_a_watcher_says_does_no_harm(self, gateway, admin):
        with admin.watch() as feed:
            for said in ("{", "[]", b"\x00", "x" * 4000):
                feed.send(said)
            with browser(gateway).open(asked("held")) as client:
                read_until(client, b"canary39")
                heard(feed, lambda told: row_in(told, "held"))


class TestStopping:
    def test_a_stream_ends_in_an_error_and_its_row_says_who_stopped_it(self, gateway, admin):
        with browser(gateway).open(asked("held")) as client:
            read_until(client, b"canary39")
            request_id, answer = stopped(gateway, admin, "held")
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
        assert "stopped by admin in the admin" in page
        history = admin.get(f"/admin/proxy/exchange/{request_id}/history/").body.decode()
        assert "Stopped the running request." in history

    @pytest.mark.parametrize("stream", [True, False])
    def test_before_the_first_byte_it_is_a_403_that_no_client_tries_again(
        self, gateway, admin, stream
    ):
        replies = []
        client = threading.Thread(
            target=lambda: replies.append(browser(gateway).post(asked("silent", stream=stream)))
        )
        client.start()
        request_id, answer = stopped(gateway, admin, "silent")
        client.join(90)

        assert answer.status == 200
        reply = replies[0]
        assert (reply.status, reply.id) == (403, request_id)
        assert reply.json["error"]["type"] == "permission_error"
        assert reply.headers["x-should-retry"] == "false"
        row = until(lambda: closed(gateway, request_id))
        assert (row["outcome"], row["status"]) == ("refused", 403)

    def test_without_a_script_the_button_is_a_form(self, gateway, admin):
        with browser(gateway).open(asked("held")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            (url,) = re.findall(r'action="(/admin/live/req_[^"]+/stop/)"', page)
            answer = admin.post(url)
            read_until(client, b"event: error")

        assert (answer.status, answer.headers["location"]) == (302, "/admin/live/")

    def test_what_has_ended_cannot_be_stopped(self, gateway, admin):
        reply = browser(gateway).post(asked("quick"))
        until(lambda: closed(gateway, reply.id))

        answer = admin.post(f"/admin/live/{reply.id}/stop/", accept="application/json")

        assert "ended already" in json.loads(answer.body)["says"]
        assert closed(gateway, reply.id)["outcome"] == "completed"

    def test_a_link_stops_nothing(self, gateway, admin):
        with browser(gateway).open(asked("held")) as client:
            read_until(client, b"canary39")
            page = admin.get("/admin/live/").body.decode()
            (url,) = re.findall(r'action="(/admin/live/req_[^"]+/stop/)"', page)
            assert admin.get(url).status == 405
            forged = gateway.ask("POST", url, b"", {"cookie": admin.cookie}, authorised=False)
            assert forged.status == 403
            assert json.loads(admin.get("/admin/live/rows/").body)["count"] == 1


def closed(gateway, request_id):
    """The row as the reports tell it; None: it is still open."""
    answer = gateway.ask("GET", f"/api/v1/requests/{request_id}/")
    row = json.loads(answer.body) if answer.status == 200 else {}
    return row if row.get("outcome") else None


@pytest.fixture(scope="module")
def two(scripted, tmp_path_factory):
    with running(tmp_path_factory.mktemp("live") / "two", scripted, workers=2) as started:
        yield started


def all_rows(admin, number):
    """What one of the processes shows, once it has heard of as many rows from all of them."""
    told = json.loads(admin.get("/admin/live/rows/").body)
    return told["rows"] if told["count"] == number else None


def test_of_several_processes_every_page_shows_all_and_stops_any(two):
    """Ten streams and five pages: by chance alone, both processes serve some of each."""
    admin = Person(two)
    with contextlib.ExitStack() as streams:
        clients = [streams.enter_context(browser(two).open(asked("held"))) for _ in range(10)]
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


@pytest.fixture
def two_running():
    ours = {
        "req_ben": Still("req_ben"),
        "req_cleo": Still("req_cleo", team="research", user="cleo", key_id=8),
    }
    RUNNING.update(ours)
    yield ours
    for name in ours:
        RUNNING.pop(name, None)


@pytest.mark.django_db
class TestRoles:
    def ids(self, client):
        return {row["id"] for row in client.get("/admin/live/rows/").json()["rows"]}

    @pytest.mark.parametrize(
        ("groups", "permissions", "seen"),
        [
            (("auditor",), (), {"req_ben", "req_cleo"}),
            (("team:platform",), ("view_exchange",), {"req_ben"}),
            (("team:research",), ("view_exchange",), {"req_ben", "req_cleo"}),
            (("member",), (), {"req_ben"}),
        ],
    )
    def test_each_sees_the_rows_that_the_ledger_would_show(
        self, client, two_running, groups, permissions, seen
    ):
        """Ben always sees his own."""
        client.force_login(cast.staff("ben", *permissions, groups=groups))

        assert self.ids(client) == seen

    def test_staff_without_the_permission_sees_nothing(self, client, two_running):
        client.force_login(cast.staff("olga"))

        assert client.get("/admin/live/").status_code == 403
        assert client.get("/admin/live/rows/").status_code == 403
        assert client.post("/admin/live/req_ben/stop/").status_code == 403

    def test_an_auditor_reads_and_stops_nothing(self, client, two_running):
        client.force_login(cast.staff("aida", groups=("auditor",)))

        assert all(not row["stop_url"] for row in client.get("/admin/live/rows/").json()["rows"])
        assert client.post("/admin/live/req_ben/stop/").status_code == 403
        assert not two_running["req_ben"].stopped_by

    def test_a_member_stops_their_own_and_finds_no_other(self, client, two_running):
        client.force_login(cast.staff("ben", groups=("member",)))

        assert client.post("/admin/live/req_ben/stop/").status_code == 302
        assert client.post("/admin/live/req_cleo/stop/").status_code == 404
        assert two_running["req_ben"].stopped_by == "ben"
        assert not two_running["req_cleo"].stopped_by
        (entry,) = LogEntry.objects.all()
        assert (entry.object_id, entry.change_message) == (
            "req_ben",
            "Stopped the running request.",
        )

    def test_an_owner_stops_any(self, client, two_running):
        client.force_login(cast.staff("ada", groups=("owner",)))

        client.post("/admin/live/req_cleo/stop/")

        assert two_running["req_cleo"].stopped_by == "ada"

    def test_the_page_takes_a_fixed_number_of_queries(
        self, client, two_running, django_assert_max_num_queries
    ):
        client.force_login(cast.staff("ada", groups=("owner",)))
        client.get("/admin/live/rows/")
        for n in range(30):
            two_running[f"req_{n}"] = RUNNING[f"req_{n}"] = Still(f"req_{n}")
        with django_assert_max_num_queries(8):
            client.get("/admin/live/rows/?known=req_x,req_y")
