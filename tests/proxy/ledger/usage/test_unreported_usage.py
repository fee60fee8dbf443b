"""Missing token counts are filled from the reservation of a hard budget and marked."""

from proxy.ledger.usage.unreported_usage import fill_unreported
from tests.for_each import for_each
from translator.anthropic.usage import Usage

WORST = {"input": 70, "output": 900}


@for_each(
    ("usage", "answered", "expected"),
    [
        # Both are unknown.
        (Usage(), False, (70, 900, "estimated", "estimated")),
        (Usage(), True, (70, 900, "estimated", "estimated")),
        # Both are known.
        (Usage(input=1, output=2, source="reported"), False, (1, 2, "reported", None)),
        (Usage(input=0, output=0, source="reported"), False, (0, 0, "reported", None)),
        (Usage(input=1, output=2), False, (1, 2, "reported", None)),
        # One is known.
        (Usage(input=1), False, (1, 900, "reported", "estimated")),
        (Usage(output=2), False, (70, 2, "estimated", "reported")),
        # An estimate is used if content arrived.
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
def test_unknown_counts_are_filled_from_the_reservation(usage, answered, expected):
    filled = fill_unreported(usage, WORST, answered=answered)

    assert (filled.input, filled.output, filled.source, filled.output_source) == expected


def test_reported_cache_counts_do_not_change():
    usage = Usage(input=1, cache_read=5, cache_write_5m=6)

    filled = fill_unreported(usage, WORST, answered=False)

    assert (filled.cache_read, filled.cache_write_5m, filled.cache_write_1h) == (5, 6, None)
