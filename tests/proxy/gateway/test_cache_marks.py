"""``cache_control`` on a translated route: a note on the row, and strict mode refuses it."""

import itertools

import pytest

from . import scripts
from .conftest import message, row

MARK = {"type": "ephemeral"}
TEXT = {"type": "text", "text": "Words.", "cache_control": MARK}
TOOL = {"name": "look", "input_schema": {"type": "object"}, "cache_control": MARK}
WHERE = {
    "cache_control": {"cache_control": MARK},
    "system.0.cache_control": {"system": [TEXT]},
    "tools.0.cache_control": {"tools": [TOOL]},
    "messages.0.content.0.cache_control": {"messages": [{"role": "user", "content": [TEXT]}]},
}
SPEAKERS = {"chat": scripts.chat, "responses": scripts.responses}
numbers = itertools.count()


@pytest.mark.parametrize("dialect", SPEAKERS)
@pytest.mark.parametrize("path", WHERE)
def test_a_mark_that_has_no_place_is_noted_and_refused_where_nothing_may_be_lost(
    gateway, scripted, dialect, path
):
    name = f"{dialect}-marked-{next(numbers)}"
    scripted.on(name, SPEAKERS[dialect]())

    reply = gateway.post(message(name, **WHERE[path]))
    strict = gateway.post(message(name, **WHERE[path]), x_bridge_strict="true")

    assert reply.status == 200
    (note,) = [one for one in row(reply.id).notes if "cache_control" in one["path"]]
    assert (note["path"], note["fate"]) == (path, "dropped")
    assert strict.status == 400
    assert strict.json["error"]["message"].startswith(f"{path}: cannot be translated without loss")
    assert len(scripted.asked_for(name)) == 1


def test_an_anthropic_upstream_gets_the_mark(gateway, scripted):
    name = f"anthropic-marked-{next(numbers)}"
    scripted.on(name, [*scripts.pieces(scripts.claude_events()), scripts.chat()[-1]])

    reply = gateway.post(message(name, cache_control=MARK, stream=True), x_bridge_strict="true")

    assert reply.status == 200
    assert scripted.asked_for(name)[0].json["cache_control"] == MARK
