"""What the gateway does not know goes on to an Anthropic upstream as it came."""

import json

from hypothesis import assume, example, given
from hypothesis import strategies as st

from proxy.models import Transcript
from tests.fakes.upstreams.script_steps import LAST_CHUNK, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.lanes.hypothesis_profiles import law
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient
from tests.proxy.gateway.snapshot.test_content_policy import wait_for_drift
from translator.anthropic_upstream import DIALECT
from translator.capabilities import profile_with
from translator.dialect import TranslationTarget

STREAM = b"".join(upstream_scripts.claude_events(["Hi"]))
HOLOGRAM = {"type": "hologram", "frames": [1, {"x": None}], "cache_control": {"type": "eternal"}}

NOVELTIES = {
    "a block": {"messages": [{"role": "user", "content": [HOLOGRAM]}]},
    "a role": {"messages": [{"role": "critic", "content": "No."}]},
    "a block in a tool result": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [HOLOGRAM]}],
            },
        ]
    },
    "a kind of thinking": {"thinking": {"type": "intuitive", "depth": 3}},
    "a tool": {"tools": [{"type": "telescope_20270101", "name": "telescope"}]},
    "a tool choice": {"tool_choice": {"type": "cheapest"}},
    "a service tier": {"service_tier": "overnight"},
    "an effort": {"output_config": {"effort": "heroic"}},
    "messages of another shape": {"messages": {"ref": "thread_1"}},
    "tools of another shape": {"tools": {"set": "default"}},
    "content of another shape": {"messages": [{"role": "user", "content": {"ref": 1}}]},
    "a value out of range": {"temperature": 7},
    "no limit": {"max_tokens": None},
    "a limit of another type": {"max_tokens": "all"},
}


@for_each("name", NOVELTIES)
def test_a_novelty_is_sent_on_byte_for_byte(
    gateway: GatewayClient, scripted: ScriptedUpstream, name: str
):
    model = f"anthropic-new-{name.replace(' ', '-')}"
    scripted.on(model, upstream_scripts.pieces([STREAM], LAST_CHUNK))
    body = {**message(model, stream=True), **NOVELTIES[name]}

    reply = gateway.post(body)

    assert (reply.status, reply.body) == (200, STREAM)
    (received,) = scripted.requests_for(model)
    assert received.json == body
    stored = row(reply.id, outcome="completed", stop_reason="end_turn")
    assert Transcript.objects.filter(exchange=stored).exists()


@for_each("name", NOVELTIES)
def test_a_translated_route_rejects_the_same_novelty(gateway: GatewayClient, name: str):
    reply = gateway.post({**message("chat-new"), **NOVELTIES[name]})

    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    row(reply.id, outcome="refused", status=400)


def test_the_upstream_s_own_400_reaches_the_client(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"type": "invalid_request_error", "message": "temperature: range: 0..1"}
    scripted.on("anthropic-own-400", json_response({"type": "error", "error": error}, 400))

    reply = gateway.post(message("anthropic-own-400", temperature=7))

    assert (reply.status, reply.json["error"]) == (400, error)
    row(reply.id, outcome="upstream_error", status=400)


@for_each("body", [{"messages": []}, {"model": 7, "messages": []}, []], ids=str)
def test_a_body_without_a_model_name_is_still_the_gateway_s_400(gateway: GatewayClient, body):
    reply = gateway.post(json.dumps(body).encode())

    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


def test_a_fallback_that_translates_is_not_tried(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    from proxy.models import Route, Upstream

    route = Route.objects.create(model="two-kinds")
    for name in ("chat", "anthropic"):
        route.targets.create(upstream=Upstream.objects.get(name=name), model=f"{name}-two-kinds")
    reload()
    scripted.on("anthropic-two-kinds", upstream_scripts.pieces([STREAM], LAST_CHUNK))

    reply = gateway.post({**message("two-kinds", stream=True), **NOVELTIES["a block"]})

    assert reply.body == STREAM
    assert scripted.requests_for("chat-two-kinds") == []
    route.delete()
    reload()


def test_novelties_are_counted(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("anthropic-drift", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    content = [{"type": "drift_block"}, "a string", {"type": "drift_block"}]
    body = message("anthropic-drift", stream=True, drift_field={"a": 1})
    body["messages"] = [{"role": "drift_role", "content": content}, 7]

    reply = gateway.post(body)

    row(reply.id, outcome="completed")
    for kind in ("block", "field", "role"):
        assert wait_for_drift(kind, f"drift_{kind}").known is False


def test_tokens_of_a_novelty_are_counted_by_the_upstream(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("/v1/messages/count_tokens", json_response({"input_tokens": 7}))
    body = {**message("anthropic-count"), **NOVELTIES["a block"]}

    assert gateway.post(body, "/v1/messages/count_tokens").json == {"input_tokens": 7}


def test_unsigned_thinking_goes_back_only_to_servers_that_take_it():
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    answer = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Hi"}]}
    request = {"model": "m", "max_tokens": 9, "messages": [answer]}

    for capable, sent in [
        (True, [answer]),
        (False, [{**answer, "content": answer["content"][1:]}]),
    ]:
        profile = profile_with("generic", {"unsigned_thinking": capable})
        built = DIALECT.build_request(request, TranslationTarget(profile=profile))
        assert built.body["messages"] == sent
        assert [note.fate for note in built.notes] == ([] if capable else ["ignored"])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "text", "system"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "id", "tool_use_id", "signature", "name", "citations"]
            ),
            inner
            | st.sampled_from(
                ["assistant", "thinking", "server_tool_use", "web_search_tool_result", "tool_use"]
            ),
            max_size=4,
        )
    ),
    max_leaves=12,
)
BARE = profile_with("generic", {"server_tools": False, "mid_system": False})


@law
@example(fields={"tools": [{"type": "web_search_20250305"}]})  # neither has a name
@given(
    fields=st.dictionaries(st.sampled_from(["messages", "tools", "tool_choice", "system"]), VALUES)
)
def test_a_body_of_any_shape_can_be_sent_on(fields):
    request = {"model": "m", **fields}

    choice = request.get("tool_choice")
    assume(not (isinstance(choice, dict) and choice.get("name")))  # a removed tool may be forced
    for profile in (profile_with("anthropic", {}), BARE):
        built = DIALECT.build_request(request, TranslationTarget(profile=profile))
        assert built.body["model"] == "m"
        assert built.body == request or built.notes
