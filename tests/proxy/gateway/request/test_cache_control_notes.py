"""``cache_control`` on a translated route is noted, and refused in strict mode."""

import itertools

from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row

CACHE_CONTROL = {"type": "ephemeral"}
TEXT = {"type": "text", "text": "Words.", "cache_control": CACHE_CONTROL}
TOOL = {"name": "look", "input_schema": {"type": "object"}, "cache_control": CACHE_CONTROL}
REQUESTS = {
    "cache_control": {"cache_control": CACHE_CONTROL},
    "system.0.cache_control": {"system": [TEXT]},
    "tools.0.cache_control": {"tools": [TOOL]},
    "messages.0.content.0.cache_control": {"messages": [{"role": "user", "content": [TEXT]}]},
}
SCRIPTS = {"chat": upstream_scripts.chat, "responses": upstream_scripts.responses}
numbers = itertools.count()


@for_each("dialect", SCRIPTS)
@for_each("path", REQUESTS)
def test_cache_control_is_noted_and_refused_in_strict_mode(gateway, scripted, dialect, path):
    name = f"{dialect}-marked-{next(numbers)}"
    scripted.on(name, SCRIPTS[dialect]())

    reply = gateway.post(message(name, **REQUESTS[path]))
    strict = gateway.post(message(name, **REQUESTS[path]), x_bridge_strict="true")

    assert reply.status == 200
    (note,) = [one for one in row(reply.id).notes if "cache_control" in one["path"]]
    assert (note["path"], note["fate"]) == (path, "dropped")
    assert strict.status == 400
    assert strict.json["error"]["message"].startswith(f"{path}: cannot be translated without loss")
    assert len(scripted.requests_for(name)) == 1


def test_an_anthropic_upstream_receives_cache_control(gateway, scripted):
    name = f"anthropic-marked-{next(numbers)}"
    scripted.on(
        name,
        [*upstream_scripts.pieces(upstream_scripts.claude_events()), upstream_scripts.chat()[-1]],
    )

    reply = gateway.post(
        message(name, cache_control=CACHE_CONTROL, stream=True), x_bridge_strict="true"
    )

    assert reply.status == 200
    assert scripted.requests_for(name)[0].json["cache_control"] == CACHE_CONTROL
