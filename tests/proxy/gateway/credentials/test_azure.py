"""Microsoft Entra ID: every method, against a local fake with TLS."""

import ssl
import time

import pytest
import trustme

from proxy.gateway.credentials.azure import EntraToken
from proxy.gateway.credentials.credential import CredentialError
from proxy.models.setup.columns import SecretReference
from proxy.models.setup.credential_types import AzureSettings
from tests.fakes.servers.cloud_identity import CloudIdentity

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("localhost", key_type=trustme.KeyType.RSA)


@pytest.fixture
def identity(monkeypatch, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CERTIFICATE.configure_cert(context)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with CloudIdentity(context) as running:
        yield running


def settings(identity, method, **fields):
    if method != "managed_identity":
        fields |= {"tenant_id": "tenant", "client_id": "app", "authority": identity.url}
    return AzureSettings(method=method, **fields)


def by_secret(monkeypatch, tmp_path, identity):
    monkeypatch.setenv("ENTRA_TEST_SECRET", "the-client-secret")
    return settings(
        identity, "client_secret", client_secret=SecretReference(env="ENTRA_TEST_SECRET")
    )


def by_certificate(monkeypatch, tmp_path, identity):
    path = tmp_path / "client.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(path)
    return settings(identity, "certificate", certificate_file=str(path))


def by_workload(monkeypatch, tmp_path, identity):
    (tmp_path / "jwt").write_text("federated-token")
    return settings(identity, "workload_identity", token_file=str(tmp_path / "jwt"))


def by_managed_identity(monkeypatch, tmp_path, identity):
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{identity.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "x")
    return settings(identity, "managed_identity")


@pytest.mark.parametrize("arrange", [by_secret, by_certificate, by_workload, by_managed_identity])
def test_each_method_fetches_a_new_token_each_time(monkeypatch, tmp_path, identity, arrange):
    source = EntraToken(arrange(monkeypatch, tmp_path, identity))

    first, second = source.fetch(), source.fetch()

    assert first.headers == {"authorization": "Bearer token-1"}
    assert second.secret == b"token-2"
    assert first.expires_at == pytest.approx(time.time() + 3_600, abs=60)
    assert first.origin.startswith("Entra ID, ")


def test_a_denied_application_is_an_error_without_its_secret(monkeypatch, tmp_path, identity):
    source = EntraToken(by_secret(monkeypatch, tmp_path, identity))
    identity.denies = True

    with pytest.raises(CredentialError, match=r"^Entra ID: ") as error:
        source.fetch()

    assert "the-client-secret" not in str(error.value)


def test_a_missing_client_secret_names_the_variable(monkeypatch, tmp_path, identity):
    source = EntraToken(by_secret(monkeypatch, tmp_path, identity))
    monkeypatch.delenv("ENTRA_TEST_SECRET")

    with pytest.raises(CredentialError, match="ENTRA_TEST_SECRET is missing"):
        source.fetch()
