"""Files of archived months in a bucket, and files that are damaged."""

import sys
from datetime import timedelta

import pytest
from django.core.management import CommandError

from proxy.conf import conf
from proxy.ledger.archive import files, reading
from proxy.models import Exchange
from tests.fakes.servers.bucket_server import bucket_server

from .conftest import JUNE

pytestmark = pytest.mark.django_db
BEFORE = ("--before", "2026-07")
SECRET = "wJalrXUtnFEMI/EXAMPLEKEY"


@pytest.fixture
def bucket(monkeypatch):
    with bucket_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        files.s3_client.cache_clear()
        yield server
        files.s3_client.cache_clear()


def june():
    return list(reading.rows_between(JUNE, JUNE + timedelta(days=3)))


def test_a_bucket_is_read_through_one_verified_copy(ledger, archive, bucket):
    before = list(ledger.filter(created__lt="2026-07-01T00:00Z"))

    archive(*BEFORE, "--remove", to="s3://ledger/gateway/")

    assert list(bucket.objects) == ["/ledger/gateway/requests-2026-06.parquet"]
    bucket.requests.clear()
    copies = conf.data_dir / "archive-copies"
    for copy in copies.glob("*.parquet"):
        copy.unlink()
    for _ in range(3):
        assert june() == before
    assert len(bucket.requests) == 1
    (copy,) = copies.iterdir()
    assert copy.stat().st_mode & 0o077 == 0

    copy.unlink()
    bucket.objects["/ledger/gateway/requests-2026-06.parquet"] += b"x"
    with pytest.raises(files.ArchiveError, match="differs from the file"):
        june()


@pytest.mark.slow
def test_an_error_of_the_bucket_names_no_secret(ledger, archive, bucket):
    bucket.shutdown()
    bucket.server_close()

    with pytest.raises(CommandError, match="s3://ledger") as caught:
        archive(*BEFORE, to="s3://ledger")

    assert SECRET not in str(caught.value)
    assert Exchange.objects.count() == 10


@pytest.mark.parametrize("location", ["s3://", "gs://bucket", "https://example.com/x"])
def test_a_location_of_another_kind_is_a_misuse(db, archive, location):
    with pytest.raises(CommandError, match=location) as caught:
        archive(to=location)

    assert caught.value.returncode == 2


def test_rows_stay_if_the_file_is_damaged(ledger, archive, tmp_path):
    archive(*BEFORE)
    with (tmp_path / "archive" / "requests-2026-06.parquet").open("ab") as file:
        file.write(b"x")

    with pytest.raises(CommandError, match="missing or damaged"):
        archive(*BEFORE, "--remove")

    assert Exchange.objects.count() == 10


def test_a_file_of_another_ledger_is_not_replaced(ledger, archive, tmp_path):
    path = tmp_path / "archive" / "requests-2026-06.parquet"
    path.parent.mkdir()
    path.write_bytes(b"of another ledger")

    with pytest.raises(CommandError, match="did not write"):
        archive(*BEFORE)

    assert path.read_bytes() == b"of another ledger"


def test_the_missing_extra_is_named(ledger, archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed

    with pytest.raises(CommandError, match=r"pip install 'messages-bridge\[archive\]'") as caught:
        archive(*BEFORE)

    assert caught.value.returncode == 2
