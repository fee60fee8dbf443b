"""Amazon: published signature vectors, and botocore's chain against local fakes."""

import datetime as dt

import pytest
from botocore.credentials import ReadOnlyCredentials
from yarl import URL

from proxy.gateway.credentials.aws import AwsCredentials
from proxy.gateway.credentials.credential import CredentialError
from proxy.models.setup.credential_types import AwsSettings
from tests.fakes.servers.cloud_identity import CloudIdentity
from tests.for_each import for_each

KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
STS_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPf"
    "IeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7W"
    "Z0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8F"
    "DrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)
SCOPE = "20150830/us-east-1/service/aws4_request"
# From Amazon's "aws-sig-v4-test-suite": post-vanilla, post-vanilla-query, post-sts-header-before.
VECTORS = [
    ("https://example.amazonaws.com/", None, "host;x-amz-date",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    ("https://example.amazonaws.com/?Param1=value1", None, "host;x-amz-date",
     "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"),
    ("https://example.amazonaws.com/", STS_TOKEN, "host;x-amz-date;x-amz-security-token",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"),
]  # fmt: skip
BEDROCK = URL("https://bedrock-runtime.eu-west-1.amazonaws.com")


@pytest.mark.parametrize(("url", "token", "signed", "signature"), VECTORS)
def test_published_signatures(monkeypatch, url, token, signed, signature):
    # The published signatures are of that day.
    monkeypatch.setattr(
        "botocore.auth.get_current_datetime",
        lambda *_: dt.datetime(2015, 8, 30, 12, 36, tzinfo=dt.UTC),
    )  # the vectors' time; botocore has no parameter for it
    source = AwsCredentials(URL(url), AwsSettings(region="us-east-1", service="service"))

    headers = source.signer(ReadOnlyCredentials(*KEYS, token))(URL(url), b"")

    assert headers["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{SCOPE}, SignedHeaders={signed}, "
        f"Signature={signature}"
    )
    assert headers.get("x-amz-security-token") == token


@for_each(
    ("url", "region", "service"),
    [
        (str(BEDROCK), "eu-west-1", "bedrock"),
        ("https://bedrock-runtime-fips.us-east-1.amazonaws.com/anthropic", "us-east-1", "bedrock"),
        ("https://bedrock-mantle.us-west-2.api.aws/anthropic", "us-west-2", "bedrock-mantle"),
        ("https://bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1", "bedrock"),
    ],
)
def test_region_and_service_are_in_the_base_url(url, region, service):
    source = AwsCredentials(URL(url), AwsSettings())

    assert (source.region, source.service) == (region, service)


def test_a_private_endpoint_needs_a_region():
    with pytest.raises(ValueError, match=r"credentials.region is missing"):
        AwsCredentials(URL("https://vpce-1.example.com"), AwsSettings())
    assert (
        AwsCredentials(URL("https://vpce-1.example.com"), AwsSettings(region="eu-west-1")).service
        == "bedrock"
    )


@pytest.fixture
def identity(monkeypatch, tmp_path):
    """Amazon's endpoints, in an environment without any other credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    with CloudIdentity() as running:
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", running.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", running.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield running


def by_environment(monkeypatch, tmp_path, identity) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    return "AWS, environment variables"


def by_profile(monkeypatch, tmp_path, identity) -> str:
    text = "[bridge]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = x\n"
    (tmp_path / "credentials").write_text(text)
    return "AWS, ~/.aws/credentials"


def by_web_identity(monkeypatch, tmp_path, identity) -> str:
    (tmp_path / "jwt").write_text("web-identity-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "jwt"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/bridge")
    return "AWS, the web identity"


def by_container(monkeypatch, tmp_path, identity) -> str:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{identity.url}/container")
    return "AWS, the container role"


def by_instance(monkeypatch, tmp_path, identity) -> str:
    return "AWS, the instance role"


@pytest.mark.parametrize(
    ("arrange", "expires"),
    [(by_environment, False), (by_profile, False), (by_web_identity, True), (by_container, True),
     (by_instance, True)],
)  # fmt: skip
def test_the_default_chain(monkeypatch, tmp_path, identity, arrange, expires):
    origin = arrange(monkeypatch, tmp_path, identity)
    profile = "bridge" if arrange is by_profile else ""

    found = AwsCredentials(BEDROCK, AwsSettings(profile=profile)).fetch()

    assert found.origin == origin
    headers = found.headers_for(BEDROCK / "model/x/invoke", b"{}")
    assert "Credential=AKIDEXAMPLE/" in headers["authorization"]
    assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
    assert (found.expires_at is not None) is expires
    assert headers.get("x-amz-security-token", "").startswith("token-") is expires


def test_a_fetch_does_not_return_cached_keys(monkeypatch, tmp_path, identity):
    by_container(monkeypatch, tmp_path, identity)
    source = AwsCredentials(BEDROCK, AwsSettings())

    tokens = {source.fetch().headers_for(BEDROCK, b"")["x-amz-security-token"] for _ in range(3)}

    assert tokens == {"token-1", "token-2", "token-3"}


def test_a_denied_role_is_named_by_its_code(monkeypatch, tmp_path, identity):
    by_web_identity(monkeypatch, tmp_path, identity)
    identity.denies = True

    with pytest.raises(CredentialError) as error:
        AwsCredentials(BEDROCK, AwsSettings()).fetch()

    assert str(error.value) == "AWS: ClientError: AccessDenied"


def test_no_credentials_and_an_unknown_profile_are_errors(monkeypatch, identity):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialError, match="no credentials in the environment"):
        AwsCredentials(BEDROCK, AwsSettings()).fetch()
    with pytest.raises(CredentialError, match="nowhere"):
        AwsCredentials(BEDROCK, AwsSettings(profile="nowhere")).fetch()
