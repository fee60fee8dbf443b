"""Fill in token counts that an upstream did not report; hard budgets need all counts."""

from collections.abc import Mapping
from dataclasses import replace

from translator.anthropic.usage import Usage


def fill_unreported(usage: Usage, worst_case: Mapping[str, int], *, answered: bool) -> Usage:
    """Return the usage with both ``input`` and ``output``; missing counts become the worst case.

    ``worst_case``: the ``input`` and ``output`` tokens that the budget reserved. ``answered``:
    content arrived, so an output count estimated from that content is used. Without content the
    output is unknown, because the model may have been thinking all the time; then the whole
    reserved output counts.
    """
    estimated = "estimated" in (usage.source, usage.output_source)
    has_input = usage.input is not None
    has_output = usage.output is not None and (answered or not estimated)
    if has_input and has_output:
        return replace(usage, source="reported") if usage.source == "missing" else usage
    return replace(
        usage,
        input=usage.input if has_input else worst_case["input"],
        output=usage.output if has_output else worst_case["output"],
        source="reported" if has_input and usage.source != "estimated" else "estimated",
        output_source="reported" if has_output and not estimated else "estimated",
    )
