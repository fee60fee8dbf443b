"""Amazon: credentials of the default chain, and requests signed with Signature Version 4.

The chain is botocore's: environment, profile, web identity, container, instance. Source: AWS SDKs
and Tools Reference Guide, "Standardized credential providers".
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
import botocore.exceptions
import botocore.session
from yarl import URL

from proxy.models.setup.credential_types import AwsSettings
from proxy.models.setup.upstream_connection import NO_SETTINGS, token_transport
from proxy.secrets import ConfigError

from .credential import Credential, CredentialError

HOST: Final = re.compile(
    r"(?P<service>bedrock(-mantle|-runtime)?)(-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(amazonaws\.com(\.cn)?|api\.aws)"
)
"""The public host names of Amazon Bedrock."""
SERVICES: Final = {"bedrock-runtime": "bedrock"}
"""Endpoint name -> name in the signature, where they differ."""
ORIGINS: Final = {
    "env": "environment variables",
    "explicit": "explicit keys",
    "assume-role": "an assumed role of the profile",
    "assume-role-with-web-identity": "the web identity",
    "shared-credentials-file": "~/.aws/credentials",
    "config-file": "~/.aws/config",
    "custom-process": "the profile's credential_process",
    "container-role": "the container role",
    "iam-role": "the instance role",
    "sso": "IAM Identity Center",
}


class AwsCredentials:
    """Finds keys by botocore's chain. Each fetch runs the chain again."""

    def __init__(
        self, base_url: URL, settings: AwsSettings, connection: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """``connection``: the settings of the upstream's connection, as they are stored."""
        found = HOST.fullmatch(base_url.raw_host or "")
        self.region = settings.region or (found["region"] if found else "")
        name = found["service"] if found else "bedrock"
        self.service = settings.service or SERVICES.get(name, name)
        self._profile = settings.profile or None
        self._connection = connection
        if not self.region:
            raise ValueError("credentials.region is missing, and the base URL contains no region")

    def fetch(self) -> Credential:
        try:
            session = self._session()
            found: Any = session.get_credentials()
            keys = found.get_frozen_credentials() if found is not None else None
        except ConfigError as error:
            raise CredentialError(f"AWS: {error}") from None
        except botocore.exceptions.BotoCoreError as error:
            raise CredentialError(f"AWS: {str(error).strip().splitlines()[0][:300]}") from None
        except botocore.exceptions.ClientError as error:  # of STS
            # its code, such as AccessDenied; its message may name accounts
            code = str(error.response.get("Error", {}).get("Code", "") or "failed")[:100]
            raise CredentialError(f"AWS: {type(error).__name__}: {code}") from None
        if keys is None:
            raise CredentialError(
                "AWS: no credentials in the environment, a profile, a web identity, "
                "the container or the instance"
            )
        # botocore has no public accessor for the time; without it, the credential does not expire.
        expires = getattr(found, "_expiry_time", None)
        return Credential(
            sign=self.signer(keys),
            expires_at=expires.timestamp() if expires is not None else None,
            origin=f"AWS, {ORIGINS.get(found.method, found.method)}",
        )

    def _session(self) -> Any:
        """Return a session whose clients use the upstream's proxy and CA file.

        Raises ConfigError if the proxy's password cannot be read.
        """
        way = token_transport(self._connection)
        session: Any = botocore.session.Session(profile=self._profile)
        if way.proxies is not None:
            # The URL may contain the proxy's password. botocore masks it in its errors.
            session.set_default_client_config(botocore.config.Config(proxies=dict(way.proxies)))
        if way.ca_file:
            session.set_config_variable("ca_bundle", way.ca_file)
        return session

    def signer(self, keys: "botocore.credentials.ReadOnlyCredentials") -> Any:
        """Return a function that signs a POST with these keys."""

        def sign(url: URL, body: bytes) -> dict[str, str]:
            request = botocore.awsrequest.AWSRequest(method="POST", url=str(url), data=body)
            botocore.auth.SigV4Auth(keys, self.service, self.region).add_auth(request)
            return {name.lower(): value for name, value in request.headers.items()}

        return sign
