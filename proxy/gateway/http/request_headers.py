"""Parse the headers of a request: identifiers, tags, and the client's name, version and address."""

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from proxy.conf import conf
from proxy.ids import new_ulid
from translator.errors import BadRequest
from translator.notes import Note

USER_AGENT: Final = re.compile(r"([A-Za-z0-9_.@/-]*?[A-Za-z0-9_.@-])[/ ]v?(\d[\w.+-]*)")
"""Name and version in a ``user-agent``. Anthropic's SDKs write a space before the version:
``Anthropic/Python 2.12.0``."""
TAG_PATTERN: Final = re.compile(r"([\w.-]{1,64})=([^,;]{0,200})")
NOT_PRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


LIST_HEADERS: Final = frozenset({b"anthropic-beta", b"x-bridge-events", b"x-forwarded-for"})
"""Headers with comma-separated lists. Several lines of such a header are joined (RFC 9110, 5.3); of
other headers the last line is used."""

CREDENTIALS: Final = (b"x-api-key", b"authorization")
"""Headers with credentials. Several lines with different values are ambiguous, because a proxy in
front may have used another line."""
CLIENT_INFO_HEADERS: Final = {
    # header: the number of bytes that are read of it
    b"user-agent": 300,
    b"anthropic-version": 10,
    b"anthropic-beta": 2_000,
    b"x-gateway-tags": 2_000,
    b"x-claude-code-agent-id": 200,
    b"x-claude-code-parent-agent-id": 200,
    b"x-stainless-retry-count": 3,
}


IDENTIFIER_HEADERS: Final = {
    b"x-claude-code-session-id": 200,
    b"x-claude-code-agent-id": 200,
    b"x-claude-code-parent-agent-id": 200,
}
"""Headers with identifiers, and their maximum length.

An invalid identifier is rejected. If it were truncated or cleaned, two identifiers could become
equal."""


class Client(NamedTuple):
    name: str
    version: str


class ClientInfo(NamedTuple):
    """The parsed headers that describe the client. They are equal in most requests of a client."""

    client: Client
    user_agent: str
    version: str  # ``anthropic-version``; the default is ``2023-06-01``
    betas: list[str]
    tags: dict[str, str]  # the tags of a header such as ``X-Gateway-Tags: team=blue,ticket=42``
    agent_id: str
    parent_agent_id: str
    notes: tuple[Note, ...]  # these notes are stored with the request


def parse_user_agent(user_agent: str) -> Client:
    """Return name and version in a ``user-agent`` like ``claude-cli/2.1.329 (external, cli)``."""
    found = USER_AGENT.match(user_agent)
    if found is None:
        return Client(user_agent.split(" ", 1)[0][:64], "")
    return Client(found[1][:64], found[2][:32])


def matching_headers(
    headers: Mapping[bytes, bytes], names: "re.Pattern[bytes] | None"
) -> dict[str, str]:
    """Return the client's headers whose names match, to send them to an upstream."""
    if names is None:
        return {}
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers.items()
        if names.fullmatch(name)
    }


@lru_cache(maxsize=512)  # clients repeat their headers; the cache takes at most 2 MB
def header_text(value: bytes) -> str:
    return printable(value.decode("latin-1").strip())


@lru_cache(maxsize=256)  # parsing takes 12 µs; the cache takes at most 16 MB
def parse_client_info(headers: tuple[bytes | None, ...]) -> ClientInfo:
    """Parse the values of ``CLIENT_INFO_HEADERS``, in this order."""
    user_agent, version, betas, tags, agent, parent, retries = [
        "" if value is None else header_text(value[:limit])
        for value, limit in zip(headers, CLIENT_INFO_HEADERS.values(), strict=True)
    ]
    return ClientInfo(
        client=parse_user_agent(user_agent),
        user_agent=user_agent,
        version=version or "2023-06-01",
        betas=sorted(parse_comma_list(betas)),
        tags={name: value.strip() for name, value in TAG_PATTERN.findall(tags)[:16]},
        agent_id=agent,
        parent_agent_id=parent,
        # the ledger row does not show otherwise that the SDK sent this request as a retry
        notes=(
            Note("x-stainless-retry-count", "ignored", f"the client tries again: retry {retries}"),
        )
        if retries.strip("0")
        else (),
    )


