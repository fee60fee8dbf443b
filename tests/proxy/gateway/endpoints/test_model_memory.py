"""What a refusal shows about a model: remembered for all, taught by nobody's text, reset by a button."""

from collections.abc import Callable

from django.contrib.auth.models import User
from django.test import Client

from proxy.gateway.endpoints.count_tokens import without_endpoint
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.gateway.upstream.model_memory import (
    MAX_LESSONS,
    MAX_MODELS,
    REMEMBERED_S,
    ModelMemory,
    memory,
)
from proxy.models import AuditEntry, ModelLesson, Upstream
from tests.fakes.clock import Clock
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message
from tests.proxy.gateway.http_client import GatewayClient
from tests.waiting import until
from translator.dialect import Lesson

COUNT = "/v1/messages/count_tokens"
ECHOED = "https://pictures.test/image input is not supported.png"
SESSION = {"user_id": "user_1_account__session_0f0f"}


def refusal(text: str, status: int = 400):
    return json_response({"error": {"message": text, "type": "invalid_request_error"}}, status)


def picture(url: str):
    return {"type": "image", "source": {"type": "url", "url": url}}


def asking(model: str, *content, **fields):
    text = {"type": "text", "text": "What is it?"}
    return message(model, messages=[{"role": "user", "content": [*content, text]}], **fields)


