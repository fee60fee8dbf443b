"""Which running requests a role sees on the live page, and which it may stop."""

from urllib.parse import quote_plus

import pytest

from proxy.live.running_requests import ADMINISTRATOR, RUNNING
from proxy.models import Upstream
from tests.proxy.admin import factories
from tests.proxy.admin.live.live_fixtures import (
    FakeRunningRequest,
)


@pytest.fixture
def two_running():
    requests = {
        "req_ben": FakeRunningRequest("req_ben"),
        "req_cleo": FakeRunningRequest("req_cleo", team="research", user="cleo", key_id=8),
    }
    RUNNING.update(requests)
    yield requests
    for name in requests:
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
    def test_a_user_sees_the_same_rows_as_in_the_ledger(
        self, client, two_running, groups, permissions, seen
    ):
        """Ben always sees his own requests."""
        client.force_login(factories.staff("ben", *permissions, groups=groups))

        assert self.ids(client) == seen

    def test_an_auditor_reads_but_cannot_stop(self, client, two_running):
        client.force_login(factories.staff("aida", groups=("auditor",)))

        assert all(not row["stop_url"] for row in client.get("/admin/live/rows/").json()["rows"])
        assert client.post("/admin/live/req_ben/stop/").status_code == 403
        assert not two_running["req_ben"].stopped_by

    def test_a_member_stops_only_their_own_requests(self, client, two_running):
        client.force_login(factories.staff("ben", groups=("member",)))

        assert client.post("/admin/live/req_ben/stop/").status_code == 302
        assert client.post("/admin/live/req_cleo/stop/").status_code == 404
        assert two_running["req_ben"].stopped_by == ADMINISTRATOR
        assert not two_running["req_cleo"].stopped_by
        (entry,) = factories.audit()
        assert (entry.action, entry.object_id, entry.names.user) == ("stop", "req_ben", "ben")

    def test_an_owner_stops_any_request(self, client, two_running):
        client.force_login(factories.staff("ada", groups=("owner",)))

        client.post("/admin/live/req_cleo/stop/")

        assert two_running["req_cleo"].stopped_by == ADMINISTRATOR

    @pytest.mark.parametrize(
        ("kind", "name", "stopped"),
        [
            ("team", "research", {"req_cleo"}),
            ("key", "platform/ci", {"req_ben"}),
            ("upstream", "openai", {"req_ben", "req_cleo"}),
        ],
    )
    def test_an_owner_stops_all_requests_of_an_object(
        self, client, two_running, kind, name, stopped
    ):
        factories.team("research")
        Upstream.objects.create(name="openai", dialect="chat", base_url="http://127.0.0.1:9")
        two_running["req_ben"].row["key_id"] = factories.key("ci")[0].pk
        client.force_login(factories.staff("ada", groups=("owner",)))

        choice = client.get("/admin/live/stop/").content.decode()
        question = client.get("/admin/live/stop/", {"kind": kind, "name": name}).content.decode()
        assert f"kind={kind}&amp;name={quote_plus(name)}" in choice
        assert f"<b>{len(stopped)}</b> now" in question
        assert not any(request.stopped_by for request in two_running.values())

        client.post("/admin/live/stop/", {"kind": kind, "name": name})

        assert {
            key for key, one in two_running.items() if one.stopped_by == ADMINISTRATOR
        } == stopped
        entry = factories.audit()[-1]
        assert (entry.action, entry.object_name, entry.names.user) == ("stop", name, "ada")
        assert entry.detail == "all running requests"

    def test_a_lead_stops_only_requests_of_own_teams(self, client, two_running):
        factories.team("research")
        client.force_login(factories.staff("ada", groups=("owner", "team:platform")))

        foreign = client.post("/admin/live/stop/", {"kind": "team", "name": "research"})

        assert "whose requests you may stop" in foreign.content.decode()
        assert not two_running["req_cleo"].stopped_by

    def test_the_page_of_a_revoked_key_offers_to_stop_its_requests(self, client):
        key = factories.key("ci")[0]
        client.force_login(factories.staff("ada", groups=("owner",)))

        page = client.post(f"/admin/proxy/apikey/{key.pk}/revoke/", follow=True)

        assert "kind=key&amp;name=platform%2Fci" in page.content.decode()

    def test_the_page_takes_a_fixed_number_of_queries(
        self, client, two_running, django_assert_max_num_queries
    ):
        client.force_login(factories.staff("ada", groups=("owner",)))
        client.get("/admin/live/rows/")
        for request in two_running.values():
            request.row |= {"team_id": "team_1", "user_id": "user_1"}
        for n in range(30):
            two_running[f"req_{n}"] = RUNNING[f"req_{n}"] = FakeRunningRequest(
                f"req_{n}", team_id="team_1", user_id="user_1"
            )
        with django_assert_max_num_queries(8):
            client.get("/admin/live/rows/?known=req_x,req_y")
