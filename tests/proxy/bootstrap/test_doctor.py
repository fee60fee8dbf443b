"""``doctor`` reports problems with a hint, and accepts a working installation."""

import contextlib
import http.server
import json
import socket
import threading
from datetime import timedelta
from typing import ClassVar

import pytest
from django.core import checks
from django.core.management import call_command
from django.db.migrations.recorder import MigrationRecorder
from django.utils.timezone import now

from proxy.bootstrap.doctor import run_checks
from proxy.bootstrap.sandbox.server import free_socket, running
from proxy.models import ApiKey, ModelLesson, Pause, Price, Route, RouteTarget, Team, Upstream
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


class Buffering(http.server.BaseHTTPRequestHandler):
    """An upstream behind a proxy that buffers the whole stream."""

    def do_GET(self):
        self.send_response_only(401)  # and a wrong date below
        self.send_header("content-length", "0")
        self.send_header("date", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()

    def do_POST(self):
        body = b'data: {"n": 1}\n\n' * 50
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Fast(Buffering):
    """An engine that sends 50 events, each as a chunk, within a millisecond."""

    protocol_version = "HTTP/1.1"  # 1.0 has no chunks

    def do_POST(self):
        self.close_connection = True  # the body of the request is not read
        event = b'data: {"n": 1}\n\n'
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write((b"%x\r\n%s\r\n" % (len(event), event)) * 50 + b"0\r\n\r\n")


@pytest.fixture
def listen():
    """Return a function that starts a server with this handler and returns its base URL."""
    with contextlib.ExitStack() as stack:

        def start(handler):
            server = stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}/v1"

        yield start


class Engine(http.server.BaseHTTPRequestHandler):
    """A Chat Completions server; the attributes say what it has."""

    models: ClassVar = None
    props: ClassVar = None
    message: ClassVar = {"content": "Rain."}
    usage: ClassVar = {"prompt_tokens": 9, "completion_tokens": 2}
    sees = True

    def do_GET(self):
        found = {"/v1/models": self.models, "/props": self.props}.get(self.path)
        self.reply(404 if found is None else 200, found or {"error": "File Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "image_url" in json.dumps(body) and not self.sees:
            self.reply(500, {"error": {"message": "image input is not supported"}})
        else:
            self.reply(200, {"choices": [{"message": self.message}], "usage": self.usage})

    def reply(self, status, value):
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@pytest.fixture
def engine(listen):
    """Return a function that starts an engine with these attributes and routes to it."""

    def start(**has):
        url = listen(type("Own", (Engine,), has))
        route_to(url, dialect="chat", model="qwen3", profile="llamacpp")

    return start


def test_a_server_without_a_list_of_models_is_reachable(engine):
    engine()

    reachable, *_ = findings("upstream own")

    assert reachable.ok is True
    assert reachable.text == "reachable, has no list of models (status 404)"


@pytest.mark.parametrize(
    ("has", "ok", "text"),
    [
        ({"models": {"data": [{"id": "qwen3", "max_model_len": 8192}]}}, False, "8,192 tokens"),
        ({"models": {"data": [{"id": "qwen3", "meta": {"n_ctx": 65536}}]}}, True, "65,536 tokens"),
        ({"props": {"default_generation_settings": {"n_ctx": 4096}}}, False, "4,096 tokens"),
        ({"message": {"tool_calls": [{"id": "1"}]}}, True, "calls tools"),
        ({"message": {"content": '<tool_call>{"name": "get_weather"}'}}, False, "calls as text"),
        ({}, None, "answered without calling the tool"),
        ({}, None, "counts tokens"),
        ({"usage": None}, None, "reports no token counts"),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, None, "reports no token counts"),
        ({}, None, "accepts images"),
        ({"sees": False}, None, "accepts no images"),
    ],
)
def test_what_an_agent_needs_of_a_model_is_reported(engine, has, ok, text):
    engine(**has)

    found = findings("model qwen3 of own")

    (finding,) = [one for one in found if text in one.text]
    assert finding.ok is ok
    assert bool(finding.hint) == (ok is False or text == "accepts no images")


def test_a_model_whose_window_is_unknown_has_no_such_finding(engine):
    engine(models={"data": [{"id": "other", "max_model_len": 8192}]})

    assert not [one for one in findings("model qwen3 of own") if "window" in one.text]


@pytest.fixture
def sandbox():
    with running(free_socket(0)) as base_url:
        yield base_url


def route_to(base_url, *, dialect="responses", model="sandbox-text", **fields):
    upstream = Upstream.objects.create(name="own", dialect=dialect, base_url=base_url, **fields)
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model=model)
    Price.objects.create(model=model, since="2026-01-01", input=1, output=1)


