"""Reasoning is signed for the client and returns unchanged to its own upstream only."""

from tests.fakes.anthropic_requests import KEYS, assistant, result, user
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, sent, target
from translator.openai_responses.output_blocks import sign_reasoning
from translator.openai_responses.output_items import ItemState
from translator.openai_responses.reasoning import restore_reasoning
from translator.stream import reasoning_signature
from translator.stream.reasoning_signature import SignedReasoning, SigningKeys

from .responses import blocks, call, completed, created, done, output_message, reasoning

MAKER = target()
CIPHER = "gAAAAAB" + "x" * 300


def thought(block_text="", *, keys=KEYS, **fields):
    """Return a signed thinking block as the client stores it."""
    stored = {"upstream": "local", "model": "gpt-5.2", "api": "responses", "item_id": "rs_1"}
    stored |= {
        "encrypted_content": CIPHER,
        "part_lengths": (len(block_text),) if block_text else (),
    }
    signature = reasoning_signature.sign(SignedReasoning(**(stored | fields)), keys)
    return {"type": "thinking", "thinking": block_text, "signature": signature}


def answered(*output, target=MAKER):
    """Return the blocks of a response, which the client sends back unchanged."""
    return blocks(created(), completed(*output), target=target)


def test_three_turns_of_a_tool_loop_send_every_item_back_as_it_was():
    items = [
        reasoning("First.", "Then.", id=f"rs_{n}", encrypted_content=f"{CIPHER}{n}")
        for n in (1, 2, 3)
    ]
    calls = [call('{"city":"Oslo"}', id=f"fc_{n}", call_id=f"call_{n}") for n in (1, 2)]
    history = [user("Weather?")]

    for item, each_call in zip(items, calls, strict=False):
        turn = answered(item, each_call)
        history += [assistant(*turn), user(result("Cold.", call_id=turn[-1]["id"]))]
    history += [assistant(*answered(items[2], output_message("It is cold."))), user("Thanks.")]
    upstream = sent(*history)

    kinds = [item["type"] for item in upstream]
    loop = ["reasoning", "function_call", "function_call_output"]
    assert kinds == ["message", *loop, *loop, "reasoning", "message", "message"]
    back = [item for item in upstream if item["type"] == "reasoning"]
    assert back == items


@for_each(
    ("texts", "channel"),
    [(["One.", "Two."], "summary"), (["Only."], "summary"), (["Ab", "Cd"], "content")],
)
def test_restored_reasoning_has_the_same_parts(texts, channel):
    kind = {"summary": "summary_text", "content": "reasoning_text"}[channel]
    parts = [{"type": kind, "text": each} for each in texts]
    item = reasoning(encrypted_content=CIPHER) | {channel: parts}

    (shown,) = answered(item)

    back = restore_reasoning(shown, MAKER)
    assert back[channel] == parts
    assert back["encrypted_content"] == CIPHER
    assert ("content" in back) == (channel == "content")


def test_a_blanked_text_preserves_the_encrypted_content():
    (shown,) = answered(reasoning("One.", "Two.", encrypted_content=CIPHER))

    back = restore_reasoning(shown | {"thinking": ""}, MAKER)

    assert back == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": CIPHER}


def test_a_rewritten_text_is_one_part():
    (shown,) = answered(reasoning("One.", "Two.", encrypted_content=CIPHER))

    back = restore_reasoning(shown | {"thinking": "Something else."}, MAKER)

    assert back["summary"] == [{"type": "summary_text", "text": "Something else."}]


def test_redacted_thinking_with_a_carrier_is_restored_too():
    block = {"type": "redacted_thinking", "data": thought()["signature"]}

    assert restore_reasoning(block, MAKER)["id"] == "rs_1"


MAKERS = "reasoning of another upstream or model is not sent"
BARE = "reasoning without encrypted content is not sent"
FORGED = "this reasoning signature is forged or truncated"
FOREIGN = "reasoning without this gateway's signature is not sent"


@for_each(
    ("block", "why"),
    [
        (thought(upstream="elsewhere"), MAKERS),
        (thought(model="gpt-9"), MAKERS),
        (thought(api="chat"), MAKERS),
        (thought(encrypted_content=None), BARE),
        (thought(keys=SigningKeys("k1", {"k1": b"mallory"})), FORGED),
        ({**thought(), "signature": thought()["signature"][:-3]}, FORGED),
        ({"type": "thinking", "thinking": "Hm.", "signature": "ErUBCkYIBhgC"}, FOREIGN),
        ({"type": "thinking", "thinking": "Hm.", "signature": ""}, FOREIGN),
        ({"type": "thinking", "thinking": "Hm."}, FOREIGN),
        ({"type": "redacted_thinking", "data": "EmwKAhgB"}, FOREIGN),
    ],
    ids=[
        "upstream",
        "model",
        "api",
        "bare",
        "forged",
        "cut",
        "foreign",
        "empty",
        "none",
        "redacted",
    ],
)
def test_reasoning_of_another_upstream_is_dropped_with_a_note(block, why):
    history = [user("Hi."), assistant(block, {"type": "text", "text": "Hm."}), user("Go on.")]

    assert [item["type"] for item in sent(*history)] == ["message"] * 3
    assert restore_reasoning(block, MAKER) == why


def test_an_upstream_switch_drops_the_earlier_upstreams_reasoning():
    turn = answered(reasoning("Hm.", encrypted_content=CIPHER), output_message("Hi."))
    history = [user("Hi."), assistant(*turn), user("Go on.")]
    request = {"model": "m", "max_tokens": 99, "messages": history}

    here = body(request)["input"]
    elsewhere = body(request, "azure", keys=SigningKeys("k2", {"k2": b"theirs"}))["input"]

    assert "reasoning" in {item["type"] for item in here}
    assert "reasoning" not in {item["type"] for item in elsewhere}


def test_reasoning_is_not_signed_or_restored_without_keys():
    keyless = target(keys=None)

    assert sign_reasoning(ItemState(key=0), {"encrypted_content": CIPHER}, keyless) == ""
    assert isinstance(restore_reasoning(thought(), keyless), str)


def test_reasoning_without_its_product_is_left_out():
    alone = [user("Hi."), assistant(thought("Hm.")), user("Go on.")]
    searched = [
        user("Hi."),
        assistant(
            thought("Hm."),
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            thought("Ah.", item_id="rs_2"),
            {"type": "text", "text": "Found."},
        ),
        user("Go on."),
    ]

    assert [item["type"] for item in sent(*alone)] == ["message", "message"]
    assert [item.get("id") for item in sent(*searched)] == [None, "rs_2", None, None]


def test_the_encrypted_content_of_the_finished_item_counts():
    started = {"type": "response.output_item.added", "output_index": 0}
    started["item"] = reasoning(encrypted_content="partial")
    whole = reasoning(encrypted_content=CIPHER)

    (shown,) = blocks(created(), started, done(0, **whole), completed(), target=MAKER)

    assert restore_reasoning(shown, MAKER)["encrypted_content"] == CIPHER


def test_encrypted_content_of_another_type_is_ignored():
    signature = sign_reasoning(ItemState(key=0), {"encrypted_content": 7}, MAKER)

    assert reasoning_signature.verify(signature, KEYS).encrypted_content is None
