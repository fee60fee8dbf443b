"""The live credentials of this process, by upstream.

A snapshot of the configuration is built whenever anything changes, and the credentials must outlast
it. The module of a cloud is imported when an upstream uses it, because each is an optional extra.
"""

import importlib
import json
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from yarl import URL

from proxy.models import Upstream
from proxy.models.setup.credential_types import (
    AnySettings,
    AwsSettings,
    AzureSettings,
    CommandSettings,
    GoogleSettings,
)
from proxy.secrets import ConfigError, Secret
from translator.capabilities import Profile

from .command import CommandToken
from .credential import (
    NONE,
    STATIC,
    Credential,
    CredentialError,
    CredentialSource,
    LiveCredential,
    api_key_headers,
)

AsHeaders = Callable[[str], dict[str, str]]


def _command(settings: CommandSettings, upstream: Upstream, as_headers: AsHeaders) -> Any:
    return CommandToken(settings.command, settings.timeout_s, as_headers)


def _aws(settings: AwsSettings, upstream: Upstream, as_headers: AsHeaders) -> Any:
    module = importlib.import_module("proxy.gateway.credentials.aws")
    return module.AwsCredentials(URL(upstream.base_url), settings, upstream.connection)


def _google(settings: GoogleSettings, upstream: Upstream, as_headers: AsHeaders) -> Any:
    module = importlib.import_module("proxy.gateway.credentials.google")
    return module.GoogleToken(settings, upstream.connection)


def _azure(settings: AzureSettings, upstream: Upstream, as_headers: AsHeaders) -> Any:
    module = importlib.import_module("proxy.gateway.credentials.azure")
    return module.EntraToken(settings, upstream.connection)


SOURCES: Final[dict[type[Any], Callable[[Any, Upstream, AsHeaders], CredentialSource]]] = {
    CommandSettings: _command,
    AwsSettings: _aws,
    GoogleSettings: _google,
    AzureSettings: _azure,
}


def source_for(settings: AnySettings, upstream: Upstream, profile: Profile) -> CredentialSource:
    """Return the source of an upstream's credentials. Raises ConfigError."""

    def as_headers(token: str) -> dict[str, str]:
        return api_key_headers(upstream.dialect, profile, token)

    try:
        return SOURCES[type(settings)](settings, upstream, as_headers)
    except (ImportError, ValueError) as error:
        raise ConfigError(str(error)) from None


class StaticKey:
    """The upstream's ``api_key``. Each fetch reads its file again."""

    def __init__(
        self, read: Callable[[], str], as_headers: Callable[[str], Mapping[str, str]], origin: str
    ) -> None:
        self._read = read
        self._as_headers = as_headers
        self._origin = origin

    def fetch(self) -> Credential:
        try:
            key = self._read()
        except ConfigError as fault:
            raise CredentialError(str(fault)) from None
        return Credential(headers=self._as_headers(key), secret=key.encode(), origin=self._origin)


def static_credential(
    name: str, key: str, as_headers: AsHeaders, read: Callable[[], str] | None = None
) -> LiveCredential:
    """Return the credential of an upstream with a fixed API key, or without any.

    ``read`` reads the key again, after the upstream has rejected it.
    """
    source = StaticKey(read or (lambda: key), as_headers, STATIC)
    first = Credential(headers=as_headers(key), secret=key.encode(), origin=STATIC) if key else NONE
    return LiveCredential(name, STATIC, source, first=first)


class CredentialRegistry:
    """Creates and closes live credentials."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[str, LiveCredential]] = {}
        self._lock = threading.Lock()

    def credential_of(self, upstream: Upstream, profile: Profile) -> LiveCredential:
        """Return the upstream's live credential. Raises ConfigError if it cannot have one."""
        settings = upstream.credential_settings()
        if settings is None:
            key: Secret = upstream.credential()
            return static_credential(
                upstream.name,
                key,
                lambda text: api_key_headers(upstream.dialect, profile, text),
                upstream.credential if upstream.secret_file else None,
            )
        identity = json.dumps(
            [upstream.credentials, upstream.dialect, upstream.base_url, upstream.profile,
             profile.bearer_auth, upstream.connection], sort_keys=True,
        )  # fmt: skip
        with self._lock:
            known = self._live.get(upstream.name)
            if known is not None and known[0] == identity:
                return known[1]
            source = source_for(settings, upstream, profile)
            live = LiveCredential(upstream.name, upstream.credentials["kind"], source)
            self._live[upstream.name] = identity, live
        if known is not None:
            known[1].close()
        live.start()
        return live

    def keep(self, names: Collection[str]) -> None:
        """Close the credentials of all other upstreams."""
        with self._lock:
            gone = [name for name in self._live if name not in names]
            closed = [self._live.pop(name)[1] for name in gone]
        for live in closed:
            live.close()


CREDENTIALS: Final = CredentialRegistry()
