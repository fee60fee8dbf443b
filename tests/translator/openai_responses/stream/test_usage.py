"""Token counts: disjoint classes, unknown is not zero."""

from tests.for_each import for_each
from tests.translator.openai_responses.responses import failed, stream
from translator.anthropic.usage import Usage, estimated_usage
from translator.openai_responses.usage import read_usage

EXAMPLES = [
    ((7540, 0, 7537, 63, 0), (3, 0, 7537, 63)),
    ((7484, 6002, 1479, 66, 40), (3, 6002, 1479, 66)),
]
"""The worked examples of the mapping: total, read, written, output, reasoning."""


@for_each(("counts", "classes"), EXAMPLES)
def test_the_examples_of_the_mapping(counts, classes):
    total, read, written, output, reasoning = counts
    usage, notes = read_usage(
        {
            "usage": {
                "input_tokens": total,
                "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": reasoning},
            }
        },
        0,
    )

    wire = usage.to_wire()
    assert notes == []
    assert usage.source == "reported"
    assert wire["input_tokens"] == classes[0]
    assert wire["cache_read_input_tokens"] == classes[1]
    assert wire["cache_creation_input_tokens"] == classes[2]
    assert wire["output_tokens"] == classes[3]


@for_each("counts", [None, "x", []])
def test_no_usage_is_missing(counts):
    assert read_usage({"usage": counts}, 0)[0] == Usage()


def test_malformed_usage_details_are_ignored():
    usage, _ = read_usage(
        {"usage": {"input_tokens": 5, "output_tokens": 1, "input_tokens_details": 3}}, 0
    )

    assert usage.cache_read is None


def test_a_write_that_lives_twelve_hours_is_the_long_class():
    details = {"cache_write_tokens": 10, "cache_write_tokens_details": {"ttl_12h_tokens": 4}}
    usage, _ = read_usage(
        {"usage": {"input_tokens": 12, "output_tokens": 1, "input_tokens_details": details}}, 0
    )

    assert (usage.cache_write_5m, usage.cache_write_1h) == (6, 4)


@for_each(
    ("counted", "seen", "expected"),
    [(3, 1, 3), (0, 1, None), (None, 2, 2), (-1, 2, 2), ("3", 2, 2), (True, 2, 2), (None, 0, None)],
)
def test_searches_are_those_counted_upstream_else_those_seen(counted, seen, expected):
    response = {"tool_usage": {"web_search": {"num_requests": counted}}}

    assert read_usage(response, seen)[0].web_searches == expected


@for_each(
    ("tier", "expected"),
    [
        ("default", "standard"),
        ("priority", "priority"),
        ("fast", "priority"),
        ("flex", "flex"),
        (None, None),
        (3, None),
    ],
)
def test_a_tier_has_anthropics_name(tier, expected):
    assert read_usage({"service_tier": tier}, 0)[0].service_tier == expected


def test_an_estimate_fills_only_what_is_unknown():
    nothing = estimated_usage(Usage(), 40, 9)
    something = estimated_usage(Usage(input=7, output=8), 40, 9)

    assert (nothing.input, nothing.output, nothing.source) == (40, 3, "estimated")
    assert (something.input, something.output) == (7, 8)


def test_the_usage_names_of_chat_completions_are_a_fallback():
    both = {"prompt_tokens": 0, "input_tokens": 5, "output_tokens": 1}

    assert read_usage({"usage": both}, 0)[0].input == 5
    assert read_usage({"usage": {"prompt_tokens": 5, "completion_tokens": 1}}, 0)[0].input == 5


@for_each("code", ["server_error", "bio_policy"])
def test_usage_before_a_failure_counts(code):
    event = failed(code)
    event["response"]["usage"] = {"input_tokens": 20, "output_tokens": 8}
    streamed, ended, at_once = stream(), stream(), stream()

    streamed.feed(event)
    ended.feed(event | {"type": "response.completed"})
    at_once.feed_body(event["response"])

    for machine in (streamed, ended, at_once):
        assert (machine.usage.input, machine.usage.output) == (20, 8)
