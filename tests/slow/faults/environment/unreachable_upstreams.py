"""Addresses without a working upstream: closed, silent, unresolvable, or with a bad certificate."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme

from tests.fakes.upstreams.upstream import ScriptedUpstream


class Places(NamedTuple):
    urls: dict[str, str]
    environment: dict[str, str]  # makes the gateway trust the one valid certificate
    scripted: dict[str, ScriptedUpstream]  # the upstreams that respond, behind TLS


NOWHERE = Places({}, {}, {})


@contextmanager
def unreachable_places(folder: Path) -> Iterator[Places]:
    """Provide all of these addresses."""
    authority = trustme.CA()
    bundle = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    with contextlib.ExitStack() as stack:
        scripted = {
            name: stack.enter_context(ScriptedUpstream(tls=_context(leaf)))
            for name, leaf in _leaves(authority).items()
        }
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        urls = {
            "nowhere": "https://no-such-host.invalid",
            "closed": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "blackhole": f"http://127.0.0.1:{stack.enter_context(_full())}",
            "tls-hangs": f"https://127.0.0.1:{stack.enter_context(_silent())}",
            **{name: f"https://127.0.0.1:{one.port}" for name, one in scripted.items()},
        }
        yield Places(urls, {"SSL_CERT_FILE": str(bundle)}, scripted)


def _leaves(authority: trustme.CA) -> dict[str, trustme.LeafCert]:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    return {
        "tls-sound": authority.issue_cert("127.0.0.1"),
        "tls-self-signed": trustme.CA().issue_cert("127.0.0.1"),
        "tls-wrong-host": authority.issue_cert("elsewhere.example"),
        "tls-expired": authority.issue_cert("127.0.0.1", not_after=yesterday),
    }


def _context(leaf: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    return context


@contextmanager
def _full() -> Iterator[int]:
    """Provide a port whose accept queue is full, so that the kernel drops every further SYN."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def _silent() -> Iterator[int]:
    """Provide a port that accepts connections and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield listener.getsockname()[1]