def findings(subject, **options):
    return [finding for finding in run_checks(**options) if finding.subject == subject]


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_working_upstream_is_reachable_and_streams(sandbox, dialect):
    route_to(sandbox, dialect=dialect)

    reachable, usual, streamed = findings("upstream own")

    assert (reachable.ok, usual.ok, streamed.ok) == (True, True, True)
    assert "accepts what the gateway sends" in usual.text
    assert "reads over" in streamed.text


def test_buffering_a_rejected_key_and_a_wrong_clock_are_found(listen):
    route_to(listen(Buffering))

    reachable, _, streamed = findings("upstream own")
    (clock,) = findings("clock")

    assert (reachable.ok, reachable.hint) == (False, "The upstream rejects the key; see api_key.")
    assert streamed.ok is False
    assert "buffers" in streamed.hint
    assert clock.ok is False


def test_a_very_fast_engine_does_not_count_as_buffered(listen):
    route_to(listen(Fast))

    *_, streamed = findings("upstream own")

    assert streamed.ok is True
    assert "in 50 reads" in streamed.text


class Choosy(Engine):
    """A server that refuses fields which the gateway adds to the requests of agents."""

    refused: ClassVar = ("prompt_cache_key", "temperature")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = next((name for name in self.refused if name in body), None)
        if name is None:
            return self.reply(200, {"choices": [{"message": self.message}], "usage": self.usage})
        return self.reply(400, {"error": {"message": f"Unrecognized request argument: '{name}'"}})


def test_what_an_agent_s_request_needs_is_found_before_the_first_agent(listen):
    route_to(listen(Choosy), dialect="chat", model="m", profile="openai")

    _, usual, streamed = findings("upstream own")

    assert usual.ok is None
    assert "omit prompt_cache_key" in usual.text
    assert "temperature" in usual.text
    assert "reads over" in streamed.text, "with the body that the server accepts"
    assert "model_capabilities" in usual.hint


def test_what_requests_have_shown_of_a_model_is_reported(sandbox):
    route_to(sandbox)
    upstream = Upstream.objects.get(name="own")
    ModelLesson.objects.create(
        upstream=upstream, model="m", edit="omit", value="include", words="unknown", since=now()
    )

    *_, learnt = findings("upstream own", stream=False)

    assert learnt.ok is None
    assert "m: omit include (unknown)" in learnt.text


