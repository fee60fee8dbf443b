"""The session id in ``metadata.user_id``: both forms of Claude Code, and input of any shape."""

from tests.for_each import for_each
from translator.request.session_id import MAX_SESSION_ID, MAX_USER_ID, session_id_in


@for_each(
    ("user", "session"),
    [
        ("user_1_account__session_5c1b-9A", "5c1b-9A"),
        ("session_x", "x"),
        ('{"device_id": "d", "session_id": "5c1b"}', "5c1b"),
        (' {"session_id": "a b"}', "a b"),
        ("user_1_session_", ""),
        ("user_1_session_a b", ""),
        ("user_1_session_a\n", ""),
        ('{"session_id": 5}', ""),
        ('{"session_id": "session_x"}', "session_x"),
        ("{broken", ""),
        ("[1]{", ""),
        ("alice", ""),
        ("", ""),
        (None, ""),
        (5, ""),
        ("session_" + "a" * MAX_SESSION_ID, "a" * MAX_SESSION_ID),
        ("session_" + "a" * (MAX_SESSION_ID + 1), ""),
        ('{"a":' * (MAX_USER_ID // 5), ""),
        ("{" * MAX_USER_ID, ""),
        ("x" * MAX_USER_ID + "session_a", ""),
    ],
)
def test_the_session_id_is_read(user, session):
    assert session_id_in({"user_id": user}) == session


@for_each("metadata", [None, [], "session_x", {}, {"session_id": "x"}])
def test_other_metadata_has_no_session_id(metadata):
    assert session_id_in(metadata) == ""
