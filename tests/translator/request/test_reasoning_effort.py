from tests.fakes.anthropic_requests import assistant, call, result, system, text, user
from tests.for_each import for_each
from translator.capabilities import EFFORTS, PROFILES, Profile
from translator.request.reasoning_effort import (
    choose_effort,
    end_of_last_user_text,
    thinking_visibility,
)

ALL = Profile(efforts=EFFORTS)
SOME = Profile(efforts=("none", "medium", "high"))
LOUD = Profile(efforts=("medium", "high"))
MUTE = Profile()
SWITCH = Profile(thinking_switch="thinking")


def make_request(thinking=None, effort=None) -> dict:
    return {
        "thinking": thinking and {"type": thinking, "budget_tokens": 5000},
        "output_config": effort and {"effort": effort},
    }


@for_each(
    ("request_", "profile", "effort", "fates"),
    [
        (make_request(), ALL, None, []),
        (make_request(effort="high"), ALL, "high", []),
        (make_request("adaptive"), ALL, None, []),
        (make_request("adaptive", "low"), ALL, "low", []),
        (make_request("enabled"), ALL, "medium", []),
        (make_request("enabled", "max"), ALL, "max", []),
        (make_request("disabled", "max"), ALL, "none", []),
        (make_request("between_tools"), ALL, "none", []),
        (make_request(effort="max"), SOME, "high", ["clamped"]),
        (make_request(effort="low"), SOME, "medium", ["clamped"]),
        (make_request("disabled"), LOUD, "medium", ["clamped"]),
        (make_request("disabled"), MUTE, None, ["ignored"]),
        (make_request("disabled"), SWITCH, None, []),
        (make_request(effort="low"), MUTE, None, ["dropped"]),
        (make_request(effort="low"), SWITCH, None, ["dropped"]),
        (make_request("enabled"), SWITCH, None, ["ignored"]),
        (make_request("enabled"), MUTE, None, ["dropped"]),
        (make_request(effort="low"), Profile(efforts=("none",)), None, ["dropped"]),
    ],
)
def test_effort(request_, profile, effort, fates):
    made, notes = choose_effort(request_, profile)

    assert (made, [note.fate for note in notes]) == (effort, fates)


BUDGET, EFFORT = "thinking.budget_tokens", "output_config.effort"


@for_each(
    ("request_", "profile", "path", "reason"),
    [
        (make_request("disabled"), LOUD, "thinking", "reasoning cannot be off here: medium"),
        (make_request("disabled"), MUTE, "thinking", "this upstream has no switch for reasoning"),
        (make_request("enabled"), MUTE, BUDGET, "this upstream does not accept a reasoning effort"),
        (make_request(effort="low"), MUTE, EFFORT, "this upstream does not accept a reasoning effort"),
        (
            make_request(effort="low"), Profile(efforts=("none",)), EFFORT,
            "this upstream does not accept a reasoning effort",
        ),
        (make_request(effort="max"), SOME, EFFORT, "'max' is 'high' on this upstream"),
        (make_request(effort="low"), SOME, EFFORT, "'low' is 'medium' on this upstream"),
    ],
)  # fmt: skip
def test_a_changed_effort_has_a_note(request_, profile, path, reason):
    _, [note] = choose_effort(request_, profile)

    assert (note.path, note.reason) == (path, reason)


@for_each(
    ("budget", "effort"),
    [(1024, "low"), (1025, "medium"), (8192, "medium"), (24576, "high"), (24577, "xhigh")],
)
def test_a_thinking_budget_becomes_an_effort(budget, effort):
    thinking = {"type": "enabled", "budget_tokens": budget}

    assert choose_effort({"thinking": thinking}, ALL) == (effort, [])


CHANGE = system(output_config={"effort": "low"})


@for_each(
    ("messages", "begins"),
    [
        ([user("Go."), CHANGE], True),
        ([user("Go."), system("Be brief."), CHANGE], True),
        ([CHANGE, user("Go.")], True),
        ([user("Go."), assistant(call()), CHANGE, user(result("x"), text("And on."))], True),
        ([user("Go."), assistant(call()), CHANGE, user(result("x"))], False),
        ([user("Go."), assistant(call()), user(result("x")), CHANGE], False),
        ([CHANGE], False),
    ],
)
def test_an_effort_begins_with_words_of_the_user(messages, begins):
    assert (messages.index(CHANGE) < end_of_last_user_text(messages)) is begins


@for_each(
    ("effort_in_message", "path"), [("max", EFFORT), ("xhigh", "messages.1.output_config.effort")]
)
def test_the_effort_of_a_message_overrides_the_request(effort_in_message, path):
    made, [note] = choose_effort(
        make_request(effort="max"), SOME, (effort_in_message, "messages.1.output_config.effort")
    )

    assert (made, note.path) == ("high", path)


@for_each("profile", PROFILES.values(), ids=str)
@for_each("effort", EFFORTS[2:])
def test_the_effort_is_always_supported_by_the_profile(profile, effort):
    made, _ = choose_effort(make_request(effort=effort), profile)

    assert made is None or made in profile.efforts


@for_each(
    ("thinking", "shown"),
    [
        (None, "hidden"),
        ({"type": "disabled"}, "hidden"),
        ({"type": "between_tools"}, "hidden"),
        ({"type": "adaptive"}, "shown"),
        ({"type": "enabled", "display": "summarized"}, "shown"),
        ({"type": "enabled", "display": "omitted"}, "omitted"),
    ],
)
def test_what_is_shown(thinking, shown):
    assert thinking_visibility({"thinking": thinking}) == shown
