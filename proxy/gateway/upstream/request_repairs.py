"""Repair the body of a request that an upstream refused, and remember what its model takes."""

from typing import Any, Final

import msgspec

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import UpstreamServer
from translator.dialect import Repair
from translator.notes import Note
from translator.request.body_edits import reshapes

from .model_memory import is_configured, memory

MAX_REPAIRS: Final = 8
"""Each repair changes another part of the request, or lowers a value further. A model that nothing
is known of may refuse several fields, one after the other; all are remembered then."""

_encode: Final = msgspec.json.Encoder().encode


class RequestRepairs:
    """The repairs of one attempt so far."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self._repairs: list[Repair] = []

    @property
    def reshaped(self) -> bool:
        """Whether messages have changed their places, so that no path of an error fits them."""
        return any(reshapes(lesson) for repair in self._repairs for lesson in repair.lessons)

    @property
    def refused_files(self) -> bool:
        """Whether the last repair has put texts in the places of files."""
        return any(lesson.edit == "files_as_text" for lesson in self._repairs[-1].lessons)

    def apply(
        self, body: bytes, status: int, refusal: Any, notes: list[Note], *, strict: bool
    ) -> bytes | None:
        """Return the repaired body and add its notes; None if the error allows no repair.

        ``refusal``: the decoded error of the upstream. In strict mode no lossy repair is made.
        """
        repair = self._server.dialect.repair(decode_json(body), status, refusal)
        if repair is None or (strict and any(note.lossy for note in repair.notes)):
            return None
        notes += [note for note in repair.notes if note not in notes]
        self._repairs.append(repair)
        return _encode(repair.body)

    def remember(self, model: str) -> None:
        """Remember what the repairs have shown, after the upstream accepted the last body."""
        for repair in self._repairs:
            for lesson in repair.lessons:
                if not is_configured(self._server, model, lesson):
                    memory.learn(self._server, model, lesson, repair.words)
        self._repairs.clear()
