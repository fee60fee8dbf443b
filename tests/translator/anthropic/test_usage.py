from dataclasses import replace

import anthropic
from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.anthropic.usage import (
    MAX_COUNT,
    MAX_ITERATIONS,
    Iteration,
    Usage,
    billed_iterations,
    has_doubtful_counts,
    merge_usage,
    usage_from_openai,
    usage_from_wire,
    without_doubtful_counts,
)

COUNTS = st.none() | st.integers(0, 10_000)
JUNK = st.one_of(COUNTS, st.text(), st.booleans(), st.floats(), st.integers(), st.lists(st.none()))


# The worked examples of the mapping: OpenAI's counts, and the total that Anthropic's add up to.
@for_each(
    ("counts", "usage"),
    [
        (
            {"total_input": 7540, "output": 63, "cached": 0, "written": 7537},
            Usage(input=3, output=63, cache_read=0, cache_write_5m=7537, cache_write_1h=0),
        ),
        (
            {"total_input": 7484, "output": 66, "cached": 6002, "written": 1479, "reasoning": 40},
            Usage(
                input=3,
                output=66,
                cache_read=6002,
                cache_write_5m=1479,
                cache_write_1h=0,
                reasoning=40,
            ),
        ),
        (
            {"total_input": 2006, "output": 300, "cached": 1920},
            Usage(input=86, output=300, cache_read=1920),
        ),
        ({"total_input": 500, "output": 1}, Usage(input=500, output=1)),
        (
            {"total_input": 100, "output": 1, "cached": 900},
            Usage(input=100, output=1, cache_read=900),
        ),
        (
            {"total_input": 10, "output": 1, "written": 6, "written_1h": 4},
            Usage(input=4, output=1, cache_write_5m=2, cache_write_1h=4),
        ),
        (
            {"total_input": 10, "output": 1, "written_1h": 4},
            Usage(input=6, output=1, cache_write_5m=0, cache_write_1h=4),
        ),
        ({"total_input": 5.0, "output": 1}, Usage(input=5, output=1)),
    ],
)
def test_openai_s_total_becomes_disjoint_classes(counts, usage):
    made, notes = usage_from_openai(**counts)

    assert made.source == "reported"
    assert usage == Usage(**{**_fields(made), "source": "missing"})
    assert notes == []


def _fields(usage: Usage) -> dict:
    return {name: getattr(usage, name) for name in Usage.__dataclass_fields__}


@given(
    total=st.integers(0, 10_000),
    cached=COUNTS,
    written=COUNTS,
    long=COUNTS,
    output=st.integers(0, 9),
)
def test_the_classes_add_up_to_the_total_unless_it_left_the_cache_out(
    total, cached, written, long, output
):
    usage, _ = usage_from_openai(
        total_input=total, output=output, cached=cached, written=written, written_1h=long
    )
    wire = usage.to_wire()
    cache = (wire["cache_read_input_tokens"] or 0) + (wire["cache_creation_input_tokens"] or 0)

    assert wire["input_tokens"] + cache in (total, total + cache)
    assert usage.input >= 0


@given(total=JUNK, output=JUNK, cached=JUNK, written=JUNK, reasoning=JUNK)
def test_any_upstream_number_gives_valid_usage(total, output, cached, written, reasoning):
    usage, notes = usage_from_openai(
        total_input=total, output=output, cached=cached, written=written, reasoning=reasoning
    )
    wire = usage.to_wire()

    numbers = [usage.input, usage.output, usage.cache_read, usage.reasoning]
    assert all(n is None or (type(n) is int and 0 <= n <= MAX_COUNT) for n in numbers)
    assert type(wire["input_tokens"]) is type(wire["output_tokens"]) is int
    assert (usage.source == "reported") == (usage.input is not None and usage.output is not None)
    assert all(note.reason.startswith("bad_usage") for note in notes)


def test_a_bad_count_is_missing_and_noted():
    usage, [note] = (
        usage_from_openai(total_input=-1, output=True)[0],
        usage_from_openai(total_input=-1, output=1)[1],
    )

    assert (usage.input, usage.output, usage.source) == (None, None, "missing")
    assert note.reason == "bad_usage: input tokens are no count"


NO_DELTA_COUNTS = {
    "input_tokens": 0,
    "cache_creation_input_tokens": None,
    "cache_read_input_tokens": None,
    "output_tokens": 0,
    "output_tokens_details": None,
    "server_tool_use": None,
}
NO_COUNTS = NO_DELTA_COUNTS | {
    "cache_creation": None,
    "inference_geo": None,
    "service_tier": None,
    "speed": None,
}


