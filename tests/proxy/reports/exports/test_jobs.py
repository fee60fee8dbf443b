"""Background exports: created by a request, run by a thread, downloaded as one file."""

import csv
import io
import json
from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.models import ApiKey, Exchange, Export, ExportState
from proxy.reports.exports import jobs as exports_jobs
from proxy.reports.exports.jobs import MAX_TRIES, RUNNER_TIMEOUT, expire, run_all, runner
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db(transaction=True)
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


@pytest.fixture(autouse=True)
def export_folder(settings, tmp_path):
    """Write files to a temporary folder, and wait for the thread before the database is reset."""
    settings.DATA_DIR = tmp_path
    yield tmp_path / "exports"
    runner.join()


@pytest.fixture
def call_api(client):
    """Send a request with the key of a caller and return the response."""
    secrets = {
        "admin": factories.key("finance", scopes=["admin"])[1],
        "reports": factories.key("research-bot", scopes=["reports"])[1],
        "messages": factories.key("cleo", of="research")[1],
    }

    def call_api(method, route, body=None, caller="admin"):
        body_arguments = {} if body is None else {"data": json.dumps(body), "content_type": JSON}
        return getattr(client, method)(
            f"/api/v1/{route}/", headers={"x-api-key": secrets[caller]}, **body_arguments
        )

    return call_api


JSON = "application/json"


def create_export(call_api, **fields):
    """Create an export, wait for it and return its row."""
    created = call_api(
        "post", "exports", {"report": "requests", "format": "csv", "query": DAY, **fields}
    )
    assert created.status_code == 202, created.content
    runner.join()
    row = call_api("get", f"exports/{created.json()['id']}").json()
    assert created["Location"] == f"/api/v1/exports/{row['id']}/"
    return row


def file_of(call_api, row, caller="admin"):
    answer = call_api("get", f"exports/{row['id']}/download", caller=caller)
    assert answer.status_code == 200, answer.content
    body = answer.content
    assert answer["Content-Length"] == str(len(body)) == str(row["bytes"])
    return body


@pytest.mark.parametrize("report", ["requests", "sessions", "usage"])
@pytest.mark.parametrize("file_format", ["csv", "ndjson"])
def test_an_export_has_the_same_content_as_the_direct_download(
    call_api, client, report, file_format
):
    factories.record(opening={"session_id": "s1"})
    factories.record(opening={"session_id": "s2"}, at=factories.NOON + timedelta(hours=1))

    row = create_export(call_api, report=report, format=file_format)

    direct = call_api("get", report + "/")  # 404: the path has two slashes
    assert direct.status_code == 404
    secret = factories.key("twin", scopes=["admin"])[1]
    url = f"/api/v1/{report}/?from=2026-11-20&to=2026-11-21&format={file_format}"
    streamed = client.get(url, headers={"x-api-key": secret})
    assert row["state"] == "done"
    assert row["download"] == f"/api/v1/exports/{row['id']}/download/"
    assert file_of(call_api, row) == streamed.content


def test_an_export_of_thousands_of_rows_is_complete(call_api):
    first = factories.record()
    fields = {f.attname: getattr(first, f.attname) for f in Exchange._meta.concrete_fields}
    Exchange.objects.bulk_create(Exchange(**{**fields, "id": f"req_{n:026d}"}) for n in range(3000))

    lines = list(csv.DictReader(io.StringIO(file_of(call_api, create_export(call_api)).decode())))

    assert {line["id"] for line in lines} == set(Exchange.objects.values_list("pk", flat=True))


def test_a_caller_exports_only_visible_rows_and_sees_only_its_own_exports(call_api):
    factories.record()
    own = factories.record(team="research", opening={"key_id": key_named("cleo").pk})
    row = create_export(lambda *args: call_api(*args, caller="messages"), format="ndjson")

    lines = file_of(call_api, row, "messages").splitlines()

    assert [json.loads(line)["id"] for line in lines] == [own.pk]
    assert call_api("get", f"exports/{row['id']}").status_code == 404
    assert call_api("get", f"exports/{row['id']}/download").status_code == 404
    assert call_api("get", "exports").json() == {"data": []}
    assert [r["id"] for r in call_api("get", "exports", caller="messages").json()["data"]] == [
        row["id"]
    ]


def key_named(name):
    return ApiKey.objects.get(name=name)


def test_a_caller_with_fewer_permissions_than_before_cannot_download_the_file(call_api):
    row = create_export(call_api)
    key = key_named("finance")
    key.scopes = ["reports"]
    key.save()

    answer = call_api("get", f"exports/{row['id']}/download")

    assert answer.status_code == 404
    assert "create a new one" in answer.json()["error"]["message"]


