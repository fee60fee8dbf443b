"""What is asked beside messages: models, token counts, health, the start page."""

import pytest
from openai.types.responses.input_token_count_params import InputTokenCountParams

from proxy.gateway import count
from proxy.gateway.directory import directory
from proxy.record import calibration
from proxy.record.recorder import recorder
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message, row


@pytest.fixture
def listed(gateway: Browser, scripted: ScriptedUpstream, reload):
    upstream = add_upstream(
        "listed", "chat", scripted.base_url, "vllm", capabilities={"context_window": 65_536}
    )
    routes = [add_route(f"listed-{n}", upstream) for n in range(3)]
    reload()
    yield
    for route in routes:
        route.delete()
    upstream.delete()
    reload()


def test_models_are_listed_in_anthropic_s_shape(gateway: Browser, listed):
    reply = gateway.ask("GET", "/v1/models?limit=2", headers={"x-api-key": gateway.key})

    assert reply.status == 200
    assert [each["id"] for each in reply.json["data"]] == ["listed-0", "listed-1"]
    assert reply.json["has_more"] is True
    assert reply.json["last_id"] == "listed-1"
    first = reply.json["data"][0]
    assert first["type"] == "model"
    assert first["capabilities"]["image_input"] == {"supported": True}
    assert first["capabilities"]["effort"]["xhigh"] == {"supported": False}
    assert first["max_input_tokens"] == 65_536

    rest = gateway.ask(
        "GET", "/v1/models?limit=2&after_id=listed-1", headers={"x-api-key": gateway.key}
    )
    assert [each["id"] for each in rest.json["data"]] == ["listed-2"]
    assert rest.json["has_more"] is False


