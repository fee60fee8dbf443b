"""Rewrite paths of the upstream body in error messages to paths of the client's request."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from translator.dialect import UpstreamError

BODY_PATH: Final = re.compile(r"\b(?:input|messages)\.?(?:\[(\d+)\]|\.(\d+)\b)(?:\.\w+|\[\d+\])*")


def map_error_paths(error: UpstreamError, origins: Sequence[int]) -> UpstreamError:
    """Replace paths such as ``input[3].content`` by the client's path, such as ``messages.2``.

    ``origins[3]`` is then 2: entry 3 of the upstream body came from the client's message 2.
    """

    def client_path(match_: re.Match[str]) -> str:
        number = int(match_[1] or match_[2])
        if number >= len(origins):
            return match_[0]
        return "system" if origins[number] < 0 else f"messages.{origins[number]}"

    if not origins:
        return error
    return dataclasses.replace(
        error,
        message=BODY_PATH.sub(client_path, error.message),
        param=BODY_PATH.sub(client_path, error.param) if error.param else error.param,
    )
