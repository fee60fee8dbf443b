"""Requests that two servers could read in two ways: each gets one answer at most, and no door opens."""

import pytest

from . import wire

HIDDEN = b"GET /admin/login/ HTTP/1.1\r\nhost: localhost\r\n\r\n"
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
PLAIN = {
    "coding 3", "coding 10", "coding 20",  # the last coding is chunked: that is where the body ends
    "chunk 17",  # leading zeros are digits
    "line 2", "line 11", "line 17", "line 18", "line 20", "line 21", "line 25", "line 29",  # no body at all; an upgrade may be ignored
}  # fmt: skip
"""Odd, but with one end only: the request behind is a second one to every reader."""


def corpus(key):
    """name -> bytes, each followed by a request that must not be answered on its own."""
    told = {}
    for n, value in enumerate(LENGTHS):
        told[f"length {n}"] = wire.post(key, b"hello", f"content-length: {value}")
        told[f"two lengths {n}"] = wire.post(
            key, b"hello", "content-length: 5", f"content-length: {value}6"
        )
    for n, coding in enumerate(CODINGS):
        told[f"coding {n}"] = wire.post(key, CHUNKED, coding)
        told[f"coding and length {n}"] = wire.post(key, CHUNKED, coding, "content-length: 5")
    for n, chunk in enumerate(CHUNKS):
        told[f"chunk {n}"] = wire.post(key, chunk, "transfer-encoding: chunked")
    told |= {f"line {n}": line for n, line in enumerate(LINES)}
    told["both"] = wire.post(key, CHUNKED, "content-length: 15", "transfer-encoding: chunked")
    told["both, turned"] = wire.post(
        key, CHUNKED, "transfer-encoding: chunked", "content-length: 15"
    )
    return told


def test_no_ambiguous_request_is_answered_twice_or_reaches_the_admin(running):
    told = corpus(running.process.key)
    assert len(told) >= 120

    heard = wire.say_all(running.process.port, [raw + HIDDEN for raw in told.values()])

    answers = dict(zip(told, heard, strict=True))
    twice = {name: each.statuses for name, each in answers.items() if each.answers > 1}
    broken = [name for name, each in answers.items() if any(s >= 500 for s in each.statuses)]
    assert set(twice) <= PLAIN
    assert not [name for name in answers.keys() - PLAIN if b"csrf" in answers[name].raw]
    assert broken == []
    running.is_well()


def test_an_ambiguous_request_ends_its_connection(running):
    both = wire.post(
        running.process.key, CHUNKED, "content-length: 15", "transfer-encoding: chunked"
    )

    heard = wire.say(running.process.port, both + HIDDEN, silence_s=60)

    assert heard.statuses == [400]
    assert heard.closed


@pytest.mark.parametrize("path", ["/v1/messages", "/admin/", "/ws/live/", "/v1/organizations/me"])
@pytest.mark.parametrize(
    "protocol", ["chat", "\xff\xfe\x00", "\u65e5".encode().decode("latin-1"), "a" * 9_000, ",,,"]
)
def test_a_websocket_upgrade_kills_no_worker(running, path, protocol):
    ask = "\r\n".join(
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

    heard = wire.say(running.process.port, ask.encode("latin-1") + b"\r\n\r\n" + frame)

    assert not any(status in {101, 500} for status in heard.statuses)
    running.is_well()
