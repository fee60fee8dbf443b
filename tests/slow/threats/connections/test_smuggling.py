"""Ambiguous requests: each gets at most one response, and none reaches a protected page."""

import pytest

from tests.slow.threats import raw_http

HIDDEN_REQUEST = b"GET /admin/login/ HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = b"5\r\nhello\r\n0\r\n\r\n"
LENGTHS = (
    "+5", "-5", "5 5", "5,5", "5, 6", "0x5", "5e0", "5.0", " ", "", "\u0665".encode().decode("latin-1"),
    "00000000000000000000005x", "18446744073709551617", "99999999999999999999", "5;", "5\t6", "'5'", "five",
)  # fmt: skip
CODINGS = (
    "transfer-encoding: xchunked", "transfer-encoding : chunked", "transfer-encoding: chunked, identity",
    "transfer-encoding: identity, chunked", "transfer-encoding: chunked, chunked", "transfer-encoding:\x0bchunked",
    "transfer-encoding: \x0cchunked", "transfer-encoding: chunked\x00", 'transfer-encoding: "chunked"',
    "transfer-encoding: chunked;q=1", "transfer-encoding: gzip, chunked", "transfer-encoding: cow",
    "transfer-encoding:\r\n chunked", "transfer-encoding: chunk\r\n ed", "transfer\x00-encoding: chunked",
    " transfer-encoding: chunked", "transfer-encoding\t: chunked", "x: y\ntransfer-encoding: chunked",
    "x: y\rtransfer-encoding: chunked", "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding: identity\r\ntransfer-encoding: chunked", "transfer_encoding: chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked", "te: chunked\r\ntransfer-encoding: \x85chunked",
)  # fmt: skip
CHUNKS = (
    b"0x5\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n", b"5\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"5\r\nhello\n0\r\n\r\n",
    b"5;\nhello\r\n0\r\n\r\n", b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n', b"5\rhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n",
    b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n", b"g\r\nhello\r\n0\r\n\r\n", b"\r\nhello\r\n0\r\n\r\n", b"5\r\nhellohello\r\n0\r\n\r\n",
    b"5\r\nhel\r\n0\r\n\r\n", b"00000000000000000000005\r\nhello\r\n0\r\n\r\n", b"5\x00\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nhost: evil\r\ncontent-length: 9\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n0\r\n\r\n", b"5_0\r\nhello\r\n0\r\n\r\n",
)  # fmt: skip
LINES = (
    b"GET /v1/models HTTP/1.1\nhost: localhost\n\n", b"GET /v1/models HTTP/1.1\r\rhost: localhost\r\r",
    b"GET  /v1/models  HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET\t/v1/models\tHTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.1 \r\nhost: localhost\r\n\r\n", b"GET /v1/models\r\n\r\n", b"GET /v1/models HTTP/0.9\r\n\r\n",
    b"GET /v1/models HTTP/1.10\r\nhost: localhost\r\n\r\n", b"GET /v1/models HTTP/3.0\r\nhost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /v1/mo dels HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nhost : localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nno colon here\r\n\r\n", b"GET /v1/models HTTP/1.1\r\n: empty\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n folded: 1\r\n\r\n",
    b"GET http://evil/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET //evil/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"CONNECT evil:443 HTTP/1.1\r\nhost: evil\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models%00 HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /v1/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"get /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", b"G\x00T /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x00" * 64, b"SSH-2.0-x\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
)  # fmt: skip
UNAMBIGUOUS = {
    "coding 3", "coding 10", "coding 20",  # the last coding is chunked, so the chunks end the body
    "chunk 17",  # leading zeros are valid
    "line 2", "line 11", "line 17", "line 18", "line 20", "line 21", "line 25", "line 29",  # no body; an upgrade may be ignored
}  # fmt: skip
"""Unusual but unambiguous: for every parser the following request is a second one."""


def corpus(key):
    """Return requests by name; a second request follows each and must get no response of its own."""
    requests = {}
    for n, value in enumerate(LENGTHS):
        requests[f"length {n}"] = raw_http.post(key, b"hello", f"content-length: {value}")
        requests[f"two lengths {n}"] = raw_http.post(
            key, b"hello", "content-length: 5", f"content-length: {value}6"
        )
    for n, coding in enumerate(CODINGS):
        requests[f"coding {n}"] = raw_http.post(key, CHUNKED, coding)
        requests[f"coding and length {n}"] = raw_http.post(
            key, CHUNKED, coding, "content-length: 5"
        )
    for n, chunk in enumerate(CHUNKS):
        requests[f"chunk {n}"] = raw_http.post(key, chunk, "transfer-encoding: chunked")
    requests |= {f"line {n}": line for n, line in enumerate(LINES)}
    requests["both"] = raw_http.post(
        key, CHUNKED, "content-length: 15", "transfer-encoding: chunked"
    )
    requests["both, turned"] = raw_http.post(
        key, CHUNKED, "transfer-encoding: chunked", "content-length: 15"
    )
    return requests


def test_ambiguous_request_gets_one_response_and_never_reaches_the_admin(running):
    requests = corpus(running.process.key)
    assert len(requests) >= 120

    responses = raw_http.send_all(
        running.process.port, [raw + HIDDEN_REQUEST for raw in requests.values()]
    )

    answers = dict(zip(requests, responses, strict=True))
    answered_twice = {
        name: each.statuses for name, each in answers.items() if each.response_count > 1
    }
    broken = [name for name, each in answers.items() if any(s >= 500 for s in each.statuses)]
    assert set(answered_twice) <= UNAMBIGUOUS
    assert not [name for name in answers.keys() - UNAMBIGUOUS if b"csrf" in answers[name].raw]
    assert broken == []
    running.assert_healthy()


def test_ambiguous_request_closes_its_connection(running):
    both = raw_http.post(
        running.process.key, CHUNKED, "content-length: 15", "transfer-encoding: chunked"
    )

    responses = raw_http.send_raw(running.process.port, both + HIDDEN_REQUEST, silence_s=60)

    assert responses.statuses == [400]
    assert responses.closed


@pytest.mark.parametrize("path", ["/v1/messages", "/admin/", "/ws/live/", "/v1/organizations/me"])
@pytest.mark.parametrize(
    "protocol", ["chat", "\xff\xfe\x00", "\u65e5".encode().decode("latin-1"), "a" * 9_000, ",,,"]
)
def test_malformed_websocket_upgrade_crashes_no_worker(running, path, protocol):
    handshake = "\r\n".join(
        [
            f"GET {path} HTTP/1.1",
            "host: localhost",
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
            f"sec-websocket-protocol: {protocol}",
        ]
    )
    frame = b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00" + b"x" * 65_536

    responses = raw_http.send_raw(
        running.process.port, handshake.encode("latin-1") + b"\r\n\r\n" + frame
    )

    assert not any(status in {101, 500} for status in responses.statuses)
    running.assert_healthy()