def test_an_unreachable_upstream_is_one_finding():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # reserved, and nothing listens on it
        route_to(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")

        (finding,) = findings("upstream own")

    assert finding.ok is False
    assert "cannot be reached" in finding.text


def test_a_missing_key_is_reported_without_a_request():
    route_to("https://api.openai.com/v1", secret={"env": "NOT_SET_ANYWHERE"})

    (finding,) = findings("upstream own")

    assert "NOT_SET_ANYWHERE" in finding.text


def test_a_database_of_a_development_version_before_1_0_is_found():
    MigrationRecorder.Migration.objects.create(app="proxy", name="0002_budget_notices")

    (finding,) = findings("database", stream=False)

    assert finding.ok is False
    assert "move the data directory (BRIDGE_DATA_DIR) away" in finding.text


def test_a_model_without_a_price_is_found(sandbox):
    route_to(sandbox)
    Price.objects.all().delete()

    (finding,) = findings("price", stream=False)

    assert "sandbox-text of own has no price" in finding.text


def test_a_cache_price_above_the_input_price_is_found():
    usual = {"model": "m", "since": "2026-01-01", "output": 8}
    Price.objects.create(**usual, input="0.5", cache_read="5")
    Price.objects.create(**usual | {"model": "n"}, input=5, cache_read="0.5")

    (finding,) = findings("price", stream=False)

    assert finding.ok is False
    assert finding.text == "m of any: cached input costs more than input"


def test_a_pause_in_effect_is_a_finding_and_an_ended_one_is_not():
    Pause.objects.create(model="ended-*", message="m", ends=now() - timedelta(minutes=1))
    Pause.objects.create(model="paused-*", message="back at noon")

    (finding,) = [one for one in run_checks(stream=False) if one.subject.startswith("pause ")]

    assert (finding.subject, finding.ok) == ("pause paused-*", False)
    assert finding.text == "paused without an end: back at noon"


def test_each_route_is_described_with_its_translation():
    team = Team.objects.create(name="research")
    chat = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://v", profile="vllm")
    claude = Upstream.objects.create(
        name="claude", dialect="anthropic", base_url="https://a.example", profile="anthropic"
    )
    off = Upstream.objects.create(name="off", dialect="chat", base_url="http://off", enabled=False)
    both, none = (Route.objects.create(model=name) for name in ("claude-*", "gone"))
    own = Route.objects.create(model="x", team=team)
    for place, (route, upstream, model) in enumerate(
        [(both, chat, "qwen3"), (both, claude, ""), (none, off, "m"), (own, chat, "y")]
    ):
        route.targets.create(upstream=upstream, model=model, position=place)

    by_subject = {one.subject: (one.ok, one.text) for one in run_checks(stream=False)}

    assert by_subject["route claude-*"][0] is None
    assert by_subject["route claude-*"][1].split("; else ") == [
        "upstream vllm, model qwen3, by Chat Completions, profile vllm",
        "upstream claude, the model that the client named, untranslated, profile anthropic",
    ]
    assert by_subject["route gone"] == (False, "has no upstream")
    assert by_subject["route x of team research"][0] is None


def test_the_newest_request_is_reported():
    (before,) = findings("traffic", stream=False)
    factories.record(opening={"client_name": "claude-cli", "client_version": "2.1.9"})

    (after,) = findings("traffic", stream=False)

    assert before.text == "no request was received yet"
    assert (before.ok, after.ok) == (None, None)
    assert "UTC from claude-cli 2.1.9 with key platform/" in after.text


def test_environment_settings_are_listed_without_secrets(monkeypatch):
    monkeypatch.setenv("BRIDGE_WORKERS", "3")
    monkeypatch.setenv("BRIDGE_SECRET_KEY", "hush-hush")
    monkeypatch.setenv("DATABASE_URL_FILE", "/run/secrets/database")

    by_subject = {one.subject: one.text for one in run_checks(stream=False)}

    assert by_subject["setting BRIDGE_WORKERS"] == "'3', from the environment"
    assert by_subject["setting BRIDGE_SECRET_KEY"] == "set, from the environment"
    assert (
        by_subject["setting DATABASE_URL_FILE"] == "'/run/secrets/database', from the environment"
    )
    assert "hush" not in str(by_subject)


def test_an_installation_without_routes_is_a_finding():
    (finding,) = findings("routes")

    assert finding.ok is False


def test_the_command_exits_with_1_after_a_problem(capsys):
    with pytest.raises(SystemExit) as caught:
        call_command("doctor", "--json")

    report = json.loads(capsys.readouterr().out)
    assert caught.value.code == 1
    assert {"subject", "ok", "says", "hint"} == set(report[0])


def test_the_command_prints_the_settings_of_a_client(capsys):
    with pytest.raises(SystemExit):
        call_command("doctor", "--url", "https://bridge.example.com")

    output = capsys.readouterr()
    assert "ANTHROPIC_BASE_URL=https://bridge.example.com" in output.out
    assert output.out.endswith(" found (BAD above).\n")
    assert output.err == ""


@pytest.fixture
def failing_check():
    """Register a system check that fails, because no setting is wrong here."""

    @checks.register
    def fail(**_):
        return [checks.Error("wrong", hint="Do this.\nThen that.", id="x.E001")]

    yield
    checks.registry.registry.registered_checks.remove(fail)


def test_each_finding_is_one_line_with_its_remedy(failing_check, capsys):
    with pytest.raises(SystemExit):
        call_command("doctor")

    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert lines[0] == "BAD   settings x.E001: wrong. Do this. Then that."
    assert {line[:4] for line in lines} <= {"BAD ", "ok  ", "info"}


@pytest.mark.parametrize(
    ("base", "version", "url"),
    [
        ("{}/v1", "", "/v1/models"),
        ("{}/openai", "2026-02-01", "/openai/models?api-version=2026-02-01"),
    ],
)
def test_the_list_of_models_is_requested_with_the_version_of_azure(engine, base, version, url):
    requested = []

    def get(self):
        requested.append(self.path)
        Engine.reply(self, 200, {"data": []})

    engine(do_GET=get)
    upstream = Upstream.objects.get()
    Upstream.objects.update(
        base_url=base.format(upstream.base_url.removesuffix("/v1")), api_version=version
    )

    reachable = next(one for one in run_checks() if one.subject == "upstream own")

    assert reachable.ok is True
    assert requested[0] == url


def test_a_key_without_a_secret_is_found_with_a_command_that_fixes_it():
    key, _ = factories.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(prefix="", digest=None)
    revoked, _ = factories.key("ended")
    ApiKey.objects.filter(pk=revoked.pk).update(prefix="", digest=None, revoked=key.created)

    (found,) = [one for one in run_checks() if one.subject.startswith("key ")]

    assert (found.subject, found.ok) == ("key platform/ci", False)
    assert found.hint == "manage.py createkey --team platform --name ci creates one."
