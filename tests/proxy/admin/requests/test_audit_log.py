"""The audit log: its page, its exports and API, and who may see which entries."""

import csv
import io
import json

import pytest
from django.core.management import call_command

from proxy.audit_log.rows import change_lines
from proxy.models import ApiKey, AuditEntry, Team, Webhook
from proxy.permissions.roles import AUDITOR, MEMBER
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

LOG = "/admin/proxy/auditentry/"
API = "/api/v1/audit/"


@pytest.fixture
def root(client):
    client.force_login(factories.superuser())
    return client


def read_by(client, user, exchange):
    client.force_login(user)
    assert client.get(f"/admin/proxy/exchange/{exchange.pk}/change/").status_code == 200


def test_two_clicks_show_who_read_the_transcripts_of_a_user(client):
    exchange = factories.record(opening={"user": "ben"})
    other = factories.record(opening={"user": "cleo"})
    factories.staff("ben", groups=(MEMBER,))
    read_by(client, factories.staff("aida", groups=(AUDITOR,)), exchange)
    client.get(f"/admin/proxy/exchange/{other.pk}/change/")

    users = client.get("/admin/auth/user/").content.decode()
    url = f"{LOG}?did=readings&amp;subject=ben&amp;within=7d"
    assert url in users
    page = client.get(url.replace("&amp;", "&")).content.decode()

    assert "aida" in page
    assert exchange.pk in page
    assert other.pk not in page


def test_a_user_sees_who_read_the_own_transcripts(client):
    exchange = factories.record(opening={"user": "ben"})
    read_by(client, factories.staff("aida", groups=(AUDITOR,)), exchange)
    client.force_login(factories.staff("ben", groups=(MEMBER,)))

    page = client.get("/admin/my-readings/").content.decode()

    assert "aida" in page
    assert exchange.pk in page
    client.force_login(factories.staff("cleo", groups=(MEMBER,)))
    assert exchange.pk not in client.get("/admin/my-readings/").content.decode()


def test_entries_cannot_be_added_changed_or_deleted(root):
    entry = AuditEntry.objects.create(action="read", actor_kind="user", user="ben")

    answers = [
        root.post(f"{LOG}add/", {"action": "read"}),
        root.post(f"{LOG}{entry.pk}/change/", {"user": "cleo"}),
        root.post(f"{LOG}{entry.pk}/delete/", {"post": "yes"}),
        *(root.generic(method, API) for method in ("POST", "PUT", "PATCH", "DELETE")),
    ]

    assert {answer.status_code for answer in answers} == {403, 405}
    entry.refresh_from_db()
    assert entry.names.user == "ben"


def test_the_configuration_file_records_each_changed_field(tmp_path):
    file = tmp_path / "bridge.toml"
    file.write_text('[[teams]]\nname = "red"\nretention_days = 30\n')
    call_command("applyconfig", str(file), verbosity=0)
    file.write_text('[[teams]]\nname = "red"\nretention_days = 10\n')
    call_command("applyconfig", str(file), "--dry-run", verbosity=0)
    call_command("applyconfig", str(file), verbosity=0)

    added, changed = factories.audit(model="team", team="red")

    assert (added.action, added.command) == ("add", "applyconfig")
    assert changed.changes == {"retention_days": {"before": 30, "after": 10}}
    assert changed.user


def test_secrets_are_in_no_entry():
    key, secret = factories.key("ci")
    _, new_secret = key.rotate(key.created - key.created)
    Webhook(name="ops", url="https://hooks.example/T0/SECRET", secret={"env": "HOOK"}).save()

    text = str(list(AuditEntry.objects.values()))

    assert "'digest': {'changed': True}" in text
    assert secret not in text
    assert new_secret not in text
    assert bytes(ApiKey.objects.get(pk=key.pk).digest).hex() not in text
    assert "hooks.example" not in text


def test_exports_have_all_matching_entries_and_are_recorded(root):
    factories.team("red")
    factories.team("blue")

    lines = b"".join(root.get(f"{LOG}export/ndjson/?of_team=red").streaming_content)
    table = b"".join(root.get(f"{LOG}export/csv/?of_team=blue").streaming_content)

    assert [json.loads(line)["object"] for line in lines.splitlines()] == ["red"]
    assert [row["object"] for row in csv.DictReader(io.StringIO(table.decode()))] == ["blue"]
    exports = [entry.detail for entry in factories.audit(action="export", user="root")]
    assert exports == ["audit-log as ndjson: of_team=red", "audit-log as csv: of_team=blue"]


def test_the_api_pages_with_a_cursor(client):
    for name in ("a", "b", "c"):
        factories.team(name)
    _, secret = factories.key("finance", scopes=["admin"])
    headers = {"x-api-key": secret}

    first = client.get(f"{API}?object_kind=team&limit=3", headers=headers).json()
    second = client.get(
        f"{API}?object_kind=team&limit=3&page={first['next_page']}", headers=headers
    ).json()

    names = [row["object"] for row in first["data"] + second["data"]]
    assert names == ["platform", "c", "b", "a"]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert client.get(f"{API}?page=page_Ing", headers=headers).status_code == 400
    assert client.get(f"{API}?action=stolen", headers=headers).status_code == 400


def test_a_team_key_and_a_lead_see_only_entries_of_their_team(client):
    factories.team("other")
    _, secret = factories.key("report", scopes=["reports"])
    lead = factories.staff("lena", "view_exchange", "view_auditentry", groups=("team:platform",))

    by_key = client.get(API, headers={"x-api-key": secret}).json()["data"]
    client.force_login(lead)
    by_lead = client.get(API).json()["data"]

    assert {row["team"] for row in by_key} == {"platform"}
    assert {row["team"] for row in by_lead} <= {"platform", ""}
    assert "other" not in client.get(LOG).content.decode()


def test_the_object_history_button_leads_to_the_log(root):
    team = Team.objects.create(name="red")

    answer = root.get(f"/admin/proxy/team/{team.pk}/history/", follow=True)

    assert answer.redirect_chain == [(f"{LOG}?model=team&object={team.pk}", 302)]
    assert "Added" in answer.content.decode()


def test_a_change_names_the_setting_within_its_column():
    limits = {"before": {"rpm": 60, "concurrency": 5}, "after": {"rpm": 61, "tpm": 9}}
    entry = AuditEntry(changes={"limits": limits, "secret": {"changed": True}})

    assert change_lines(entry) == [
        "limits.rpm: 60 → 61", "limits.concurrency: removed 5", "limits.tpm: → 9",
        "secret: changed",
    ]  # fmt: skip
