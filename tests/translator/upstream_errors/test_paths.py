"""Paths in the upstream's body are translated to paths in the client's request."""

from tests.for_each import for_each
from translator.dialect import UpstreamError
from translator.upstream_errors import map_error_paths

ORIGINS = (-1, 0, 1, 1, 2)


def error(message, param=None):
    return UpstreamError(status=400, error_type="x", message=message, param=param)


@for_each(
    ("theirs", "ours"),
    [
        ("Invalid value at 'input[4].content[0].image_url'.", "Invalid value at 'messages.2'."),
        ("input[2] and input[3]: bad.", "messages.1 and messages.1: bad."),
        ("messages.[1].content is wrong", "messages.0 is wrong"),
        ("messages.1.content is wrong", "messages.0 is wrong"),
        ("input[0] is too long", "system is too long"),
        ("input[9] is not ours", "input[9] is not ours"),
        ("the input is bad", "the input is bad"),
    ],
)
def test_a_path_refers_to_the_clients_message(theirs, ours):
    reply = map_error_paths(error(theirs, theirs), ORIGINS)

    assert (reply.message, reply.param) == (ours, ours)
    assert map_error_paths(error(theirs), ORIGINS).param is None


def test_without_origins_nothing_is_changed():
    same = error("input[0] is bad")

    assert map_error_paths(same, ()) is same