def parse_comma_list(text: str) -> frozenset[str]:
    """Return the items of a comma-separated list."""
    return frozenset(each.strip() for each in text.split(",")) - {""}


class RequestHeaders:
    """The request line and headers of one request; each part is parsed when it is first used."""

    __slots__ = ("_client_info", "credentials_differ", "headers", "request_id", "scope", "ulid")

    def __init__(self, scope: Any) -> None:
        self.scope = scope
        self.ulid = new_ulid()
        self.request_id = f"req_{self.ulid}"
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        # whether a header of ``CREDENTIALS`` has several lines with different values
        self.credentials_differ = False
        if len(self.headers) != len(scope["headers"]):
            credentials: set[tuple[bytes, bytes]] = set()
            lists: dict[bytes, list[bytes]] = {}
            for name, value in scope["headers"]:
                if name in CREDENTIALS:
                    credentials.add((name, value.strip()))
                elif name in LIST_HEADERS:
                    lists.setdefault(name, []).append(value)
            self.credentials_differ = len(credentials) > len({name for name, _ in credentials})
            self.headers |= {name: b",".join(values) for name, values in lists.items()}
        # This is parsed later, because an exception in ``__init__`` would not become an error
        # response.
        self._client_info: ClientInfo | None = None

    def check_names(self) -> None:
        """Raise BadRequest if an identifier header is too long or not printable ASCII."""
        for name in IDENTIFIER_HEADERS.keys() & self.headers.keys():
            value = self.headers[name]
            if len(value) > IDENTIFIER_HEADERS[name]:
                raise BadRequest(
                    name.decode(),
                    f"{len(value)} characters are too many; at most {IDENTIFIER_HEADERS[name]}",
                )
            if NOT_PRINTABLE.search(value.decode("latin-1")):
                raise BadRequest(name.decode(), "only printable ASCII can be in it")

    def text(self, name: bytes, limit: int = 2_000) -> str:
        """Return the value of a header as printable ASCII; empty if the header is missing."""
        return header_text(self.headers[name][:limit]) if name in self.headers else ""

    def comma_list(self, name: bytes) -> frozenset[str]:
        """Return the items of a header with a comma-separated list."""
        return parse_comma_list(self.text(name)) if name in self.headers else frozenset()

    @property
    def client_info(self) -> ClientInfo:
        if self._client_info is None:
            self._client_info = parse_client_info(tuple(map(self.headers.get, CLIENT_INFO_HEADERS)))
        return self._client_info

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def query(self) -> str:
        return bytes(self.scope.get("query_string", b"")).decode("latin-1")

    @property
    def content_length(self) -> int | None:
        text = self.text(b"content-length")
        return int(text) if text.isdigit() and len(text) < 19 else None

    @property
    def version(self) -> str:
        return self.client_info.version

    @property
    def client(self) -> Client:
        return self.client_info.client

    @property
    def ip(self) -> str | None:
        """Return the client's IP address. ``x-forwarded-for`` is used only behind trusted proxies.

        ``x-forwarded-for`` is read from right to left: the first address that is not a trusted
        proxy is the client's.
        """
        peer = self.scope.get("client")
        address = str(peer[0]) if peer else None
        if not conf.trusted_proxies or not ip_in_networks(address, conf.trusted_proxies):
            return address
        for hop in reversed(self.text(b"x-forwarded-for").split(",")):
            if hop.strip():
                if not is_ip_address(hop.strip()):
                    break  # an invalid entry: the entries to its left cannot be trusted either
                address = hop.strip()
                if not ip_in_networks(address, conf.trusted_proxies):
                    break
        return address


def printable(text: str) -> str:
    """Return the text with a question mark for each character that is not printable ASCII."""
    return text if text.isascii() and text.isprintable() else NOT_PRINTABLE.sub("?", text)


def is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def ip_in_networks(ip: str | None, networks: tuple[str, ...]) -> bool:
    """Return whether the address is in one of the networks; False for an invalid address."""
    try:
        address = ipaddress.ip_address(ip or "")
    except ValueError:
        return False
    return any(address in network for network in _networks(networks))


@lru_cache(maxsize=1_024)
def _networks(names: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(name, strict=False) for name in names)
