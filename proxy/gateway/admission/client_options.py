"""The options of a request, set by its ``x-bridge-...`` headers or by the gateway key."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot.config_snapshot import Caller
from translator.errors import BadRequest

EVENTS: Final = frozenset({"metadata", "blocks"})
STRICT: Final = frozenset({"", "true", "false"})  # "": the header is absent


@dataclass(frozen=True, slots=True)
class ClientOptions:
    strict: bool  # reject a request that cannot be translated without loss
    metadata: bool  # send one ``bridge.metadata`` event before the end of the stream
    blocks: bool  # send the whole content block in ``content_block_stop``

    @staticmethod
    def of(head: RequestHeaders, caller: Caller) -> "ClientOptions":
        """Return the options that the request's headers and the caller's key set.

        Raises BadRequest for an unknown option: if it were ignored, the client might assume that it
        is in effect.
        """
        if b"x-bridge-strict" not in head.headers and b"x-bridge-events" not in head.headers:
            return _options(caller.strict, caller.events)
        strict = head.text(b"x-bridge-strict").lower()
        if strict not in STRICT:
            raise BadRequest("x-bridge-strict", f"{strict[:60]!r} is not known; say true or false")
        requested = head.comma_list(b"x-bridge-events")
        if not requested <= EVENTS:
            unknown = min(requested - EVENTS)[:60]
            known = "metadata, blocks or both, separated by a comma"
            raise BadRequest("x-bridge-events", f"{unknown!r} is not known; say {known}")
        return _options(caller.strict or strict == "true", requested | caller.events)


PLAIN: Final = ClientOptions(strict=False, metadata=False, blocks=False)


@lru_cache(maxsize=16)  # there are only a few combinations
def _options(strict: bool, events: frozenset[str]) -> ClientOptions:
    return ClientOptions(strict=strict, metadata="metadata" in events, blocks="blocks" in events)
