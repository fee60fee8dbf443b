"""An httpx client for the few GET requests to upstreams, such as for a list of models.

It blocks, so it belongs in a thread or a command. ``client.py`` sends the requests of clients.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import httpx
from yarl import URL

from proxy.gateway.credentials.credential import Credential
from proxy.models.setup.upstream_connection import HttpProxy, TlsFiles, tls_context

from .client import PROXY_REFUSAL

VERSION: Final = {"anthropic-version": "2023-06-01"}


class CredentialAuth(httpx.Auth):
    """Adds the credential's headers to each POST and, if they need no signature, to each GET."""

    requires_request_body = True

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]  # httpx needs no generator
        if request.method == "POST" or self._credential.sign is None:
            url = URL(str(request.url), encoded=True)
            request.headers.update(self._credential.headers_for(url, request.content))
        yield request


def get_client(
    headers: Mapping[str, str],
    credential: Credential,
    through: HttpProxy | None,
    tls: TlsFiles,
    timeout: httpx.Timeout,
) -> httpx.Client:
    """Return an HTTP client that connects as the gateway does, through its proxy if it has one."""
    proxy = None
    if through is not None:
        host = f"[{through.host}]" if ":" in through.host else through.host
        fields = {"proxy-authorization": through.authorization} if through.authorization else {}
        scheme = "https" if through.tls else "http"
        trusted = tls_context(TlsFiles(ca=tls.ca)) if through.tls else None
        proxy = httpx.Proxy(
            f"{scheme}://{host}:{through.port}", headers=fields, ssl_context=trusted
        )
    # ``through`` is the proxy of the environment or of the upstream's settings.
    return httpx.Client(
        headers={**headers, **VERSION},
        auth=CredentialAuth(credential),
        timeout=timeout,
        proxy=proxy,
        verify=tls_context(tls),
        trust_env=False,
        event_hooks={"response": [_raise_for_proxy]},
    )


def _raise_for_proxy(response: httpx.Response) -> None:
    """Raise ProxyError if a proxy that forwards http requests refuses one."""
    if response.status_code == PROXY_REFUSAL:
        raise httpx.ProxyError(f"status {PROXY_REFUSAL}")
