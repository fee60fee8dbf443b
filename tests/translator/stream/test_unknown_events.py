"""Unknown upstream events are counted within a bound."""

from translator.dialect import MAX_KIND_CHARACTERS, MAX_KINDS, OTHERS, UnknownEvents


def test_kinds_beyond_the_bound_are_counted_together():
    unknown = UnknownEvents()

    for number in range(MAX_KINDS + 2):
        unknown.add(f"kind {number}")
    unknown.add("kind 0")

    assert unknown["kind 0"] == 2
    assert unknown[OTHERS] == 2
    assert len(unknown) == MAX_KINDS + 1


def test_a_long_kind_is_cut():
    unknown = UnknownEvents()

    unknown.add("k" * (MAX_KIND_CHARACTERS + 1))

    assert unknown == {"k" * MAX_KIND_CHARACTERS: 1}
