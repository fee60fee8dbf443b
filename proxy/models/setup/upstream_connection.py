"""How the gateway connects to an upstream: HTTP proxy, trusted CAs, client certificate, headers.

``Upstream.connection`` has the settings as JSON, ``bridge.toml`` as the table ``connection``. An
upstream without a ``proxy`` uses the environment's HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.
"""

import base64
import fnmatch
import ipaddress
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import certifi
import msgspec
from django.core.exceptions import ValidationError
from msgspec import UNSET, Meta, UnsetType

from proxy.file_modes import refuse_writable_by_all
from proxy.secrets import ConfigError, Secret, resolve
from proxy.url_hosts import host_error

from .columns import SecretReference, Strict

HeaderName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)]
HeaderPattern = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\*?$", max_length=100)]
HeaderValue = Annotated[str, Meta(pattern=r"^[\x20-\x7e]+$", max_length=4_096)]
Path = Annotated[str, Meta(max_length=1_000)]

NO_PROXY: Final = "none"
"""The value of ``proxy`` for an upstream that is called directly, whatever the environment says."""
PROXY_PORTS: Final = {"http": 80, "https": 443}
"""The schemes of a proxy's URL, with their default ports."""
RESERVED_HEADERS: Final = frozenset(
    {"accept-encoding", "api-key", "authorization", "connection", "content-encoding",
     "content-length", "content-type", "cookie", "expect", "forwarded", "host", "keep-alive",
     "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
     "x-api-key"}
)  # fmt: skip
"""Headers that the gateway sets, that belong to one connection, or that contain a client's
credentials. They can be neither set nor forwarded."""


class ClientCertificate(Strict):
    """The PEM files of a client certificate (with its chain) and its private key."""

    cert: Path
    key: Path


class Connection(Strict, omit_defaults=True):
    proxy: Annotated[str, Meta(max_length=500)] = ""
    proxy_auth: SecretReference | UnsetType = UNSET  # the secret is "user:password"
    # The only trusted CAs, of the upstream, an https proxy and the cloud's token endpoint; if
    # empty, the public ones.
    ca_file: Path = ""
    client_certificate: ClientCertificate | UnsetType = UNSET
    headers: Annotated[dict[HeaderName, HeaderValue | SecretReference], Meta(max_length=32)] = {}
    forward_headers: Annotated[list[HeaderPattern], Meta(max_length=32)] = []


class HttpProxy(NamedTuple):
    """A forward proxy. It opens a tunnel to an https upstream, and forwards http requests."""

    host: str
    port: int
    authorization: Secret = Secret("")  # the value of ``proxy-authorization``
    tls: bool = False  # whether the connection to the proxy uses TLS

    @property
    def credentials(self) -> Secret:
        """The secret part of ``authorization``."""
        return Secret(self.authorization.removeprefix("Basic "))


class TlsFiles(NamedTuple):
    """Paths of PEM files; an empty path means the default."""

    ca: str = ""
    cert: str = ""
    key: str = ""


DEFAULT_TLS: Final = TlsFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConnection:
    """The settings of one upstream, with their secrets read and its proxy chosen."""

    proxy: HttpProxy | None = None
    tls: TlsFiles = DEFAULT_TLS
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[Secret, ...] = ()
    """The secrets among the values of ``headers``."""
    forwarded: re.Pattern[bytes] | None = None
    """The names of client headers to send on; None for no header."""


DIRECT: Final = ResolvedConnection()
NO_SETTINGS: Final[Mapping[str, Any]] = {}
"""The stored ``connection`` of an upstream without settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTransport:
    """How the library of a cloud reaches the cloud's token endpoint."""

    proxies: Mapping[str, str] | None = field(default=None, repr=False)
    """Proxies by URL scheme, as requests and botocore expect them; None: those of the
    environment. There is none for http, because metadata servers are in the local network."""
    ca_file: str = ""
    """The file of the trusted CAs; if empty, the library and its environment variables decide."""


def check_connection(stored: Any) -> None:
    """Raise ValidationError for settings that do not fit together. No file is read."""
    settings = msgspec.convert(stored, Connection)
    if settings.proxy not in ("", NO_PROXY):
        _check_proxy(settings.proxy)
    elif settings.proxy_auth is not UNSET:
        raise ValidationError("proxy_auth needs a proxy")
    for name in settings.headers:
        if name in RESERVED_HEADERS:
            raise ValidationError(f"headers: {name!r} cannot be set")
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.forward_headers):
            raise ValidationError(f"headers: {name!r} is also in forward_headers")
    for pattern in settings.forward_headers:
        if reserved := fnmatch.filter(sorted(RESERVED_HEADERS), pattern):
            raise ValidationError(f"forward_headers: {pattern!r} matches {reserved[0]!r}")


