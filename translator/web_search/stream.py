"""Join several upstream responses, between which searches are made, to one Anthropic message.

The stream of each response is that of the dialect, and this stream changes its events: content
blocks have rising indices over all responses, a call of the search function is a
``server_tool_use`` block, and the message ends only once.
"""

from typing import Any, Final, NamedTuple

from translator.anthropic import Event
from translator.anthropic.content_blocks import DIRECT
from translator.anthropic.usage import Usage, add_usage, estimated_usage
from translator.dialect import (
    ResponseContext,
    TextLocation,
    TextStream,
    UnknownEvents,
    UpstreamCall,
    UpstreamError,
)
from translator.notes import Note
from translator.stream.tool_arguments import parse_arguments

from .results import SERVER_ID, Block

NO_BLOCK: Final = -1
TEXT_FIELDS: Final = ("text", "thinking", "partial_json")
"""The fields of deltas with output of the model."""


class SearchCall(NamedTuple):
    """A search that the model requested."""

    id: str
    query: Any
    """The query as the model wrote it: probably a string."""


class WebSearchStream:
    """One message from several responses; ``translator.dialect.TextStream`` has the members.

    ``finished`` is about the message, and ``response_finished`` about the current response. If only
    the response is finished, the caller makes the ``searches`` and adds their results. It then
    continues with the stream of another response, or ends the message.
    """

    notes: list[Note]
    unknown: UnknownEvents
    call_records: dict[str, UpstreamCall]

    def __init__(self, context: ResponseContext, tool_name: str) -> None:
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        self.finished = False
        self.searches: list[SearchCall] = []
        self.has_client_calls = False  # whether the response calls tools of the client
        self._response: TextStream
        self.context = context
        self._tool_name = tool_name
        self._earlier: Usage | None = None  # of the responses before the current one
        self._characters = 0  # of the current response, for an estimate of its output
        self._searches_made = 0
        self._index = NO_BLOCK  # of the last block sent
        self._first_index = 0  # of the current response
        self._open_search = ""  # the id of the search whose block is open
        self._arguments: list[str] = []  # of that search
        self._held_end: Event = {}  # the ``message_delta`` of a response with searches

    def continue_with(self, response: TextStream) -> None:
        """Let the next events come from another upstream response."""
        if self._index != NO_BLOCK:
            previous = self._response
            self._earlier = self._responses_usage
            response.notes[:0] = [note for note in previous.notes if note not in response.notes]
            response.call_records.update(previous.call_records)
            for kind, count in previous.unknown.items():
                response.unknown[kind] = response.unknown.get(kind, 0) + count
        self._response = response
        self.notes, self.unknown = response.notes, response.unknown
        self.call_records = response.call_records
        self._first_index = self._index + 1
        self.searches, self._held_end, self._characters = [], {}, 0
        self.finished = False

    @property
    def response_finished(self) -> bool:
        return self._response.finished

    @property
    def started(self) -> bool:
        return self._response.started

    @property
    def usage(self) -> Usage:
        """The usage of all responses so far, with the number of searches."""
        usage = self._responses_usage
        if not self._searches_made:
            return usage
        return add_usage(usage, Usage(web_searches=self._searches_made, source=usage.source))

    @property
    def _responses_usage(self) -> Usage:
        usage = self._response.usage
        if self._earlier is None:
            return usage
        if usage.source == "missing":
            if not self._response.started:
                return self._earlier  # the upstream did nothing, so no usage is missing
            # Otherwise the caller would estimate all of the message, with the text of the results.
            usage = estimated_usage(usage, self.context.input_estimate, self._characters)
        return add_usage(self._earlier, usage)

    def feed(self, *events: dict[str, Any]) -> list[Event]:
        return self._relayed(self._response.feed(*events))

    def feed_text(self, location: TextLocation, text: str) -> list[Event]:
        return self._relayed(self._response.feed_text(location, text))

    def feed_body(self, body: dict[str, Any]) -> list[Event]:
        return self._relayed(self._response.feed_body(body))

    def end(self) -> list[Event]:
        return self._relayed(self._response.end())

    def fail(self, error: UpstreamError) -> list[Event]:
        if self.finished:
            return []
        if not self._response.finished:
            return self._relayed(self._response.fail(error))
        self.error, self.finished = error, True
        return [{"type": "error", "error": {"type": error.error_type, "message": error.message}}]

    def add_result(self, search: SearchCall, content: list[Block] | Block) -> list[Event]:
        """Return the events of a search's result block. ``content``: the results, or an error."""
        self._index += 1
        self._searches_made += isinstance(content, list)
        block = {
            "type": "web_search_tool_result",
            "tool_use_id": search.id,
            "content": content,
            **DIRECT,
        }
        stop: Event = {"type": "content_block_stop", "index": self._index}
        if self.context.finished_blocks:
            stop["content_block"] = block
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [start, stop]

    def end_message(self, stop_reason: str = "tool_use") -> list[Event]:
        """Return the end of the message, after the results of the last searches."""
        self.stop_reason, self.finished = stop_reason, True
        end = self._held_end
        end["delta"]["stop_reason"] = stop_reason
        end["usage"] |= self.usage.to_delta()
        return [end, {"type": "message_stop"}]

    def _relayed(self, events: list[Event]) -> list[Event]:
        """Return the events for the client, changed in place."""
        response = self._response
        self.fault, self.error = response.fault, response.error
        self.upstream_id, self.upstream_model = response.upstream_id, response.upstream_model
        return [event for event in events if self._adapt(event)]

    def _adapt(self, event: Event) -> bool:
        """Change an event of the current response; return whether the client gets it."""
        match event["type"]:
            case "content_block_delta":
                event["index"] += self._first_index
                delta = event["delta"]
                self._characters += sum(len(delta.get(name, "")) for name in TEXT_FIELDS)
                if self._open_search:
                    self._arguments.append(delta["partial_json"])
            case "content_block_start":
                self._index = event["index"] = event["index"] + self._first_index
                self._start_block(event)
            case "content_block_stop":
                event["index"] += self._first_index
                if self._open_search:
                    value, _ = parse_arguments("".join(self._arguments))
                    arguments = value if isinstance(value, dict) else {}
                    self.searches.append(SearchCall(self._open_search, arguments.get("query")))
                    if "content_block" in event:
                        event["content_block"] |= {
                            "type": "server_tool_use",
                            "id": self._open_search,
                        }
                    self._open_search = ""
            case "message_start":
                return self._earlier is None
            case "message_delta":
                # The end of a response with searches is held until their results are there.
                self.stop_reason = self._response.stop_reason
                event["usage"] |= self.usage.to_delta()
                if self.searches and event["delta"]["stop_reason"] == "tool_use":
                    self._held_end = event
                    return False
                return True
            case "message_stop":
                self.finished = not self._held_end
                return self.finished
            case "error":
                self.finished = True
        return True

    def _start_block(self, event: Event) -> None:
        block = event["content_block"]
        if block["type"] != "tool_use":
            return
        if block["name"] != self._tool_name:
            self.has_client_calls = True
            return
        self._open_search, self._arguments = SERVER_ID + block["id"], []
        event["content_block"] = {**block, "type": "server_tool_use", "id": self._open_search}
