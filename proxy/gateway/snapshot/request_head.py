"""The URL of an upstream, and the request line and headers of a request to it."""

from typing import NamedTuple, Self

from yarl import URL

from proxy.models.setup.upstream_connection import DEFAULT_TLS, HttpProxy, TlsFiles


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
