"""Hears one Chat Completions answer, streamed or whole, and speaks one Anthropic stream.

A chunk is worked off in a fixed order: error, usage, reasoning, text, refusal,
annotations, tool calls, finish reason. Only the first choice counts. Block boundaries, which Chat
does not know, are made by ``speech`` and ``calls``; the composer keeps the Anthropic grammar.
Source: mapping.md 3.2 and 4.4.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from translator.anthropic.composer import Block, MessageComposer
from translator.anthropic.stop_reason import is_window_full, stop_reason_of
from translator.anthropic.types import Event
from translator.anthropic.usage import UNTOLD
from translator.dialect import AnswerContext, UpstreamError
from translator.errors import BadUpstream
from translator.names import message_id
from translator.notes import EMPTY, Fate, Note
from translator.steps import step
from translator.unknown_events import UnknownEvents

from .calls import ToolCalls
from .choices import FIRST, joined, message_of, repeats, unsaid
from .details import OPAQUE, REASONING_FIELDS, details_of, thought_text
from .error_body import error_in_answer
from .finish import CUT_CALL, FAILURES, FINISH_REASONS, PENDING, STOP_FIELDS, at_limit, finish_word
from .speech import UNCITED, Speech
from .usage import counts_in, estimated_usage, last_told, usage_of

CITED_ASIDE: Final = ("citations", "search_results")
"""Sources that a search model (Perplexity) lists beside the answer; Anthropic has no place."""


class ChatStream:
    """One answer; see ``translator.dialect.Stream`` for what each member promises."""

    bad: ClassVar[str] = "upstream sent a bad chunk"

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.composer = MessageComposer(context)
        self.notes = self.composer.notes
        self.unknown = UnknownEvents()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.usage = UNTOLD
        self.stop_reason: str | None = None
        self.upstream_id = ""
        self.upstream_model = ""
        self._speech = Speech(self.composer)
        self._calls = ToolCalls(self.composer, self._speech.pause)
        self._finish_reason = ""  # the first that came
        self._matched_upstream: str | None = None  # the stop string that the upstream names
        self._whole = False  # the answer came as one message
        self._in_pieces: bool | None = None  # a message that now comes whole came so before
        self._growing = False  # each message tells the answer as far as it is known
        self._usage_closed = False  # a chunk that holds nothing but usage came: it is the last
        self.flowing: Block | None = None  # the text that a piece of text was said into last
        self.finished = False

    def text(self, piece: str) -> list[Event]:
        """What ``feed`` makes of a chunk that says this piece of text and nothing else.

        For a caller that read the chunk with a stricter eye: 7 calls in the middle of a text and
        23 at its beginning, where ``feed`` takes 27 and 36.
        """
        self._usage_closed = False
        if self.flowing is not None and self.flowing.flows:
            return self._speech.flow(self.flowing, piece)
        return self._plain(piece)

    def fail(self, error: UpstreamError) -> list[Event]:
        written = self.composer.writer.written = []
        self.broken(error)
        return written

    def broken(self, error: UpstreamError) -> None:
        """End in an error, unless the answer has ended."""
        if not self.finished:
            self.error = error
            self.finished = True
            self._speech.cut()
            self.composer.fail(error_type=error.error_type, message=error.message)

    @step
    def feed(self, *chunks: Any) -> None:
        for chunk in chunks:
            if self.finished:
                return
            self.flowing = None
            failure = error_in_answer(chunk)
            if failure is not None:
                self._failed(failure, chunk)
                return
            choice = self._opened(chunk)
            if choice is None:
                continue
            delta = choice.get("delta")
            if type(delta) is not dict:
                self._message(message_of(choice))
            elif delta or not self.composer.begun:
                self._delta(delta, whole=False)
            if choice.get("finish_reason"):
                self._choice_ended(choice)

    @step
    def _plain(self, piece: str) -> None:
        if not self.composer.begun:
            self._started()
        self._text(piece)

    @step
    def feed_whole(self, body: Any) -> None:
        failure = error_in_answer(body)
        if failure is not None:
            self._failed(failure, body)
            return
        self._whole = True
        choice = self._opened(body)
        if choice is None:
            raise BadUpstream("empty completion from upstream")
        self._delta(message_of(choice), whole=True)
        self._choice_ended(choice)
        if not self.finished:
            self._finished()

    @step
    def end(self) -> None:
        """Say that upstream's bytes ended (or ``[DONE]`` came), which alone is no finish reason."""
        if not (self._finish_reason or self._ended_by_usage):
            raise BadUpstream("upstream stream ended early")
        self._finished()

    @property
    def _ended_by_usage(self) -> bool:
        """Whether the usage-only chunk came, which servers send after everything else.

        Snowflake never sends a finish reason. Half a tool call proves that the answer was cut.
        """
        return self._usage_closed and self._calls.whole

    def _opened(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Read what stands around the answer; return the first choice, if there is one."""
        if not self.upstream_id:
            self.upstream_id = str(chunk.get("id") or "")
        if not self.upstream_model:
            self.upstream_model = str(chunk.get("model") or "")
        for name in CITED_ASIDE:
            if name in chunk and chunk[name]:  # noqa: RUF019 - it hardly ever is
                self._note_once(name, "dropped", "sources beside the answer have no place in it")
        choices: Any = chunk.get("choices")
        counts = counts_in(chunk, choices)
        self._usage_closed = False
        if counts is not None:
            self._usage_closed = self.composer.begun and not choices
            self._counted(counts, chunk.get("service_tier"))
        elif type(choices) is not list:
            self.unknown.add(str(chunk.get("object") or "chunk without choices"))
        for choice in choices or ():
            if type(choice) is dict and choice.get("index") in FIRST:
                return joined(choice, choices) if choices[1:] else choice
        return None

    def _counted(self, counts: Mapping[str, Any], service_tier: Any) -> None:
        told, notes = usage_of(counts, service_tier)
        self.usage = told if self.usage is UNTOLD else last_told(self.usage, told)
        if notes:
            self.notes += [note for note in notes if note not in self.notes]

    def _delta(self, delta: Any, *, whole: bool) -> None:
        if not self.composer.begun:
            self._started()
        if not delta or type(delta) is not dict:
            return
        if not self.THOUGHTS.isdisjoint(delta):
            self._reasoning(delta)
        for name in delta:
            if name not in self.KNOWN and delta[name]:
                value = delta[name]
                known = name in REASONING_FIELDS
                if not (known and (isinstance(value, str) or thought_text(value))):
                    self.unknown.add(f"delta.{name}")
        for name in self.HANDLERS:
            if name in delta and delta[name] and not self.finished:
                self.HANDLERS[name](self, delta[name], whole)

    def _message(self, message: Any) -> None:
        """A message where a delta should be: a piece that came whole, or all of them once more."""
        if self._in_pieces is None and isinstance(message, dict):
            self._in_pieces = bool(self._speech.said or self.composer.tool_calls)
        if self._in_pieces and isinstance(message, dict):
            self._pause()
            message = unsaid(message, self.THOUGHTS, self._speech, self._calls)
        elif isinstance(message, dict) and self._speech.said:
            self._growing = repeats(message, REASONING_FIELDS, self._speech, self._growing)
            if self._growing:
                message = unsaid(message, self.THOUGHTS, self._speech, self._calls)
        self._delta(message, whole=True)

    def _started(self) -> None:
        """``message_start``, on the first chunk that says anything."""
        identity = self.context.message_id or message_id(self.upstream_id)
        self._calls.seed = identity
        self.composer.start(message_id=identity, model=self.context.model or self.upstream_model)

    def _reasoning(self, delta: dict[str, Any]) -> None:
        details = details_of(delta)
        for name in REASONING_FIELDS:
            value = delta.get(name)
            piece = value if isinstance(value, str) else thought_text(value) if value else ""
            if piece:
                self._thought(piece, details)
                return
        if details:
            self._thought("", details)

    def _thought(self, piece: str, details: list[dict[str, Any]]) -> None:
        if self._calls.open:
            self._calls.step_aside()
        self._speech.think(piece, details)

    def _content(self, content: Any, whole: bool) -> None:
        if isinstance(content, str):
            self._text(content)
            return
        for part in content if isinstance(content, list) else [content]:
            self._part({"type": "text", "text": part} if isinstance(part, str) else part)

    def _part(self, part: dict[str, Any]) -> None:
        """One content part; Mistral sends text and reasoning as lists of them."""
        match part.get("type"):
            case "text" | "output_text" | None:
                self._text(part.get("text") or "")
            case "thinking" | "reasoning":
                self._thought(thought_text(part), [])
            case "refusal":
                self._refusal(part.get("refusal") or "", whole=False)
            case kind:
                self.unknown.add(f"content.{kind}")

    def _text(self, piece: str) -> None:
        if not piece:
            return
        if self._finish_reason:
            self._note_once("content", "repaired", "text after the finish reason was accepted")
        if self._calls.open:
            self._calls.step_aside()
        block = self._speech.say(piece)
        if self.composer.matched_stop is not None:
            self._finished()
        elif not self._finish_reason:
            self.flowing = block

    def _refusal(self, piece: Any, whole: bool) -> None:
        if not piece:
            return
        self._calls.step_aside()
        self._speech.refuse(piece)
        if self.composer.matched_stop is not None:
            self._finished()

    def _tool_calls(self, pieces: Any, whole: bool) -> None:
        # Older TGI sends the one call itself.
        for piece in [pieces] if isinstance(pieces, dict) else pieces:
            self._calls.feed(piece, whole=whole)

    def _function_call(self, function: Any, whole: bool) -> None:
        self._calls.legacy(function, whole=whole)

    def _extra(self, extra: Any, whole: bool) -> None:
        """What Gemini says of the content: that it is reasoning, or begins with it, in tags."""
        google = extra.get("google") if isinstance(extra, dict) else None
        if isinstance(google, dict) and google.get("thought"):
            self._speech.expect_tags()
        elif isinstance(google, dict) and google.get("thought_signature"):
            self._note_once("content", "dropped", "a text's thought signature: no call needs it")
        else:
            self.unknown.add("delta.extra_content")

    def _annotations(self, annotations: Any, whole: bool) -> None:
        for annotation in annotations:
            citation = annotation.get("url_citation") or annotation
            if annotation.get("type") == "url_citation" and citation.get("url"):
                start, end = citation.get("start_index"), citation.get("end_index")
                self._speech.cite(citation["url"], citation.get("title"), start, end)
            else:
                self.unknown.add(f"annotation.{annotation.get('type')}")

    def _choice_ended(self, choice: dict[str, Any]) -> None:
        told = choice.get("finish_reason")
        if not told or self.finished or self._finish_reason or type(told) is not str:
            return
        reason = told if told in FINISH_REASONS else finish_word(told)
        if reason in PENDING:
            return
        if reason in FAILURES:
            self._failed(FAILURES[reason])
            return
        if reason not in FINISH_REASONS:
            self.unknown.add(f"finish_reason.{told}")
        self._finish_reason = reason
        if reason == "stop":
            for name in STOP_FIELDS:
                if name in choice:
                    named = choice[name]
                    if type(named) is str and named and named not in FINISH_REASONS:
                        self._matched_upstream = named
        self._pause()

    def _pause(self) -> None:
        """End what is being said."""
        self._speech.pause()
        if self._calls.open:
            self._calls.finish()

    def _failed(self, error: UpstreamError, answer: Any = None) -> None:
        counts = counts_in(answer, None) if isinstance(answer, dict) else None
        if counts is not None:  # what was used until it failed is paid for all the same
            self._counted(counts, answer.get("service_tier"))
        if not error.is_refusal:
            self.broken(error)
            return
        self.stop_reason = "refusal"
        details = {
            "type": "refusal",
            "category": error.refusal_category,
            "explanation": error.message,
        }
        if not self.composer.begun:
            self._started()
        self._closed("refusal", stop_details=details)

    def _finished(self) -> None:
        """Close what is open and end the message, in the order of mapping.md 3.3."""
        self._pause()
        matched = self.composer.matched_stop or self._matched_upstream
        if matched is not None:
            self._closed("stop_sequence", stop_sequence=matched)
            return
        cause = FINISH_REASONS.get(self._finish_reason)
        if self._calls.cut and at_limit(cause, self.usage, self.context.max_tokens):
            cause = "max_tokens"
            self.notes.append(CUT_CALL)
        window = self.context.target.profile.context_window
        reason = stop_reason_of(
            cause,
            called_tool=self.composer.tool_calls > 0,
            refused=bool(self._speech.refusal),
            window_full=cause == "max_tokens"
            and is_window_full(self.usage, window, self.context.max_tokens),
        )
        details = None
        if reason == "end_turn" and not self._speech.said:
            self.notes.append(EMPTY)
        if reason == "refusal":
            explanation = self._speech.refusal or None
            details = {"type": "refusal", "category": None, "explanation": explanation}
        self._closed(reason, stop_details=details)

    def _closed(self, reason: str, **stop: Any) -> None:
        if self._speech.uncited:
            self.notes.append(UNCITED)
        # We may have ended the answer ourselves, before the upstream told its final usage.
        cut_short = self.composer.matched_stop is not None and not self._finish_reason
        if self.usage.source == "missing" or (cut_short and not self._whole):
            said = self._speech.said + self._calls.said - self.composer.beyond
            self.usage, note = estimated_usage(self.usage, self.context.input_estimate, said)
            self.notes.append(note)
        self.stop_reason = reason
        self.composer.finish(stop_reason=reason, usage=self.usage.to_wire(), **stop)
        self.finished = True

    def _note_once(self, path: str, fate: Fate, reason: str) -> None:
        note = Note(path, fate, reason)
        if note not in self.notes:
            self.notes.append(note)

    # At the foot of the class, where the functions above exist as plain names. The order of the
    # table is the order in which a chunk is worked off.
    HANDLERS: ClassVar[Mapping[str, Callable[["ChatStream", Any, bool], None]]] = {
        "extra_content": _extra,
        "content": _content,
        "refusal": _refusal,
        "annotations": _annotations,
        "tool_calls": _tool_calls,
        "function_call": _function_call,
    }
    THOUGHTS: ClassVar = frozenset({*REASONING_FIELDS, "reasoning_details", OPAQUE})
    IGNORED: ClassVar = frozenset(
        {*THOUGHTS, "role", "audio", "channel", "index", "name"}
        | {"obfuscation", "token_id", "token_ids", "parsed", "reasoning_signature", "prefix"}
    )
    KNOWN: ClassVar = (IGNORED | HANDLERS.keys()) - {*REASONING_FIELDS}
