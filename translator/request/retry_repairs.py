"""Repair a body that the upstream refused, if the refusal is about something dispensable.

There is one table for both OpenAI APIs and a short one for Anthropic's. A rule reads the refusal
and names what the model does not take, as lessons; ``body_edits`` changes the body accordingly.
Besides the named rules there is a general one: a field that the gateway added, or whose value it
chose, is left out if the error names it, in whatever words. A real fault of the request names no
such field and is reported at once. Source: docs/mapping.md, and the public reports of
users of gateways whose sessions such errors ended.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from translator.anthropic.token_estimate import content_tokens
from translator.capabilities import EFFORTS
from translator.dialect import Lesson, Repair
from translator.notes import Note
from translator.upstream_errors.context_overflow import (
    OUTPUT_WORD,
    QUOTA,
    read_output_limit,
    read_token_limits,
)
from translator.upstream_errors.mapping import NO_IMAGES
from translator.upstream_errors.refusal import Refusal, field_path

from .body_edits import (
    CLIENT_FIELDS,
    FIELDS,
    OUTPUT_LIMITS,
    Body,
    apply_lesson,
    effort_of,
    forced_choice,
    has_field,
    omit_field,
    reasoning_is_off,
    schema_format,
)
from .history_shapes import FILE_PARTS, IMAGE_PARTS, count_parts

REFUSAL_STATUSES: Final = frozenset({400, 404, 405, 413, 415, 422, 424, 500, 501, 502, 503})
"""Statuses with which servers reject a part of a request. The status says little: llama.cpp,
LiteLLM and new-api send 500, MLX and OpenRouter 404, TGI 422 and 424, and some servers send 413 if
the output limit is too large. So the error's code and words decide."""
FOREIGN_ITEM: Final = 401
"""GitHub Copilot's status for an item of another connection (anomalyco/opencode#31236)."""
LIMITED: Final = 429
"""OpenAI's status for a request that alone exceeds the account's tokens a minute; Groq's is 413."""
REPAIRABLE: Final = frozenset({*REFUSAL_STATUSES, FOREIGN_ITEM, LIMITED})

MIN_OUTPUT_ROOM: Final = 1_024
"""Tokens. If the prompt leaves less of the context window, the request is not repaired: the client
must shorten the prompt."""
SPARE_TOKENS: Final = 16
"""SGLang requires the total to be smaller than the window, not equal to it."""
MIN_DESCRIPTION: Final = 64
"""Characters. No server limits descriptions to less; a smaller number means something else."""
USUAL_DESCRIPTION: Final = 1_024
"""Characters: the limit of OpenAI and Azure, for an error without a number."""
SAMPLING: Final = frozenset({"temperature", "top_p", "top_k"})
MAX_FIELDS: Final = 8
"""Fields that one repair leaves out; pydantic and serde report several at once."""


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


UNSUPPORTED: Final = _words(
    r"unsupported|(?:not|n't) (?:\w{1,12} )?(?:support|accept|allow|permit|recogni[sz]e)"
    r"|unknown|unrecogni[sz]ed|unexpected|extra_forbidden|extra (?:inputs|fields)"
    r"|must be verified|unavailable|not available|not (?:a )?valid|invalid (?:param|arg|field)"
    r"|deprecated|no longer|incompatible|not compatible|not implemented"
)
UNSUPPORTED_CODES: Final = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden",
     "unrecognized_request_argument", "unrecognized_parameter", "unknown_field",
     "UnsupportedParameter", "UnsupportedParamsError", "unsupported_field"}
)  # fmt: skip
VALUE_CODES: Final = frozenset({"unsupported_value", "invalid_value", "invalid_enum_value"})
ONLY_DEFAULT: Final = _words(
    r"only .{0,24}\b(?:allowed|supported|accepted|valid)|only (?:be set|support|accept|allow)"
    r"|may only|fixed (?:at|to)|must be (?:set to |equal to )?1(?![\d.])|cannot both"
)
"""Texts about sampling values that a model has fixed: OpenAI, Moonshot, Anthropic."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How to read one kind of refusal. ``title`` describes it for the table in the docs."""

    title: str
    read: Callable[[Refusal, Body], "Reading | None"]
    statuses: frozenset[int] = REFUSAL_STATUSES


@dataclass(frozen=True, slots=True)
class Reading:
    """What a refusal says: lessons for later requests, or a change of this body alone."""

    words: str
    """The words, or the code and the path, that it was read from, without words of the client."""
    lessons: tuple[Lesson, ...] = ()
    body: Body | None = None
    note: Note | None = None


def repair_by(rules: Sequence[Rule]) -> Callable[[Body, int, Any], Repair | None]:
    """Return a ``repair`` function: it applies the first rule that changes the body."""

    def repair(body: Body, status: int, error: Any) -> Repair | None:
        if status not in REPAIRABLE:
            return None
        refusal = Refusal(body, status, error)
        for rule in rules:
            reading = rule.read(refusal, body) if status in rule.statuses else None
            if reading is not None and (repaired := _apply(body, reading)) is not None:
                return repaired
        return None

    return repair


