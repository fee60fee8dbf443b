"""Microsoft Entra ID: a token by client secret, certificate, workload or managed identity.

Source: Azure SDK for Python, "azure-identity".
"""

from collections.abc import Mapping
from typing import Any

import azure.core.exceptions
import azure.identity

from proxy.models.setup.credential_types import AzureSettings
from proxy.models.setup.upstream_connection import NO_SETTINGS, token_transport
from proxy.secrets import ConfigError, resolve

from .credential import Credential, CredentialError, bearer


class EntraToken:
    """Fetches an access token. A new client for each fetch has no cache of older tokens."""

    def __init__(
        self, settings: AzureSettings, connection: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """``connection``: the settings of the upstream's connection, as they are stored."""
        self._settings = settings
        self._connection = connection

    def fetch(self) -> Credential:
        method = self._settings.method
        try:
            options = _transport_options(self._connection)
            with CLIENTS[method](self._settings, options) as client:
                found = client.get_token(self._settings.scope)
        except ConfigError as error:
            raise CredentialError(f"Entra ID: {error}") from None
        except (azure.core.exceptions.AzureError, OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else "failed"
            raise CredentialError(f"Entra ID: {type(error).__name__}: {reason}") from None
        return Credential(
            headers=bearer(found.token),
            secret=found.token.encode(),
            expires_at=float(found.expires_on),
            origin=f"Entra ID, {method.replace('_', ' ')}",
        )


Options = dict[str, Any]
"""The options of the library's HTTP client."""


def _transport_options(connection: Mapping[str, Any]) -> Options:
    """Return the options for the upstream's way. Raises ConfigError."""
    way = token_transport(connection)
    options: Options = {}
    if way.proxies is not None:
        options["proxies"] = dict(way.proxies)
    if way.ca_file:
        options["connection_verify"] = way.ca_file
    return options


def _authority(settings: AzureSettings) -> dict[str, Any]:
    """Return the options for another authority, of which no list of public ones is queried."""
    if not settings.authority:
        return {}
    return {"authority": settings.authority, "disable_instance_discovery": True}


def _client_secret(settings: AzureSettings, options: Options) -> Any:
    reference = settings.client_secret.stored if settings.client_secret else {}
    return azure.identity.ClientSecretCredential(
        settings.tenant_id,
        settings.client_id,
        resolve(reference),
        **_authority(settings),
        **options,
    )


def _certificate(settings: AzureSettings, options: Options) -> Any:
    return azure.identity.CertificateCredential(
        settings.tenant_id,
        settings.client_id,
        certificate_path=settings.certificate_file,
        **_authority(settings),
        **options,
    )


def _workload_identity(settings: AzureSettings, options: Options) -> Any:
    return azure.identity.WorkloadIdentityCredential(
        tenant_id=settings.tenant_id or None,
        client_id=settings.client_id or None,
        token_file_path=settings.token_file or None,
        **_authority(settings),
        **options,
    )


def _managed_identity(settings: AzureSettings, options: Options) -> Any:
    """The endpoint is on this machine or its host, so it is not called through a proxy."""
    return azure.identity.ManagedIdentityCredential(client_id=settings.client_id or None)


CLIENTS = {
    "client_secret": _client_secret,
    "certificate": _certificate,
    "workload_identity": _workload_identity,
    "managed_identity": _managed_identity,
}
