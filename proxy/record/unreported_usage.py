"""Fills in the token counts that an upstream did not report, for hard budgets to count."""

from collections.abc import Mapping
from dataclasses import replace

from translator.anthropic.usage import Usage


def fill_unreported(usage: Usage, worst_case: Mapping[str, int], *, answered: bool) -> Usage:
    """Return the usage with both ``input`` and ``output`` known; what is filled in is estimated.

    ``worst_case``: ``input`` and ``output`` tokens that the budget reserved. ``answered``: content
    arrived, so an output that was estimated from it stands. Without content nothing is known of
    the output: a model may have been thinking all the time, so the whole reservation counts.
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