def _apply(body: Body, reading: Reading) -> Repair | None:
    if reading.body is not None and reading.note is not None:
        return Repair(body=reading.body, notes=(reading.note,), words=reading.words)
    notes, lessons = [], []
    for lesson in reading.lessons:
        if (applied := apply_lesson(body, lesson)) is not None:
            body, note = applied
            notes.append(note)
            lessons.append(lesson)
    if not lessons:
        return None
    return Repair(body=body, notes=tuple(notes), lessons=tuple(lessons), words=reading.words)


def _lesson(
    *patterns: re.Pattern[str], edit: str, value: str = ""
) -> Callable[[Refusal, Body], Reading | None]:
    """Return a reader: the lesson applies if the server's own words match all patterns."""

    def read(refusal: Refusal, body: Body) -> Reading | None:
        said = refusal.says(*patterns)
        return Reading(said, (Lesson(edit, value),)) if said else None

    return read


# Fields that the gateway adds or chooses


def _optional_fields(refusal: Refusal, body: Body) -> Reading | None:
    """Read which optional fields the refusal names: by path, else in its own words."""
    is_unsupported = refusal.code in UNSUPPORTED_CODES or bool(refusal.says(UNSUPPORTED))
    found = [
        path
        for name in refusal.paths
        for path in fields_named(name, body)
        if is_unsupported or not FIELDS[path].wants_words or _is_fixed(path, refusal)
    ]
    words = _code_and_path(refusal)
    if not found and not _has_foreign_path(refusal):
        found, words = _fields_in_words(refusal, body, is_unsupported=is_unsupported)
    lessons = [_omission(path, body) for path in dict.fromkeys(found)][:MAX_FIELDS]
    return Reading(words, tuple(lessons)) if lessons else None


def _omission(path: str, body: Body) -> Lesson:
    """Return the lesson to leave a field out; sampling only while the model reasons, if it does.

    A request that turns reasoning off must not lose what another one may not have.
    """
    is_conditional = path in SAMPLING and not reasoning_is_off(body)
    return Lesson("omit_while_reasoning" if is_conditional else "omit", path)


def _code_and_path(refusal: Refusal) -> str:
    return f"{refusal.code} {refusal.param or ' '.join(refusal.paths)}".strip()


def _has_foreign_path(refusal: Refusal) -> bool:
    """Return whether the error is about another, known part of the request."""
    tops = {path.split(".")[0].removesuffix("[]") for path in refusal.paths}
    return bool(tops & {"model", "max_tokens", "max_output_tokens", "max_completion_tokens"})


def _fields_in_words(
    refusal: Refusal, body: Body, *, is_unsupported: bool
) -> tuple[list[str], str]:
    named = [path for name in refusal.named for path in fields_named(name, body)]
    if is_unsupported and named:
        return named, _said(refusal, named)
    if not named:  # a name with an underscore or a dot is no English word: it needs no quotes
        named = [
            path
            for path in FIELDS
            if ("_" in path or "." in path or path == "temperature")
            and "[]" not in path
            and has_field(body, path)
            and refusal.says(_words(rf"(?<![\w.]){re.escape(path)}(?![\w.])"))
        ][:1]
    fixed = [path for path in named if is_unsupported or _is_fixed(path, refusal)]
    return fixed, _said(refusal, fixed)


def _said(refusal: Refusal, paths: Iterable[str]) -> str:
    said = refusal.says(UNSUPPORTED) or refusal.says(ONLY_DEFAULT) or refusal.code
    return f"{said}: {', '.join(dict.fromkeys(paths))}"


def _is_fixed(path: str, refusal: Refusal) -> bool:
    return path in SAMPLING and bool(refusal.says(ONLY_DEFAULT))


def fields_named(name: str, body: Body, fields: Mapping[str, Any] = FIELDS) -> list[str]:
    """Return the optional ``fields`` of the body that a server's path or name stands for.

    Pydantic puts the names of its types between the parts of a path, so the first and the last part
    decide; a name alone stands for the field at every place.
    """
    if name in fields and (has_field(body, name) or "[]" not in name):
        return [name] if has_field(body, name) else []
    parent = name.rpartition(".")[0]
    if parent in fields:  # a part of a field that is left out as a whole
        return fields_named(parent, body, fields)
    parts = name.replace("[]", "").split(".")
    found = []
    for path in fields:
        own = path.replace("[]", "").split(".")
        same = own[-1] == parts[-1] and (len(parts) == 1 or own[0] == parts[0])
        if same and (len(parts) > 1 or len(own) > 1) and has_field(body, path):
            found.append(path)
    return found


