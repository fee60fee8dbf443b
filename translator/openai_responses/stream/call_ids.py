"""Issue the ids of tool calls to the client, and record what these ids cannot carry.

A client that asked for no thinking gets no thinking blocks, which carry encrypted reasoning to
later requests. The upstream needs this reasoning together with the calls that follow from it, so it
is recorded with the next call.
"""

from typing import Any, Final

from translator.dialect import UpstreamCall
from translator.message_stream.message_composer import MessageComposer
from translator.notes import Note
from translator.openai_responses.reasoning import RECORDED_REASONING
from translator.openai_responses.types import OutputItem
from translator.request.id_mapping import client_call_id, record_name

LONG_ID: Final = Note("content", "dropped", "a call id that is too long")
HIDDEN_REASONING: Final = Note(
    "content", "ignored", "encrypted reasoning is not kept, because no thinking was requested"
)
ITEM_FIELDS: Final = ("type", "id", "summary", "content", "encrypted_content")
"""Fields of a reasoning item that go back to the upstream."""


class CallIds:
    """The ids of the calls of one response."""

    def __init__(self, composer: MessageComposer) -> None:
        self._composer = composer
        self._used_ids = set(composer.context.call_ids)  # call ids that the client already has
        # Hidden reasoning items, each with the number of content blocks before it.
        self._reasoning: list[tuple[int, dict[str, Any]]] = []
        self._last_id = ""

    def issue(self, call_id: str) -> str:
        """Return the client's id for a call of the upstream."""
        id_, lost = client_call_id(call_id, self._used_ids, self._composer.context.target)
        self._used_ids.add(id_)
        self._last_id = id_
        if lost is not None:
            self._composer.record_call(record_name(id_), lost, LONG_ID)
        if self._reasoning:
            self._record_reasoning()
        return id_

    def add_reasoning(self, body: OutputItem) -> None:
        """Keep a finished reasoning item for the next call, if the client does not see it."""
        if self._composer.context.thinking == "hidden" and body.get("encrypted_content"):
            item: dict[str, Any] = {name: body[name] for name in ITEM_FIELDS if name in body}
            self._reasoning.append((self._composer.block_count, item))

    def finish(self) -> None:
        """At the end of the response, record reasoning that no call follows with the last call."""
        if self._reasoning and self._last_id:
            self._record_reasoning()
        elif self._reasoning:
            self._composer.add_note(HIDDEN_REASONING)

    def _record_reasoning(self) -> None:
        name = record_name(self._last_id)
        recorded = self._composer.call_records.get(name, UpstreamCall("", {}))
        items = [*recorded.fields.get(RECORDED_REASONING, ()), *self._reasoning]
        call = UpstreamCall(recorded.id, {RECORDED_REASONING: items})
        self._composer.record_call(name, call, HIDDEN_REASONING)
        self._reasoning.clear()
