"""Repair a Messages API body that a server other than Anthropic's own refused.

Such servers and clouds know only some fields of the API, while Claude Code sends new ones with each
request. Anthropic's own refusals go to the client as they are. What is remembered for a model are
fields that the server does not know at all, from a fixed table; a refused value, or a name that the
client chose, changes this request alone.
"""

import re
from typing import Final

from translator.dialect import Lesson
from translator.notes import Note
from translator.upstream_errors.refusal import Refusal, field_path

from .body_edits import CLIENT_FIELDS, Body, has_field, omit_field
from .retry_repairs import ANTHROPIC_RULES, UNSUPPORTED_CODES, Reading, Rule, fields_named

UNKNOWN: Final = re.compile(
    r"extra (?:inputs|fields)|extra_forbidden|(?:unknown|unrecogni[sz]ed|unexpected|unsupported)"
    r" (?:request )?(?:param|arg|field|key|name|propert)",
    re.IGNORECASE,
)
"""Texts about a field that the server does not know."""
UNSUPPORTED: Final = re.compile(
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
    if not is_unknown and not refusal.says(UNSUPPORTED):
        return None
    first = PATH_BEFORE_COLON.match(refusal.words)
    names = [*refusal.paths, *([field_path(first[1])] if first else []), *refusal.named]
    for name in filter(None, names):
        found = fields_named(name, body, CLIENT_FIELDS)
        is_exact = any(path.rpartition(".")[2] == name.rpartition(".")[2] for path in found)
        if found and is_exact and (is_unknown or not VALUED.intersection(found)):
            said = refusal.says(UNKNOWN) or refusal.says(UNSUPPORTED) or refusal.code
            return Reading(f"{said}: {name}", _lessons(found))
        top = found[0] if found else name.split(".")[0].removesuffix("[]")
        if top in body and top not in REQUIRED:
            note = Note(top, "dropped", "the upstream refused it: sent without it")
            return Reading(name, body=omit_field(body, top), note=note)
    return None


def _lessons(paths: list[str]) -> tuple[Lesson, ...]:
    """Return what to leave out; a schema of the answer is kept in the system prompt."""
    schema = [Lesson("format_as_prompt")] if "output_config" in paths else []
    return (*schema, *(Lesson("omit_client_field", path) for path in paths))


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
"""The repairs for servers of Anthropic's API other than Anthropic's own."""
