"""The names of the models that an upstream lists itself, for ``GET /v1/models``.

A thread asks the upstream, at most once in ten minutes, whatever the answer. So no stream waits for
it, and an upstream that has no list, or cannot be reached, is not asked by each client. The request
that starts a refresh waits a moment for it; others get the previous names.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from proxy.gateway.credentials.credential import Credential
from proxy.gateway.snapshot.targets import UpstreamServer

log = logging.getLogger("proxy.gateway")

REFRESH_EVERY_S: Final = 600
WAIT_S: Final = 2.0
"""How long the request waits that starts a refresh."""
TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 4 * 2**20
MAX_NAMES: Final = 1_000
MAX_NAME: Final = 200
MAX_UPSTREAMS: Final = 256

Fetch = Callable[[UpstreamServer, Credential], Sequence[str]]


class ListedModel(msgspec.Struct):
    """An entry of the list: OpenAI's and Anthropic's APIs both have ``data`` with ``id``."""

    id: str


class ModelsPage(msgspec.Struct):
    data: list[ListedModel]


def fetch_names(server: UpstreamServer, credential: Credential) -> Sequence[str]:
    """Return the names that the upstream lists; blocks for at most some seconds.

    Raises httpx.HTTPError or ValueError.
    """
    import httpx  # noqa: PLC0415 - the import takes a tenth of the start time

    from .get_client import get_client  # noqa: PLC0415 - it imports httpx

    origin, deadline = server.origin, time.monotonic() + TIMEOUT_S
    timeout = httpx.Timeout(TIMEOUT_S)
    url = httpx.URL(server.endpoints.models)
    if server.dialect_name == "anthropic":  # its pages have 20 models otherwise
        url = url.copy_merge_params({"limit": MAX_NAMES})
    with (
        get_client(server.headers, credential, origin.proxy, origin.files, timeout) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MAX_BYTES or time.monotonic() > deadline:
                raise ValueError("the list of models is too large or too slow")
    page = msgspec.json.decode(bytes(body), type=ModelsPage)
    return [
        entry.id
        for entry in page.data[:MAX_NAMES]
        if 0 < len(entry.id) <= MAX_NAME and entry.id.isprintable()
    ]


class UpstreamModels:
    """The names by upstream, for the upstreams that clients asked for last."""

    def __init__(self, fetch: Fetch = fetch_names) -> None:
        self._fetch = fetch
        self._names: dict[tuple[str, str], Sequence[str]] = {}
        self._asked_at: dict[tuple[str, str], float] = {}
        self._running: set[asyncio.Task[None]] = set()  # the loop keeps no task alive by itself

    async def names(self, server: UpstreamServer) -> Sequence[str]:
        """Return the names that the upstream listed last; none if it has no list."""
        if not server.endpoints.models:
            return ()
        key, at = (server.name, server.endpoints.models), time.monotonic()
        if key not in self._asked_at or at - self._asked_at[key] >= REFRESH_EVERY_S:
            self._asked_at[key] = at
            if len(self._asked_at) > MAX_UPSTREAMS:
                oldest = next(iter(self._asked_at))
                del self._asked_at[oldest]
                self._names.pop(oldest, None)
            refresh = asyncio.create_task(self._refresh(key, server))
            self._running.add(refresh)
            refresh.add_done_callback(self._running.discard)
            await asyncio.wait({refresh}, timeout=WAIT_S)
        return self._names.get(key, ())

    async def _refresh(self, key: tuple[str, str], server: UpstreamServer) -> None:
        try:
            credential = await server.credential.get()
            self._names[key] = await asyncio.to_thread(self._fetch, server, credential)
        except Exception as error:  # noqa: BLE001 - of httpx, JSON or the credential: no list
            log.info("upstream %s lists no models: %s", server.name, type(error).__name__)


upstream_models: Final = UpstreamModels()


async def listed_names(servers: Sequence[UpstreamServer]) -> dict[str, Sequence[str]]:
    """Return the names that each of these upstreams lists, by the name of the upstream."""
    found = await asyncio.gather(*map(upstream_models.names, servers))
    return {server.name: names for server, names in zip(servers, found, strict=True)}
