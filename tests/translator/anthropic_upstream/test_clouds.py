"""The fields, betas and token counts that each cloud expects."""

import base64
import json

from tests.for_each import for_each
from translator.anthropic_upstream.clouds import (
    BETA_PATH,
    CLOUDS,
    accepted_betas,
    cloud_fields,
    count_body,
)
from translator.capabilities import Profile
from translator.notes import Note

FIELDS = {"model": "claude", "stream": True, "max_tokens": 5}


@for_each(
    ("cloud", "betas", "body"),
    [
        (
            "bedrock",
            ["one"],
            {
                "max_tokens": 5,
                "anthropic_version": "bedrock-2023-05-31",
                "anthropic_beta": ["one"],
            },
        ),
        ("bedrock", [], {"max_tokens": 5, "anthropic_version": "bedrock-2023-05-31"}),
        (
            "vertex",
            ["one"],
            {"stream": True, "max_tokens": 5, "anthropic_version": "vertex-2023-10-16"},
        ),
        ("foundry", ["one"], FIELDS),
    ],
)
def test_the_body_has_the_fields_of_the_cloud(cloud, betas, body):
    assert cloud_fields(FIELDS, CLOUDS[cloud], betas) == body


def test_betas_are_renamed_once_and_unknown_ones_are_noted():
    notes: list[Note] = []
    names = ["advanced-tool-use-2025-11-20", "tool-search-tool-2025-10-19", "unknown-beta"]

    sent = accepted_betas(names, CLOUDS["vertex"], Profile(betas=("tool-search-*",)), notes)

    assert sent == ["tool-search-tool-2025-10-19"]
    assert [(note.path, note.fate) for note in notes] == [(BETA_PATH, "ignored")]
    assert "unknown-beta" in notes[0].reason


def test_only_bedrock_wraps_the_request_of_a_token_count():
    body = json.dumps({"model": "claude", "messages": []}).encode()

    wrapped = json.loads(count_body(body, CLOUDS["bedrock"]))["input"]["invokeModel"]["body"]

    assert json.loads(base64.b64decode(wrapped)) == {"max_tokens": 1, "messages": []}
    assert count_body(body, CLOUDS["foundry"]) == body


def test_only_some_clouds_have_the_model_in_the_path():
    in_path = {name for name, cloud in CLOUDS.items() if cloud.model_in_path}

    assert in_path == {"bedrock", "vertex"}