ENCRYPTED: Final = _words(r"encrypted[_ ](?:reasoning|content)")


def _encrypted_reasoning(refusal: Refusal, body: Body) -> Reading | None:
    if "reasoning.encrypted_content" not in (body.get("include") or ()):
        return None
    if any(item.get("type") == "reasoning" for item in body.get("input") or ()):
        said = "include" if "include" in refusal.paths and refusal.says(ENCRYPTED) else ""
    else:
        said = refusal.says(ENCRYPTED, UNSUPPORTED)
    return Reading(said, (Lesson("exclude", "reasoning.encrypted_content"),)) if said else None


# Efforts

EFFORT_PATHS: Final = frozenset(
    {"reasoning", "reasoning.effort", "reasoning_effort", "output_config.effort", "effort"}
)
EFFORT_WORDS: Final = _words(
    r"reasoning[._ ]?effort|\breasoning (?:level|value)|\bthink(?:ing)?[ _](?:level|value)"
    r"|\beffort\b"
    r"|(?:not|n't) support thinking\b|\bthinking is (?:not|un) ?supported"
)
NAMED_VALUES: Final = _words(
    r"(?:supported|valid) (?:values|efforts|levels|options)|support(?:s|ed)(?: only)?:|allowed"
    r"|accept(?:s|ed)\b|must be|should be|one of|expected|choose|available|only supports"
)
EFFORT_NAME: Final = re.compile(r"(?<![\w-])(none|minimal|low|medium|high|xhigh|max)(?![\w-])")


def _effort(refusal: Refusal, body: Body) -> Reading | None:
    """Read a refused effort: to the values that the error names, else lower, else without."""
    sent = effort_of(body)
    if not sent:
        return None
    is_structured = bool(EFFORT_PATHS & {*refusal.paths})
    # Only efforts are read from the raw text, and only if the server says what it is about.
    named = _named_efforts(refusal.raw if is_structured else refusal.words, sent)
    said = _code_and_path(refusal) if is_structured else refusal.says(EFFORT_WORDS)
    if not said and len(named) > 1 and re.search(rf"['\"`]{sent}['\"`]", refusal.words):
        said = refusal.says(UNSUPPORTED, NAMED_VALUES)  # no other field has such values
    if not said:
        return None
    lessons: tuple[Lesson, ...] = ()
    if named:
        lessons = (Lesson("effort", " ".join(named)),)
    elif refusal.code in VALUE_CODES or _is_about_value(refusal, sent):
        lessons = (Lesson("effort", f"!{sent}"),)
    elif "reasoning" in refusal.paths:
        lessons = (Lesson("omit", "reasoning"),)
    elif is_structured or refusal.says(UNSUPPORTED):
        lessons = (Lesson("omit", "reasoning_effort"), Lesson("omit", "reasoning.effort"))
    return Reading(said, lessons) if lessons else None


def _is_about_value(refusal: Refusal, sent: str) -> bool:
    value = _words(
        rf"['\"`=]{sent}['\"`]?|(?:value|effort|level):? {sent}\b|\b{sent} (?:effort|is not)"
    )
    return bool(value.search(refusal.raw)) and bool(
        refusal.says(_words(r"value|variant|literal|enum|invalid|not support|unsupported"))
    )


def _named_efforts(text: str, sent: str) -> list[str]:
    start = NAMED_VALUES.search(text)
    if start is None:
        return []
    named = {*EFFORT_NAME.findall(text[start.start() :])} - {sent}
    return [name for name in EFFORTS if name in named]


# Limits

LIMIT: Final = _words(
    r"(?:at most|max(?:imum)?|up to|limit|no more than|more than|exceeds?|less than or equal to|<="
    r"|greater than|larger than"
    r"|(?<=[\ds]) >)"
    r"[^\d]{0,48}?(\d{1,6})(?!\d|\.\d)"
)
TOOL_WORDS: Final = _words(r"\b(?:tools?|functions?|function declarations?)\b")
IMAGE_WORDS: Final = _words(r"\b(?:images?|image_url|input_image)\b")
PART_OF_TOOL: Final = _words(r"\b(?:characters?|strings?|tokens?|descriptions?|names?|bytes)\b")
MANY: Final = _words(
    r"too many|too much|too long|at most|max(?:imum)?|up to|limit|exceed|more than|no more|<="
    r"|less than or equal"
)


def _limit_in(refusal: Refusal, below: int, least: int = 1) -> int:
    """Return the limit that the refusal names, if it is smaller than what was sent."""
    limits = (int(match_[1]) for match_ in LIMIT.finditer(refusal.words))
    return next((limit for limit in limits if least <= limit < below), 0)


def _too_many_tools(refusal: Refusal, body: Body) -> Reading | None:
    count = len(body.get("tools") or ())
    is_named = "tools" in refusal.paths
    if count < 2 or not (is_named or refusal.says(TOOL_WORDS, MANY)):
        return None
    if not is_named and (refusal.paths or refusal.says(PART_OF_TOOL)):
        return None
    limit = _limit_in(refusal, count)
    return Reading(f"tools: {limit}", (Lesson("max_tools", str(limit)),)) if limit else None


