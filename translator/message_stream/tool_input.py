"""Parse the complete arguments of a tool call, at the end of its block."""

from collections.abc import Set as AbstractSet
from typing import Final

from translator.notes import Note
from translator.stream.surrogates import replace_surrogates
from translator.stream.tool_arguments import (
    compact_json,
    further_arguments,
    parse_arguments,
    without_nulls,
    without_trailing_commas,
)

from .open_block import Block

REPAIRED_ARGUMENTS: Final = Note("content", "repaired", "tool arguments were broken JSON")
GLUED_CALLS: Final = Note(
    "content", "repaired", "the arguments of several calls came in one; each is given as a call"
)
BROKEN_ARGUMENTS: Final = Note("content", "ignored", "bad_tool_json: tool arguments do not parse")


def finish_input(block: Block, optional: AbstractSet[str]) -> tuple[str, Note | None]:
    """Set ``block.arguments_value``; return the text that is still to be sent, and a note.

    ``block.further_inputs`` are then the inputs of further calls in the same arguments.

    Arguments that were delayed are sent now, repaired if possible. Arguments that were streamed are
    already sent: if a repair of them succeeds, it is only in the value, for whole responses. Text
    behind complete arguments is never sent, unless it has a meaning (then they are broken).
    ``optional``: the properties whose nulls are removed.
    """
    leftovers = block.leftovers.getvalue()
    further = further_arguments(leftovers, block.text) if leftovers else None
    is_cut = further is not None and _is_object(block.text)
    text = block.text if is_cut else block.text + leftovers
    value, repaired = parse_arguments(text)
    is_unsent = block.delays_arguments or not block.sends_arguments
    is_object = isinstance(value, dict)
    is_valid = is_object and (is_unsent or not repaired)
    if is_object and not is_valid and block.comma_repairs:
        is_valid = not parse_arguments(without_trailing_commas(text))[1]
    note = None
    if not is_valid:
        note = BROKEN_ARGUMENTS
    elif repaired or (is_cut and not leftovers.isspace()):
        note = REPAIRED_ARGUMENTS
    if further and is_valid:
        note = GLUED_CALLS
        block.further_inputs = [replace_surrogates(without_nulls(v, optional)) for v in further]
    if not is_object:
        value = text
    if "\\u" in text:
        value = replace_surrogates(value)  # an escape sequence may encode an unpaired surrogate
    unsent = block.held_comma if is_cut else block.held_comma + leftovers
    if is_unsent:
        if is_valid and (repaired or optional):
            value = without_nulls(value, optional)
            unsent = compact_json(value)
        else:  # null or only white space: the call has no arguments
            unsent = text if value else ""
    block.arguments_value = value
    return unsent, note


def _is_object(text: str) -> bool:
    return isinstance(parse_arguments(text)[0], dict)
