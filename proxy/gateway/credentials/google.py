"""Google: a token of the application default credentials.

The chain is google-auth's: GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, the metadata server. The
file may be a service account's key, or the configuration of a workload identity federation. Source:
Google Cloud, "How Application Default Credentials works".
"""

import datetime as dt
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import google.auth
import google.auth.exceptions
import google.auth.transport.requests
from google.auth import identity_pool
from google.oauth2 import credentials as oauth2
from google.oauth2 import service_account

from proxy.models.setup.credential_types import GoogleSettings
from proxy.models.setup.upstream_connection import NO_SETTINGS, token_transport
from proxy.secrets import ConfigError

from .credential import Credential, CredentialError, bearer

ORIGINS: Final[dict[str, str]] = {
    "google.auth.compute_engine.credentials": "the metadata server",
    "google.auth.identity_pool": "a workload identity federation",
    "google.oauth2.credentials": "the login of gcloud",
    "google.oauth2.service_account": "the key of a service account",
}
"""Module of a credential -> where the application default credentials were found."""


class GoogleToken:
    """Fetches an access token with one scope."""

    def __init__(
        self, settings: GoogleSettings, connection: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """``connection``: the settings of the upstream's connection, as they are stored."""
        self._scopes = [settings.scope]
        self._file = settings.file
        self._connection = connection

    def fetch(self) -> Credential:
        try:
            request = self._request()
            credentials = self._find(request)
            credentials.refresh(request)
        except ConfigError as error:
            raise CredentialError(f"Google: {error}") from None
        except json.JSONDecodeError:
            raise CredentialError(f"Google: {self._file} is not JSON") from None
        except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
            # The first line: google-auth puts response bodies behind it.
            reason = str(error.args[0] if error.args else error).strip() or "failed"
            reason = reason.splitlines()[0][:300]
            raise CredentialError(f"Google: {type(error).__name__}: {reason}") from None
        expiry: dt.datetime | None = credentials.expiry  # UTC without a time zone
        module = type(credentials).__module__
        return Credential(
            headers=bearer(credentials.token),
            secret=credentials.token.encode(),
            expires_at=expiry.replace(tzinfo=dt.UTC).timestamp() if expiry else None,
            origin=f"Google, {self._file or ORIGINS.get(module, module)}",
        )

    def _request(self) -> Any:
        """Return the function that sends google-auth's requests. Raises ConfigError."""
        way = token_transport(self._connection)
        options: dict[str, Any] = {"proxies": way.proxies}
        if way.ca_file:
            options["verify"] = way.ca_file
        # The options of a request win over the environment; those of a session would not.
        return partial(google.auth.transport.requests.Request(), **options)

    def _find(self, request: Any) -> Any:
        library: Any = google.auth  # its functions have no annotations
        if not self._file:
            return library.default(scopes=self._scopes, request=request)[0]
        content = json.loads(Path(self._file).read_bytes())
        kind = content.get("type") if isinstance(content, dict) else None
        if kind not in LOADERS:
            raise ValueError(f"{self._file} is of none of the types {', '.join(LOADERS)}")
        return LOADERS[kind](content, scopes=self._scopes)


LOADERS: Final[dict[str, Any]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "authorized_user": oauth2.Credentials.from_authorized_user_info,
    "external_account": identity_pool.Credentials.from_info,
}
"""Type of a credentials file -> its loader. google-auth advises against loading just any type."""
