"""Exports made in the background: asked for, made by a thread, fetched as one file."""

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.utils.timezone import now

from proxy.models import ApiKey, Exchange, Export, ExportState
from proxy.reports import export_jobs
from proxy.reports.export_jobs import MOST_TRIES, SILENT, expire, run_all, runner
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db(transaction=True)
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Files lie here, and the thread has ended before the database is emptied."""
    monkeypatch.setattr(export_jobs, "conf", replace(export_jobs.conf, data_dir=tmp_path))
    yield tmp_path / "exports"
    runner.join()


@pytest.fixture
def ask(client):
    """A caller by the name of its key; a session's requests go through ``client`` itself."""
    secrets = {
        "admin": cast.key("finance", scopes=["admin"])[1],
        "reports": cast.key("board", scopes=["reports"])[1],
        "messages": cast.key("cleo", of="research")[1],
    }

    def ask(method, route, body=None, caller="admin"):
        sent = {} if body is None else {"data": json.dumps(body), "content_type": JSON}
        return getattr(client, method)(
            f"/api/v1/{route}/", headers={"x-api-key": secrets[caller]}, **sent
        )

    return ask


JSON = "application/json"


def made(ask, **wanted):
    """An export, asked for and waited for: its row."""
    asked = ask("post", "exports", {"report": "requests", "format": "csv", "query": DAY, **wanted})
    assert asked.status_code == 202, asked.content
    runner.join()
    row = ask("get", f"exports/{asked.json()['id']}").json()
    assert asked["Location"] == f"/api/v1/exports/{row['id']}/"
    return row


def file_of(ask, row, caller="admin"):
    answer = ask("get", f"exports/{row['id']}/download", caller=caller)
    assert answer.status_code == 200, answer.content
    body = answer.content
    assert answer["Content-Length"] == str(len(body)) == str(row["bytes"])
    return body


@pytest.mark.parametrize("report", ["requests", "sessions", "usage"])
@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_a_file_says_what_the_direct_download_says(ask, client, report, form):
    cast.record(opening={"session_id": "s1"})
    cast.record(opening={"session_id": "s2"}, at=cast.NOON + timedelta(hours=1))

    row = made(ask, report=report, format=form)

    direct = ask("get", report + "/")  # 404: the slash is there already
    assert direct.status_code == 404
    secret = cast.key("twin", scopes=["admin"])[1]
    url = f"/api/v1/{report}/?from=2026-11-20&to=2026-11-21&format={form}"
    streamed = client.get(url, headers={"x-api-key": secret})
    assert row["state"] == "done"
    assert row["download"] == f"/api/v1/exports/{row['id']}/download/"
    assert file_of(ask, row) == streamed.content


def test_thousands_of_rows_are_all_there(ask):
    first = cast.record()
    fields = {f.attname: getattr(first, f.attname) for f in Exchange._meta.concrete_fields}
    Exchange.objects.bulk_create(Exchange(**{**fields, "id": f"req_{n:026d}"}) for n in range(3000))

    lines = list(csv.DictReader(io.StringIO(file_of(ask, made(ask)).decode())))

    assert {line["id"] for line in lines} == set(Exchange.objects.values_list("pk", flat=True))


def test_a_caller_gets_their_rows_only_and_nobody_elses_export(ask):
    cast.record()
    own = cast.record(team="research", opening={"key_id": cast_key("cleo").pk})
    row = made(lambda *said: ask(*said, caller="messages"), format="ndjson")

    lines = file_of(ask, row, "messages").splitlines()

    assert [json.loads(line)["id"] for line in lines] == [own.pk]
    assert ask("get", f"exports/{row['id']}").status_code == 404
    assert ask("get", f"exports/{row['id']}/download").status_code == 404
    assert ask("get", "exports").json() == {"data": []}
    assert [r["id"] for r in ask("get", "exports", caller="messages").json()["data"]] == [row["id"]]


def cast_key(name):
    return ApiKey.objects.get(name=name)


def test_who_has_lost_rights_does_not_get_the_file(ask):
    row = made(ask)
    key = cast_key("finance")
    key.scopes = ["reports"]
    key.save()

    answer = ask("get", f"exports/{row['id']}/download")

    assert answer.status_code == 404
    assert "ask anew" in answer.json()["error"]["message"]


def test_a_signed_in_user_exports_too_and_needs_the_token_of_the_form(client):
    cast.record()
    root = cast.superuser()
    client.force_login(root)
    body = json.dumps({"report": "requests", "format": "csv", "query": DAY})

    answer = client.post("/api/v1/exports/", body, content_type=JSON)
    runner.join()

    assert answer.status_code == 202
    assert Export.objects.get(user=root).state == ExportState.DONE
    client.handler.enforce_csrf_checks = True
    refused = client.post("/api/v1/exports/", body, content_type=JSON)
    assert refused.status_code == 403