def test_unreported_counts_are_null_because_the_sdks_types_demand_them():
    assert Usage().to_wire() == NO_COUNTS
    assert Usage().to_delta() == NO_DELTA_COUNTS
    usage = Usage(
        input=1,
        output=2,
        cache_read=3,
        cache_write_5m=4,
        reasoning=5,
        web_searches=6,
        service_tier="standard",
    )
    delta = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 5},
        "server_tool_use": {"web_search_requests": 6, "web_fetch_requests": 0},
    }

    assert usage.to_delta() == delta
    assert usage.to_wire() == NO_COUNTS | delta | {
        "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }


def test_the_wire_has_the_fields_of_the_official_types():
    assert set(Usage().to_wire()) == set(anthropic.types.Usage.model_fields)
    assert set(Usage().to_delta()) == set(anthropic.types.MessageDeltaUsage.model_fields)


@for_each(
    ("openai", "tier", "wire"),
    [
        ("default", "standard", "standard"),
        ("auto", "standard", "standard"),
        ("on_demand", "standard", "standard"),
        ("fast", "priority", "priority"),
        ("priority", "priority", "priority"),
        ("flex", "flex", "standard"),
        ("scale", "scale", "standard"),
        ("x" * 33, None, None),
        (5, None, None),
        ("", None, None),
    ],
)
def test_a_tier_keeps_what_it_costs_and_has_a_name_of_anthropic_on_the_wire(openai, tier, wire):
    usage, _ = usage_from_openai(total_input=1, output=1, service_tier=openai)

    assert (usage.service_tier, usage.to_wire()["service_tier"]) == (tier, wire)


def test_speed_region_and_iterations_are_read():
    usage, notes = usage_from_wire(
        {
            "input_tokens": 30,
            "output_tokens": 2,
            "speed": "fast",
            "inference_geo": "us",
            "service_tier": "batch",
            "iterations": [
                {
                    "type": "compaction",
                    "input_tokens": 900,
                    "output_tokens": 40,
                    "cache_read_input_tokens": 7,
                    "cache_creation": {"ephemeral_1h_input_tokens": 8},
                },
                {"type": "message", "model": "m", "input_tokens": 30, "output_tokens": -2},
                "no entry",
            ],
        }
    )

    assert (usage.speed, usage.inference_geo, usage.service_tier) == ("fast", "us", "batch")
    assert usage.iterations == (
        Iteration(type="compaction", input=900, output=40, cache_read=7, cache_write_1h=8),
        Iteration(type="message", model="m", input=30),
    )
    assert billed_iterations(usage) == usage.iterations
    assert [note.reason for note in notes] == ["bad_usage: output tokens are no count"]


def test_attempts_that_a_fallback_replaced_are_not_billed():
    def entry(kind, model):
        return Iteration(type=kind, model=model, input=1)

    declined, tool_turn = entry("message", "large"), entry("message", "small")
    advice, served = entry("advisor_message", "large"), entry("fallback_message", "small")
    usage = Usage(iterations=(declined, tool_turn, advice, served))

    assert billed_iterations(usage) == (tool_turn, advice, served)


def test_iterations_have_a_bound():
    usage, [note] = usage_from_wire({"iterations": [{"type": "message"}] * (MAX_ITERATIONS + 1)})

    assert len(usage.iterations) == MAX_ITERATIONS
    assert note.reason == f"bad_usage: more than {MAX_ITERATIONS} iterations"


FULL = Usage(input=5, output=9, cache_read=30, cache_write_5m=4, cache_write_1h=2, reasoning=3)


@for_each(
    ("before", "then", "expected"),
    [
        (FULL, Usage(input=0, output=0, cache_read=0, cache_write_5m=0), FULL),
        (FULL, Usage(output=12), replace(FULL, output=12)),
        (FULL, Usage(input=5, output=12), replace(FULL, output=12)),
        (FULL, Usage(input=6, cache_read=0, cache_write_5m=0, cache_write_1h=0), FULL),
        (FULL, Usage(input=5, cache_read=40, cache_write_5m=6), replace(FULL, cache_read=40)),
        (FULL, Usage(cache_write_5m=7), replace(FULL, cache_write_5m=5)),
        (Usage(input=0, output=0), FULL, FULL),
        # An estimate at the start, and the real counts with the cache at the end.
        (Usage(input=90), replace(FULL, output=None), replace(FULL, output=None)),
        (Usage(input=90), Usage(input=0, cache_read=0), Usage(input=90)),
        (Usage(input=90), Usage(input=80), Usage(input=90)),
        (Usage(input=9, cache_read=0), Usage(input=1, cache_read=8), Usage(input=1, cache_read=8)),
        (Usage(speed="fast", output=2), Usage(output=1), Usage(speed="fast", output=2)),
    ],
)
def test_counts_are_cumulative_so_a_later_smaller_one_is_no_count(before, then, expected):
    merged = merge_usage(before, then)
    reported = expected.input is not None and expected.output is not None

    assert merged == replace(expected, source="reported" if reported else "missing")


@given(
    counts=st.builds(
        Usage,
        input=st.integers(0, 99),
        output=st.integers(0, 99),
        cache_read=COUNTS,
        cache_write_5m=st.integers(0, 99),
        cache_write_1h=st.integers(0, 99),
        reasoning=COUNTS,
        web_searches=COUNTS,
        service_tier=st.none() | st.sampled_from(["standard", "priority", "batch"]),
        speed=st.none() | st.sampled_from(["standard", "fast"]),
        inference_geo=st.none() | st.just("us"),
        source=st.just("reported"),
    )
)
def test_serialized_usage_parses_to_the_same_usage(counts):
    assert usage_from_wire(counts.to_wire()) == (counts, [])


def test_incomplete_or_invalid_anthropic_usage_is_accepted():
    assert usage_from_wire({})[0] == Usage()
    assert usage_from_wire({"cache_creation": 5, "service_tier": 5})[0] == Usage()
    usage, [note] = usage_from_wire(
        {"input_tokens": 1, "output_tokens": "x", "cache_creation_input_tokens": 7}
    )

    assert usage == Usage(input=1, cache_write_5m=7, source="missing")
    assert note.fate == "ignored"


def test_each_invalid_count_is_noted_by_its_name():
    names = ("5m cache write", "1h cache write", "cache write", "input", "cache read", "output")
    wire = {
        "input_tokens": -1,
        "output_tokens": "x",
        "cache_read_input_tokens": True,
        "cache_creation_input_tokens": 0.5,
        "cache_creation": {"ephemeral_5m_input_tokens": [], "ephemeral_1h_input_tokens": {}},
        "output_tokens_details": {"thinking_tokens": MAX_COUNT + 1},
        "server_tool_use": {"web_search_requests": -2},
    }

    usage, notes = usage_from_wire(wire)

    assert usage == Usage(source="missing")
    assert [(note.path, note.fate, note.reason) for note in notes] == [
        ("usage", "ignored", f"bad_usage: {name} tokens are no count")
        for name in (*names, "reasoning", "web search")
    ]


def test_a_count_may_be_the_largest_and_be_written_as_a_fraction():
    usage, notes = usage_from_wire({"input_tokens": MAX_COUNT, "output_tokens": 12.0})

    assert (usage.input, usage.output, usage.source, notes) == (MAX_COUNT, 12, "reported", [])


REPORTED = {"source": "reported"}


@for_each(
    ("usage", "characters", "left"),
    [
        (Usage(input=0, output=0, **REPORTED), 10, (None, None)),
        (Usage(input=9, output=0, **REPORTED), 10, (9, None)),
        (Usage(input=0, output=3, **REPORTED), 10, (None, 3)),
        (Usage(input=0, cache_read=9, output=3, **REPORTED), 10, (0, 3)),
        (Usage(input=0, output=0, **REPORTED), 0, (0, 0)),  # a cache that was only warmed
        (Usage(input=9, output=1, **REPORTED), 5_000, (9, 1)),  # few, but charged
        (Usage(output=0), 10, (None, 0)),
    ],
)
def test_counts_that_cannot_be_true_are_not_believed(usage, characters, left):
    is_doubtful = has_doubtful_counts(usage, characters)
    checked = without_doubtful_counts(usage, characters) if is_doubtful else usage

    assert (checked.input, checked.output) == left
    assert is_doubtful == (left != (usage.input, usage.output))
    assert checked.source == ("missing" if is_doubtful else usage.source)


def test_an_absurd_count_is_no_count():
    usage, notes = usage_from_openai(total_input=9, output=10**12)

    assert (usage.output, usage.source) == (None, "missing")
    assert [note.reason for note in notes] == ["bad_usage: output tokens are no count"]
