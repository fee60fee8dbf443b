"""Rebuild the upstream request of a stored exchange.

The upstream request is not stored, because it can be computed from the client's request and the
target. This module translates the client's request again; the stored SHA-256 of the request that
was sent shows whether the result is byte for byte the same.
"""

import hashlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.stream_replay import dialect_of, target_of
from translator.errors import TranslatorError

logger = logging.getLogger(__name__)

SAME: Final = "Translated again; byte for byte what was sent."
OTHER: Final = (
    "Translated again by this version. It may differ from what was sent in fixed fields of the "
    "upstream, in reasoning that only the gateway can decrypt, or after an upgrade."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRequest:
    """A rebuilt request body.

    ``remark`` states whether the body equals the sent one, or why it could not be rebuilt.
    """

    body: Any = None
    remark: str = ""
    size: int = 0
    """Size of the encoded body, in bytes."""
    is_sent: bool = False
    """Whether the body equals the sent one."""


def rebuild_upstream_request(stored: storage.StoredTranscript, body: Any = None) -> RebuiltRequest:
    """Translate the stored client request again, for the target that answered it.

    If the caller has the translated request already, it is passed as ``body``.
    """
    if not stored.target.get("dialect"):
        remark = "The request reached no upstream, so there is no upstream request."
        return RebuiltRequest(remark=remark)
    try:
        if body is None:
            dialect = dialect_of(str(stored.target["dialect"]))
            body = dialect.build_request(stored.request, target_of(stored.target)).body
    except TranslatorError as exc:
        return RebuiltRequest(remark=f"This version cannot translate the stored request: {exc}.")
    except Exception:  # the page must open for data of any older version
        logger.exception("the upstream request of %s cannot be rebuilt", stored.exchange_id)
        return RebuiltRequest(remark="This version cannot translate the stored request.")
    raw = msgspec.json.encode(body)
    is_sent = hashlib.sha256(raw).hexdigest() == stored.upstream_request_sha256
    remark = SAME if is_sent else OTHER
    return RebuiltRequest(body=body, size=len(raw), remark=remark, is_sent=is_sent)
