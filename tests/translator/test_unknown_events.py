"""Unknown upstream events are counted within a bound."""

from translator.unknown_events import LONGEST, MOST_KINDS, OTHERS, UnknownEvents


def test_kinds_beyond_the_bound_are_counted_together():
    unknown = UnknownEvents()

    for number in range(MOST_KINDS + 2):
        unknown.add(f"kind {number}")
    unknown.add("kind 0")

    assert unknown["kind 0"] == 2
    assert unknown[OTHERS] == 2
    assert len(unknown) == MOST_KINDS + 1


def test_a_long_kind_is_cut():
    unknown = UnknownEvents()

    unknown.add("k" * (LONGEST + 1))

    assert unknown == {"k" * LONGEST: 1}
