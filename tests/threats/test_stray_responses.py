"""A response that no request asked for reaches no client, and shifts no other response.

The gateway is a process of its own, on the event loop that operators run. Each case has an origin
of its own, because an origin that sent a stray response is not kept alive afterwards.
"""

import contextlib
import json
import re
import select
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme

from proxy.gateway.connection_pool import Pool
from proxy.models import Route, Upstream
from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import Hold, Send, Sleep, json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message

OTHER_KEY = "sk-br-" + "07e4" * 12
REUSE = {"key": "key", "never": "never"}
TLS = ("tls-idle", "tls-early", "tls-fresh")
CASES = (
    "idle", "tls-idle", "leftover-0", "leftover-1", "leftover-2", "early", "tls-early", "fresh",
    "tls-fresh", "shared", "key", "never",
)  # fmt: skip
ROUTE = '[[routes]]\nmodel = "{0}-*"\ntargets = [{{ upstream = "{0}" }}]\n'
KEY = '[[keys]]\nteam = "e2e"\nname = "other"\nsecret = { env = "BRIDGE_KEY_OTHER" }\n'
MEGABYTES = 16
"""Of a request: more than the kernel's buffers of both sides hold."""


def completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {**scripts.COMPLETION, "choices": [choice]}


def raw(text, status=200):
    return b"".join(step.raw for step in json_answer(completion(text), status))


STRAY = raw("a stray response")


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory):
    authority = trustme.CA()
    bundle = tmp_path_factory.mktemp("authority") / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    context = trustme_context(authority)
    with contextlib.ExitStack() as stack:
        made = {
            name: stack.enter_context(ScriptedUpstream(tls=context if name in TLS else None))
            for name in CASES
        }
        yield made, str(bundle)


def trustme_context(authority):

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def process(upstreams, tmp_path_factory):
    made, bundle = upstreams
    config = toml_for(
        {
            name: {
                "dialect": "chat",
                "base_url": f"http{'s' if name in TLS else ''}://127.0.0.1:{one.port}/v1",
                "connection_reuse": REUSE.get(name, "shared"),
            }
            for name, one in made.items()
        },
        "".join(map(ROUTE.format, made)) + KEY,
    )
    environment = {"SSL_CERT_FILE": bundle, "BRIDGE_KEY_OTHER": OTHER_KEY}
    with Gateway(tmp_path_factory.mktemp("gateway"), config, environment) as running:
        yield running


@pytest.fixture
def upstream(upstreams):
    return lambda name: upstreams[0][name]


def post(process, model, words="hello", key=None):
    asked = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": words}]}
    headers = {"x-api-key": key} if key else {}
    return process.ask("POST", "/v1/messages", json.dumps(asked).encode(), headers)


def text_of(reply):
    assert reply.status == 200, reply
    return json.loads(reply.body)["content"][0]["text"]


def counts(process, what, name, label):
    """One of the gateway's counters of an upstream, by another label."""
    numbers = process.ask("GET", "/metrics").body.decode()
    series = rf'bridge_upstream_{what}_total{{upstream="{name}",{label}="(\w+)"}} (\d+)'
    return {value: int(number) for value, number in re.findall(series, numbers)}


def strays(process, name):
    """As the gateway counted them up to a second ago."""
    return counts(process, "stray_responses", name, "when")


def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["idle", "tls-idle"])
def test_bytes_on_an_idle_connection_close_it_and_its_origin_is_not_kept_alive(
    process, upstream, name
):
    one, gate = upstream(name), threading.Event()
    one.on(f"{name}-1", [*json_answer(completion("first")), Hold(gate), Send(STRAY)])
    one.on(f"{name}-2", json_answer(completion("second")))

    assert text_of(post(process, f"{name}-1")) == "first"
    gate.set()
    until(lambda: not one.connected)
    until(lambda: strays(process, name) == {"idle": 1})
    assert [text_of(post(process, f"{name}-2")) for _ in range(3)] == ["second"] * 3

    assert [each.connection for each in one.asked] == [0, 1, 2, 3]
    assert process.log.count(f"upstream {name} sent bytes that no request had asked for") == 1


@pytest.mark.parametrize(("n", "extra"), [(0, STRAY), (1, b"HTTP/1.1 2"), (2, b"}")])
def test_bytes_behind_a_whole_response_close_the_connection(process, upstream, n, extra):
    """The third is what a content-length that is too small leaves."""
    name = f"leftover-{n}"
    one = upstream(name)
    one.on(f"{name}-1", [Send(raw("first") + extra)])
    one.on(f"{name}-2", json_answer(completion("second")))

    assert text_of(post(process, f"{name}-1")) == "first"
    assert text_of(post(process, f"{name}-2")) == "second"

    assert [each.connection for each in one.asked] == [0, 1]
    until(lambda: strays(process, name) == {"after_response": 1})


