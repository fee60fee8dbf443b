"""The other endpoints: models, token counts, probes, the start page."""

from datetime import timedelta

import pytest
from django.utils.timezone import now
from openai.types.responses.input_token_count_params import InputTokenCountParams

from proxy.gateway.snapshot.config_snapshot import directory
from proxy.ids import new_ulid
from proxy.ledger.maintenance import token_calibration
from proxy.models import ApiKey, Pause, Team
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient


@pytest.fixture
def listed(gateway: GatewayClient, scripted: ScriptedUpstream, reload):
    """Add three routes; return the key of a team that may use no other model."""
    team, _ = Team.objects.get_or_create(name="listed", models_allowed=["listed-*"])
    _, secret = ApiKey.issue(team, f"listed-{new_ulid()}", scopes=["messages"])
    upstream = add_upstream(
        "listed", "chat", scripted.base_url, "vllm", capabilities={"context_window": 65_536}
    )
    routes = [add_route(f"listed-{n}", upstream) for n in range(3)]
    reload()
    yield secret
    for route in routes:
        route.delete()
    upstream.delete()
    reload()


def test_models_are_listed_in_anthropic_s_shape(gateway: GatewayClient, listed):
    reply = gateway.request("GET", "/v1/models?limit=2", headers={"x-api-key": listed})

    assert reply.status == 200
    assert [each["id"] for each in reply.json["data"]] == ["listed-0", "listed-1"]
    assert reply.json["has_more"] is True
    assert reply.json["last_id"] == "listed-1"
    first = reply.json["data"][0]
    assert first["type"] == "model"
    assert first["capabilities"]["image_input"] == {"supported": True}
    assert first["capabilities"]["effort"]["xhigh"] == {"supported": False}
    assert first["max_input_tokens"] == 65_536

    rest = gateway.request(
        "GET", "/v1/models?limit=2&after_id=listed-1", headers={"x-api-key": listed}
    )
    assert [each["id"] for each in rest.json["data"]] == ["listed-2"]
    assert rest.json["has_more"] is False


