"""What binds the two halves: answers known beforehand, places, compactions that come back."""

import dataclasses

from tests.translator.openai_responses.answers import completed, created, incomplete, message, notes
from tests.translator.openai_responses.answers import said as spoken
from tests.translator.openai_responses.answers import text as delta
from tests.translator.openai_responses.requests import build, fates, said, sent, target
from tests.translator.requests import ask, assistant, call, result, text, user
from translator.anthropic.fold import fold
from translator.openai_responses import DIALECT, ResponsesStream


def test_a_request_for_no_tokens_is_answered_here_where_no_cache_can_be_warmed():
    built = build(ask(max_tokens=0))

    told = fold(ResponsesStream(built.answer).feed_whole(built.known_answer))

    assert (told["content"], told["stop_reason"]) == ([], "max_tokens")
    assert told["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert fates(ask(max_tokens=0)) == {"max_tokens": "emulated"}
    assert build(ask(max_tokens=0), prewarm=True).known_answer is None
    assert build(ask(max_tokens=1)).known_answer is None


def test_each_item_knows_where_it_comes_from():
    marked = {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}
    history = [user("a"), assistant(call()), user(result("sunny"), text("b")), assistant("c")]

    built = build(ask(*history, system=[marked]))

    assert [i.get("role", i["type"]) for i in built.body["input"]] == [
        "developer", "user", "function_call", "function_call_output", "user", "assistant",
        "developer",
    ]  # fmt: skip
    assert built.origins == (-1, 0, 1, 2, 2, 3, 3)


COMPACT = {"edits": [{"type": "compact_20260112"}]}


def test_a_compaction_goes_back_to_its_maker_and_to_nobody_else():
    built = build(ask(context_management=COMPACT), compaction=True)
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}

    (block,) = fold(
        ResponsesStream(built.answer).feed_whole({"status": "completed", "output": [item]})
    )["content"]

    assert (block["type"], block["content"]) == ("compaction", None)
    assert sent(user("a"), assistant(block), user("b"))[1] == item
    forged = {**block, "encrypted_content": block["encrypted_content"][:-4] + "AAAA"}
    told = {**forged, "content": "They said a."}
    assert [i.get("role") for i in sent(user("a"), assistant(forged), user("b"))] == ["user"] * 2
    assert sent(user("a"), assistant(told), user("b"))[1] == said("developer", "They said a.")


def test_a_compaction_without_a_name_or_a_signer_or_a_wish():
    wish, plain = ask(context_management=COMPACT), ask()
    item = {"type": "compaction", "encrypted_content": "gAAA"}
    whole = {"status": "completed", "output": [item]}

    def blocks_of(request, **fields):
        answer = build(request, compaction=True).answer
        answer = dataclasses.replace(answer, target=target(**fields))
        return fold(ResponsesStream(answer).feed_whole(whole))["content"]

    (block,) = blocks_of(wish)
    assert sent(user("a"), assistant(block), user("b"))[1] == item
    assert blocks_of(wish, keys=None) == []
    assert blocks_of(plain) == []
    nobody = DIALECT.build_request(ask(user("a"), assistant(block), user("b")), target(keys=None))
    assert [item["role"] for item in nobody.body["input"]] == ["user", "user"]


def test_what_is_lost_twice_is_told_once():
    odd = {"type": "hologram", "id": "h_1"}
    heard = ResponsesStream(build(ask()).answer)

    heard.feed_whole({"status": "completed", "output": [odd, {**odd, "id": "h_2"}]})

    assert [note.reason for note in heard.notes if note.path == "content"] == [
        "an output item of type 'hologram' has no block"
    ]


def test_an_answer_that_ends_well_and_says_nothing_is_told_as_odd():
    def odd(*events):
        return [each for each in notes(*events) if each.startswith("empty_output")]

    assert message(created(), completed())["content"] == []
    assert len(odd(created(), completed())) == 1
    assert odd(created(), completed(spoken("Hi."))) == []
    assert odd(created(), delta("Hi."), completed()) == []
    assert odd(created(), incomplete("max_output_tokens")) == []
