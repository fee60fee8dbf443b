"""The column ``Upstream.credentials``: how the gateway gets a credential that expires.

A fixed API key needs none of them: it is the upstream's ``api_key``.
"""

import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from proxy.secrets import ConfigError

from .columns import SecretReference, Strict

Text = Annotated[str, Meta(min_length=1, max_length=2_000)]
Seconds = Annotated[float, Meta(gt=0, le=60)]


class CredentialSettings(Strict, tag_field="kind", omit_defaults=True):
    """The settings of one kind of credentials."""


class CommandSettings(CredentialSettings, tag="command"):
    """A program that prints a token, and when it expires, as JSON."""

    command: Annotated[list[Text], Meta(min_length=1, max_length=64)]
    timeout_s: Seconds = 20


class AwsSettings(CredentialSettings, tag="aws"):
    """Amazon's default chain; each request is signed (SigV4)."""

    region: str = ""  # if empty, the region in the base URL
    profile: str = ""  # a profile of ~/.aws/config; if empty, the default chain
    service: str = ""  # the name in the signature; if empty, the service in the base URL


class GoogleSettings(CredentialSettings, tag="google"):
    """Google's application default credentials."""

    file: str = ""  # JSON key or configuration of an external account; if empty, the default chain
    scope: Text = "https://www.googleapis.com/auth/cloud-platform"


class AzureSettings(CredentialSettings, tag="azure"):
    """Microsoft Entra ID."""

    method: Literal["client_secret", "certificate", "workload_identity", "managed_identity"]
    tenant_id: str = ""
    client_id: str = ""
    client_secret: SecretReference | None = None
    certificate_file: str = ""
    token_file: str = ""  # of the workload identity; if empty, AZURE_FEDERATED_TOKEN_FILE
    scope: Text = "https://cognitiveservices.azure.com/.default"
    authority: str = ""  # if empty, https://login.microsoftonline.com

    def __post_init__(self) -> None:
        for name in NEEDED_BY_METHOD[self.method]:
            if not getattr(self, name):
                raise ValueError(f"method {self.method!r} needs {name}")


NEEDED_BY_METHOD: Final[Mapping[str, tuple[str, ...]]] = {
    "client_secret": ("tenant_id", "client_id", "client_secret"),
    "certificate": ("tenant_id", "client_id", "certificate_file"),
    "workload_identity": (),
    "managed_identity": (),
}
AnySettings = CommandSettings | AwsSettings | GoogleSettings | AzureSettings
EXTRAS: Final[Mapping[type[CredentialSettings], tuple[str, str]]] = {
    AwsSettings: ("aws", "botocore"),
    GoogleSettings: ("google", "google.auth"),
    AzureSettings: ("azure", "azure.identity"),
}
"""The extra of this package that each kind needs, and a module of that extra."""


def parse_credentials(stored: Any) -> AnySettings | None:
    """Return the settings; None if there are none. Raises msgspec.ValidationError."""
    return None if stored == {} else msgspec.convert(stored, AnySettings)


def check_extra(settings: AnySettings) -> None:
    """Raise ConfigError if the extra that these credentials need is not installed."""
    extra, module = EXTRAS.get(type(settings), ("", ""))
    if not extra:
        return
    package = module.partition(".")[0]
    try:
        found = importlib.util.find_spec(package) and importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            f"credentials of kind {extra!r} need the extra {extra!r}: "
            f"pip install 'messages-bridge[{extra}]'"
        )
