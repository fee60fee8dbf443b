"""Token counts with the field names of different vendors."""

from tests.for_each import for_each
from translator.anthropic.usage import Usage, estimated_usage
from translator.openai_chat.usage import find_counts, read_usage


@for_each(
    ("counts", "expected"),
    [
        (
            {
                "prompt_tokens": 7540,
                "completion_tokens": 63,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 7537},
            },
            {"input": 3, "cache_read": 0, "cache_write_5m": 7537, "output": 63},
        ),
        (
            {
                "prompt_tokens": 7484,
                "completion_tokens": 66,
                "prompt_tokens_details": {"cached_tokens": 6002, "cache_write_tokens": 1479},
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            {"input": 3, "cache_read": 6002, "cache_write_5m": 1479, "output": 66, "reasoning": 40},
        ),
        (
            {
                "prompt_tokens": 2006,
                "completion_tokens": 300,
                "prompt_tokens_details": {"cached_tokens": 1920},
            },
            {"input": 86, "cache_read": 1920},
        ),
        (
            {"prompt_tokens": 500, "completion_tokens": 1, "prompt_tokens_details": None},
            {"input": 500, "cache_read": None},
        ),
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 1,
                "prompt_cache_hit_tokens": 900,
                "prompt_cache_miss_tokens": 100,
            },
            {"input": 100, "cache_read": 900},
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 1, "num_cached_tokens": 4},
            {"input": 6, "cache_read": 4},
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 4},
            {"input": 6, "cache_read": 4},
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_cache_hit_tokens": None,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 5,
            },
            {"input": 1, "cache_read": 4, "cache_write_5m": 5},
        ),
        (
            {
                "prompt_tokens": 235,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 373},
            },
            {"input": 235, "cache_read": 373},
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": 2},
            {"output": 5, "reasoning": 2},
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 1,
                "server_tool_use_details": {"web_search_requests": 3},
            },
            {"web_searches": 3},
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 1,
                "server_tool_use_details": {"web_search_requests": 0},
            },
            {"web_searches": None},
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_tokens_details": {
                    "cache_creation_input_tokens": None,
                    "cache_creation_tokens": 5,
                    "cache_creation_token_details": {"ephemeral_1h_input_tokens": 2},
                },
            },
            {"input": 5, "cache_write_5m": 3, "cache_write_1h": 2},
        ),
        (
            {"input_tokens": 12, "output_tokens": 3},
            {"input": 12, "output": 3, "source": "reported"},
        ),
        (
            {"prompt_tokens": "twelve", "completion_tokens": 1},
            {"input": None, "output": 1, "source": "missing"},
        ),
    ],
    ids=[
        "cache write",
        "cache read",
        "no write",
        "no details",
        "deepseek",
        "mistral",
        "moonshot",
        "databricks and litellm",
        "disjoint already",
        "azure",
        "openrouter search",
        "no search",
        "litellm, by lifetime",
        "the other API's names",
        "no number",
    ],
)
def test_counts_become_disjoint_classes(counts, expected):
    usage, _ = read_usage(counts)

    assert {name: getattr(usage, name) for name in expected} == expected


@for_each(
    ("tier", "expected"),
    [
        ("priority", "priority"),
        ("fast", "priority"),
        ("default", "standard"),
        ("on_demand", "standard"),
        (None, None),
    ],
)
def test_the_service_tier_has_anthropic_s_name(tier, expected):
    assert (
        read_usage({"prompt_tokens": 1, "completion_tokens": 1}, tier)[0].service_tier == expected
    )


def test_usage_in_x_groq_is_read():
    assert find_counts({"x_groq": {"usage": {"prompt_tokens": 1}}}, []) == {"prompt_tokens": 1}
    assert find_counts({"usage": None, "x_groq": {"id": "x"}}, []) is None


def test_timings_without_cache_counts_give_output_tokens_only():
    counts = find_counts({"timings": {"prompt_n": 15, "predicted_n": 8}}, [])

    assert counts == {"prompt_tokens": None, "completion_tokens": 8, "cached_tokens": None}
    assert find_counts({"timings": None}, []) is not None


def test_an_estimate_fills_only_unreported_counts():
    empty = estimated_usage(Usage(), 50, 9, is_partial=True)
    partial = estimated_usage(Usage(input=7, output=20), 50, 9, is_partial=True)

    assert (empty.input, empty.output, empty.source) == (50, 3, "estimated")
    assert (partial.input, partial.output) == (7, 20)


def counted(**counts):
    details = {"reasoning_tokens": counts.pop("reasoning")}
    return read_usage({**counts, "completion_tokens_details": details})[0].output


@for_each(
    ("counts", "output"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 334, "reasoning": 320}, 322),
        ({"prompt_tokens": 12, "completion_tokens": 322, "total_tokens": 334, "reasoning": 320}, 322),
        ({"prompt_tokens": 12, "completion_tokens": 2, "reasoning": 320}, 2),
        ({"completion_tokens": 2, "total_tokens": 322, "reasoning": 320}, 2),
        ({"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14, "reasoning": 0}, 2),
        ({"prompt_tokens": 12, "completion_tokens": "2", "reasoning": 320}, 2),
        ({"prompt_tokens": 12, "completion_tokens": "two", "reasoning": 320}, None),
    ],
)  # fmt: skip
def test_reasoning_that_is_counted_beside_the_answer_is_part_of_the_output(counts, output):
    assert counted(**counts) == output


@for_each(
    ("counts", "expected"),
    [
        ({"prompt_tokens": "12", "completion_tokens": "2"}, (12, 2, None)),
        ({"prompt_tokens": 0, "input_tokens": 12, "output_tokens": 2}, (12, 2, None)),
        ({"prompt_tokens": None, "input_tokens": 12, "output_tokens": 2}, (12, 2, None)),
        # Gemini counts its thoughts only in the total.
        ({"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 334}, (12, 322, 320)),
        ({"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}, (12, 2, None)),
        # Mistral counts audio only in the total.
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 2,
                "total_tokens": 334,
                "prompt_tokens_details": {"audio_tokens": 320},
            },
            (12, 2, None),
        ),
    ],
)
def test_counts_of_other_servers(counts, expected):
    usage, notes = read_usage(counts)

    assert (usage.input, usage.output, usage.reasoning) == expected
    assert not notes


@for_each(
    ("counts", "tier", "expected"),
    [
        ({}, "flex", "flex"),
        ({"service_tier": "priority"}, None, "priority"),
        ({"service_tier": "standard"}, None, "standard"),
        ({"extra_properties": {"google": {"traffic_type": "ON_DEMAND"}}}, None, "standard"),
        ({"extra_properties": {"google": {"traffic_type": "ON_DEMAND_FLEX"}}}, None, "flex"),
        (
            {"extra_properties": {"google": {"traffic_type": "PROVISIONED_THROUGHPUT"}}},
            None,
            "provisioned_throughput",
        ),
        ({"extra_properties": None}, None, None),
    ],
)
def test_the_tier_may_be_in_the_usage(counts, tier, expected):
    usage, _ = read_usage({"prompt_tokens": 1, "completion_tokens": 1, **counts}, tier)

    assert usage.service_tier == expected