@pytest.mark.parametrize("name", ["early", "tls-early"])
def test_a_response_before_a_reused_connection_has_the_whole_request_is_nobodys(
    process, upstream, name
):
    """The request goes out again on a new connection: the upstream never had the whole of it."""
    one = upstream(name)
    one.on(f"{name}-1", json_answer(completion("first")))
    one.on(f"{name}-2", json_answer(completion("second")))
    one.at_head = lambda number, headers: (
        STRAY if number == 0 and int(headers["content-length"]) > 2**20 else b""
    )

    assert text_of(post(process, f"{name}-1")) == "first"
    assert text_of(post(process, f"{name}-2", "x" * MEGABYTES * 2**20)) == "second"

    assert [each.connection for each in one.asked] == [0, 1]
    until(lambda: strays(process, name) == {"before_request_sent": 1})
    until(lambda: counts(process, "attempts", name, "status") == {"0": 1, "200": 2})


@pytest.mark.parametrize("name", ["fresh", "tls-fresh"])
def test_a_new_connection_may_be_answered_before_it_has_the_whole_request(process, upstream, name):
    """As servers refuse what is too large; such a connection is not used again."""
    one = upstream(name)
    one.at_head = lambda number, _: raw("too large", 413) if number == 0 else b""
    one.on(f"{name}-1", json_answer(completion("second")))

    assert post(process, f"{name}-1", "x" * MEGABYTES * 2**20).status == 413
    assert text_of(post(process, f"{name}-1")) == "second"

    assert [each.connection for each in one.asked] == [1]
    until(lambda: counts(process, "attempts", name, "status") == {"413": 1, "200": 1})
    assert strays(process, name) == {}


@pytest.mark.parametrize(
    ("name", "connections"),
    [("shared", [0, 0, 0, 0]), ("key", [0, 1, 0, 1]), ("never", [0, 1, 2, 3])],
)
def test_whose_requests_share_a_connection(process, upstream, name, connections):
    one = upstream(name)
    one.on(f"{name}-1", json_answer(completion("hello")))

    for key in (process.key, OTHER_KEY) * 2:
        assert text_of(post(process, f"{name}-1", key=key)) == "hello"

    assert [each.connection for each in one.asked] == connections


def test_a_stray_response_that_no_byte_reveals_stays_with_its_key(process, upstream):
    """The stray is sent instead of the first response, and the genuine ones follow, one too late."""
    one = upstream("key")
    one.choose(lambda asked: [Send(STRAY), Sleep(0.2), Send(raw("genuine"))]
               if "shift" in asked.model else json_answer(completion("other")))  # fmt: skip

    first = post(process, "key-shift")
    with ThreadPoolExecutor(8) as crowd:
        others = list(crowd.map(lambda _: post(process, "key-2", key=OTHER_KEY), range(24)))

    assert text_of(first) == "a stray response"  # the order of bytes cannot tell
    assert {text_of(reply) for reply in others} == {"other"}


def test_bytes_that_the_event_loop_has_not_read_yet_are_seen_before_a_reuse(
    gateway, world, reload, monkeypatch
):
    """The gateway is in this process, so that the stray can arrive at the worst moment."""
    gate, looked = threading.Event(), []
    find = Pool.idle

    def late_stray(pool, origin, *owner):
        """Let the stray arrive between the event loop's last look and this reuse."""
        if origin.port == one.port and (waiting := pool._idle.get((origin, *owner))):
            gate.set()
            socket = waiting[-1][1]._tcp.get_extra_info("socket")
            looked.append(select.select([socket.fileno()], [], [], 60)[0])
        return find(pool, origin, *owner)

    monkeypatch.setattr(Pool, "idle", late_stray)
    with ScriptedUpstream() as one:
        row = add_upstream("late", "chat", one.base_url)
        add_route("late-*", row)
        reload()
        one.on("late-1", [*json_answer(completion("first")), Hold(gate), Send(STRAY)])
        one.on("late-2", json_answer(completion("second")))
        try:
            replies = [gateway.post(message(f"late-{n}")) for n in (1, 2)]
            until(lambda: one.connected == 0)  # both are closed, the first with its stray
        finally:
            Route.objects.filter(model="late-*").delete()
            Upstream.objects.filter(name="late").delete()
            reload()

    assert [reply.json["content"][0]["text"] for reply in replies] == ["first", "second"]
    assert len(looked) == 1
    assert looked[0]  # it had arrived
    assert [each.connection for each in one.asked] == [0, 1]
