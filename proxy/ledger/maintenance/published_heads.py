"""Publish the end of the hash chain each hour, where whoever changes the database cannot reach it.

A head goes to the log, to a file of the data directory and to webhooks. ``verifyledger`` compares
the chain with the file, or with a copy: so links that were cut off or written again are found up to
the last head.
"""

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from proxy.ledger.posting.audit_links import link_audit_entries
from proxy.ledger.posting.hash_chain import public_keys, sign
from proxy.ledger.webhooks import record_event
from proxy.models import LedgerHead
from proxy.models.setup.webhooks import EventType
from proxy.secrets import ConfigError

logger = logging.getLogger(__name__)

FILE: Final = "ledger_heads"
HEAD: Final = 0
"""In place of the first link of a range: the signature of a head is none of links."""


class PublishedHead(msgspec.Struct):
    """One line of the file. ``signature`` covers the digest, which covers the sequence."""

    at: datetime
    sequence: int
    digest: str
    key: str
    """The public key, in hex, as the other bytes."""
    signature: str


def publish(path: Path) -> PublishedHead | None:
    """Send the end of the chain to the file, the log and webhooks; None: it is published already.

    Entries of the audit log get their links first.
    """
    link_audit_entries()
    head = LedgerHead.objects.filter(pk=1).first()
    if head is None or not head.sequence:
        return None
    signature = sign(HEAD, bytes(head.digest))
    known = [one.sequence for one in published(path)]
    if signature is None or head.sequence in known[-1:]:
        return None
    key = min(public_keys(current_only=True)).hex()
    found = PublishedHead(
        datetime.now(UTC), head.sequence, bytes(head.digest).hex(), key, signature.hex()
    )
    line = msgspec.json.encode(found)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    logger.info("ledger head: %s", line.decode())
    record_event(EventType.LEDGER_HEAD, team="", data=msgspec.to_builtins(found))
    return found


def published(path: Path) -> list[PublishedHead]:
    """Return the heads in the file; none if there is no file. Raises ConfigError."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    heads = []
    for number, line in enumerate(lines, 1):
        # A line may be copied from the log, with the time and the logger's name before it.
        try:
            heads.append(msgspec.json.decode(line[line.find(b"{") :], type=PublishedHead))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: line {number} is not a published head: {error}") from None
    return heads
