"""The parts of a client's request."""

from proxy.gateway.exchange.client_request import session_id_in
from tests.for_each import for_each


@for_each(
    ("metadata", "session"),
    [
        (None, ""),
        ({}, ""),
        ({"user_id": 7}, ""),
        ({"user_id": "ada"}, ""),
        ({"user_id": "user_1_account__session_0123abcd-0000"}, "0123abcd-0000"),
        ({"user_id": "user_1_session_0123abc"}, ""),  # too short
        ({"user_id": "user_1_session_0123abcd and more"}, ""),
        ({"user_id": '{"session_id": "s_1", "device_id": "d"}'}, "s_1"),
        ({"user_id": '{"session_id": "' + "s" * 200 + '"}'}, "s" * 200),
        ({"user_id": '{"session_id": "' + "s" * 201 + '"}'}, ""),
        ({"user_id": '{"session_id": 7}'}, ""),
        ({"user_id": "{}"}, ""),
        ({"user_id": "{"}, ""),
        ("user_1_session_0123abcd-0000", ""),
    ],
)
def test_the_session_id_is_parsed_from_both_metadata_formats(metadata, session):
    assert session_id_in(metadata) == session
