import dataclasses

import pytest

from tests.for_each import for_each
from translator.capabilities import EFFORTS, PROFILES, Profile, profile_with
from translator.errors import TranslatorError


def test_the_profiles_that_configuration_may_name():
    assert set(PROFILES) == {
        "anthropic",
        "azure",
        "bedrock",
        "bedrock_messages",
        "deepseek",
        "foundry",
        "gemini",
        "generic",
        "llamacpp",
        "ollama",
        "openai",
        "openrouter",
        "vertex",
        "vllm",
    }


@for_each("profile", PROFILES.values(), ids=lambda p: p.name)
def test_efforts_are_known_and_ascending(profile):
    assert list(profile.efforts) == sorted(profile.efforts, key=EFFORTS.index)


def test_the_generic_server_takes_no_required_tool_choice_and_openai_does():
    assert not PROFILES["generic"].required_tool_choice
    assert PROFILES["openai"].required_tool_choice


def test_single_capabilities_can_be_replaced():
    made = profile_with("generic", {"top_k": True, "efforts": ["low"], "max_tools": 5})

    assert made == dataclasses.replace(Profile(), top_k=True, efforts=("low",), max_tools=5)


@for_each(
    ("name", "overrides", "words"),
    [
        ("vlm", {}, "unknown profile 'vlm'; known: anthropic"),
        ("vllm", {"top_q": True}, "unknown capability 'top_q'; known: "),
        ("vllm", {"name": "x"}, "unknown capability 'name'"),
        ("vllm", {"top_k": "yes"}, "capability 'top_k' is 'yes'; a bool is expected"),
        ("vllm", {"top_k": [True]}, "capability 'top_k'"),
        ("vllm", {"max_tools": True}, "capability 'max_tools'"),
        ("vllm", {"efforts": ["huge"]}, "capability 'efforts'"),
        ("vllm", {"efforts": "low"}, "capability 'efforts'"),
        ("vllm", {"thinking_switch": "on"}, "capability 'thinking_switch'"),
    ],
)
def test_bad_overrides_are_refused(name, overrides, words):
    with pytest.raises(TranslatorError, match=words):
        profile_with(name, overrides)


def test_a_list_of_names_takes_names_only():
    assert profile_with("anthropic", {"refused_fields": ["speed"]}).refused_fields == ("speed",)
    with pytest.raises(TranslatorError, match="a list of names is expected"):
        profile_with("anthropic", {"refused_fields": [1]})