def _too_many_images(refusal: Refusal, body: Body) -> Reading | None:
    count = _count_parts(body, IMAGE_PARTS)
    said = refusal.says(IMAGE_WORDS, MANY) if count > 1 else ""
    if not said or refusal.says(_words(r"\b(?:pixels?|bytes|[mk]i?b|dimensions?|width|height)\b")):
        return None
    limit = _limit_in(refusal, count)
    return Reading(f"{said}: {limit}", (Lesson("max_images", str(limit)),)) if limit else None


def _count_parts(body: Body, kinds: frozenset[str]) -> int:
    return count_parts(body.get("messages"), kinds) + count_parts(body.get("input"), kinds)


FILE_WORDS: Final = _words(
    r"['\"`]?\b(?:input_)?files?\b|\bpdfs?\b|\bdocuments?\b|content\[\]\.type|\bfile_data\b"
)
NO_FILES: Final = _words(
    UNSUPPORTED.pattern + r"|supported values|expected [`'\"](?:input_)?text"
    r"|invalid value|only supports?|not enabled"
)
BAD_FILE: Final = _words(
    r"(?:failed|unable) to (?:parse|read|process|open|load|extract)"
    r"|(?:could|can)(?:not| not|n't) be (?:read|parsed|opened|processed)"
    r"|corrupt|password|encrypted pdf|no pages|not a valid pdf"
)
FILE_PATH: Final = re.compile(r"\b(?:file|file_data|input_file|filename)\b")


def _refused_files(refusal: Refusal, body: Body) -> Reading | None:
    """Read that the model takes no files, or that it cannot read one of this request's.

    The latter says nothing about other files: it is not remembered.
    """
    if not _count_parts(body, FILE_PARTS):
        return None
    is_named = any(FILE_PATH.search(path) for path in refusal.paths)
    bad = refusal.says(BAD_FILE) if FILE_WORDS.search(refusal.raw) else ""
    lesson = Lesson("files_as_text")
    if bad and (applied := apply_lesson(body, lesson)) is not None:
        return Reading(bad, body=applied[0], note=applied[1])
    said = refusal.says(FILE_WORDS, NO_FILES) or (is_named and refusal.says(NO_FILES))
    return Reading(said, (lesson,)) if said else None


DESCRIPTION_PATH: Final = re.compile(r"tools?\b.{0,200}\bdescription['\"`]?\Z")
DESCRIPTION_WORDS: Final = _words(r"\bdescriptions?\b")


def _long_description(refusal: Refusal, body: Body) -> Reading | None:
    longest = max(_description_lengths(body.get("tools")), default=0)
    if longest <= MIN_DESCRIPTION:
        return None
    is_named = any(DESCRIPTION_PATH.search(path) for path in (refusal.param, *refusal.paths))
    if not is_named and not refusal.says(DESCRIPTION_WORDS, MANY):
        return None
    limit = _limit_in(refusal, longest, MIN_DESCRIPTION)
    if not limit and longest > USUAL_DESCRIPTION and refusal.says(_words("too long")):
        limit = USUAL_DESCRIPTION
    if not limit:
        return None
    return Reading(f"description: {limit}", (Lesson("max_description", str(limit)),))