def test_the_capabilities_of_an_anthropic_upstream_follow_its_refused_fields(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    refused = ["context_management", "output_config", "thinking"]
    narrow = {"refused_fields": refused, "server_tools": False}
    alike = add_upstream("narrow", "anthropic", scripted.url, "anthropic", capabilities=narrow)
    route = add_route("narrow", alike)
    reload()

    def can(model: str) -> dict[str, bool]:
        model_info = gateway.request(
            "GET", f"/v1/models/{model}", headers={"x-api-key": gateway.key}
        ).json
        flat = {name: each["supported"] for name, each in model_info["capabilities"].items()}
        kinds = model_info["capabilities"]["thinking"]["types"]
        return flat | {name: each["supported"] for name, each in kinds.items()}

    whole = can("anthropic-any")
    assert {name for name, is_so in whole.items() if not is_so} == {"batch"}
    assert {name for name, is_so in can("narrow").items() if not is_so} == {
        "adaptive", "batch", "between_tools", "code_execution", "context_management", "effort",
        "enabled", "server_tools", "structured_outputs", "thinking",
    }  # fmt: skip
    route.delete()
    alike.delete()
    reload()


def test_models_are_listed_in_openai_s_shape_for_its_clients(gateway: GatewayClient, listed):
    headers = {"authorization": f"Bearer {gateway.key}"}

    reply = gateway.request("GET", "/v1/models", headers=headers)

    assert reply.json["object"] == "list"
    assert reply.json["data"][0]["object"] == "model"


@for_each(
    "headers",
    [{"anthropic-beta": "x-1"}, {"user-agent": "claude-code/2.1.329"}],
    ids=["a header of Anthropic's", "Claude Code with a token"],
)
def test_models_are_listed_in_anthropic_s_shape_for_its_clients_with_a_token(
    gateway: GatewayClient, listed, headers
):
    headers |= {"authorization": f"Bearer {gateway.key}"}

    reply = gateway.request("GET", "/v1/models?limit=1000", headers=headers)

    assert reply.json["data"][0]["display_name"] == reply.json["data"][0]["id"]


@for_each(
    ("query", "some"),
    [
        ("lifecycle=active", True),
        ("lifecycle=deprecated", False),
        ("lifecycle[]=deprecated&lifecycle[]=active", True),
        ("lifecycle[]=retired", False),
    ],
)
def test_models_are_filtered_by_lifecycle(gateway: GatewayClient, listed, query: str, some: bool):
    reply = gateway.request("GET", f"/v1/models?{query}", headers={"x-api-key": gateway.key})

    assert bool(reply.json["data"]) is some
    assert (reply.json["first_id"] is not None, reply.json["has_more"]) == (some, False)


@for_each("name", ["after_id", "before_id"])
def test_a_page_after_an_unknown_model_is_refused(gateway: GatewayClient, listed, name: str):
    reply = gateway.request("GET", f"/v1/models?{name}=gone", headers={"x-api-key": gateway.key})

    assert reply.status == 400
    assert reply.json["error"]["message"] == f"{name}: no model 'gone' here"


@for_each("limit", ["0", "1001", "many", "-1", "%C2%B2", "%D9%A1", "9" * 5000])
def test_a_limit_out_of_range_is_refused(gateway: GatewayClient, limit: str):
    reply = gateway.request("GET", f"/v1/models?limit={limit}", headers={"x-api-key": gateway.key})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"


def test_one_model_is_returned_by_name_or_glob(gateway: GatewayClient, listed):
    headers = {"x-api-key": gateway.key}

    assert gateway.request("GET", "/v1/models/listed-1", headers=headers).json["id"] == "listed-1"
    assert gateway.request("GET", "/v1/models/chat-any", headers=headers).json["id"] == "chat-any"
    unknown = gateway.request("GET", "/v1/models/nowhere", headers=headers)
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")


def test_models_need_a_key(gateway: GatewayClient):
    assert gateway.request("GET", "/v1/models").status == 401


def test_tokens_are_counted_by_an_upstream_with_a_count_endpoint(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("/v1/responses/input_tokens", json_response({"input_tokens": 42}))

    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    request = message("responses-count", tools=[search], top_p=0.5, service_tier="auto")

    reply = gateway.post(request, "/v1/messages/count_tokens")

    assert reply.json == {"input_tokens": 42}
    assert "x-bridge-estimate" not in reply.headers
    [sent] = scripted.requests_for("responses-count")
    assert sent.json.keys() <= InputTokenCountParams.__annotations__.keys()
    assert {"model", "input", "tools"} <= sent.json.keys()


def test_tokens_are_estimated_without_a_count_endpoint(gateway: GatewayClient):
    request = message("chat-count")

    reply = gateway.post(request, "/v1/messages/count_tokens")
    longer = gateway.post({**request, "system": "word " * 200}, "/v1/messages/count_tokens")

    assert reply.headers["x-bridge-estimate"] == "true"
    assert 0 < reply.json["input_tokens"] < longer.json["input_tokens"]


def test_estimates_are_corrected_by_reported_counts(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    model, text = "chat-dense", "A sentence that a tokenizer of its own kind cuts small. " * 60
    request = {**message(model), "messages": [{"role": "user", "content": text}]}
    usage = {"prompt_tokens": 4_000, "completion_tokens": 5, "total_tokens": 4_005}
    scripted.on(model, json_response(upstream_scripts.COMPLETION | {"usage": usage}))
    for _ in range(token_calibration.MIN_SAMPLES):
        row(gateway.post(request).id)

    reply = gateway.post(request, "/v1/messages/count_tokens")
    half = gateway.post(
        {**request, "messages": [{"role": "user", "content": text[: len(text) // 2]}]},
        "/v1/messages/count_tokens",
    )

    assert reply.headers["x-bridge-estimate"] == "true"
    assert float(reply.headers["x-bridge-estimate-factor"]) > 2
    assert 4_000 <= reply.json["input_tokens"] < 4_400
    assert 2_000 <= half.json["input_tokens"] < 2_300


def test_an_upstream_without_the_count_endpoint_is_called_once(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    lacking = add_upstream("lacking", "responses", scripted.base_url, "openai")
    add_route("lacking-*", lacking)
    reload()
    scripted.on("/v1/responses/input_tokens", json_response({"error": {}}, 404))
    before = len(scripted.requests)

    for _ in range(3):
        reply = gateway.post(message("lacking-m"), "/v1/messages/count_tokens")
        assert reply.headers["x-bridge-estimate"] == "true"

    assert len(scripted.requests) - before == 1


def test_a_failed_count_leads_to_an_estimate(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("/v1/responses/input_tokens", json_response({"error": {"message": "x"}}, 500))

    reply = gateway.post(message("responses-down"), "/v1/messages/count_tokens")

    assert reply.status == 200
    assert reply.headers["x-bridge-estimate"] == "true"


@for_each("method", ["GET", "HEAD"])
@for_each("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_probes_need_no_key(gateway: GatewayClient, method: str, path: str):
    reply = gateway.request(method, path)

    assert reply.status == 200
    assert (reply.body == b"") is (method == "HEAD")
    assert reply.id.startswith("req_")


def test_readyz_lists_what_is_degraded(gateway: GatewayClient, reload):
    assert gateway.request("GET", "/readyz").json["degraded"] == []
    broken = add_upstream("keyless", "chat", "http://127.0.0.1:1/v1")
    broken.secret = {"env": "NO_SUCH_VARIABLE_HERE"}
    broken.save(update_fields=["secret"])
    reload()

    reply = gateway.request("GET", "/readyz")

    assert reply.status == 200
    assert reply.json["status"] == "degraded"
    assert reply.json["degraded"] == ["upstream keyless cannot be used"]
    broken.delete()
    reload()


def test_readyz_lists_the_pauses_in_effect(gateway: GatewayClient, reload):
    past = now() - timedelta(minutes=1)
    Pause.objects.create(model="ended-*", message="back at noon", ends=past)
    Pause.objects.create(model="paused-*", message="back at noon")
    reload()

    assert gateway.request("GET", "/readyz").json["degraded"] == ["paused-* is paused"]

    Pause.objects.all().delete()
    reload()
    assert gateway.request("GET", "/readyz").json["degraded"] == []


def test_an_unknown_key_gets_a_503_while_keys_cannot_be_read(
    gateway: GatewayClient, missing_ledger, reload
):
    with missing_ledger():
        directory.poll()
        unknown = gateway.post(message("chat-x"), x_api_key="sk-br-unknown")
        known = gateway.request("GET", "/v1/models", headers={"x-api-key": gateway.key})
    reload()

    assert (unknown.status, unknown.headers["retry-after"]) == (503, "5")
    assert known.status == 200