def test_asking_and_fetching_are_in_the_admins_log(ask):
    row = made(ask)
    file_of(ask, row)

    said = LogEntry.objects.filter(object_id=row["id"]).order_by("pk")
    words = [entry.change_message for entry in said]

    assert words[0].startswith("Asked for an export of requests as csv, with key platform/finance")
    assert words[1].startswith("Downloaded the export of requests, with key platform/finance")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "the body is no JSON object"),
        ({"report": "keys", "format": "csv"}, 'report: "keys" is not a valid choice'),
        ({"report": "requests", "format": "xml"}, "format: "),
        ({"report": "requests", "format": "csv", "when": 1}, "when: unknown; known here: report"),
        (
            {"report": "requests", "format": "csv", "query": {"modell": "x"}},
            "did you mean 'model'",
        ),
        ({"report": "requests", "format": "csv", "query": {"tz": "Mars"}}, "tz: "),
        ({"report": "requests", "format": "csv", "query": {"from": ["a", "b"]}}, "query.from: "),
        ({"report": "requests", "format": "csv", "query": {"tz": {}}}, "query.tz: "),
    ],
)
def test_a_wrong_wish_is_named(ask, body, words):
    answer = ask("post", "exports", body)

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert not Export.objects.exists()


def test_sums_need_the_scope_for_reports(ask):
    body = {"report": "usage", "format": "csv"}

    assert ask("post", "exports", body, caller="messages").status_code == 403
    assert ask("post", "exports", body, caller="reports").status_code == 202


def waiting(**fields):
    job = {"report": "requests", "format": "csv", "query": DAY, "created": now()} | fields
    key = ApiKey.objects.first() or cast.key("finance", scopes=["admin"])[0]
    reader = export_jobs.frozen(export_jobs.Reader(everything=True, key_id=key.pk))
    return Export.objects.create(pk=f"export_{len(fields)}", key=key, reader=reader, **job)


@pytest.mark.django_db
def test_the_job_of_a_process_that_died_is_done_by_the_next():
    job = waiting(state=ExportState.RUNNING, seen=now() - SILENT - timedelta(seconds=1), tries=1)

    run_all()

    job.refresh_from_db()
    assert (job.state, job.tries) == (ExportState.DONE, 2)


@pytest.mark.django_db
def test_a_job_that_is_being_done_is_left_alone():
    job = waiting(state=ExportState.RUNNING, seen=now(), tries=1)

    assert run_all() == 0

    job.refresh_from_db()
    assert job.state == ExportState.RUNNING


@pytest.mark.django_db
def test_a_job_that_kills_each_process_is_given_up():
    job = waiting(state=ExportState.RUNNING, seen=now() - 2 * SILENT, tries=MOST_TRIES)

    run_all()

    job.refresh_from_db()
    assert (job.state, job.error) == (ExportState.FAILED, "its process died each time")


def test_a_full_disk_fails_the_export_and_leaves_no_piece(ask, monkeypatch, folder):
    cast.record()
    monkeypatch.setattr(export_jobs, "SPEAK_S", -1.0)
    monkeypatch.setattr(export_jobs, "LEFT_FREE", 2**80)

    row = made(ask)

    assert (row["state"], row["error"]) == ("failed", "the disk of the gateway is nearly full")
    assert list(folder.iterdir()) == []
    assert ask("get", f"exports/{row['id']}/download").status_code == 404


def test_a_file_goes_when_its_time_is_over(ask, folder):
    row = made(ask)
    assert len(list(folder.iterdir())) == 1

    assert expire(now() + export_jobs.KEPT + timedelta(seconds=1)) == 1

    assert list(folder.iterdir()) == []
    assert ask("get", f"exports/{row['id']}").json()["state"] == "expired"
    gone = ask("get", f"exports/{row['id']}/download")
    assert gone.status_code == 404
    assert "expired" in gone.json()["error"]["message"]


def test_an_unfinished_export_is_a_conflict_and_too_many_are_refused(ask):
    key = cast_key("finance")
    jobs = [waiting(state=ExportState.RUNNING, seen=now(), tries=1)]
    fields = {f.attname: getattr(jobs[0], f.attname) for f in Export._meta.concrete_fields}
    for number in range(9):
        Export.objects.create(**{**fields, "id": f"export_n{number}", "key_id": key.pk})
    Export.objects.update(key=key)

    early = ask("get", f"exports/{jobs[0].pk}/download")
    more = ask("post", "exports", {"report": "requests", "format": "csv"})

    assert early.status_code == 409
    assert more.status_code == 429
    assert more["Retry-After"]
