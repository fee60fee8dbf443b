"""Recognize errors about the context window, and write them in Anthropic's exact words.

Clients parse two of Anthropic's messages. At ``prompt is too long: N tokens > M maximum`` they
compact the conversation. At ``input length and `max_tokens` exceed context limit: A + B > C`` they
request less output. Source: docs/mapping.md.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Final

from translator.anthropic.error_body import client_message

from .body_parser import ErrorFields

MAX_READ: Final = 2_048
"""Maximum characters that are searched for counts. ``clean_error_text`` has the same limit."""

NUMBER: Final = r"(?<![\d.])(\d{1,9})(?!\.?\d| characters)"
_SEPARATOR: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """The counts of an error text, in tokens; 0 if the text does not contain the count.

    Servers name the same four counts in different words and order. One table has the words beside
    each count; another reads formulas such as ``A + B > C``. The texts come from vLLM, SGLang,
    llama.cpp, LocalAI, LM Studio, MLX, TGI, Together, Databricks, OpenRouter, Bedrock, Vertex,
    Gemini, Mistral, Cohere, xAI, Moonshot and Copilot; the test has one row for each text.
    """

    prompt: int = 0
    output: int = 0
    """The requested output."""
    window: int = 0
    """The size of the context window, or the maximum length of the prompt alone."""
    total: int = 0
    """Prompt and output together."""
    is_quota: bool = False
    """The window is what the account may use in a minute or a day: such a request never fits."""
    is_lower_bound: bool = False
    """The prompt has at least ``prompt`` tokens: the server stopped counting there."""

    @property
    def is_exceeded(self) -> bool:
        """Return whether the text has the length of a prompt that does not fit with its output."""
        needed = max(self.total, self.prompt + self.output) if self.prompt or self.total else 0
        return 0 < self.window < needed

    @property
    def room(self) -> int:
        """Return the output that fits beside the prompt; 0 if none fits or it is unknown."""
        is_known = self.window and self.prompt and not self.is_lower_bound
        return max(0, self.window - self.prompt) if is_known else 0


def _either(*patterns: str) -> str:
    return "|".join(pattern.replace("N", NUMBER) for pattern in patterns)


PROMPT: Final = re.compile(
    _either(
        r"N (?:tokens )?(?:in|from) (?:the|your) (?:input )?(?:messages|prompt)",  # OpenAI, SGLang
        r"(?<!for )N input tokens",  # vLLM
        r"N .?inputs.? tokens",  # TGI, Together
        r"\b(?:prompt|request|input|messages) (?:contains?|has|have) (?:at least )?N",
        r"\b(?:prompt|request|input|messages) ?\((?:total )?(?:length )?N",  # llama.cpp, vLLM
        r"\binput length ?(?:is |of |\()?N",
        r"\btoken count (?:of |is |\()?N",  # Copilot, Gemini, Vertex
        r"\bprompt (?:is )?too long: N",  # Anthropic, MLX
        r"\bprompt tokens ?[(=:]{1,2} ?N",  # Databricks
        r"\bkeep the first N",  # LM Studio
        r"\bn_keep ?[(=:]{1,2} ?N",
        r"\bn_prompt_tokens\W{1,3}N",  # llama.cpp
        r"\bGiven: N",  # TGI
        r"\bresulted in N",
    ),
    re.IGNORECASE,
)
OUTPUT: Final = re.compile(
    _either(
        r"N (?:tokens )?(?:in|for) the (?:completion|output)",
        r"N (?:output|completion) tokens",
        r"N .?max_(?:new_|completion_|output_)?tokens",
        r"\bmax_(?:new_|completion_|output_)?tokens.? ?[(=]{1,2} ?N",
        r"\btoo large: N",
    ),
    re.IGNORECASE,
)
WINDOW: Final = re.compile(
    _either(
        r"\bcontext[ _](?:length|window|size)(?! by)[^\d.]{0,40}N",
        r"\bN maximum context",  # Mistral
        r"\d tokens > N",  # Anthropic
        r"\bmax(?:imum)? ?(?:model|sequence|seq|total|prompt)[ _](?:length|len|tokens)"
        r" ?(?:of |is |= ?)?(?:max_total_tokens ?= ?)?N",  # vLLM, xAI
        r"\bmax_(?:model_len|seq_len|total_tokens) ?=? ?(?:max_total_tokens ?= ?)?N",  # vLLM
        r"\bmaximum (?:allowed )?(?:input )?length (?:of |\()N",  # SGLang, Together
        r"\bmaximum number of tokens allowed \(N",  # Gemini
        r"\bonly supports up to N",  # Vertex
        r"\bmust be <= ?N",  # TGI, Together
        r"\bmust not exceed N",  # Databricks
        r"\bin the prompt cannot exceed N",  # Cohere
        r"\bless than N tokens",  # TGI
        r"\b(?:configured |the )limit of N",  # Copilot
        r"\btoken limit: N",  # Moonshot
        r"\bn_ctx\W{1,3}N",  # llama.cpp, LM Studio
        r"\btokens per (?:min(?:ute)?|hour|day)\b[^\d.]{0,12}\bLimit:? N",  # Groq, OpenAI
    ),
    re.IGNORECASE,
)
TOTAL: Final = re.compile(
    _either(
        r"\brequested:? (?:about |up to |a total of )?N tokens(?! (?:in|from) )",
        r"\btotal of (?:at least )?N",
        r"\brequested: N",  # Moonshot
        r"\bLimit:? \d{1,9},(?: Used:? \d{1,9},)? Requested:? N",  # Groq, OpenAI
    ),
    re.IGNORECASE,
)
QUOTA: Final = re.compile(r"\btokens per (?:min(?:ute)?|hour|day)\b", re.IGNORECASE)
LOWER_BOUND: Final = re.compile(
    r"\bat least \d|\bkeep the first \d|\bn_keep\b|\bmaximum input length of", re.IGNORECASE
)
"""Texts of servers that stop counting: vLLM, LM Studio."""

FORMULA: Final = re.compile(
    r"(?<![\d.])(\d{1,9}) ?([-+]|[<>]=?) ?(\d{1,9}) ?([-+]|[<>]=?) ?(\d{1,9})(?!\.?\d)"
)
"""Three numbers with an operator between each two, such as ``A + B > C`` or ``B > C - A``."""
FORMULA_PLACES: Final = {
    ("+", ">"): (0, 1, 2),  # A + B > C
    ("<", "+"): (1, 2, 0),  # C < A + B
    (">", "-"): (2, 0, 1),  # B > C - A
    ("-", "<"): (1, 2, 0),  # C - A < B
}
"""The operators of a formula -> the places of its numbers A, B and C, where C is the window."""
PROMPT_WORD: Final = re.compile(r"\b(?:input|prompt|messages)", re.IGNORECASE)
OUTPUT_WORD: Final = re.compile(r"\bmax_\w{0,12}tokens|\b(?:completion|output)", re.IGNORECASE)


OUTPUT_LIMIT: Final = re.compile(
    _either(
        r"\bat most N (?:completion|output) tokens",  # OpenAI, Chat Completions
        r"\bvalue <= ?`?N",  # OpenAI, Responses API
        r"\bless than or equal to `?N",  # Groq
        r"\brange of `?max_tokens`? (?:is|should be) \[\d+, ?N\]",  # DeepSeek, Qwen
        r"> N, which is the maximum",  # Anthropic, behind a Chat Completions proxy
        r"\bmax_\w{0,12}tokens.{0,24} cannot exceed N",  # Databricks
        r"\brequested exceeds the model limit of N",  # Bedrock
    ),
    re.IGNORECASE,
)
"""Texts about the largest output of a model, whatever the length of the prompt."""
OUTPUT_RANGE: Final = re.compile(rf"\brange is from 1 \(inclusive\) to {NUMBER} \(exclusive\)")
"""Vertex: the largest output is one less."""


def read_output_limit(text: str) -> int:
    """Return the largest output of a model that an error text reports; 0 if it reports none."""
    text = _SEPARATOR.sub("", text[:MAX_READ])
    return _first(OUTPUT_LIMIT, text) or max(0, _first(OUTPUT_RANGE, text) - 1)


def read_token_limits(text: str) -> TokenLimits:
    """Return the counts in an error text; an unknown text has no counts."""
    text = _SEPARATOR.sub("", text[:MAX_READ])
    prompt, output = _first(PROMPT, text), _first(OUTPUT, text)
    window, total = _first(WINDOW, text), _first(TOTAL, text)
    if (formula := _read_formula(text, output)) is not None:
        prompt, output, window = formula
        total = prompt + output
    elif output and total > prompt + output:
        prompt = total - output  # OpenRouter names only the parts of the prompt
    return TokenLimits(
        prompt=prompt,
        output=output,
        window=window,
        total=total,
        is_quota=QUOTA.search(text) is not None,
        is_lower_bound=LOWER_BOUND.search(text) is not None,
    )


def _first(pattern: re.Pattern[str], text: str) -> int:
    match_ = pattern.search(text)
    return int(match_[match_.lastindex or 0]) if match_ else 0


def _read_formula(text: str, output: int) -> tuple[int, int, int] | None:
    """Return prompt, output and window of the first formula; None if there is none.

    The window is the number alone on its side of the comparison, or the one that is subtracted
    from. ``output`` identifies one of the two other numbers; without it, the order of the words
    decides.
    """
    match_ = FORMULA.search(text)
    if match_ is None:
        return None
    numbers = int(match_[1]), int(match_[3]), int(match_[5])
    places = FORMULA_PLACES.get((match_[2][0], match_[4][0]))
    if places is None:
        return None
    parts, window = (numbers[places[0]], numbers[places[1]]), numbers[places[2]]
    prompt_word = PROMPT_WORD.search(text, 0, match_.start())
    output_word = OUTPUT_WORD.search(text, 0, match_.start())
    names_output_first = output_word is not None and (
        prompt_word is None or output_word.start() < prompt_word.start()
    )
    is_reversed = parts[0] == output != parts[1] or (
        output not in parts and "+" in match_[0] and names_output_first
    )
    prompt, requested = reversed(parts) if is_reversed else parts
    return prompt, requested, window


TOO_LONG: Final = re.compile(
    r"context[ _](?:length|window|size)|(?:prompt|messages|input) (?:is )?too long"
    r"|too_many_prompt_tokens|too many tokens|maximum prompt length|input token count"
    r"|exceeded model token limit|prompt exceeds max|range of input length"
    r"|exceeds the maximum allowed length|must have less than \d+ tokens",
    re.IGNORECASE,
)
"""Error texts for a prompt that is too long: of OpenAI, Mistral, llama.cpp; Perplexity, Cohere,
xAI, Gemini; Moonshot, GLM, Qwen; SGLang, TGI."""

EXCEEDED: Final = re.compile(
    r"exceed|too long|too many|(?:longer|larger|greater) than", re.IGNORECASE
)
"""With a status that does not mean a bad request, the text must also match this pattern: llama.cpp
and LocalAI send 500, LM Studio an error event in a response with status 200."""

BAD_REQUEST: Final = frozenset({400, 422})
OTHER_CAUSES: Final = frozenset({401, 402, 403, 408, 429})
"""Statuses that identify the error; their texts may mention the context window as well."""

TOO_LONG_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",  # Copilot
        "tokens_limit_reached",  # GitHub Models
        "too_many_prompt_tokens",
        "1261",  # GLM, whose text may be Chinese
    }
)

OUTPUT_TOO_LARGE: Final = "input length and `max_tokens` exceed context limit"
"""The start of Anthropic's message for a prompt that fits, but not together with the output."""

