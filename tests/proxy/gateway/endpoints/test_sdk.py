"""The Anthropic SDK as a client: how it handles the gateway's responses and errors."""

import anthropic
import pytest

from proxy.models import ApiKey, Budget, Exchange, Team
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Reset, Sleep, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import row
from tests.proxy.gateway.http_client import GatewayClient

MESSAGES = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def client(gateway: GatewayClient):
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as sdk:
        yield sdk


@for_each("dialect", ["chat", "responses", "anthropic"])
def test_the_sdk_streams_a_message(
    client: anthropic.Anthropic, scripted: ScriptedUpstream, dialect: str
):
    script = {
        "chat": upstream_scripts.chat(),
        "responses": upstream_scripts.responses(),
        "anthropic": upstream_scripts.pieces(upstream_scripts.claude_events(), LAST_CHUNK),
    }[dialect]
    scripted.on(f"{dialect}-sdk", script)

    with client.messages.stream(
        model=f"{dialect}-sdk", max_tokens=100, messages=MESSAGES
    ) as answer:
        text = "".join(answer.text_stream)
        final = answer.get_final_message()

    assert text == "Hello there."
    assert final.stop_reason == "end_turn"
    assert (final.usage.input_tokens, final.usage.output_tokens) == (12, 5)


@for_each("dialect", ["chat", "responses"])
def test_the_sdk_receives_a_whole_message(
    client: anthropic.Anthropic, scripted: ScriptedUpstream, dialect: str
):
    script = upstream_scripts.chat() if dialect == "chat" else upstream_scripts.responses()
    scripted.on(f"{dialect}-sdk-whole", script)

    answer = client.messages.create(model=f"{dialect}-sdk-whole", max_tokens=100, messages=MESSAGES)

    assert answer.content[0].text == "Hello there."
    assert answer._request_id is not None
    row(answer._request_id, outcome="completed")


def test_an_interrupted_stream_raises_in_the_sdk(
    client: anthropic.Anthropic, scripted: ScriptedUpstream
):
    scripted.on(
        "chat-sdk-cut",
        upstream_scripts.pieces(upstream_scripts.chat_events()[:3], Sleep(0.05), Reset()),
    )

    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="chat-sdk-cut", max_tokens=100, messages=MESSAGES) as answer,
    ):
        answer.until_done()

    assert caught.value.body["error"]["type"] == "api_error"


@for_each(
    ("status", "code", "raised"),
    [
        (400, None, anthropic.BadRequestError),
        (404, "model_not_found", anthropic.NotFoundError),
        (429, None, anthropic.RateLimitError),
        (500, None, anthropic.InternalServerError),
    ],
)
def test_each_error_status_raises_its_class_in_the_sdk(
    client: anthropic.Anthropic, scripted: ScriptedUpstream, status: int, code, raised
):
    scripted.on("chat-sdk-error", json_response({"error": {"message": "no", "code": code}}, status))

    with pytest.raises(raised) as caught:
        client.messages.create(model="chat-sdk-error", max_tokens=100, messages=MESSAGES)

    assert caught.value.request_id.startswith("req_")


def test_the_sdk_lists_models_and_counts_tokens(client: anthropic.Anthropic):
    assert client.models.retrieve("chat-sdk").id == "chat-sdk"
    assert client.messages.count_tokens(model="chat-sdk", messages=MESSAGES).input_tokens > 0


def test_the_sdk_does_not_retry_a_permanent_error(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-sdk-401", json_response({"error": {"message": "bad key"}}, 401))
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=2) as client,
        pytest.raises(anthropic.InternalServerError),
    ):
        client.messages.create(model="chat-sdk-401", max_tokens=100, messages=MESSAGES)

    assert len(scripted.requests_for("chat-sdk-401")) == 1


def test_the_sdk_makes_exactly_one_call_on_402(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    """The SDK with its default retries does not retry when a budget is used up."""
    team = Team.objects.create(name="spent-sdk")
    key, secret = ApiKey.issue(team, "sdk", scopes=["messages"])
    Budget.objects.create(team=team, usd=0, period="month")
    scripted.on("chat-sdk-spent", upstream_scripts.chat())
    reload()

    usual = anthropic.Anthropic(base_url=gateway.url, api_key=secret)
    assert usual.max_retries > 0
    with usual, pytest.raises(anthropic.APIStatusError) as caught:
        usual.messages.create(model="chat-sdk-spent", max_tokens=100, messages=MESSAGES)

    assert caught.value.status_code == 402
    assert caught.value.body["error"]["type"] == "billing_error"
    row(caught.value.response.headers["request-id"], outcome="refused", status=402)
    assert Exchange.objects.filter(key_id=key.pk).count() == 1