def test_what_is_learnt_is_stored_and_applied_by_every_process(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    model, answer = "chat-learnt", upstream_scripts.chat()
    words = "Unsupported parameter: 'temperature' is not supported with this model."
    scripted.on(model, refusal(words), answer, answer)

    first = gateway.post(message(model, temperature=0.3))

    assert first.status == 200
    until(lambda: ModelLesson.objects.filter(model=model).exists())
    row = ModelLesson.objects.get(model=model)
    assert (row.edit, row.value, row.upstream.name) == (
        "omit_while_reasoning",
        "temperature",
        "chat",
    )
    assert "temperature" in row.words
    other = ModelMemory()  # of another process
    other.synchronize()
    server = next(r for r in directory.snapshot.globs if r.model == "chat-*").targets[0].server
    assert list(other.lessons(server, model)) == [Lesson("omit_while_reasoning", "temperature")]
    second = gateway.post(message(model, temperature=0.3))
    assert second.status == 200
    assert [("temperature" in r.json) for r in scripted.requests_for(model)] == [True, False, False]


def test_the_button_resets_it_everywhere(gateway: GatewayClient, scripted: ScriptedUpstream):
    model, answer = "chat-reset", upstream_scripts.chat()
    scripted.on(model, refusal("Unsupported parameter: 'temperature'"), answer, answer)
    gateway.post(message(model, temperature=0.3))
    until(lambda: ModelLesson.objects.filter(model=model).exists())
    upstream = Upstream.objects.get(name="chat")
    client = Client()
    client.force_login(User.objects.create_superuser("root-of-models"))

    page = client.get(f"/admin/proxy/upstream/{upstream.pk}/change/").content.decode()
    shown = client.get(f"/admin/proxy/upstream/{upstream.pk}/forget/")
    reset = client.post(f"/admin/proxy/upstream/{upstream.pk}/forget/")

    assert model in page
    assert "omit while reasoning temperature" in page
    assert (shown.status_code, reset.status_code) == (405, 302)
    assert not ModelLesson.objects.filter(upstream=upstream).exists()
    assert "reset" in AuditEntry.objects.latest("pk").detail
    until(lambda: not [key for key in memory.by_model if key[2] == model])
    gateway.post(message(model, temperature=0.3))
    assert "temperature" in scripted.requests_for(model)[-1].json


def test_a_changed_upstream_is_learnt_anew():
    upstream = add_upstream("moved", "chat", "http://127.0.0.1:9/v1")
    ModelLesson.objects.create(
        upstream=upstream, model="m", edit="omit", value="top_p", since=_now()
    )

    upstream.base_url = "http://127.0.0.1:10/v1"
    upstream.save()

    assert not ModelLesson.objects.filter(upstream=upstream).exists()
    upstream.delete()


def _now():
    from django.utils.timezone import now

    return now()


def test_a_configured_capability_has_precedence(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload: Callable[[], None]
):
    answer = upstream_scripts.chat()
    sees = {"prompt_cache_key": True}
    add_route("tuned-*", add_upstream(
        "tuned", "chat", scripted.base_url, "openai",
        model_capabilities={"tuned-*": {"prompt_cache_key": False}, "tuned-keyed*": sees},
    ))  # fmt: skip
    reload()
    scripted.on("tuned-plain", answer)
    words = refusal("Unsupported parameter: 'prompt_cache_key'")
    scripted.on("tuned-keyed", words, answer, answer)

    gateway.post(message("tuned-plain", metadata=SESSION))
    replies = [gateway.post(message("tuned-keyed", metadata=SESSION)) for _ in "12"]

    sent = [("prompt_cache_key" in r.json) for m in ("tuned-plain", "tuned-keyed")
            for r in scripted.requests_for(m)]  # fmt: skip
    assert [reply.status for reply in replies] == [200, 200]
    assert sent == [False, True, False, True], "repaired, but the configured value stays"


@for_each("phase", ["refused for good", "then loaded"])
def test_a_caller_s_url_switches_nobody_s_images_off(
    gateway: GatewayClient, scripted: ScriptedUpstream, phase
):
    model, answer = f"chat-echo-{phase}".replace(" ", "-"), upstream_scripts.chat()
    failed = refusal(f"Failed to load image {ECHOED}: timeout")
    scripted.on(model, failed, *([failed] if "good" in phase else []), answer)

    first = gateway.post(asking(model, picture(ECHOED)))
    gateway.post(asking(model, picture(ECHOED)))
    gateway.post(asking(model, picture("https://pictures.test/cat.png")))

    sent = scripted.requests_for(model)
    assert first.status == 400, "the fault is reported, and asked once"
    assert len(sent) == 3
    assert all("image_url" in str(request.json) for request in sent)
    assert not [key for key in memory.by_model if key[2] == model]


def test_a_tool_and_a_text_teach_nothing(gateway: GatewayClient, scripted: ScriptedUpstream):
    model, answer = "chat-taught", upstream_scripts.chat()
    words = "Conversation roles must alternate user/assistant, and System role not supported"
    tool = {"name": "f", "description": words, "input_schema": {"type": "object"}}
    scripted.on(model, refusal(f"cannot parse tool: {words}", 500), answer)

    reply = gateway.post(asking(model, tools=[tool], system="Be brief."))
    gateway.post(asking(model, system="Be brief."))

    assert reply.status >= 400
    refused, other = scripted.requests_for(model)
    assert [m["role"] for m in other.json["messages"]] == ["system", "user"]
    assert refused.json["messages"] == other.json["messages"]


def test_a_misspelt_model_does_not_end_exact_counts(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    without_endpoint.clear()
    text = "The requested model 'not found' does not exist"
    scripted.on("anthropic-misspelt", refusal(text, 404))
    scripted.on("anthropic-spelt", json_response({"input_tokens": 7}))

    estimates = [gateway.post(message("anthropic-misspelt"), COUNT) for _ in "12"]
    exact = gateway.post(message("anthropic-spelt"), COUNT)

    assert ["x-bridge-estimate" in reply.headers for reply in estimates] == [True, True]
    assert len(scripted.requests_for("anthropic-misspelt")) == 1, "the model is remembered"
    assert exact.json == {"input_tokens": 7}


@for_each(
    ("status", "script"),
    [("404", refusal("Not Found", 404)), ("405", refusal("Method Not Allowed", 405))],
)
def test_an_upstream_without_the_endpoint_is_not_asked_again(
    gateway: GatewayClient, scripted: ScriptedUpstream, status, script
):
    without_endpoint.clear()
    scripted.on(f"anthropic-pathless-{status}", script)
    scripted.on(f"anthropic-other-{status}", json_response({"input_tokens": 7}))

    gateway.post(message(f"anthropic-pathless-{status}"), COUNT)
    other = gateway.post(message(f"anthropic-other-{status}"), COUNT)

    assert "x-bridge-estimate" in other.headers
    assert not scripted.requests_for(f"anthropic-other-{status}")
    without_endpoint.clear()


class Server:
    row_id, name, extra_body = 0, "u", {"top_k": 1}

    def capabilities_for(self, model):
        return {"images": True} if model == "sees" else {}


def test_the_memory_is_bounded_and_expires():
    clock, server = Clock(1_000.0), Server()
    known = ModelMemory(clock)
    for number in range(MAX_MODELS + 5):
        known.learn(server, f"m{number}", Lesson("merge_turns"), "w")
    for number in range(MAX_LESSONS + 5):
        known.learn(server, "m99", Lesson("max_images", str(number)), "w")
    known.learn(server, "sees", Lesson("images_as_text"), "w")
    known.learn(server, "sees", Lesson("omit", "top_k"), "w")
    known.learn(server, "sees", Lesson("omit", "top_p"), "w")

    assert len(known.by_model) == MAX_MODELS
    assert known.lessons(server, "m0") == []
    assert len(known.lessons(server, "m99")) == MAX_LESSONS
    assert known.lessons(server, "sees") == [Lesson("omit", "top_p")]
    clock.at += REMEMBERED_S
    assert known.lessons(server, "m99") == []
