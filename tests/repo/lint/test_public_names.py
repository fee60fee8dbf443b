"""Check the public names and parameters of the translator: a change breaks its users."""

import inspect

import pytest

import translator

# name -> parameters in order; keyword-only parameters follow the star
FUNCTIONS = {
    "format_sse": ["event", "payload"],
    "translate_openai_events": ["events"],
    "translate_openai_chat_events": ["events"],
    "derive_stop_reason": ["response"],
    "map_openai_response_to_anthropic": ["response"],
    "map_openai_chat_to_anthropic": ["completion"],
    "map_anthropic_to_openai_response": ["request"],
    "map_anthropic_to_openai_chat": ["request"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_its_documented_parameters(name):
    function = getattr(translator, name)

    parameters = inspect.signature(function).parameters.values()
    positional = [one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]

    assert name in translator.__all__
    assert positional == FUNCTIONS[name]
    assert all(
        one.default is not inspect.Parameter.empty
        for one in parameters
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    )


def test_every_public_name_exists():
    assert [name for name in translator.__all__ if not hasattr(translator, name)] == []