def test_a_model_of_an_anthropic_upstream_can_do_what_anthropic_s_models_do(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    refused = ["context_management", "output_config", "thinking"]
    narrow = {"refused_fields": refused, "server_tools": False}
    alike = add_upstream("narrow", "anthropic", scripted.url, "anthropic", capabilities=narrow)
    route = add_route("narrow", alike)
    reload()

    def can(model: str) -> dict[str, bool]:
        told = gateway.ask("GET", f"/v1/models/{model}", headers={"x-api-key": gateway.key}).json
        flat = {name: each["supported"] for name, each in told["capabilities"].items()}
        kinds = told["capabilities"]["thinking"]["types"]
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


def test_models_are_listed_in_openai_s_shape_for_its_clients(gateway: Browser, listed):
    told = {"authorization": f"Bearer {gateway.key}"}

    reply = gateway.ask("GET", "/v1/models", headers=told)

    assert reply.json["object"] == "list"
    assert reply.json["data"][0]["object"] == "model"


@pytest.mark.parametrize(
    "told",
    [{"anthropic-beta": "x-1"}, {"user-agent": "claude-code/2.1.329"}],
    ids=["a header of Anthropic's", "Claude Code with a token"],
)
def test_models_are_listed_in_anthropic_s_shape_for_who_has_but_a_token(
    gateway: Browser, listed, told
):
    told |= {"authorization": f"Bearer {gateway.key}"}

    reply = gateway.ask("GET", "/v1/models?limit=1000", headers=told)

    assert reply.json["data"][0]["display_name"] == reply.json["data"][0]["id"]


@pytest.mark.parametrize(
    ("query", "some"),
    [
        ("lifecycle=active", True),
        ("lifecycle=deprecated", False),
        ("lifecycle[]=deprecated&lifecycle[]=active", True),
        ("lifecycle[]=retired", False),
    ],
)
def test_models_are_asked_for_by_where_they_are_in_their_life(
    gateway: Browser, listed, query: str, some: bool
):
    reply = gateway.ask("GET", f"/v1/models?{query}", headers={"x-api-key": gateway.key})

    assert bool(reply.json["data"]) is some
    assert (reply.json["first_id"] is not None, reply.json["has_more"]) == (some, False)


@pytest.mark.parametrize("name", ["after_id", "before_id"])
def test_nobody_pages_on_from_a_model_that_is_gone(gateway: Browser, listed, name: str):
    reply = gateway.ask("GET", f"/v1/models?{name}=gone", headers={"x-api-key": gateway.key})

    assert reply.status == 400
    assert reply.json["error"]["message"] == f"{name}: no model 'gone' here"


@pytest.mark.parametrize("limit", ["0", "1001", "many", "-1", "%C2%B2", "%D9%A1", "9" * 5000])
def test_a_limit_out_of_range(gateway: Browser, limit: str):
    reply = gateway.ask("GET", f"/v1/models?limit={limit}", headers={"x-api-key": gateway.key})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"


def test_one_model_by_name_or_by_glob(gateway: Browser, listed):
    told = {"x-api-key": gateway.key}

    assert gateway.ask("GET", "/v1/models/listed-1", headers=told).json["id"] == "listed-1"
    assert gateway.ask("GET", "/v1/models/chat-any", headers=told).json["id"] == "chat-any"
    unknown = gateway.ask("GET", "/v1/models/nowhere", headers=told)
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")


def test_models_need_a_key(gateway: Browser):
    assert gateway.ask("GET", "/v1/models").status == 401


def test_tokens_are_counted_by_an_upstream_that_can(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("/v1/responses/input_tokens", json_answer({"input_tokens": 42}))

    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    asked = message("responses-count", tools=[search], top_p=0.5, service_tier="auto")

    reply = gateway.post(asked, "/v1/messages/count_tokens")

    assert reply.json == {"input_tokens": 42}
    assert "x-bridge-estimate" not in reply.headers
    [heard] = scripted.asked_for("responses-count")
    assert heard.json.keys() <= InputTokenCountParams.__annotations__.keys()
    assert {"model", "input", "tools"} <= heard.json.keys()


def test_tokens_are_estimated_where_no_upstream_counts(gateway: Browser):
    request = message("chat-count")

    reply = gateway.post(request, "/v1/messages/count_tokens")
    longer = gateway.post({**request, "system": "word " * 200}, "/v1/messages/count_tokens")

    assert reply.headers["x-bridge-estimate"] == "true"
    assert 0 < reply.json["input_tokens"] < longer.json["input_tokens"]


def test_estimates_learn_from_what_the_upstream_counted(
    gateway: Browser, scripted: ScriptedUpstream
):
    model, said = "chat-dense", "A sentence that a tokenizer of its own kind cuts small. " * 60
    asked = {**message(model), "messages": [{"role": "user", "content": said}]}
    usage = {"prompt_tokens": 4_000, "completion_tokens": 5, "total_tokens": 4_005}
    scripted.on(model, json_answer(scripts.COMPLETION | {"usage": usage}))
    for _ in range(calibration.ENOUGH):
        row(gateway.post(asked).id)

    reply = gateway.post(asked, "/v1/messages/count_tokens")
    half = gateway.post(
        {**asked, "messages": [{"role": "user", "content": said[: len(said) // 2]}]},
        "/v1/messages/count_tokens",
    )

    assert reply.headers["x-bridge-estimate"] == "true"
    assert float(reply.headers["x-bridge-estimate-factor"]) > 2
    assert 4_000 <= reply.json["input_tokens"] < 4_400
    assert 2_000 <= half.json["input_tokens"] < 2_300


def test_an_upstream_without_the_endpoint_is_asked_once(
    gateway: Browser, scripted: ScriptedUpstream, monkeypatch
):
    monkeypatch.setattr(count, "_without_endpoint", set())
    scripted.on("/v1/responses/input_tokens", json_answer({"error": {}}, 404))
    before = len(scripted.asked)

    for _ in range(3):
        reply = gateway.post(message("responses-lacks"), "/v1/messages/count_tokens")
        assert reply.headers["x-bridge-estimate"] == "true"

    assert len(scripted.asked) - before == 1


def test_an_upstream_that_cannot_answer_is_no_error(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("/v1/responses/input_tokens", json_answer({"error": {"message": "x"}}, 500))

    reply = gateway.post(message("responses-down"), "/v1/messages/count_tokens")

    assert reply.status == 200
    assert reply.headers["x-bridge-estimate"] == "true"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_probes_need_no_key(gateway: Browser, method: str, path: str):
    reply = gateway.ask(method, path)

    assert reply.status == 200
    assert (reply.body == b"") is (method == "HEAD")
    assert reply.id.startswith("req_")


def test_readiness_says_what_is_degraded(gateway: Browser, monkeypatch, reload):
    assert gateway.ask("GET", "/readyz").json["degraded"] == []
    broken = add_upstream("keyless", "chat", "http://127.0.0.1:1/v1")
    broken.secret = {"env": "NO_SUCH_VARIABLE_HERE"}
    broken.save(update_fields=["secret"])
    reload()

    told = gateway.ask("GET", "/readyz")

    assert told.status == 200
    assert told.json["status"] == "degraded"
    assert told.json["degraded"] == ["upstream keyless cannot be used"]
    broken.delete()
    reload()


def test_readiness_fails_while_the_spool_cannot_be_written(gateway: Browser, monkeypatch):
    state = {**recorder.state(), "spool": False}
    monkeypatch.setattr(recorder, "state", lambda: state)

    reply = gateway.ask("GET", "/readyz")

    assert reply.status == 503
    assert reply.json["status"] == "unavailable"


def test_an_unknown_key_is_not_refused_while_keys_cannot_be_read(gateway: Browser, monkeypatch):
    monkeypatch.setattr(directory, "look", lambda: None)
    with directory._looking:  # a look that had begun is over
        monkeypatch.setattr(directory, "fresh", False)

    unknown = gateway.post(message("chat-x"), x_api_key="sk-br-unknown")
    known = gateway.ask("GET", "/v1/models", headers={"x-api-key": gateway.key})

    assert (unknown.status, unknown.headers["retry-after"]) == (503, "5")
    assert known.status == 200
