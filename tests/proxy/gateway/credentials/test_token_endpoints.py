"""The libraries of the clouds reach token endpoints by the proxy and the CAs of the upstream.

Each token endpoint speaks TLS with a certificate of a private CA, and accepts connections only from
a forward proxy that asks for a password.
"""

import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from yarl import URL

from proxy.gateway.credentials.aws import AwsCredentials
from proxy.gateway.credentials.azure import EntraToken
from proxy.gateway.credentials.credential import CredentialError
from proxy.gateway.credentials.google import GoogleToken
from proxy.models.setup.columns import SecretReference
from proxy.models.setup.credential_types import AwsSettings, AzureSettings, GoogleSettings
from tests.fakes.servers.cloud_identity import CloudIdentity
from tests.fakes.servers.forward_proxies import ADDRESS, CREDENTIALS, Tinyproxy, running_tinyproxy

CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")


@pytest.fixture(scope="module")
def tinyproxy(tmp_path_factory) -> Iterator[Tinyproxy]:
    with running_tinyproxy(tmp_path_factory.mktemp("tinyproxy")) as running:
        yield running


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture
def identity(monkeypatch) -> Iterator[CloudIdentity]:
    for name in CA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    with CloudIdentity(context, only_from=ADDRESS) as running:
        yield running


@pytest.fixture
def way_out(monkeypatch, tinyproxy, ca_file) -> dict[str, Any]:
    """Return the stored ``connection`` of an upstream."""
    monkeypatch.setenv("TOKEN_TEST_PROXY_AUTH", CREDENTIALS)
    auth = {"env": "TOKEN_TEST_PROXY_AUTH"}
    return {"proxy": tinyproxy.url, "proxy_auth": auth, "ca_file": ca_file}


AUTHORITY = trustme.CA()
BEDROCK = URL("https://bedrock-runtime.us-east-1.amazonaws.com")


def aws(monkeypatch, tmp_path, identity, connection):
    (tmp_path / "jwt").write_text("web-identity")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "jwt"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identity.url)
    return AwsCredentials(BEDROCK, AwsSettings(), connection)


def google(monkeypatch, tmp_path, identity, connection):
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "key.json"
    path.write_text(json.dumps({
        "type": "service_account", "project_id": "p", "private_key_id": "1",
        "private_key": key.decode(), "client_email": "bridge@p.test", "client_id": "1",
        "token_uri": f"{identity.url}/google/token",
    }))  # fmt: skip
    return GoogleToken(GoogleSettings(file=str(path)), connection)


def azure(monkeypatch, tmp_path, identity, connection):
    monkeypatch.setenv("ENTRA_TEST_SECRET", "the-client-secret")
    settings = AzureSettings(
        method="client_secret",
        tenant_id="tenant",
        client_id="app",
        authority=identity.url,
        client_secret=SecretReference(env="ENTRA_TEST_SECRET"),
    )
    return EntraToken(settings, connection)


CLOUDS = pytest.mark.parametrize("source", [aws, google, azure])


@CLOUDS
def test_a_token_comes_through_the_proxy_with_its_password(
    monkeypatch, tmp_path, identity, *, way_out, tinyproxy, source
):
    found = source(monkeypatch, tmp_path, identity, way_out).fetch()

    assert identity.number == 1
    assert found.expires_at is not None
    assert f"CONNECT {identity.host}" in tinyproxy.log


DOWN = {"proxy": "http://127.0.0.1:9"}  # nothing listens on this port


@pytest.mark.parametrize(
    ("source", "missing", "changed"),
    [
        (aws, ("proxy", "proxy_auth"), {}),
        (google, ("proxy", "proxy_auth"), {}),
        (azure, ("proxy", "proxy_auth"), {}),
        (aws, ("proxy_auth",), {}),
        (google, ("proxy_auth",), {}),
        (aws, ("ca_file",), {}),
        (google, ("ca_file",), {}),
        (aws, (), DOWN),
        (google, (), DOWN),
    ],
)
def test_without_a_part_of_the_way_there_is_no_token_and_no_secret_in_the_error(
    monkeypatch, tmp_path, identity, *, way_out, source, missing, changed
):
    way_out = {name: way_out[name] for name in way_out if name not in missing} | changed
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    with pytest.raises(CredentialError) as error:
        source(monkeypatch, tmp_path, identity, way_out).fetch()

    assert identity.number == 0
    assert CREDENTIALS.partition(":")[2] not in str(error.value)


@CLOUDS
def test_an_upstream_without_a_proxy_ignores_that_of_the_environment(
    monkeypatch, tmp_path, identity, way_out, source
):
    identity.only_from = ""
    monkeypatch.setenv("HTTPS_PROXY", DOWN["proxy"])
    monkeypatch.setenv("NO_PROXY", "")

    source(
        monkeypatch, tmp_path, identity, {"proxy": "none", "ca_file": way_out["ca_file"]}
    ).fetch()

    assert identity.number == 1


@CLOUDS
def test_a_proxy_without_its_secret_is_named(monkeypatch, tmp_path, identity, way_out, source):
    monkeypatch.delenv("TOKEN_TEST_PROXY_AUTH")

    with pytest.raises(CredentialError, match="TOKEN_TEST_PROXY_AUTH is missing"):
        source(monkeypatch, tmp_path, identity, way_out).fetch()