def _description_lengths(value: Any) -> Iterable[int]:
    if isinstance(value, list):
        for item in value:
            yield from _description_lengths(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name == "description" and isinstance(inner, str):
                yield len(inner)
            else:
                yield from _description_lengths(inner)


# Reasoning of earlier turns

BAD_REASONING: Final = _words(
    r"encrypted[_ ]content|required (?:following|['\"`]?reasoning['\"`]?) item"
    r"|item with id.{0,100} (?:not found|does not exist)"
    r"|(?:\brs_\w+|reasoning (?:item|content|block)s?)"
    r".{0,80}(?:not found|invalid|expired|could not|mismatch|refused|not supported)"
    r"|item id does not belong to this connection|duplicate item found with id"
    r"|(?:invalid|unknown|expired|unsupported) (?:type of )?reasoning(?: item| content| block)"
)
FOREIGN_ITEM_WORDS: Final = _words(r"item id does not belong")
BAD_REASONING_CODES: Final = frozenset(
    {"invalid_encrypted_content", "item_not_found", "thinking_signature_invalid",
     "invalid_reasoning_item", "encrypted_content_invalid", "invalid_union"}
)  # fmt: skip


def _refused_reasoning(refusal: Refusal, body: Body) -> Reading | None:
    """Strip all reasoning of earlier turns from this body; it is not remembered.

    The items belong to one session: another session's own may be accepted.
    """
    items = body.get("input")
    if not isinstance(items, list):
        return None
    if refusal.status == FOREIGN_ITEM and not refusal.says(FOREIGN_ITEM_WORDS):
        return None
    said = refusal.code if refusal.code in BAD_REASONING_CODES else refusal.says(BAD_REASONING)
    is_named = any(
        path == "input[].id" or (path.startswith("input[]") and "encrypted" in path)
        for path in refusal.paths
    )
    is_mute = refusal.code == "not_found" and not refusal.raw  # GitHub Copilot's, with status 404
    if not (said or is_named or is_mute):
        return None
    words, note = (
        said or _code_and_path(refusal),
        Note("messages", "dropped", "the upstream refused its own reasoning: sent without it"),
    )
    rest = [
        {name: value for name, value in item.items() if name != "id"}
        for item in items
        if item.get("type") != "reasoning"
    ]
    if rest and rest != items:
        return Reading(words, body={**body, "input": rest}, note=note)
    if not said:
        return None
    # The server speaks of reasoning that this body does not have: no more of it is requested.
    asked = apply_lesson(body, Lesson("exclude", "reasoning.encrypted_content"))
    return Reading(words, body=asked[0], note=asked[1]) if asked is not None else None


# Structured outputs, tool choice, roles

SCHEMA_WORDS: Final = _words(
    r"response_format|json_schema|json schema|structured[ _]outputs?|text\.format|guided[_ ]"
    r"|json mode|output format|response format|response mime type"
)
SCHEMA_PATHS: Final = ("response_format", "text.format", "text")
BAD_SCHEMA: Final = _words(r"invalid schema|schema is invalid|in context=|additionalProperties")


SCHEMA_CONTENT: Final = _words(
    r"keyword|propert(?:y|ies)|grammar|regex|pattern|\$?\bref\b|(?:any|one|all)of\b|nested|enum"
    r"|min(?:items|length|imum)|max(?:items|length|imum)|additional|recursi|depth|complex"
    r"|\btools?\b|\bfunction|\bthinking\b"
)
"""Words about a part of a schema, or of a request with tools, as opposed to schemas at all."""


def _json_schema(refusal: Refusal, body: Body) -> Reading | None:
    """Read that the server knows no schema, as opposed to a fault in the client's schema."""
    form = body.get("response_format") or (body.get("text") or {}).get("format")
    if not form or refusal.code == "invalid_json_schema" or BAD_SCHEMA.search(refusal.raw):
        return None
    path = next((p for p in refusal.paths if p in SCHEMA_PATHS or p.endswith("format.type")), "")
    said = refusal.says(SCHEMA_WORDS)
    if not (path or said) or any(p.endswith(".strict") for p in refusal.paths):
        return None
    is_refused = refusal.code in UNSUPPORTED_CODES | VALUE_CODES or refusal.says(UNSUPPORTED)
    wants_other = refusal.says(
        _words(
            r"must be|expected|should be|one of|supported values|enabled only|only enabled"
            r"|cannot|can't|at the same time"
        )
    )
    if not (is_refused or wants_other):
        return None
    lesson = Lesson("schema_as_prompt", "" if schema_format(body) is not None else "text")
    if SCHEMA_CONTENT.search(refusal.raw):
        # It is about this client's schema: others may send theirs.
        applied = apply_lesson(body, lesson)
        return applied and Reading(said or path, body=applied[0], note=applied[1])
    return Reading(said or path, (lesson,))


CHOICE_WORDS: Final = _words(
    r"tool[_ ]choice|forced? (?:tool|function)|forces tool|tool use is forced|required tool"
    r"|type must be string, but is object"  # llama.cpp's JSON library, of a named tool
)
CHOICE_REFUSED: Final = _words(
    UNSUPPORTED.pattern + r"|only .{0,20}auto|may not|cannot|can't|must be|should be|thinking"
    r"|invalid tool|requires\b"
)


def _forced_choice(refusal: Refusal, body: Body) -> Reading | None:
    if not forced_choice(body):
        return None
    is_named = any(path.split(".")[0] == "tool_choice" for path in refusal.paths)
    said = refusal.says(CHOICE_WORDS, CHOICE_REFUSED)
    if not (said or is_named) or refusal.says(_words(r"not found in|not in (?:the )?['\"`]?tools")):
        return None
    about_reasoning = refusal.says(_words(r"thinking|reasoning"))
    value = "while reasoning" if about_reasoning and not reasoning_is_off(body) else ""
    return Reading(said or "tool_choice", (Lesson("free_tool_choice", value),))


ROLE_WORDS: Final = _words(
    r"developer|unexpected (?:message )?role|(?:invalid|unknown|unsupported) (?:message )?role"
    r"|role (?:must|should) be|roles? (?:are|is) (?:not )?(?:supported|allowed)"
    r"|(?:incorrect|wrong) role|'role' has (?:an )?invalid value"
)
ROLE_PATH: Final = re.compile(r"(?:messages|input)\[\](?:\..{0,80})?\brole\Z")


def _developer_role(refusal: Refusal, body: Body) -> Reading | None:
    entries = [*(body.get("messages") or ()), *(body.get("input") or ())]
    if not any(entry.get("role") == "developer" for entry in entries):
        return None
    is_named = any(ROLE_PATH.match(path) for path in refusal.paths)
    said = refusal.says(ROLE_WORDS)
    if not is_named and not (said and "role" in refusal.words.lower() + "".join(refusal.paths)):
        variants = _words(
            r"(?:variant|value|one of|unsupported).{0,20}developer|developer.{0,20}(?:not|one of)"
        )
        if not (said := refusal.says(variants)):
            return None
    return Reading(said or refusal.param or "role", (Lesson("system_for_developer"),))


# The length of the response


def _output_limit(refusal: Refusal, body: Body) -> Reading | None:
    """Lower the output limit to what the upstream's error leaves room for."""
    sent = {n: body[n] for n in OUTPUT_LIMITS if type(body.get(n)) is int}
    named = [path for path in refusal.paths if path in OUTPUT_LIMITS]
    said = refusal.says(OUTPUT_LIMIT_WORDS) or refusal.says(QUOTA) or " ".join(named)
    if not sent or not said or (refusal.status == LIMITED and not refusal.says(QUOTA)):
        return None
    limit = read_output_limit(refusal.words)
    if not limit and (named or refusal.says(OUTPUT_FIELD)):
        limit = _other_output_limit(refusal, max(sent.values()))
    if limit:
        return Reading(said, (Lesson("max_output", str(limit)),))
    room = _room_for_output(body, max(sent.values()), refusal.words)
    too_large = [name for name, tokens in sent.items() if tokens > room]
    if not room or not too_large:
        return None
    note = Note("max_tokens", "clamped", "more than the model's output limit: sent with that limit")
    return Reading(said, body=body | dict.fromkeys(too_large, room), note=note)


def _other_output_limit(refusal: Refusal, sent: int) -> int:
    """Return a limit in words that no server is known for; 0 if they are about the window."""
    if read_token_limits(refusal.words).window:
        return 0
    span = OUTPUT_RANGE.search(refusal.words)
    named = int(span[1]) if span else 0
    return named if MIN_OUTPUT_LIMIT <= named < sent else _limit_in(refusal, sent, MIN_OUTPUT_LIMIT)


OUTPUT_FIELD: Final = _words(r"\bmax_(?:completion_|output_|new_)?tokens(?![a-z_])")
OUTPUT_RANGE: Final = re.compile(r"[\[(]\d{1,4}, ?(\d{1,7})[\])]")
MIN_OUTPUT_LIMIT: Final = 256
"""Tokens. No model writes less; a smaller number means something else."""
OUTPUT_LIMIT_WORDS: Final = _words(
    r"\bmax_?(?:\w{0,12}tokens|outputtokens)|maximum tokens|output|completion|window"
)


def _room_for_output(body: Body, sent: int, refusal: str) -> int:
    """Return the output limit that fits beside the prompt; 0 if there is no room, or no count.

    Some servers do not report the length of the prompt, or only a part of it. Then the length is
    estimated; if the upstream refuses this as well, the smallest useful output is requested.
    """
    limits = read_token_limits(refusal)
    if limits.is_quota:
        prompt = limits.total - sent if limits.total > sent else content_tokens(body)
        room = limits.window - prompt - SPARE_TOKENS
        return room if limits.is_exceeded and room >= MIN_OUTPUT_ROOM else 0
    if not limits.window or not (limits.output or OUTPUT_WORD.search(refusal)):
        return 0
    if limits.output not in (0, sent):
        return 0  # an error about another limit than the one that was sent
    if limits.room:
        rooms = [limits.room if limits.room < sent else sent - SPARE_TOKENS]
    else:
        rooms = [limits.window - content_tokens(body), MIN_OUTPUT_ROOM]
    largest = min(sent - 1, limits.window - limits.prompt)
    return next((room for room in rooms if MIN_OUTPUT_ROOM <= room <= largest), 0)


MIN_OUTPUT: Final = re.compile(r"(?:>= ?|greater than or equal to |at least )`?(\d{1,4})(?!\d)")


def _smallest_output(refusal: Refusal, body: Body) -> Reading | None:
    """Raise the output limit to the minimum that the error names."""
    said = refusal.says(_words("max_output_tokens"), MIN_OUTPUT)
    least = MIN_OUTPUT.search(refusal.words) if said else None
    return Reading(said, (Lesson("min_output", least[1]),)) if least else None


def _output_limit_field(refusal: Refusal, body: Body) -> Reading | None:
    """Rename the output limit. An error may recommend the other name, so the first one counts."""
    said = refusal.says(_words(r"\bmax_(?:completion_)?tokens\b"), UNSUPPORTED)
    named = [path for path in refusal.paths if path in OUTPUT_LIMITS]
    if not said and not (named and refusal.says(UNSUPPORTED)):
        return None
    refused = named[0] if named else said.split(" … ")[0]
    said = said or named[0]
    other = "max_completion_tokens" if refused == "max_tokens" else "max_tokens"
    return Reading(said, (Lesson("output_limit_field", other),)) if refused in body else None


# Thinking of Anthropic's API


def _bad_signature(refusal: Refusal, body: Body) -> Reading | None:
    """Drop the thinking blocks of earlier turns from a Messages API body."""
    said = refusal.says(_words(r"invalid `?signature`? in `?thinking`?"))
    if not said:
        return None
    messages = []
    for message in body.get("messages") or []:
        content = message.get("content")
        if isinstance(content, list) and message.get("role") == "assistant":
            blocks = [b for b in content if b.get("type") not in ("thinking", "redacted_thinking")]
            if len(blocks) < len(content):
                message = {**message, "content": blocks}  # noqa: PLW2901 - replaced by a changed copy
        if message.get("content") != []:
            messages.append(message)
    if messages == (body.get("messages") or []):
        return None
    note = Note(
        "messages", "dropped", "the upstream refused a thinking block: sent without thinking"
    )
    return Reading(said, body={**body, "messages": messages}, note=note)


def _missing_thinking(refusal: Refusal, body: Body) -> Reading | None:
    said = refusal.says(_words(r"expected `?(?:redacted_)?thinking`?"))
    if not said or "thinking" not in body:
        return None
    reason = "the upstream requires thinking that is missing: sent without the field"
    rest = {name: value for name, value in body.items() if name != "thinking"}
    return Reading(said, body=rest, note=Note("thinking", "dropped", reason))


ALTERNATE: Final = _words(
    r"roles (?:must|should|need to) (?:be )?alternat\w*|alternating roles|unexpected role"
    r"|alternate (?:between )?user|consecutive (?:\w{1,12} ){0,2}(?:messages|roles)"
)
SYSTEM_FIRST: Final = _words(
    r"system (?:message|prompt|role)s?.{0,40}(?:beginning|start\b|first)"
    r"|(?:first|leading) message.{0,40}system|system.{0,30}(?:only|must) .{0,20}(?:first|index 0)"
    r"|unexpected role '?system|only one system message|multiple system messages"
)

OPENAI_RULES: Final = (
    Rule(
        "images for a model without vision",
        _lesson(NO_IMAGES, edit="images_as_text"),
    ),
    Rule("more images than the server takes", _too_many_images),
    Rule("files for a model without them, or a damaged file", _refused_files),
    Rule("the role `developer`", _developer_role),
    Rule(
        "a system message for a chat template without that role",
        _lesson(
            _words(r"system role (?:is )?not supported|(?:not|n't) support (?:the |a )?system"),
            edit="no_system_role",
        ),
    ),
    Rule(
        "a system message between other messages",
        _lesson(SYSTEM_FIRST, edit="system_first"),
    ),
    Rule(
        "several calls in one message, for chat templates",
        _lesson(
            _words(
                r"single tool[- ]calls? at once|only supports? (?:a )?single tool"
                r"|only (?:one|a single) tool[- ]?call"
            ),
            edit="single_calls",
        ),
    ),
    Rule(
        "roles that do not alternate, for chat templates",
        _lesson(ALTERNATE, edit="merge_turns"),
    ),
    Rule(
        "roles that do not alternate because of a system message",
        _lesson(ALTERNATE, edit="system_first"),
    ),
    Rule(
        "tool messages for a chat template without them",
        _lesson(
            _words(ALTERNATE.pattern + r"|tool role|role ['\"]?tool|only user(?:,| and) assistant"),
            edit="calls_as_text",
        ),
    ),
    Rule(
        "a history without reasoning, which DeepSeek and Moonshot require",
        _lesson(
            _words(
                r"(?:missing|must (?:be(?! satisfied)|include|contain)).{0,40}reasoning_content"
                r"|reasoning_content.{0,40}(?:missing|must be)"
            ),
            edit="fill_reasoning",
        ),
    ),
    Rule(
        "calls without thought signatures, of Gemini behind other servers (Chat Completions)",
        _lesson(
            _words(r"(?:missing|without|lacks?|requires?) (?:\w{1,12} ){0,3}`?thought_?signature"),
            edit="sign_calls",
        ),
    ),
    Rule(
        "reasoning with tools (gpt-5.4 and later, Chat Completions)",
        _lesson(
            _words(r"tools with reasoning_effort"), UNSUPPORTED, edit="no_reasoning_with_tools"
        ),
    ),
    Rule("encrypted reasoning", _encrypted_reasoning),
    Rule("reasoning of earlier turns", _refused_reasoning, REFUSAL_STATUSES | {FOREIGN_ITEM}),
    Rule(
        "summaries of reasoning",
        _lesson(
            _words(r"reasoning summar(?:y|ies)"),
            UNSUPPORTED,
            edit="omit",
            value="reasoning.summary",
        ),
    ),
    Rule("a reasoning effort", _effort),
    Rule("a forced tool choice", _forced_choice),
    Rule("a JSON schema for the answer", _json_schema),
    Rule("more tools than the server takes", _too_many_tools),
    Rule("a description that is too long", _long_description),
    Rule("an output limit below the minimum", _smallest_output),
    Rule("an output limit that is too large", _output_limit, REFUSAL_STATUSES | {LIMITED}),
    Rule("the name of the output limit", _output_limit_field),
    Rule("any other field that the gateway adds or chooses", _optional_fields),
)
"""The repairs of both OpenAI APIs, in the order in which they are tried."""

ANTHROPIC_RULES: Final = (
    Rule("a thinking block of an earlier turn", _bad_signature),
    Rule("thinking without the blocks of earlier turns", _missing_thinking),
)


UNKNOWN: Final = re.compile(
    r"extra (?:inputs|fields)|extra_forbidden|(?:unknown|unrecogni[sz]ed|unexpected|unsupported)"
    r" (?:request )?(?:param|arg|field|key|name|propert)",
    re.IGNORECASE,
)
"""Texts about a field that the server does not know."""
UNSUPPORTED_VALUE: Final = re.compile(
    r"(?:not|n't) (?:support|recogni[sz]e|accept|permit|allow)|input tag|input should be ['\"]"
    r"|must be (?:one of|either)|not a valid|invalid value",
    re.IGNORECASE,
)
"""Texts about a field, or about one of its values."""
VALUED: Final = frozenset(
    {"output_config.effort", "service_tier", "speed", "temperature", "thinking", "top_k", "top_p"}
)
"""Fields of which a server may refuse some values."""
PATH_BEFORE_COLON: Final = re.compile(r"([a-z]\w{0,63}(?:\.\w{1,63}){0,12}): ", re.ASCII)
REQUIRED: Final = frozenset(
    {"billing_policy", "container", "inference_geo", "max_tokens", "mcp_servers", "messages",
     "model", "safeguards", "stop_sequences", "stream", "system", "thread", "tool_choice", "tools"}
)  # fmt: skip
"""Fields without which a request has another meaning: the client must learn that they are
refused."""


def _client_field(refusal: Refusal, body: Body) -> Reading | None:
    """Read which field of the client the server does not know; a refused value is a field too."""
    is_unknown = refusal.code in UNSUPPORTED_CODES or bool(refusal.says(UNKNOWN))
    if not is_unknown and not refusal.says(UNSUPPORTED_VALUE):
        return None
    first = PATH_BEFORE_COLON.match(refusal.words)
    names = [*refusal.paths, *([field_path(first[1])] if first else []), *refusal.named]
    for name in filter(None, names):
        found = fields_named(name, body, CLIENT_FIELDS)
        is_exact = any(path.rpartition(".")[2] == name.rpartition(".")[2] for path in found)
        if found and is_exact and (is_unknown or not VALUED.intersection(found)):
            said = refusal.says(UNKNOWN) or refusal.says(UNSUPPORTED_VALUE) or refusal.code
            # A schema of the answer is kept, in the system prompt.
            schema = [Lesson("format_as_prompt")] if "output_config" in found else []
            omitted = [Lesson("omit_client_field", path) for path in found]
            return Reading(f"{said}: {name}", (*schema, *omitted))
        top = found[0] if found else name.split(".")[0].removesuffix("[]")
        if top in body and top not in REQUIRED:
            note = Note(top, "dropped", "the upstream refused it: sent without it")
            return Reading(name, body=omit_field(body, top), note=note)
    return None


def _answer_format(refusal: Refusal, body: Body) -> Reading | None:
    said = refusal.says(UNKNOWN)
    if not said or not has_field(body, "output_config.format"):
        return None
    names = {*refusal.paths, *refusal.named}
    is_named = any(name.startswith("output_config.format") for name in names)
    return Reading(said, (Lesson("format_as_prompt"),)) if is_named else None


CLIENT_FIELD_RULES: Final = (
    Rule("the schema of an answer", _answer_format),
    Rule("a field of the client that the server does not know", _client_field),
)
COMPATIBLE_RULES: Final = (*ANTHROPIC_RULES, *CLIENT_FIELD_RULES)
"""The repairs for servers of Anthropic's API other than Anthropic's own.

Such servers and clouds know only some fields of the API, while Claude Code sends new ones with each
request. Anthropic's own refusals go to the client as they are. What is remembered for a model are
fields that the server does not know at all, from a fixed table; a refused value, or a name that the
client chose, changes this request alone."""