MIN_CLIENT_ROOM: Final = 4_000
"""Tokens. With less room for the output, the client gets the message to compact: Claude Code
subtracts 1,000 tokens from the room and gives up below 3,000."""


def overflow_message(status: int, fields: ErrorFields) -> str | None:
    """Return Anthropic's message for an error about the context window; None for another error."""
    limits = limits_of(fields)
    if not _is_overflow(status, fields, limits):
        return None
    if limits.output and limits.room >= MIN_CLIENT_ROOM:
        return (
            f"{OUTPUT_TOO_LARGE}: {limits.prompt} + {limits.output} > {limits.window},"
            " decrease input length or `max_tokens` and try again"
        )
    tokens = limits.prompt
    if tokens <= limits.window:  # the prompt alone would fit, or its length is unknown
        tokens = max(limits.total, limits.prompt + limits.output)
    if tokens > limits.window > 0:
        quota = " (the account's limit of tokens for a time)" if limits.is_quota else ""
        return f"prompt is too long: {tokens} tokens > {limits.window} maximum{quota}"
    if fields.message.startswith("prompt is too long"):
        return client_message(fields.message)
    text = fields.message if fields.readable else "the upstream names no numbers"
    return client_message(f"prompt is too long: {text}")


def limits_of(fields: ErrorFields) -> TokenLimits:
    """Return the token counts of an error: from its own fields, else from its text."""
    limits = read_token_limits(fields.message)
    if not (fields.prompt_tokens and fields.context_window):
        return limits
    return dataclasses.replace(limits, prompt=fields.prompt_tokens, window=fields.context_window)


def _is_overflow(status: int, fields: ErrorFields, limits: TokenLimits) -> bool:
    if fields.code in TOO_LONG_CODES or fields.type in TOO_LONG_CODES:
        return True
    if limits.is_quota and status in (400, 413, 429):
        # Groq's 413 and OpenAI's 429: waiting does not help a request that alone exceeds the limit
        # (openclaw/openclaw#130275).
        return limits.is_exceeded
    is_anthropics = fields.message.startswith(OUTPUT_TOO_LARGE)
    is_page = not fields.readable and fields.message.lstrip().startswith("<")
    if status in OTHER_CAUSES or is_anthropics or is_page or not fields.message:
        return False
    if limits.is_exceeded:
        return True
    # Groq's text about the largest output mentions the context window.
    if read_output_limit(fields.message) or TOO_LONG.search(fields.message) is None:
        return False
    return status in BAD_REQUEST or EXCEEDED.search(fields.message) is not None
