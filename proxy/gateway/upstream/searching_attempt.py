"""An attempt whose model may search the web: the gateway makes the searches between upstream calls.

The client gets one message. After a response with searches, the upstream is called again with their
results, until a response has none. A response that also calls the client's own tools ends the
message, because only the client can run them: the model reads the results of the searches in the
client's next request.
"""

from typing import Any, Final, cast

from proxy.gateway.request.request import Request
from proxy.gateway.snapshot.targets import Target
from proxy.gateway.web_search import further_calls, search
from translator.anthropic.usage import Usage, add_usage
from translator.dialect import ResponseContext, TextStream
from translator.notes import Note
from translator.upstream_errors import renumbered
from translator.web_search.request import offer_search, search_tool
from translator.web_search.results import Block, search_error
from translator.web_search.stream import WebSearchStream

from .attempt import Attempt
from .response_writers import ResponseWriter

EMULATED: Final = Note("tools", "emulated", "the gateway makes the web searches of the model")
MAX_SEARCHES: Final = 20
"""The most searches of one message; ``max_uses`` of the request can only lower it."""
LIMIT: Final = "pause_turn"
"""The stop reason of a message that has as many calls as permitted; the client may continue it."""


class SearchingAttempt(Attempt):
    """One attempt to answer a request whose model is offered a search function."""

    stream: WebSearchStream

    def __init__(self, target: Target, request: Request, writer: ResponseWriter) -> None:
        super().__init__(target, request, writer)
        self.fields = self.apply_upstream_policies()  # a later call needs all of it
        # A policy of the upstream may have removed the tool.
        self.tool = search_tool(self.fields) or {"name": "web_search"}
        self.max_uses = min(MAX_SEARCHES, self.tool.get("max_uses") or MAX_SEARCHES)
        self.searches = 0  # requested by the model so far
        self.message_numbers: tuple[int, ...] = ()

    def translatable_request(self) -> dict[str, Any]:
        """Return the request with the search function, and with the response so far."""
        answer: list[Block] = []
        output = 0
        if self.continues:
            answer = (self.attempts.response_message() or {})["content"]
            output = self.stream.usage.output or 0
        offered = offer_search(self.fields, self.tool, answer, output)
        self.message_numbers = offered.origins
        return offered.request

    def build_upstream_request(self) -> tuple[bytes, dict[str, str]]:
        attempts = self.attempts
        earlier = attempts.notes if self.continues else [EMULATED]
        if self.continues and attempts.recorded_calls is not None:
            attempts.recorded_calls = {**attempts.recorded_calls, **self.stream.call_records}
        body, headers = super().build_upstream_request()
        attempts.notes = [*earlier, *(note for note in attempts.notes if note not in earlier)]
        self.repairs.origins = renumbered(self.repairs.origins, self.message_numbers)
        return body, headers

    def open_stream(self, context: ResponseContext) -> WebSearchStream:
        context.whole = False  # the message contains earlier responses, which cannot begin again
        if not self.continues:
            self.stream = WebSearchStream(context, self.tool["name"])
        self.stream.continue_with(cast("TextStream", super().open_stream(context)))
        return self.stream

    @property
    def response_finished(self) -> bool:
        return self.stream.response_finished

    async def send_with_repairs(self, headers: dict[str, str]) -> None:
        """Call the upstream, and again after each response with searches."""
        await super().send_with_repairs(headers)
        for _ in range(further_calls(self.fields)):
            if not await self._make_searches():
                return
            await self._continue_message()
        if await self._make_searches():
            await self.deliver(self.stream.end_message(LIMIT))

    async def _continue_message(self) -> None:
        """Call the upstream with the results of the searches, and relay its response."""
        attempts, earlier = self.attempts, self.stream.usage
        self.continues = True
        self.body, headers = self.build_upstream_request()
        try:
            await super().send_with_repairs(headers)
        finally:
            if attempts.late_usage is not None:
                attempts.late_usage = add_usage(earlier, attempts.late_usage)
            elif (
                self.request.has_hard_budget and attempts.may_be_billed and not self.stream.started
            ):
                # The call ended before its response started: the budget is charged the worst case.
                searches = earlier.web_searches
                attempts.late_usage = Usage(web_searches=searches, source="estimated")

    async def _make_searches(self) -> bool:
        """Make the searches of the last response; return whether the message goes on."""
        stream = self.stream
        if stream.finished:
            return False
        for call in stream.searches:
            if self.response.bytes_at_disconnect is not None:
                return False
            self.searches += 1
            if self.searches > self.max_uses:
                content: list[Block] | Block = search_error("max_uses_exceeded")
            else:
                content = await search(call.query, self.tool)
            await self.deliver(stream.add_result(call, content))
        if stream.has_client_calls:
            await self.deliver(stream.end_message())
            return False
        return self.response.bytes_at_disconnect is None
