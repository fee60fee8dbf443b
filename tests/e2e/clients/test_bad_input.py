"""Invalid requests get Anthropic's error body with the field's path, and never HTML."""

import json

from tests.for_each import for_each

GOOD = {
    "model": "responses-stream-0",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
USER_MESSAGE = {"role": "user", "content": "Hi"}


def post(gateway, raw, headers=None, *, path="/v1/messages", authorized=True):
    headers_to_send = {"content-type": "application/json"} | (headers or {})
    return gateway.request("POST", path, raw, headers_to_send, authorized=authorized)


def assert_is_error(reply, status, kind):
    assert reply.headers["content-type"].partition(";")[0] == "application/json", reply
    body = json.loads(reply.body)
    assert (reply.status, body["type"], body["error"]["type"]) == (status, "error", kind), body
    assert reply.headers["request-id"].startswith("req_")
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-bridge-request-id"]
    return body["error"]["message"]


NOT_JSON = {
    "nothing": b"",
    "not JSON": b"{",
    "trailing text": b"{} and more",
    "a list": b"[]",
    "a string": b'"hello"',
    "not UTF-8": b'{"model": "\xff"}',
    "NaN": b'{"model": NaN}',
    "too deep": b"[" * 10_000 + b"]" * 10_000,
    "a duplicate key": b'{"model": "a", "model": "b"}',
}


@for_each("raw", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_body_that_is_not_a_json_object_is_rejected(gateway, raw):
    assert_is_error(post(gateway, raw), 400, "invalid_request_error")


INVALID_FIELDS = {
    "no model": ("model", {"model": None}),
    "no max_tokens": ("max_tokens", {"max_tokens": None}),
    "no messages": ("messages", {"messages": None}),
    "empty messages": ("messages", {"messages": []}),
    "max_tokens as text": ("max_tokens", {"max_tokens": "100"}),
    "max_tokens true": ("max_tokens", {"max_tokens": True}),
    "negative max_tokens": ("max_tokens", {"max_tokens": -1}),
    "stream as text": ("stream", {"stream": "yes"}),
    "messages as text": ("messages", {"messages": "Hi"}),
    "an unknown role": ("messages.0.role", {"messages": [{"role": "wizard", "content": "Hi"}]}),
    "a message as text": ("messages.1", {"messages": [USER_MESSAGE, "Hi"]}),
    "content as a number": ("messages.0.content", {"messages": [{"role": "user", "content": 7}]}),
    "an unknown block": (
        "messages.2.content.0.type",
        {
            "messages": [
                USER_MESSAGE,
                USER_MESSAGE,
                {"role": "user", "content": [{"type": "hologram"}]},
            ]
        },
    ),
    "a text block without text": (
        "messages.0.content.0.text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ),
    "tools as an object": ("tools", {"tools": {}}),
    "a tool without a name": ("tools.0.name", {"tools": [{"input_schema": {"type": "object"}}]}),
    "system as a number": ("system", {"system": 7}),
    "a thread": ("thread", {"thread": {"type": "create"}}),
}


@for_each(("path", "change"), INVALID_FIELDS.values(), ids=INVALID_FIELDS.keys())
def test_error_names_the_path_of_an_invalid_field(gateway, path, change):
    body = {name: value for name, value in (GOOD | change).items() if value is not None}

    message = assert_is_error(
        post(gateway, json.dumps(body).encode()), 400, "invalid_request_error"
    )

    assert path in message


def test_invalid_body_reaches_no_upstream(gateway, shared_upstream):
    before = len(shared_upstream.requests)

    post(gateway, json.dumps(GOOD | {"model": "chat-never", "max_tokens": "x"}).encode())

    assert len(shared_upstream.requests) == before


def test_unknown_model_gets_404(gateway):
    reply = post(gateway, json.dumps(GOOD | {"model": "gpt-without-route"}).encode())

    assert "gpt-without-route" in assert_is_error(reply, 404, "not_found_error")


INVALID_KEYS = {
    "no key": {},
    "a wrong key": {"x-api-key": "sk-br-wrong"},
    "a wrong bearer": {"authorization": "Bearer sk-br-wrong"},
    "an empty key": {"x-api-key": ""},
    "another scheme": {"authorization": "Basic c2stYnI6"},
}


@for_each("headers", INVALID_KEYS.values(), ids=INVALID_KEYS.keys())
def test_invalid_key_gets_401(gateway, headers):
    reply = post(gateway, json.dumps(GOOD).encode(), headers, authorized=False)

    message = assert_is_error(reply, 401, "authentication_error")
    assert "sk-br-wrong" not in message


def test_different_keys_get_400_and_equal_keys_are_accepted(gateway):
    raw = json.dumps(GOOD | {"model": "unknown"}).encode()

    different = post(gateway, raw, {"authorization": "Bearer sk-br-other"})
    equal = post(gateway, raw, {"authorization": f"Bearer {gateway.key}"})

    assert_is_error(different, 400, "invalid_request_error")
    assert_is_error(equal, 404, "not_found_error")


@for_each(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("PUT", "/v1/messages", 405),
        ("OPTIONS", "/v1/messages", 405),
        ("POST", "/v1/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("POST", "/v1/messages/batches", 404),
        ("DELETE", "/v1/models/x", 405),
        ("GET", "/v1/models/x/y", 404),
    ],
)
def test_errors_under_v1_are_json(gateway, method, path, status):
    reply = gateway.request(method, path)

    body = json.loads(reply.body)
    assert reply.status == status
    assert body["type"] == "error"
    assert reply.headers["request-id"].startswith("req_")


def test_wrong_content_type_gets_415(gateway):
    reply = post(gateway, b"model=x", {"content-type": "application/x-www-form-urlencoded"})

    assert_is_error(reply, 415, "invalid_request_error")


def test_too_large_content_length_gets_413_before_the_body(gateway):
    reply = post(gateway, b"{", {"content-length": str(64 * 2**20)})

    assert_is_error(reply, 413, "request_too_large")
