"""Google: the application default credentials, against local fakes."""

import json
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from proxy.gateway.credentials.credential import CredentialError
from proxy.gateway.credentials.google import GoogleToken
from proxy.models.setup.credential_types import GoogleSettings
from tests.fakes.servers.cloud_identity import CloudIdentity


@pytest.fixture
def identity(monkeypatch, tmp_path):
    with CloudIdentity() as running:
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # no login of gcloud
        monkeypatch.setenv("GCE_METADATA_HOST", running.host)
        monkeypatch.setenv("GCE_METADATA_IP", running.host)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        yield running


@pytest.fixture
def key_file(identity, tmp_path):
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "key.json"
    path.write_text(json.dumps({
        "type": "service_account", "project_id": "p", "private_key_id": "1",
        "private_key": pem.decode(), "client_email": "bridge@p.test", "client_id": "1",
        "token_uri": f"{identity.url}/google/token",
    }))  # fmt: skip
    return path


def test_a_service_accounts_key_in_a_file(identity, key_file):
    found = GoogleToken(GoogleSettings(file=str(key_file))).fetch()

    assert found.headers == {"authorization": "Bearer token-1"}
    assert found.expires_at == pytest.approx(time.time() + 3_600, abs=60)
    assert found.origin == f"Google, {key_file}"
    assert any("assertion=" in body for _, _, body in identity.requests)


def test_the_file_of_the_environment(identity, key_file, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))

    assert GoogleToken(GoogleSettings()).fetch().origin == "Google, the key of a service account"


def test_a_workload_identity_federation(identity, tmp_path):
    (tmp_path / "jwt").write_text("subject-token")
    path = tmp_path / "external.json"
    path.write_text(json.dumps({
        "type": "external_account", "audience": "//iam.googleapis.com/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{identity.url}/google/token",
        "credential_source": {"file": str(tmp_path / "jwt")},
    }))  # fmt: skip

    assert GoogleToken(GoogleSettings(file=str(path))).fetch().headers == {
        "authorization": "Bearer token-1"
    }


def test_each_fetch_returns_a_new_token(identity, key_file):
    source = GoogleToken(GoogleSettings(file=str(key_file)))

    assert [source.fetch().secret for _ in range(2)] == [b"token-1", b"token-2"]


def test_a_denied_account_and_a_broken_file_are_errors(identity, key_file):
    identity.denies = True
    with pytest.raises(CredentialError, match=r"^Google: RefreshError: "):
        GoogleToken(GoogleSettings(file=str(key_file))).fetch()
    key_file.write_text("PRIVATE")
    with pytest.raises(CredentialError) as error:
        GoogleToken(GoogleSettings(file=str(key_file))).fetch()
    assert "PRIVATE" not in str(error.value)