def test_a_session_can_export_with_a_csrf_token(client):
    factories.record()
    root = factories.superuser()
    client.force_login(root)
    body = json.dumps({"report": "requests", "format": "csv", "query": DAY})

    answer = client.post("/api/v1/exports/", body, content_type=JSON)
    runner.join()

    assert answer.status_code == 202
    assert Export.objects.get(user=root).state == ExportState.DONE
    client.handler.enforce_csrf_checks = True
    refused = client.post("/api/v1/exports/", body, content_type=JSON)
    assert refused.status_code == 403


def test_creating_and_downloading_an_export_are_logged(call_api):
    row = create_export(call_api)
    file_of(call_api, row)

    entries = factories.audit(object_id=row["id"], action="export")

    assert [entry.key for entry in entries] == ["platform/finance"] * 2
    assert [entry.detail for entry in entries] == [
        "requested an export of requests as csv",
        "downloaded the export of requests",
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body is not a JSON object"),
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
def test_an_invalid_export_request_names_the_parameter(call_api, body, message):
    answer = call_api("post", "exports", body)

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert not Export.objects.exists()


def test_an_export_of_usage_needs_the_scope_reports(call_api):
    body = {"report": "usage", "format": "csv"}

    assert call_api("post", "exports", body, caller="messages").status_code == 403
    assert call_api("post", "exports", body, caller="reports").status_code == 202


def create_row(**fields):
    job = {"report": "requests", "format": "csv", "query": DAY, "created": now()} | fields
    key = ApiKey.objects.first() or factories.key("finance", scopes=["admin"])[0]
    reader = exports_jobs.reader_as_json(exports_jobs.Reader(everything=True, key_id=key.pk))
    return Export.objects.create(pk=f"export_{len(fields)}", key=key, reader=reader, **job)


@pytest.mark.django_db
def test_an_export_of_a_dead_process_is_run_again():
    job = create_row(
        state=ExportState.RUNNING, seen=now() - RUNNER_TIMEOUT - timedelta(seconds=1), tries=1
    )

    run_all()

    job.refresh_from_db()
    assert (job.state, job.tries) == (ExportState.DONE, 2)


@pytest.mark.django_db
def test_a_running_export_is_not_claimed():
    job = create_row(state=ExportState.RUNNING, seen=now(), tries=1)

    assert run_all() == 0

    job.refresh_from_db()
    assert job.state == ExportState.RUNNING


@pytest.mark.django_db
def test_an_export_that_failed_max_tries_fails_for_good():
    job = create_row(state=ExportState.RUNNING, seen=now() - 2 * RUNNER_TIMEOUT, tries=MAX_TRIES)

    run_all()

    job.refresh_from_db()
    assert (job.state, job.error) == (ExportState.FAILED, "its process died each time")


def test_a_full_disk_fails_the_export_and_leaves_no_file(call_api, monkeypatch, export_folder):
    factories.record()
    # A test cannot fill the disk.
    monkeypatch.setattr(exports_jobs, "MIN_FREE_BYTES", 2**80)

    row = create_export(call_api)

    assert (row["state"], row["error"]) == ("failed", "the disk of the gateway is nearly full")
    assert list(export_folder.iterdir()) == []
    assert call_api("get", f"exports/{row['id']}/download").status_code == 404


def test_an_expired_file_is_deleted(call_api, export_folder):
    row = create_export(call_api)
    assert len(list(export_folder.iterdir())) == 1

    assert expire(now() + exports_jobs.FILE_LIFETIME + timedelta(seconds=1)) == 1

    assert list(export_folder.iterdir()) == []
    assert call_api("get", f"exports/{row['id']}").json()["state"] == "expired"
    expired = call_api("get", f"exports/{row['id']}/download")
    assert expired.status_code == 404
    assert "expired" in expired.json()["error"]["message"]


def test_downloading_an_unfinished_export_is_409_and_too_many_exports_are_429(call_api):
    key = key_named("finance")
    jobs = [create_row(state=ExportState.RUNNING, seen=now(), tries=1)]
    fields = {f.attname: getattr(jobs[0], f.attname) for f in Export._meta.concrete_fields}
    for number in range(9):
        Export.objects.create(**{**fields, "id": f"export_n{number}", "key_id": key.pk})
    Export.objects.update(key=key)

    early = call_api("get", f"exports/{jobs[0].pk}/download")
    more = call_api("post", "exports", {"report": "requests", "format": "csv"})

    assert early.status_code == 409
    assert more.status_code == 429
    assert more["Retry-After"]
