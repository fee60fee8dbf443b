"""The upstream's side of an exchange, made again from what is stored.

The upstream request is not stored, since it follows from the client's request and the target:
it is translated again, and the stored SHA-256 says whether it is byte for byte what was sent.
"""

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.record import transcripts
from proxy.record.rebuild import dialect_of, target_of
from translator.errors import TranslatorError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One body to show. ``remark`` says where it comes from, or why it is absent."""

    body: Any = None
    remark: str = ""
    size: int = 0
    """Bytes of the body as it was sent."""


def upstream_request_of(stored: transcripts.StoredTranscript, body: Any = None) -> Side:
    """What this version makes of the client's request for the target that answered.

    ``body``: the same, where it was made already.
    """
    if not stored.target.get("dialect"):
        return Side(remark="No upstream was asked, so there was no upstream request.")
    try:
        if body is None:
            dialect = dialect_of(str(stored.target["dialect"]))
            body = dialect.build_request(stored.request, target_of(stored.target)).body
    except TranslatorError as exc:
        return Side(remark=f"This version cannot translate the stored request: {exc}.")
    except Exception:  # a window must open whatever an older version has stored
        logger.exception("the upstream request of %s cannot be made again", stored.exchange_id)
        return Side(remark="This version cannot translate the stored request.")
    raw = msgspec.json.encode(body)
    if hashlib.sha256(raw).hexdigest() == stored.upstream_request_sha256:
        remark = "Translated again; byte for byte what was sent."
        return Side(body=body, size=len(raw), remark=remark)
    return Side(
        body=body,
        size=len(raw),
        remark="Translated again by this version. It may differ from what was sent in fixed fields "
        "of the upstream, in reasoning that only the gateway can unseal, or by an upgrade.",
    )
