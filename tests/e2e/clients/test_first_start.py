"""The first start: run the printed curl command, sign in to the admin, read the request there."""

import html
import http.cookiejar
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from tests.waiting import until

NO_PROVIDER = {"PATH": os.environ.get("PATH", "")}  # without OPENAI_API_KEY


@pytest.fixture(scope="module")
def new_gateway(tmp_path_factory):
    """``manage.py serve`` without configuration, on a new data directory."""
    with Gateway(tmp_path_factory.mktemp("fresh"), key="", migrated=False) as running:
        yield running


@pytest.fixture(scope="module")
def curl_output(new_gateway) -> bytes:
    """The output of the printed curl command in a shell."""
    (line,) = re.findall(r"^\s*(curl .*)$", new_gateway.log, re.MULTILINE)
    command = ["/bin/sh", "-c", f"{line} --silent --show-error --max-time 90"]
    return subprocess.run(command, env=NO_PROVIDER, capture_output=True, check=True).stdout  # noqa: S603 - the printed command


class Browser:
    """A minimal browser for Django's admin: cookies, forms, redirects."""

    def __init__(self) -> None:
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, url: str) -> str:
        with self._opener.open(url, timeout=90) as answer:
            return answer.read().decode()

    def log_in(self, url: str, user: str, password: str) -> str:
        form = self.get(url)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)[:1]
        fields = {"username": user, "password": password, "csrfmiddlewaretoken": token}
        raw = urllib.parse.urlencode(fields | {"next": "/admin/"}).encode()
        login = urllib.parse.urljoin(url, "/admin/login/")
        request = urllib.request.Request(login, raw, {"referer": login})  # noqa: S310 - loopback
        with self._opener.open(request, timeout=90) as answer:
            return answer.read().decode()


def visible_text(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def text_in(raw: bytes) -> str:
    frames, _ = read_frames(raw)
    deltas = [frame.body["delta"] for frame in frames if frame.name == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


def test_printed_curl_command_streams_a_translated_response(curl_output):
    assert faults_of_bytes(curl_output) == []
    assert text_in(curl_output)


def test_log_marks_the_sandbox(new_gateway):
    assert "SANDBOX" in new_gateway.log


def test_printed_admin_login_shows_the_conversation(new_gateway, curl_output):
    ((link, user, password),) = re.findall(
        r"(http://\S+/admin/).*?user (\S+), password (\S+)", new_gateway.log, re.DOTALL
    )
    browser = Browser()

    home = browser.log_in(link, user, password)

    assert "Log out" in home
    list_urls = [
        urllib.parse.urljoin(link, path)
        for path in re.findall(r'href="(/admin/proxy/exchange/)"', home)
    ]
    assert list_urls, visible_text(home)
    page = open_first_request(browser, list_urls[0])
    assert "Hello" in visible_text(page)
    assert " ".join(text_in(curl_output).split()) in visible_text(page)


def open_first_request(browser: Browser, changelist: str) -> str:
    """Wait for the first request in the list and return its page."""
    deadline = time.monotonic() + 90
    while not (
        links := re.findall(
            r'href="(/admin/proxy/exchange/[^"/?]+/(?:change|view)?/?)"', browser.get(changelist)
        )
    ):
        assert time.monotonic() < deadline, "the request did not appear in the admin"
        time.sleep(0.1)
    return browser.get(urllib.parse.urljoin(changelist, links[0]))


def test_root_page_is_served(new_gateway):
    reply = new_gateway.request("GET", "/", headers={"accept": "text/html"})

    assert reply.status == 200
    assert new_gateway.request("HEAD", "/").status == 200
    assert new_gateway.request("GET", "/healthz").status == 200


@pytest.mark.slow  # the fast lane starts a second time in tests/proxy/server/test_server.py
def test_data_directory_is_private_and_a_second_start_prints_no_secret(new_gateway, curl_output):
    """Restarts the gateway when the printed command has run; the other tests may run before or after."""
    (key, *_) = re.findall(r"sk-br-[A-Za-z0-9_-]{20,}", new_gateway.log)
    data = new_gateway.folder / "data"
    assert data.stat().st_mode & 0o077 == 0

    new_gateway.stop()
    first = new_gateway.log
    new_gateway.start()
    until(lambda: "listens on" in new_gateway.log.removeprefix(first), "the start is not complete")
    second_log = new_gateway.log.removeprefix(first)

    assert key not in second_log
    assert "password" not in second_log
    for path in data.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


AGENT = [
    {"name": name, "input_schema": {"type": "object", "properties": {}}}
    for name in ("Agent", "Bash", "Edit", "Glob", "Read", "Write", "WebFetch", "TodoWrite")
]
"""The tools of a coding agent."""


MODELS = ("claude-sonnet-5-5", "sandbox-chat-agent")
CALLS = {
    ("List the files of this folder.", "auto"): [],
    ("Call the Agent, then use Bash, Edit and Write.", "auto"): [],
    ("Look with Read at the notes.", "auto"): ["Read"],
    ("Go on.", "any"): ["Glob"],
}
"""Prompt and ``tool_choice`` -> the tools that an agent executes."""


def test_agent_that_executes_each_call_finishes(new_gateway):
    """A call of ``Agent`` would start an agent with the same tools, in an endless recursion."""
    cases = [(model, *case) for model in MODELS for case in CALLS]
    with ThreadPoolExecutor(len(cases)) as pool:  # the sandbox pauses after each word
        found = dict(
            zip(cases, pool.map(lambda case: run_agent(new_gateway, *case), cases), strict=True)
        )

    assert found == {
        (model, *case): (calls, len(calls) + 1) for model in MODELS for case, calls in CALLS.items()
    }


def run_agent(gateway: Gateway, model: str, prompt: str, choice: str) -> tuple[list[str], int]:
    """Run an agent that executes each call; return the executed tools and the number of requests."""
    executed, request_count = [], 0
    pending = [[{"role": "user", "content": prompt}]]
    while pending and request_count < 10:
        messages = pending.pop()
        body = {"model": model, "max_tokens": 1024, "messages": messages, "tools": AGENT}
        answer = message(gateway, body | {"tool_choice": {"type": choice}})
        request_count += 1
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert answer["stop_reason"] == ("tool_use" if calls else "end_turn")
        executed += [call["name"] for call in calls]
        if calls:
            results = [
                {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing"}
                for call in calls
            ]
            turn = {"role": "assistant", "content": answer["content"]}
            pending.append([*messages, turn, {"role": "user", "content": results}])
    return executed, request_count


def message(new_gateway: Gateway, body: dict) -> dict:
    (key, *_) = re.findall(r"sk-br-[A-Za-z0-9_-]{20,}", new_gateway.log)
    headers = {"x-api-key": key, "content-type": "application/json"}
    reply = new_gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)
