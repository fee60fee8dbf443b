"""Translate one Chat Completions response, streaming or not, to Anthropic stream events.

The parts of a chunk are handled in a fixed order: error, usage, reasoning, text, refusal,
annotations, tool calls, finish reason. Choices after the first one are ignored, unless they are
part of the same response. ``TextBlocks`` and ``ToolCalls`` set block boundaries, which Chat
Completions does not have. Source: docs/mapping.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from translator.anthropic.stop_reason import LIMIT_REACHED
from translator.anthropic.usage import NO_USAGE, merge_usage
from translator.dialect import TextLocation, UpstreamError
from translator.errors import BadUpstream
from translator.message_stream.response_stream import (
    IMAGE,
    REPLACED_IMAGE,
    SPLICED,
    ResponseStream,
    end_on_malformed_data,
)
from translator.notes import EMPTY_OUTPUT, Note
from translator.upstream_errors import map_error, read_error, status_of_error, vendor_error

from .finish_reason import (
    COMPLETE,
    FAILURES,
    FINISH_REASONS,
    PENDING,
    normalize_finish_reason,
    stop_string_in,
)
from .reasoning import OPAQUE, REASONING_FIELDS, read_details, reasoning_text
from .text_blocks import DROPPED_CITATION, Kind, TextBlocks
from .tool_calls import ToolCalls
from .usage import find_counts, read_usage

MESSAGE_FIELDS: Final = ("detail", "error_msg", "errors", "message", "msg")
"""Fields with the message of an error without choices; Cloudflare sends a list of messages in one
of them."""

ERROR_FIELDS: Final = frozenset({"base_resp", "error", "type", "x_groq", *MESSAGE_FIELDS})
"""Fields that may report an error; few normal chunks contain one of these fields."""


def find_error(chunk: Any) -> UpstreamError | None:
    """Return the error that ``chunk`` contains instead of content; None if there is no error.

    Servers send an error object, a ``message`` or ``detail`` without choices, a list (Gemini), or a
    choice with an error (OpenRouter).
    """
    body: Any = None
    is_error_object = type(chunk) is list or ("object" in chunk and chunk["object"] == "error")
    if is_error_object or (
        not ERROR_FIELDS.isdisjoint(chunk)
        and (
            ("choices" not in chunk and any(chunk.get(name) for name in MESSAGE_FIELDS))
            or chunk.get("error")
            or chunk.get("type") == "error"
            or vendor_error(chunk)
        )
    ):
        body = chunk
    elif "choices" in chunk:
        choices = chunk["choices"]
        first = choices[0] if choices and type(choices) is list else None
        if type(first) is dict and "error" in first and first["error"]:
            body = {"error": first["error"]}
    return None if body is None else map_error(status_of_error(read_error(body)), body)


Choice = dict[str, Any]

FIRST_INDEXES: Final = (None, 0, "0")
"""Values of ``index`` for the first choice, the only one requested."""


def merge_choices(first: Choice, choices: Sequence[Any]) -> Choice:
    """Merge the choices that form one response: Copilot sends text and tool calls separately.

    A choice without an index is always merged. A choice with an index is merged if the finish
    reason of the first choice announces tool calls that the first choice does not contain. Any
    other choice was not requested and is ignored. Source:
    https://github.com/ericc-ch/copilot-api/pull/81, https://github.com/HKUDS/nanobot/pull/1555
    """
    message = first.get("message")
    announces_calls = (
        isinstance(message, dict)
        and not message.get("tool_calls")
        and FINISH_REASONS.get(str(first.get("finish_reason"))) == "tool_use"
    )
    continuations = [
        choice
        for choice in choices
        if isinstance(choice, dict)
        and choice is not first
        and (announces_calls or not choice.get("index"))
    ]
    if not continuations:
        return first
    key = "delta" if isinstance(first.get("delta"), dict) else "message"
    merged: dict[str, Any] = {}
    for choice in (first, *continuations):
        part = choice.get(key)
        for name, value in part.items() if isinstance(part, dict) else ():
            earlier = merged.get(name)
            is_joined = type(earlier) is type(value) and isinstance(value, str | list)
            merged[name] = earlier + value if is_joined and earlier != value else earlier or value
    reasons = (choice.get("finish_reason") for choice in (first, *continuations))
    return first | {key: merged, "finish_reason": next(filter(None, reasons), None)}


def message_of(choice: Choice) -> Any:
    """Return the content of a choice without a delta: its message, or its plain text.

    Some servers stream choices of the legacy completions API, or text in place of the delta.
    """
    message = choice.get("message")
    if message is None:
        delta = choice.get("delta")
        text = choice.get("text") or delta
        message = {"content": text} if text and isinstance(text, str) else delta
    return message


SOURCE_FIELDS: Final = ("citations", "search_results")
"""Sources that search models (Perplexity) send beside the response; Anthropic has no such field."""

INLINE_DATA: Final = frozenset({"inlineData", "inline_data"})
"""How Gemini names a file in a part of its own API, which some proxies pass on as content."""
LATE_TEXT: Final = Note("content", "repaired", "text after the finish reason was added")
TEXT_SIGNATURE: Final = Note("content", "dropped", "a thought signature of text, not of a call")


class ChatStream(ResponseStream):
    BAD_EVENT = "upstream sent a bad chunk"

    def _begin(self) -> None:
        super()._begin()
        self._texts = TextBlocks(self.composer)
        self._calls = ToolCalls(self.composer, self._texts)
        # The id of the last chunk, how many chunks in a row had it, and whether ids prove nothing.
        self._chunk_id, self._chunks_with_id, self._ids_vary = "", 0, False
        # A chunk with a new id, but without the role, that may begin a second generation.
        self._suspect: dict[str, Any] | None = None
        # The tier that the last chunk named; some servers name it only at the start.
        self._service_tier: Any = None
        self._finish_reason = ""  # the first finish reason received
        # The stop sequence that the upstream reports as matched.
        self._upstream_stop: str | None = None
        self._was_whole = False  # whether the response came as one complete message
        # Whether a complete message repeats earlier deltas; None before the first one.
        self._repeats_stream: bool | None = None
        self._is_cumulative = False  # whether each message repeats all content so far
        self._last_was_usage = False  # whether the last chunk contained only usage

    def _begin_again_at(self, chunk: dict[str, Any]) -> None:
        """Read the second generation alone.

        ``chunk`` has the second generation's id, and is read later; what came before it, now.
        """
        suspect = self._suspect
        self._begin_again()
        self._chunk_id = chunk["id"]
        if suspect is not None and (choice := self._read_envelope(suspect)) is not None:
            self._add_delta(choice.get("delta"), is_complete=False)
        self._read_envelope(chunk)

    def _flush(self) -> None:
        self._texts.flush_tags()

    @end_on_malformed_data
    def feed(self, *chunks: Any) -> None:
        for chunk in chunks:
            if self.finished:
                return
            failure = find_error(chunk)
            if failure is not None:
                self._handle_error(failure, chunk)
                return
            choice = self._read_envelope(chunk)
            if choice is None:
                continue
            delta = choice.get("delta")
            if (
                ("id" in chunk and chunk["id"] != self._chunk_id) or self._suspect is not None
            ) and self._begins_again(chunk, choice):
                if not self.context.whole:
                    self.end_with_error(SPLICED)
                    return
                self._begin_again_at(chunk)
            self._chunks_with_id += 1
            if type(delta) is not dict:
                self._add_message(message_of(choice))
            elif delta or not self.composer.started:
                self._add_delta(delta, is_complete=False)
            if choice.get("finish_reason"):
                self._set_finish_reason(choice)

    def _begins_again(self, chunk: dict[str, Any], choice: dict[str, Any]) -> bool:
        """Return whether a chunk shows that its id is that of a second generation in the stream.

        That is a new id after several chunks with content and one other id: with the role, as the
        first chunk of a response has; or else the second chunk in a row that has it, if the first
        one repeats a kind of content. Servers that give each chunk an id, or the role, prove
        nothing, and proxies join the reasoning of one response and the text of another.
        """
        id_, delta = chunk.get("id"), choice.get("delta")
        delta = delta if type(delta) is dict else {}
        suspect, self._suspect = self._suspect, None
        if id_ == self._chunk_id:
            is_confirmed = suspect is not None and bool(delta or choice.get("finish_reason"))
            self._suspect = suspect
            return is_confirmed
        has_role = bool(delta.get("role"))
        was_stable = self._chunks_with_id > 1 and not self._ids_vary
        has_content = self._texts.characters > 0 or self.composer.tool_calls > 0
        may_begin = was_stable and has_content and isinstance(id_, str) and bool(id_)
        repeats = (self._texts.has_kind("text") and bool(delta.get("content"))) or (
            self.composer.tool_calls > 0 and bool(delta.get("tool_calls"))
        )
        if may_begin and repeats and not has_role:
            self._suspect = chunk
        self._ids_vary = self._ids_vary or (bool(self._chunk_id) and not has_role)
        self._chunk_id, self._chunks_with_id = str(id_ or ""), 0
        return may_begin and has_role

    @end_on_malformed_data
    def feed_text(self, location: TextLocation, text: str) -> None:
        id_, has_role, _ = location
        if (id_ and id_ != self._chunk_id) or self._suspect is not None:
            role = {"role": "assistant"} if has_role else {}
            choice = {"index": 0, "delta": {**role, "content": text}}
            chunk = {"id": id_ or self._chunk_id, "choices": [choice]}
            if self._begins_again(chunk, choice):
                if not self.context.whole:
                    self.end_with_error(SPLICED)
                    return
                self._begin_again_at(chunk)
                self._start_message()
        self._chunks_with_id += 1
        self._last_was_usage = False
        self._add_text(text)

    @end_on_malformed_data
    def feed_body(self, body: Any) -> None:
        failure = find_error(body)
        if failure is not None:
            self._handle_error(failure, body)
            return
        self._was_whole = True
        choice = self._read_envelope(body)
        if choice is None:
            raise BadUpstream("empty completion from upstream")
        self._add_delta(message_of(choice), is_complete=True)
        self._set_finish_reason(choice)
        if not self.finished:
            self._finish()

    @end_on_malformed_data
    def end(self) -> None:
        """Handle the end of the bytes or ``[DONE]``; neither counts as a finish reason.

        Snowflake sends no finish reason: there, a final chunk with only usage ends the response,
        unless a tool call is incomplete.
        """
        ended_by_usage = self._last_was_usage and self._calls.arguments_complete
        if not (self._finish_reason or ended_by_usage):
            raise BadUpstream("upstream stream ended early")
        self._finish()

    def _read_envelope(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Read the chunk's fields other than content; return the first choice, if there is one."""
        if not self.upstream_id:
            self.upstream_id = str(chunk.get("id") or "")
        if not self.upstream_model:
            self.upstream_model = str(chunk.get("model") or "")
        if "service_tier" in chunk and chunk["service_tier"]:  # noqa: RUF019 - as below
            self._service_tier = chunk["service_tier"]
        for name in SOURCE_FIELDS:
            if name in chunk and chunk[name]:  # noqa: RUF019 - this form saves a call, because the name is rarely present
                self.composer.add_note(
                    Note(name, "dropped", "the response has no field for sources")
                )
        choices: Any = chunk.get("choices")
        counts = find_counts(chunk, choices)
        self._last_was_usage = False
        if counts is not None:
            self._last_was_usage = self.composer.started and not choices
            self._record_usage(counts)
        elif type(choices) is not list:
            self.unknown.add(str(chunk.get("object") or "chunk without choices"))
        for choice in choices or ():
            if type(choice) is dict and choice.get("index") in FIRST_INDEXES:
                return merge_choices(choice, choices) if choices[1:] else choice
        return None

    def _record_usage(self, counts: Mapping[str, Any]) -> None:
        usage, notes = read_usage(counts, self._service_tier)
        self.usage = usage if self.usage is NO_USAGE else merge_usage(self.usage, usage)
        if notes:
            self.notes += [note for note in notes if note not in self.notes]

    def _add_delta(self, delta: Any, *, is_complete: bool) -> None:
        if not self.composer.started:
            self._start_message()
        if not delta or type(delta) is not dict:
            return
        if not self.REASONING_KEYS.isdisjoint(delta):
            self._read_reasoning(delta)
        for name in delta:
            if name not in self.KNOWN and delta[name]:
                value = delta[name]
                is_reasoning = name in REASONING_FIELDS
                if not (is_reasoning and (isinstance(value, str) or reasoning_text(value))):
                    self.unknown.add(f"delta.{name}")
        for name in self.HANDLERS:
            if name in delta and delta[name] and not self.finished:
                self.HANDLERS[name](self, delta[name], is_complete)

    def _add_message(self, message: Any) -> None:
        """Process a message instead of a delta: new content, or a repetition of earlier content."""
        if isinstance(message, dict):
            if self._repeats_stream is None:
                self._repeats_stream = bool(self._texts.characters or self.composer.tool_calls)
            if self._repeats_stream:
                self._close_open_block()
            elif self._texts.characters:
                self._is_cumulative = self._repeats_all(message)
            if self._repeats_stream or self._is_cumulative:
                message = self._new_part_of(message)
        self._add_delta(message, is_complete=True)

    def _repeats_all(self, message: dict[str, Any]) -> bool:
        """Return whether a message repeats all content so far, as from servers without deltas.

        A message equal to the content so far counts as a repetition only if the previous message
        was one, because the same word may occur twice in a row.
        """
        texts = self._texts
        reasoning = (message.get(name) for name in REASONING_FIELDS)
        message_texts: dict[Kind, str] = {
            "text": texts.text_without_tags(message.get("content")),
            "thinking": next((text for text in reasoning if isinstance(text, str) and text), ""),
        }
        if not all(texts.repeats(kind, text) for kind, text in message_texts.items()):
            return False
        return self._is_cumulative or any(
            texts.has_kind(kind) and texts.new_part(kind, text)
            for kind, text in message_texts.items()
        )

    def _new_part_of(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a message without the content that was streamed before.

        MiniMax ends each stream with a repetition of the whole message. If that message differs
        from the streamed content, the difference is ignored.
        """
        texts = self._texts
        has_reasoning = texts.has_kind("thinking")
        new_parts: dict[str, Any] = {}
        for name, value in message.items():
            match name:
                case "tool_calls" if isinstance(value, list):
                    new_parts[name] = [call for call in value if not self._calls.has_call(call)]
                case "content" if has_reasoning or texts.has_kind("text"):
                    new_parts[name] = texts.new_part("text", texts.text_without_tags(value))
                case "refusal":
                    is_text = isinstance(value, str) and value.startswith(texts.refusal)
                    new_parts[name] = value[len(texts.refusal) :] if is_text else ""
                case "reasoning_details" if has_reasoning:
                    pass
                case _ if has_reasoning and name in self.REASONING_KEYS:
                    new_parts[name] = texts.new_part("thinking", value)
                case _:
                    new_parts[name] = value
        return new_parts

    def _read_reasoning(self, delta: dict[str, Any]) -> None:
        details = read_details(delta)
        for name in REASONING_FIELDS:
            value = delta.get(name)
            piece = value if isinstance(value, str) else reasoning_text(value) if value else ""
            if piece:
                self._add_reasoning(piece, details)
                return
        if details:
            self._add_reasoning("", details)

    def _add_reasoning(self, piece: str, details: list[dict[str, Any]]) -> None:
        if self._calls.open_calls:
            self._calls.flush_before_text()
        self._texts.add_reasoning(piece, details)

    def _add_content(self, content: Any, is_complete: bool) -> None:
        if isinstance(content, str):
            self._add_text(content)
            return
        for part in content if isinstance(content, list) else [content]:
            self._add_part({"type": "text", "text": part} if isinstance(part, str) else part)

    def _add_part(self, part: dict[str, Any]) -> None:
        """Add one content part; Mistral sends text and reasoning as lists of such parts."""
        match part.get("type"):
            case None if INLINE_DATA & part.keys():
                self._add_images([part], is_complete=False)
            case "text" | "output_text" | None:
                self._add_text(part.get("text") or "")
            case "thinking" | "reasoning":
                self._add_reasoning(reasoning_text(part), [])
            case "refusal":
                self._add_refusal(part.get("refusal") or "", is_complete=False)
            case "image_url" | "image" | "output_image":
                self._add_images([part], is_complete=False)
            case kind:
                self.unknown.add(f"content.{kind}")

    def _add_text(self, piece: str) -> None:
        if not piece:
            return
        if self._finish_reason:
            self.composer.add_note(LATE_TEXT)
        if self._calls.open_calls:
            self._calls.flush_before_text()
        self._texts.add_text(piece)
        if self.composer.matched_stop is not None:
            self._finish()

    def _add_refusal(self, piece: Any, is_complete: bool) -> None:
        if not piece:
            return
        self._calls.flush_before_text()
        self._texts.add_refusal(piece)
        if self.composer.matched_stop is not None:
            self._finish()

    def _add_images(self, images: Any, is_complete: bool) -> None:
        """Say that a picture was generated: Anthropic's assistant messages have no images.

        OpenRouter and Gemini send them as ``images``, beside the content.
        """
        for _ in images if isinstance(images, list) else [images]:
            self.composer.add_note(REPLACED_IMAGE)
            self._add_text(f"\n\n{IMAGE}" if self._texts.has_kind("text") else IMAGE)

    def _add_tool_calls(self, pieces: Any, is_complete: bool) -> None:
        # Older versions of TGI (Text Generation Inference) send a single call without a list.
        for piece in [pieces] if isinstance(pieces, dict) else pieces:
            self._calls.feed(piece, is_complete=is_complete)

    def _add_function_call(self, function: Any, is_complete: bool) -> None:
        self._calls.feed_function_call(function, is_complete=is_complete)

    def _read_extra_content(self, extra: Any, is_complete: bool) -> None:
        """Read Gemini's ``extra_content``: it announces reasoning in tags, or has a signature."""
        google = extra.get("google") if isinstance(extra, dict) else None
        if isinstance(google, dict) and google.get("thought"):
            self._texts.expect_tags()
        elif isinstance(google, dict) and google.get("thought_signature"):
            self.composer.add_note(TEXT_SIGNATURE)
        else:
            self.unknown.add("delta.extra_content")

    def _add_annotations(self, annotations: Any, is_complete: bool) -> None:
        for annotation in annotations:
            citation = annotation.get("url_citation") or annotation
            if annotation.get("type") == "url_citation" and citation.get("url"):
                start, end = citation.get("start_index"), citation.get("end_index")
                self._texts.add_citation(citation["url"], citation.get("title"), start, end)
            else:
                self.unknown.add(f"annotation.{annotation.get('type')}")

    def _set_finish_reason(self, choice: dict[str, Any]) -> None:
        raw_reason = choice.get("finish_reason")
        if not raw_reason or self.finished or self._finish_reason or type(raw_reason) is not str:
            return
        reason = raw_reason if raw_reason in FINISH_REASONS else normalize_finish_reason(raw_reason)
        if reason in PENDING:
            return
        if reason in FAILURES:
            self._handle_error(FAILURES[reason])
            return
        if reason not in FINISH_REASONS:
            self.unknown.add(f"finish_reason.{raw_reason}")
        self._finish_reason = reason
        if reason == "stop":
            self._upstream_stop = stop_string_in(choice)
        self._close_open_block()

    def _close_open_block(self) -> None:
        """Close the open text or reasoning block and all open tool calls."""
        self._texts.close_segment()
        if self._calls.open_calls:
            self._calls.finish()

    def _handle_error(self, error: UpstreamError, chunk: Any = None) -> None:
        counts = find_counts(chunk, None) if isinstance(chunk, dict) else None
        if counts is not None:  # the provider bills tokens used before the failure
            self._record_usage(counts)
        self._end_as_failed(error)

    def _finish(self) -> None:
        """Close open blocks and end the message with the stop reason of docs/mapping.md."""
        self._close_open_block()
        if FINISH_REASONS.get(self._finish_reason) in COMPLETE:
            self.composer.show_hidden_reasoning()
        matched = self.composer.matched_stop or self._upstream_stop
        if matched is not None:
            self._finish_message("stop_sequence", stop_sequence=matched)
            return
        cause = FINISH_REASONS.get(self._finish_reason)
        if cause in COMPLETE and self._calls.is_cut(self.usage):
            cause = "max_tokens"
            self.notes.append(LIMIT_REACHED)
        reason = self._choose_reason(cause, refused=bool(self._texts.refusal))
        if reason == "end_turn" and not self._texts.characters:
            self.notes.append(EMPTY_OUTPUT)
        self._finish_message(reason, explanation=self._texts.refusal or None)

    def _finish_message(self, reason: str, **stop: str | None) -> None:
        if self._texts.pending_citations:
            self.notes.append(DROPPED_CITATION)
        # At a stop sequence the gateway ends the message before the upstream reports its final
        # usage.
        ended_here = self.composer.matched_stop is not None and not self._finish_reason
        characters = self._texts.characters + self._calls.characters
        if self.usage is NO_USAGE and self._service_tier:
            self._record_usage({})  # the tier has a price of its own, for estimates too
        self._drop_doubtful_counts(characters - self.composer.characters_after_stop)
        if self.usage.source == "missing" or (ended_here and not self._was_whole):
            self._estimate_usage(characters, is_partial=True)
        super()._finish_message(reason, **stop)

    # After the methods, to reference them by name; the fields of a delta are handled in this order.
    HANDLERS: ClassVar[Mapping[str, Callable[["ChatStream", Any, bool], None]]] = {
        "extra_content": _read_extra_content,
        "content": _add_content,
        "image": _add_images,
        "images": _add_images,
        "refusal": _add_refusal,
        "annotations": _add_annotations,
        "tool_calls": _add_tool_calls,
        "function_call": _add_function_call,
    }
    REASONING_KEYS: ClassVar = frozenset({*REASONING_FIELDS, "reasoning_details", OPAQUE})
    IGNORED: ClassVar = frozenset(
        {*REASONING_KEYS, "role", "audio", "channel", "index", "name"}
        | {"obfuscation", "token_id", "token_ids", "parsed", "reasoning_signature", "prefix"}
    )
    KNOWN: ClassVar = (IGNORED | HANDLERS.keys()) - {*REASONING_FIELDS}
