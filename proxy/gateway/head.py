"""What the head of a request says: who sent it, from where, with which client and which wishes."""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from proxy.conf import conf
from proxy.ulids import new_ulid
from translator.errors import BadRequest
from translator.notes import Note

USER_AGENT: Final = re.compile(r"([A-Za-z0-9_.@/-]*?[A-Za-z0-9_.@-])[/ ]v?(\d[\w.+-]*)")
"""Anthropic's own SDKs put a space before their version: ``Anthropic/Python 2.12.0``."""
TAG: Final = re.compile(r"([\w.-]{1,64})=([^,;]{0,200})")
UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


LISTS: Final = frozenset({b"anthropic-beta", b"x-bridge-events", b"x-forwarded-for"})
"""Comma lists, which may come on several lines (RFC 9110, 5.3); of others the last line counts."""

CREDENTIALS: Final = (b"x-api-key", b"authorization")
"""Different values on several lines are ambiguous: a proxy before us may have read another one."""
ABOUT: Final = {
    # header: how much of it is read
    b"user-agent": 300,
    b"anthropic-version": 10,
    b"anthropic-beta": 2_000,
    b"x-gateway-tags": 2_000,
    b"x-claude-code-agent-id": 200,
    b"x-claude-code-parent-agent-id": 200,
    b"x-stainless-retry-count": 3,
}


NAMES: Final = {
    b"idempotency-key": 255,
    b"x-claude-code-session-id": 200,
    b"x-claude-code-agent-id": 200,
    b"x-claude-code-parent-agent-id": 200,
}
"""Headers that name something, and their longest value. Cut or cleaned, two names could be one."""


class Client(NamedTuple):
    name: str
    version: str


class About(NamedTuple):
    """What the headers say of a client, which says the same in each of its requests."""

    client: Client
    user_agent: str
    version: str  # of the API; a client that names none means the old one
    betas: list[str]
    tags: dict[str, str]  # ``X-Gateway-Tags: team=blue,ticket=42``
    agent_id: str
    parent_agent_id: str
    remarks: tuple[Note, ...]  # for the row of its request


def client_of(user_agent: str) -> Client:
    """Name and version of a client: ``claude-cli/2.1.329 (external, cli)``."""
    found = USER_AGENT.match(user_agent)
    if found is None:
        return Client(user_agent.split(" ", 1)[0][:64], "")
    return Client(found[1][:64], found[2][:32])


@lru_cache(maxsize=512)  # a client says the same again; at most 2 MB of long ones
def text_of(value: bytes) -> str:
    return printable(value.decode("latin-1").strip())


@lru_cache(maxsize=256)  # likewise: to read its headers anew takes 12 µs; at most 16 MB
def about_of(headers: tuple[bytes | None, ...]) -> About:
    """``headers``: the values of those of ``ABOUT``."""
    program, version, betas, tags, agent, parent, retries = [
        "" if value is None else text_of(value[:limit])
        for value, limit in zip(headers, ABOUT.values(), strict=True)
    ]
    return About(
        client=client_of(program),
        user_agent=program,
        version=version or "2023-06-01",
        betas=sorted(listed(betas)),
        tags={name: value.strip() for name, value in TAG.findall(tags)[:16]},
        agent_id=agent,
        parent_agent_id=parent,
        remarks=(_again(retries),) if retries.strip("0") else (),
    )


def _again(retries: str) -> Note:
    """Its first try failed or was too slow, which a row by itself would not tell."""
    return Note("x-stainless-retry-count", "ignored", f"the client tries again: retry {retries}")


def listed(text: str) -> frozenset[str]:
    """A comma list, as a set."""
    return frozenset(each.strip() for each in text.split(",")) - {""}


class Head:
    """The request line and headers of one request; parsed no further than somebody asks."""

    __slots__ = ("_about", "credentials_differ", "headers", "request_id", "scope", "ulid")

    def __init__(self, scope: Any) -> None:
        self.scope = scope
        self.ulid = new_ulid()
        self.request_id = f"req_{self.ulid}"
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.credentials_differ = False
        if len(self.headers) != len(scope["headers"]):
            self.credentials_differ = _differ(scope["headers"])
            self.headers |= _joined(scope["headers"])
        self._about: About | None = None  # nothing is read here: what fails has an answer later

    def check_names(self) -> None:
        """Raise BadRequest where a header's name could not be told from another one."""
        for name in NAMES.keys() & self.headers.keys():
            value = self.headers[name]
            if len(value) > NAMES[name]:
                raise BadRequest(
                    name.decode(), f"{len(value)} characters are too many; at most {NAMES[name]}"
                )
            if UNSAFE.search(value.decode("latin-1")):
                raise BadRequest(name.decode(), "only printable ASCII can be in it")

    def text(self, name: bytes, limit: int = 2_000) -> str:
        """A header as printable ASCII; empty when it is not there."""
        return text_of(self.headers[name][:limit]) if name in self.headers else ""

    def wishes(self, name: bytes) -> frozenset[str]:
        """A comma list, as a set."""
        return listed(self.text(name)) if name in self.headers else frozenset()

    @property
    def about(self) -> About:
        if self._about is None:
            self._about = about_of(tuple(map(self.headers.get, ABOUT)))
        return self._about

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
        return self.about.version

    @property
    def client(self) -> Client:
        return self.about.client

    @property
    def ip(self) -> str | None:
        """The client's address; proxies are believed only when they are ours.

        Read from the right: the first address that is not a trusted proxy is the client.
        """
        peer = self.scope.get("client")
        address = str(peer[0]) if peer else None
        if not conf.trusted_proxies or not inside(address, conf.trusted_proxies):
            return address
        for hop in reversed(self.text(b"x-forwarded-for").split(",")):
            if hop.strip():
                if not is_address(hop.strip()):
                    break  # what stands left of it nobody vouches for
                address = hop.strip()
                if not inside(address, conf.trusted_proxies):
                    break
        return address


def _differ(lines: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether one of ``CREDENTIALS`` comes on several lines that are not the same."""
    credentials = {(name, value.strip()) for name, value in lines if name in CREDENTIALS}
    return len(credentials) > len({name for name, _ in credentials})


def _joined(lines: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The lists among these headers, each on one line."""
    told: dict[bytes, list[bytes]] = {}
    for name, text in lines:
        if name in LISTS:
            told.setdefault(name, []).append(text)
    return {name: b",".join(texts) for name, texts in told.items()}


def printable(text: str) -> str:
    """Printable ASCII; everything else is a question mark."""
    return text if text.isascii() and text.isprintable() else UNSAFE.sub("?", text)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def inside(ip: str | None, networks: tuple[str, ...]) -> bool:
    """Whether the address lies in one of the networks; what is no address lies in none."""
    try:
        address = ipaddress.ip_address(ip or "")
    except ValueError:
        return False
    return any(address in network for network in _networks(networks))


@lru_cache(maxsize=1_024)
def _networks(names: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(name, strict=False) for name in names)
