"""What an upstream left out is filled in from what a hard budget reserved, and marked."""

import pytest

from proxy.record.unreported_usage import fill_unreported
from translator.anthropic.usage import Usage

WORST = {"input": 70, "output": 900}


@pytest.mark.parametrize(
    ("usage", "answered", "expected"),
    [
        # Nothing is known.
        (Usage(), False, (70, 900, "estimated", "estimated")),
        (Usage(), True, (70, 900, "estimated", "estimated")),
        # All is known.
        (Usage(input=1, output=2, source="reported"), False, (1, 2, "reported", None)),
        (Usage(input=0, output=0, source="reported"), False, (0, 0, "reported", None)),
        (Usage(input=1, output=2), False, (1, 2, "reported", None)),
        # One of the two is.
        (Usage(input=1), False, (1, 900, "reported", "estimated")),
        (Usage(output=2), False, (70, 2, "estimated", "reported")),
        # An estimate stands if content arrived.
        (Usage(input=1, output=2, source="estimated"), True, (1, 2, "estimated", None)),
        (Usage(input=1, output=0, source="estimated"), False, (1, 900, "estimated", "estimated")),
        (Usage(output=2, source="estimated"), True, (70, 2, "estimated", "estimated")),
        # A stream that broke off after ``message_start``.
        (
            Usage(input=1, output=1, source="reported", output_source="estimated"),
            False,
            (1, 900, "reported", "estimated"),
        ),
        (
            Usage(input=1, output=8, source="reported", output_source="estimated"),
            True,
            (1, 8, "reported", "estimated"),
        ),
    ],
)
def test_what_is_filled_in(usage, answered, expected):
    filled = fill_unreported(usage, WORST, answered=answered)

    assert (filled.input, filled.output, filled.source, filled.output_source) == expected


def test_the_classes_that_were_reported_stay():
    usage = Usage(input=1, cache_read=5, cache_write_5m=6)

    filled = fill_unreported(usage, WORST, answered=False)

    assert (filled.cache_read, filled.cache_write_5m, filled.cache_write_1h) == (5, 6, None)
