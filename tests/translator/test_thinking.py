import pytest

from tests.translator.requests import assistant, call, result, system, text, user
from translator.profiles import EFFORTS, PROFILES, Profile
from translator.thinking import effort_of, end_of_last_words, thinking_shown

ALL = Profile(efforts=EFFORTS)
SOME = Profile(efforts=("none", "medium", "high"))
LOUD = Profile(efforts=("medium", "high"))
MUTE = Profile()
SWITCH = Profile(thinking_switch="thinking")


def asking(thinking=None, effort=None) -> dict:
    return {
        "thinking": thinking and {"type": thinking, "budget_tokens": 5000},
        "output_config": effort and {"effort": effort},
    }


@pytest.mark.parametrize(
    ("request_", "profile", "effort", "fates"),
    [
        (asking(), ALL, None, []),
        (asking(effort="high"), ALL, "high", []),
        (asking("adaptive"), ALL, None, []),
        (asking("adaptive", "low"), ALL, "low", []),
        (asking("enabled"), ALL, "medium", []),
        (asking("enabled", "max"), ALL, "max", []),
        (asking("disabled", "max"), ALL, "none", []),
        (asking("between_tools"), ALL, "none", []),
        (asking(effort="max"), SOME, "high", ["clamped"]),
        (asking(effort="low"), SOME, "medium", ["clamped"]),
        (asking("disabled"), LOUD, "medium", ["clamped"]),
        (asking("disabled"), MUTE, None, ["ignored"]),
        (asking("disabled"), SWITCH, None, []),
        (asking(effort="low"), MUTE, None, ["dropped"]),
        (asking(effort="low"), SWITCH, None, ["dropped"]),
        (asking("enabled"), SWITCH, None, ["ignored"]),
        (asking("enabled"), MUTE, None, ["dropped"]),
        (asking(effort="low"), Profile(efforts=("none",)), None, ["dropped"]),
    ],
)
def test_effort(request_, profile, effort, fates):
    made, notes = effort_of(request_, profile)

    assert (made, [note.fate for note in notes]) == (effort, fates)


BUDGET, EFFORT = "thinking.budget_tokens", "output_config.effort"


@pytest.mark.parametrize(
    ("request_", "profile", "path", "reason"),
    [
        (asking("disabled"), LOUD, "thinking", "reasoning cannot be off here: medium"),
        (asking("disabled"), MUTE, "thinking", "this upstream has no switch for reasoning"),
        (asking("enabled"), MUTE, BUDGET, "this upstream takes no reasoning effort"),
        (asking(effort="low"), MUTE, EFFORT, "this upstream takes no reasoning effort"),
        (
            asking(effort="low"), Profile(efforts=("none",)), EFFORT,
            "this upstream takes no reasoning effort",
        ),
        (asking(effort="max"), SOME, EFFORT, "'max' is 'high' on this upstream"),
        (asking(effort="low"), SOME, EFFORT, "'low' is 'medium' on this upstream"),
    ],
)  # fmt: skip
def test_it_is_told_why_the_effort_is_another_one(request_, profile, path, reason):
    _, [note] = effort_of(request_, profile)

    assert (note.path, note.reason) == (path, reason)


@pytest.mark.parametrize(
    ("budget", "effort"),
    [(1024, "low"), (1025, "medium"), (8192, "medium"), (24576, "high"), (24577, "xhigh")],
)
def test_a_budget_means_an_effort(budget, effort):
    thinking = {"type": "enabled", "budget_tokens": budget}

    assert effort_of({"thinking": thinking}, ALL) == (effort, [])


CHANGE = system(output_config={"effort": "low"})


@pytest.mark.parametrize(
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
    assert (messages.index(CHANGE) < end_of_last_words(messages)) is begins


@pytest.mark.parametrize(
    ("said", "path"), [("max", EFFORT), ("xhigh", "messages.1.output_config.effort")]
)
def test_what_a_message_says_beats_the_request(said, path):
    made, [note] = effort_of(asking(effort="max"), SOME, (said, "messages.1.output_config.effort"))

    assert (made, note.path) == ("high", path)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=str)
@pytest.mark.parametrize("effort", EFFORTS[2:])
def test_no_profile_is_ever_asked_for_an_effort_that_it_lacks(profile, effort):
    made, _ = effort_of(asking(effort=effort), profile)

    assert made is None or made in profile.efforts


@pytest.mark.parametrize(
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
    assert thinking_shown({"thinking": thinking}) == shown
