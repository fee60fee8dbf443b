"""The URLs of an upstream's endpoints, and the request line and headers of requests to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from yarl import URL

from proxy.models.setup.upstream_connection import DEFAULT_TLS, HttpProxy, TlsFiles
from translator.anthropic_upstream.clouds import Cloud
from translator.capabilities import Profile
from translator.dialect import Dialect
from translator.errors import BadRequest

COUNT_PATHS: Final[Mapping[str, str]] = {
    "anthropic": "/v1/messages/count_tokens",
    "chat": "/messages/count_tokens",
    "responses": "/responses/input_tokens",
}
MODEL_LIST_PATHS: Final[Mapping[str, str]] = {
    "anthropic": "/v1/models",
    "chat": "/models",
    "responses": "/models",
}
DATED_PATHS: Final[Mapping[str, str]] = {"chat": "/deployments/{model}/chat/completions"}
"""The paths of Azure OpenAI with a dated ``api-version``; otherwise the model is in the body."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Templates of URLs; ``{model}`` stands for the model's name."""

    stream: str
    whole: str
    count: str
    """Empty if the upstream does not count tokens."""
    models: str = ""
    """The URL of the upstream's own list of models; empty if it has none."""

    @classmethod
    def of(
        cls, base_url: str, dialect: Dialect, profile: Profile, cloud: Cloud | None, version: str
    ) -> Self:
        path = dialect.path
        if version[:1].isdigit():
            path = DATED_PATHS.get(dialect.name, path)
        stream, whole, count = path, path, COUNT_PATHS[dialect.name]
        if cloud is not None:
            stream, whole, count = cloud.stream_path, cloud.whole_path, cloud.count_path
        return cls(
            stream=url_below(base_url, stream, version),
            whole=url_below(base_url, whole, version),
            count=url_below(base_url, count, version) if profile.count_tokens else "",
            models=""
            if cloud is not None
            else url_below(base_url, MODEL_LIST_PATHS[dialect.name], version),
        )


def url_below(base_url: str, path: str, version: str = "") -> str:
    """Append a path to a base URL before its query, and the query ``api-version`` of Azure."""
    base, _, own_query = base_url.partition("?")
    parts = [part for part in (own_query, f"api-version={version}" if version else "") if part]
    query = f"?{'&'.join(parts)}" if parts else ""
    return f"{base.rstrip('/')}{path}{query}"


def url_with_model(template: str, model: str) -> URL:
    """Return the URL with the model's name. Raises BadRequest for a name that changes the path."""
    if model in {"", ".", ".."}:
        raise BadRequest("model", f"{model!r} is not a model name")
    return URL(template.replace("{model}", quote(model, safe="")), encoded=True)


class Origin(NamedTuple):
    """Where a connection goes, and how. Requests with equal origins may share a connection."""

    tls: bool
    host: str
    port: int
    proxy: HttpProxy | None = None
    files: TlsFiles = DEFAULT_TLS

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy forwards the requests, instead of opening a tunnel for them."""
        return self.proxy is not None and not self.tls

    @classmethod
    def of(cls, url: URL, proxy: HttpProxy | None = None, files: TlsFiles = DEFAULT_TLS) -> Self:
        return cls(url.scheme == "https", url.raw_host or "", url.port or 80, proxy, files)


def request_head(url: URL, headers: dict[str, str], proxy: HttpProxy | None = None) -> bytes:
    """Return the request line and headers of a POST up to ``content-length:``, without its value.

    A proxy that forwards the request gets the whole URL and its own credentials (RFC 9112, 3.2.2).
    Common proxies open tunnels only to port 443, so http requests use none. Raises ValueError for a
    header with a line break or a character outside Latin-1.
    """
    target = url.raw_path_qs
    if proxy is not None and url.scheme == "http":
        target = f"{url.scheme}://{url.host_port_subcomponent}{target}"
        if proxy.authorization:
            headers = {**headers, "proxy-authorization": proxy.authorization}
    lines = [
        f"POST {target} HTTP/1.1",
        f"host: {url.host_port_subcomponent}",
        *(f"{name}: {value}" for name, value in headers.items()),
        "content-length: ",
    ]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a header for the upstream contains a line break")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:
        # ``from None``: the error's text quotes a character, which may be part of a secret
        raise ValueError("a header for the upstream contains a character beyond Latin-1") from None
