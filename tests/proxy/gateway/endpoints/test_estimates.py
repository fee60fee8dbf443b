"""One estimate of content serves limits, budgets, ``message_start``, rows, counts and conditions."""

import base64
import os

import pytest

from proxy.models import ApiKey, Budget, Price, Route, RouteTarget, Team, Upstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.upstream_scripts import chat_chunk, stream

DATA = base64.b64encode(os.urandom(600_000)).decode()
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": DATA},
}
SCREENSHOTS = [
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "Click on Save."}]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "screenshot", "input": {}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [IMAGE]}],
    },
]
"""Two images: 1.6 million characters of base64, some 3,200 tokens."""
WITHOUT_USAGE = stream(chat_chunk({"content": "Saved."}) + chat_chunk(finish="stop"))


@pytest.fixture
def key(world, scripted, reload):
    """Return the key of a team whose limits a request of 400,000 tokens exceeds."""
    team = Team.objects.create(name="screenshots", limits={"tpm": 20_000})
    upstream = Upstream.objects.get(name="chat")
    Price.objects.create(
        upstream=upstream, model="chat-screenshots", since="2026-01-01", input=5, output=25
    )
    Budget.objects.create(team=team, usd="0.20", hard=True)
    route = Route.objects.create(model="chat-screenshots")
    for position, (model, when) in enumerate(
        [("chat-large", {"min_input_tokens": 50_000}), ("chat-screenshots", {})]
    ):
        RouteTarget.objects.create(
            route=route, upstream=upstream, model=model, when=when, position=position
        )
    scripted.on("chat-screenshots", WITHOUT_USAGE)
    _, secret = ApiKey.issue(team, "agent", scopes=["messages"])
    reload()
    return secret


def test_images_count_as_images_everywhere(gateway, key):
    request = message("chat-screenshots", messages=SCREENSHOTS, max_tokens=100, stream=True)

    counted = gateway.post(
        {"model": "chat-screenshots", "messages": SCREENSHOTS},
        path="/v1/messages/count_tokens",
        x_api_key=key,
    )
    reply = gateway.post(request, x_api_key=key)

    assert reply.status == 200, reply.body
    started = reply.events[0]["message"]["usage"]["input_tokens"]
    stored = row(reply.id)
    assert 3_200 < counted.json["input_tokens"] == started < 5_000
    assert (stored.input_tokens, stored.input_source) == (started, "estimated")
    assert stored.cost_nanousd == 1000 * (5 * started + 25 * stored.output_tokens)


def test_an_unknown_request_for_an_anthropic_upstream_is_estimated_alike(gateway, scripted, reload):
    """The gateway cannot validate it, so the upstream checks it."""
    scripted.on("anthropic-novel", stream(b"".join(upstream_scripts.claude_events())))
    novel = [{"role": "user", "content": [{"type": "screen", "frames": [IMAGE, IMAGE]}]}]
    team = Team.objects.create(name="novelties", limits={"tpm": 20_000})
    _, secret = ApiKey.issue(team, "agent", scopes=["messages"])
    reload()

    reply = gateway.post(message("anthropic-novel", messages=novel), x_api_key=secret)

    assert reply.status == 200, reply.body
    assert int(reply.headers["anthropic-ratelimit-tokens-remaining"]) > 15_000
