"""Whether an upstream's response says that the credential has expired, as data."""

import re
from collections.abc import Mapping
from typing import Final

REJECTED: Final = frozenset({401, 403})
EXPIRED: Final = re.compile(
    rb"expired|UnrecognizedClientException|InvalidClientTokenId|security token", re.IGNORECASE
)
"""A 403 with these words is about the credential; any other is about the permission. Amazon uses
403 for both, so a denied role is not retried."""
ERROR_TYPE: Final = "x-amzn-errortype"


def is_expired(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether another credential may help. Each 401 counts."""
    if status == 401:
        return True
    return bool(EXPIRED.search(headers.get(ERROR_TYPE, "").encode()) or EXPIRED.search(body))
