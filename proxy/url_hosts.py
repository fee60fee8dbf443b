"""Decide whether the gateway may connect to the host of a configured URL.

The resolver of the system (``inet_aton``) reads ``2852039166``, ``0xA9FEA9FE``, ``169.254.43518``
and ``0251.0376.0251.0376`` as 169.254.169.254, and IPv6 has several forms with an IPv4 address
inside. A rule about addresses must therefore apply to what the host means. One spelling of each
address is accepted, so that people and other programs read the same address.
"""

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterator
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NUMBERS: Final = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+)){0,3}")
"""What ``inet_aton`` may read as an address: one to four decimal, octal or hexadecimal numbers."""
METADATA: Final = frozenset({"100.100.100.200", "fd00:ec2::254"})
"""Metadata services outside of the link-local networks: Alibaba Cloud, and AWS over IPv6."""
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def address_of(host: str) -> Address | None:
    """Return the address that the host means in any spelling; None if it is a name."""
    text = unicodedata.normalize("NFKC", host).replace("\u3002", ".").strip("[]")
    text = text.partition("%")[0].rstrip(".")
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        pass
    if not NUMBERS.fullmatch(text):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except OSError:
        return None


def host_error(host: str) -> str:
    """Return why the gateway does not connect to this host; empty if it may."""
    address = address_of(host)
    if address is None:
        text = unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".")
        if re.fullmatch(r"(.*\.)?(0[xX][0-9a-fA-F]*|[0-9]+)", text):  # as in the URL standard
            return f"{host!r} ends with a number but is not an address"
        return ""
    if host != str(address):
        return f"{host!r} is another spelling of the address {address}; write the address"
    if is_forbidden(address):
        return f"{host!r} is an address of this network link, as metadata services have"
    return ""


def is_forbidden(address: Address) -> bool:
    """Whether an address, or an IPv4 address inside it, is of this link or a metadata service."""
    return any(each.is_link_local or str(each) in METADATA for each in _meanings(address))


def is_private(host: str) -> bool:
    """Whether the host is this machine, of a private network, or a name without a dot."""
    address = address_of(host)
    if address is None:
        return "." not in host.rstrip(".")
    return all(each.is_loopback or each.is_private for each in list(_meanings(address))[-1:])


def _meanings(address: Address) -> Iterator[Address]:
    """Yield the address, and the IPv4 address inside it."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    inside = address.ipv4_mapped or address.sixtofour
    if inside is None and (address in NAT64 or 1 < int(address) < 1 << 32):
        inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inside is not None:
        yield inside
