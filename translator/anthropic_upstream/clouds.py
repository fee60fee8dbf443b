"""How each cloud serves Anthropic's Messages API, as data.

Only the request line, a few fields and the framing differ: the messages themselves are Anthropic's.
Sources: Amazon Bedrock, "InvokeModelWithResponseStream", "CountTokens" and "Inference using
Anthropic Messages API"; Google Cloud, "Claude models" and "Count tokens"; Microsoft Foundry,
"Claude models"; Anthropic, "Claude on cloud platforms".
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from translator.capabilities import Profile
from translator.notes import Note

BETA_PATH: Final = "anthropic-beta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Where a cloud differs from Anthropic's own API. ``{model}`` in a path is the model's name."""

    stream_path: str = "/v1/messages"
    whole_path: str = "/v1/messages"
    count_path: str = "/v1/messages/count_tokens"
    version: str = ""
    """The value of ``anthropic_version`` in the body; if empty, the client's header is sent."""
    betas_in_body: bool = False
    """Whether betas are sent in the body's field ``anthropic_beta`` instead of the header."""
    sends_stream: bool = True
    """Whether the body has the field ``stream``; otherwise only the path says it."""
    wraps_count: bool = False
    """Whether token counting takes the whole body in base64 (Amazon's CountTokens)."""
    event_stream: bool = False
    """Whether responses are streamed in Amazon's binary framing instead of SSE."""
    renamed_betas: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_in_path(self) -> bool:
        return "{model}" in self.stream_path


_TOOL_SEARCH: Final = {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}

CLOUDS: Final[Mapping[str, Cloud]] = {
    "bedrock": Cloud(
        stream_path="/model/{model}/invoke-with-response-stream",
        whole_path="/model/{model}/invoke",
        count_path="/model/{model}/count-tokens",
        version="bedrock-2023-05-31",
        betas_in_body=True,
        sends_stream=False,
        wraps_count=True,
        event_stream=True,
        renamed_betas=_TOOL_SEARCH,
    ),
    "bedrock_messages": Cloud(renamed_betas=_TOOL_SEARCH),
    "vertex": Cloud(
        stream_path="/publishers/anthropic/models/{model}:streamRawPredict",
        whole_path="/publishers/anthropic/models/{model}:rawPredict",
        count_path="/publishers/anthropic/models/count-tokens:rawPredict",
        version="vertex-2023-10-16",
        renamed_betas=_TOOL_SEARCH,
    ),
    "foundry": Cloud(),
}
"""The clouds by the name of their profile."""


def accepted_betas(
    betas: Sequence[str], cloud: Cloud, profile: Profile, notes: list[Note]
) -> list[str]:
    """Return the beta names to send, in the cloud's words. The others get a note."""
    sent: list[str] = []
    for name in betas:
        own = cloud.renamed_betas.get(name, name)
        if not any(fnmatchcase(own, pattern) for pattern in profile.betas):
            notes.append(
                Note(BETA_PATH, "ignored", f"{name}: this upstream does not know the beta")
            )
        elif own not in sent:
            sent.append(own)
    return sent


def cloud_fields(fields: Mapping[str, Any], cloud: Cloud, betas: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the body as the cloud expects them."""
    left_out = {name for name, sent in (("model", not cloud.model_in_path),
                                        ("stream", cloud.sends_stream)) if not sent}  # fmt: skip
    body = {name: value for name, value in fields.items() if name not in left_out}
    if cloud.version:
        body["anthropic_version"] = cloud.version
    if cloud.betas_in_body and betas:
        body["anthropic_beta"] = list(betas)
    return body


def count_body(body: bytes, cloud: Cloud) -> bytes:
    """Return the body of a request that counts the tokens of ``body``."""
    if not cloud.wraps_count:
        return body
    request = {"max_tokens": 1, **json.loads(body)}
    request.pop("model", None)
    wrapped = base64.b64encode(json.dumps(request).encode()).decode()
    return json.dumps({"input": {"invokeModel": {"body": wrapped}}}).encode()
