"""Places in a body that an upstream names, in the terms of the client's own request."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from translator.dialect import UpstreamError

PLACE: Final = re.compile(r"\b(?:input|messages)\.?(?:\[(\d+)\]|\.(\d+)\b)(?:\.\w+|\[\d+\])*")


def told_in_ours(error: UpstreamError, origins: Sequence[int]) -> UpstreamError:
    """``input[3].content`` becomes ``messages.2``: the message that entry 3 was built from."""

    def ours(found: re.Match[str]) -> str:
        number = int(found[1] or found[2])
        if number >= len(origins):
            return found[0]
        return "system" if origins[number] < 0 else f"messages.{origins[number]}"

    if not origins:
        return error
    return dataclasses.replace(
        error,
        message=PLACE.sub(ours, error.message),
        param=PLACE.sub(ours, error.param) if error.param else error.param,
    )
