"""The user is sent as a hash, and the conversation is the cache key."""

from tests.fakes.anthropic_requests import make_request
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, fates
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.openai_responses import DIALECT


def test_the_user_goes_as_a_hash_and_the_session_keys_the_cache():
    request = make_request(metadata={"user_id": "user_1_account__session_22-33"})
    sent = body(request)

    assert len(sent["safety_identifier"]) == len(sent["prompt_cache_key"]) == 64
    assert "user_1" not in str(sent)
    assert fates(request) == {"metadata.user_id": "renamed"}
    assert len(body(request, "openrouter")["user"]) == 64
    assert fates(request, "generic") == {"metadata.user_id": "ignored"}


@for_each(
    ("user_id", "has_key"),
    [
        ('{"device_id":"d","session_id":"s-1"}', True),
        ('{"session_id":7}', False),
        ("[1]", False),
        ("ada", False),
    ],
)
def test_the_session_is_found_in_the_forms_that_clients_write(user_id, has_key):
    assert ("prompt_cache_key" in body(make_request(metadata={"user_id": user_id}))) is has_key


def test_a_session_that_a_header_names_keys_the_cache_without_a_user():
    target = TranslationTarget(model="m", profile=PROFILES["openai"], session="22-33")
    by_header = DIALECT.build_request(make_request(), target)
    by_user = body(make_request(metadata={"user_id": "user_1_account__session_22-33"}))

    assert by_header.body["prompt_cache_key"] == by_user["prompt_cache_key"]
    assert by_header.notes == ()
