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
            with self._client() as client:
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

    def _client(self) -> Any:
        """Return the library's client for the method. Raises ConfigError."""
        settings, way = self._settings, token_transport(self._connection)
        ids = settings.tenant_id, settings.client_id
        options: dict[str, Any] = {}
        if way.proxies is not None:
            options["proxies"] = dict(way.proxies)
        if way.ca_file:
            options["connection_verify"] = way.ca_file
        if settings.authority:  # another one, of which no list of public ones is queried
            options |= {"authority": settings.authority, "disable_instance_discovery": True}
        match settings.method:
            case "client_secret":
                reference = settings.client_secret.stored if settings.client_secret else {}
                return azure.identity.ClientSecretCredential(*ids, resolve(reference), **options)
            case "certificate":
                return azure.identity.CertificateCredential(
                    *ids, certificate_path=settings.certificate_file, **options
                )
            case "workload_identity":
                return azure.identity.WorkloadIdentityCredential(
                    tenant_id=settings.tenant_id or None,
                    client_id=settings.client_id or None,
                    token_file_path=settings.token_file or None,
                    **options,
                )
            case _:
                # A managed identity. Its endpoint is on this machine or its host, so it is not
                # called through a proxy.
                return azure.identity.ManagedIdentityCredential(
                    client_id=settings.client_id or None
                )
