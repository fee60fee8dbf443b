"""Chat Completions, the dialect that nearly every model server speaks."""

from typing import Final

from translator.dialect import Dialect
from translator.repairs import CHAT_FIXES, repair_by

from .error_body import map_error
from .request import build_request
from .stream import ChatStream

DIALECT: Final = Dialect(
    name="chat",
    path="/chat/completions",
    build_request=build_request,
    stream=ChatStream,
    map_error=map_error,
    repair=repair_by(CHAT_FIXES),
)