def resolve_connection(stored: Mapping[str, Any], base_url: str) -> ResolvedConnection:
    """Return the settings with the secrets and the proxy for an upstream with this base URL.

    Raises ConfigError for a secret or a file that cannot be read.
    """
    proxy_url = _proxy_from_environment(base_url)
    if not stored:
        return ResolvedConnection(proxy=_parse_proxy(proxy_url)) if proxy_url else DIRECT
    settings = msgspec.convert(stored, Connection)
    if settings.proxy:
        proxy_url = "" if settings.proxy == NO_PROXY else settings.proxy
    auth = _proxy_auth(settings)
    secrets = {
        name: resolve(value.stored)
        for name, value in settings.headers.items()
        if isinstance(value, SecretReference)
    }
    certificate = settings.client_certificate
    files = TlsFiles(
        settings.ca_file,
        "" if certificate is UNSET else certificate.cert,
        "" if certificate is UNSET else certificate.key,
    )
    tls_context(files)
    return ResolvedConnection(
        proxy=_parse_proxy(proxy_url, auth) if proxy_url else None,
        tls=files,
        headers={**settings.headers, **secrets},  # type: ignore[dict-item]  # the secrets replace their references
        secrets=tuple(secrets.values()),
        forwarded=_matching(settings.forward_headers),
    )


def token_transport(stored: Mapping[str, Any]) -> TokenTransport:
    """Return the proxy and the CA file for requests to the token endpoint of such an upstream.

    Raises ConfigError for a secret that cannot be read.
    """
    settings = msgspec.convert(stored, Connection)
    if not settings.proxy:
        return TokenTransport(ca_file=settings.ca_file)
    if settings.proxy == NO_PROXY:
        return TokenTransport(proxies={"no_proxy": "*"}, ca_file=settings.ca_file)
    url = settings.proxy
    if auth := _proxy_auth(settings):
        user, _, password = auth.partition(":")
        scheme, _, rest = url.partition("://")
        url = f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"
    return TokenTransport(proxies={"https": url}, ca_file=settings.ca_file)


def _proxy_auth(settings: Connection) -> Secret:
    """Return ``user:password`` for the proxy, or ""."""
    return Secret("") if settings.proxy_auth is UNSET else resolve(settings.proxy_auth.stored)


def secret_files_in(stored: Any) -> Iterator[tuple[str, str]]:
    """Yield what each secret file is for, and its path."""
    try:
        settings = msgspec.convert(stored, Connection)
    except msgspec.ValidationError:
        return
    references = {f"header {name}": value for name, value in settings.headers.items()}
    for name, reference in {"proxy": settings.proxy_auth, **references}.items():
        if isinstance(reference, SecretReference) and reference.file:
            yield name, reference.file


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context for these files; it is created again when one has changed.

    Without a ``ca`` file the CAs of SSL_CERT_FILE or SSL_CERT_DIR are trusted, else Mozilla's.
    Raises ConfigError, which names the file.
    """
    return _tls_context(files, tuple(_version(path) for path in files if path))


@lru_cache(maxsize=64)
def _tls_context(files: TlsFiles, _versions: tuple[tuple[int, int], ...]) -> ssl.SSLContext:
    path = files.ca
    try:
        if path or (path := os.environ.get("SSL_CERT_FILE", "")):
            context = ssl.create_default_context(cafile=path)
        elif path := os.environ.get("SSL_CERT_DIR", ""):
            context = ssl.create_default_context(capath=path)
        else:
            context = ssl.create_default_context(cafile=certifi.where())
        if files.cert:
            path = f"{files.cert} with key {files.key}"
            # Without a password callback, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(files.cert, files.key, password=lambda: b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "invalid"
        raise ConfigError(f"file {path} cannot be used: {reason}") from None
    return context


def _version(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path object would take longer than the call
        refuse_writable_by_all(path, found.st_mode)
    except OSError as error:
        raise ConfigError(f"file {path} cannot be read: {error.strerror}") from None
    return found.st_mtime_ns, found.st_ino


def _check_proxy(url: str) -> None:
    """Raise ValidationError if the URL of a proxy is not ``http[s]://host:port``."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if "@" in parts.netloc:
        raise ValidationError("proxy cannot contain a user or password; name them in proxy_auth")
    if parts.scheme not in PROXY_PORTS or not host or not port or parts.path.strip("/"):
        raise ValidationError(
            f"proxy {url!r} must look like http://host:port or https://host:port, "
            f"or be {NO_PROXY!r}"
        )
    if error := host_error(host):
        raise ValidationError(f"proxy {url!r}: {error}")


def _proxy_from_environment(base_url: str) -> str:
    """Return the proxy's URL for this base URL, or "". This machine is never called by a proxy."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies_environment()
    found = proxies.get(parts.scheme) or proxies.get("all", "")
    if not found or _is_this_machine(host):
        return ""
    at = f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    if urllib.request.proxy_bypass_environment(at, proxies):  # type: ignore[attr-defined]  # typeshed lacks it
        return ""
    return found if "://" in found else f"http://{found}"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _parse_proxy(url: str, auth: str = "") -> HttpProxy:
    """Return the proxy of a URL. The environment's URL may contain user and password."""
    parts = urlsplit(url)
    if parts.scheme not in PROXY_PORTS or not parts.hostname:
        raise ConfigError(
            "the environment's proxy must look like http://host:port or https://host:port"
        )
    if parts.username is not None:
        auth = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    encoded = base64.b64encode(auth.encode()).decode()
    value = Secret(f"Basic {encoded}" if auth else "")
    port = parts.port or PROXY_PORTS[parts.scheme]
    return HttpProxy(parts.hostname, port, value, tls=parts.scheme == "https")


def _matching(patterns: list[str]) -> re.Pattern[bytes] | None:
    """Return a pattern for the names of client headers to forward."""
    if not patterns:
        return None
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns).encode())
