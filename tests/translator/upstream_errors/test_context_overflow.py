"""A prompt that is too long, in the words of every server, becomes Anthropic's message.

Each row is one server's text with the counts in it. The same counts decide whether less output is
requested, so each row is also the test of a repair.
"""

from tests.for_each import for_each
from translator import openai_chat
from translator.upstream_errors import map_error
from translator.upstream_errors.context_overflow import read_token_limits

VLLM_BEGIN = "This model's maximum context length is 40960 tokens. However, you requested "
MUST_SHRINK = "input length and `max_tokens` exceed context limit: 18000 + 128000 > 40960, decrease input length or `max_tokens` and try again"

FITTING = {
    "vllm": VLLM_BEGIN
    + "128000 output tokens and your prompt contains 18000 input tokens, for a total of 146000"
    " tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
    "vllm with its sum": VLLM_BEGIN
    + "128000 output tokens and your prompt contains 18000 input tokens, for a total of 146000"
    " tokens (18000 + 128000 = 146000 > 40960). Please reduce the length of the input prompt.",
    "vllm 0.11": "'max_tokens' or 'max_completion_tokens' is too large: 128000. This model's maximum"
    " context length is 40960 tokens and your request has 18000 input tokens (128000 > 40960 -"
    " 18000).",
    "vllm 0.6": VLLM_BEGIN
    + "146000 tokens (18000 in the messages, 128000 in the completion). Please reduce the length of"
    " the messages or completion.",
    "vllm behind litellm": "litellm.ContextWindowExceededError: litellm.BadRequestError: "
    + VLLM_BEGIN
    + "128000 output tokens and your prompt contains 18000 input tokens, for a total of 146000"
    " tokens.",
    "sglang": "Requested token count exceeds the model's maximum context length of 40960 tokens. You"
    " requested a total of 146000 tokens: 18000 tokens from the input messages and 128000 tokens for"
    " the completion. Please reduce the number of tokens in the input messages or the completion to"
    " fit within the limit.",
    "openrouter": "This endpoint's maximum context length is 40960 tokens. However, you requested"
    " about 146000 tokens (15000 of text input, 3000 of tool input, 128000 in the output). Please"
    " reduce the length of either one, or use context compression.",
    "tgi": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 40960. Given: 18000"
    " `inputs` tokens and 128000 `max_new_tokens`",
    "together": "The sum of `inputs` tokens + `max_new_tokens` must be <= 40960. Given: 18000"
    " `inputs` tokens and 128000 `max_new_tokens`",
    "databricks": "Bad request: max_tokens (128000) + prompt tokens (18000) must not exceed 40960.",
    "bedrock and vertex": MUST_SHRINK,
    "with separators": "This model's maximum context length is 40,960 tokens. However, you requested"
    " 128,000 output tokens and your prompt contains 18,000 input tokens, for a total of 146,000"
    " tokens.",
    "output named first": "max_tokens plus the prompt exceed the window: 128000 + 18000 > 40960",
    "window first": "the window is too small: 40960 < 18000 + 128000",
    "window minus prompt": "40960 - 18000 < 128000: not enough room for the output",
}
"""Server -> its text for a prompt of 18,000 tokens and an output of 128,000 in a window of 40,960."""

ALONE_TOO_LONG = {
    "vllm": (VLLM_BEGIN + "0 output tokens and your prompt contains at least 40961 input tokens, for"
             " a total of at least 40961 tokens.", 40961, 40960),
    "vllm 0.16": (("You passed 36865 input tokens and requested 4096 output tokens. However, the"
                  " model's context length is only 40960 tokens, resulting in a maximum input length"
                  " of 36864 tokens."), 40961, 40960),
    "vllm 0.11": (("This model's maximum context length is 40960 tokens. However, your request has"
                  " 50000 input tokens. Please reduce the length of the input messages."),
                  50000, 40960),
    "vllm 0.6": (VLLM_BEGIN + "50000 tokens in the messages, Please reduce the length of the"
                 " messages.", 50000, 40960),
    "vllm engine": (("The decoder prompt (length 50000) is longer than the maximum model length of"
                    " 40960. Make sure that `max_model_len` is no smaller."), 50000, 40960),
    "sglang": ("The input (50000 tokens) is longer than the model's context length (40960 tokens).",
               50000, 40960),
    "sglang scheduler": (("Input length (50000 tokens) exceeds the maximum allowed length (40954"
                         " tokens). Use a shorter input or enable --allow-auto-truncate."),
                         50000, 40954),
    "llama.cpp": (("request (50000 tokens) exceeds the available context size (40960 tokens), try"
                  " increasing it"), 50000, 40960),
    "llama.cpp slot": (("input (50000 tokens) is larger than the max context size (40960 tokens)."
                       " skipping"), 50000, 40960),
    "localai": (("rpc error: code = Internal desc = request (50000 tokens) exceeds the available"
                " context size (40960 tokens), try increasing it"), 50000, 40960),
    "lm studio": (("Trying to keep the first 50000 tokens when context the overflows. However, the"
                  " model is loaded with context length of only 40960 tokens, which is not enough."),
                  50000, 40960),
    "lm studio 0.4": ("Cannot truncate prompt with n_keep (50000) >= n_ctx (40960)", 50000, 40960),
    "mlx": ("Prompt too long: 50000 tokens exceeds max context window of 40960 tokens",
            50000, 40960),
    "vertex": (("Unable to submit request because the input token count is 50000 but model only"
               " supports up to 40960. Reduce the input token count and try again."), 50000, 40960),
    "gemini": ("The input token count (50000) exceeds the maximum number of tokens allowed (40960).",
               50000, 40960),
    "tgi": ("Input validation error: `inputs` must have less than 40960 tokens. Given: 50000",
            50000, 40960),
    "moonshot": ("Your request exceeded model token limit: 40960 (requested: 50000)", 50000, 40960),
    "no room for an answer": (VLLM_BEGIN + "41800 tokens (40800 in the messages, 1000 in the"
                              " completion).", 41800, 40960),
}  # fmt: skip
"""Server -> its text for a prompt that does not fit, and the counts for the client."""

WITHOUT_COUNTS = {
    "lm studio's error event": "The number of tokens to keep from the initial prompt is greater than"
    " the context length. Try to load the model with a larger context length, or provide a shorter"
    " input",
    "llama.cpp and localai": "the request exceeds the available context size. try increasing the"
    " context size or enable context shift",
    "llama.cpp in the stream": "Context size has been exceeded.",
    "bedrock": "Input is too long for requested model.",
    "ollama": "the prompt is longer than the context length currently available to the model",
}


def error(message, **fields):
    return {"error": {"message": message, "type": "BadRequestError", **fields}}


@for_each("text", FITTING.values(), ids=FITTING)
def test_a_prompt_that_fits_without_its_output_tells_the_client_both_counts(text):
    mapped = map_error(400, error(text))

    assert (mapped.status, mapped.error_type) == (400, "invalid_request_error")
    assert mapped.message == MUST_SHRINK


@for_each("text", FITTING.values(), ids=FITTING)
@for_each("status", [400, 413, 422, 500])
def test_output_that_does_not_fit_beside_the_prompt_is_clamped(text, status):
    body = {"model": "m", "max_tokens": 128_000, "messages": [{"role": "user", "content": "Hi"}]}

    found = openai_chat.DIALECT.repair(body, status, error(text))

    assert found.body == {**body, "max_tokens": 22_960}
    assert (found.notes[0].path, found.notes[0].fate) == ("max_tokens", "clamped")


@for_each(("text", "tokens", "window"), ALONE_TOO_LONG.values(), ids=ALONE_TOO_LONG)
@for_each("status", [400, 500, 502])
def test_a_prompt_that_does_not_fit_has_the_message_at_which_clients_compact(
    text, tokens, window, status
):
    mapped = map_error(status, error(text))

    assert (mapped.status, mapped.should_retry) == (400, False)
    assert mapped.message == f"prompt is too long: {tokens} tokens > {window} maximum"
    assert openai_chat.DIALECT.repair({"max_tokens": 1_024}, 400, error(text)) is None


@for_each("text", WITHOUT_COUNTS.values(), ids=WITHOUT_COUNTS)
@for_each("status", [400, 500, 502])
def test_a_text_without_counts_keeps_its_words(text, status):
    mapped = map_error(status, error(text))

    assert (mapped.status, mapped.message) == (400, f"prompt is too long: {text}")


def test_the_counts_of_llama_cpp_s_own_fields_are_read():
    body = error("the request exceeds the available context size, try increasing it",
                 n_prompt_tokens=50_000, n_ctx=40_960)  # fmt: skip

    assert map_error(500, body).message == "prompt is too long: 50000 tokens > 40960 maximum"
    assert (
        "40960" not in map_error(400, error("context size", n_prompt_tokens="x", n_ctx=1)).message
    )


@for_each(
    ("status", "text"),
    [
        (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"),
        (400, "max_tokens is too large: 100000. This model supports at most 4096 completion tokens"),
        (400, ("`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens`"
              " is less than the `context_window` for this model")),
        (400, "max_tokens=128000 cannot be greater than max_model_len=40960."),
        (429, "Rate limit reached: the context length of 8192 tokens, 9000 input tokens"),
        (400, "model retired on 2026-11-24, see the list of 3 models"),
        (500, "failed to allocate the context window"),
        (400, "messages: text content blocks must be non-empty"),
        (400, "Invalid 'metadata.key': string too long. Expected at most 64 characters."),
    ],
)  # fmt: skip
def test_another_error_is_not_about_the_prompt(status, text):
    assert not map_error(status, error(text)).message.startswith("prompt is too long")


OUTPUT_ALONE = "max_tokens={}cannot be greater than max_model_len=max_total_tokens=40960."
AT_LEAST = (
    VLLM_BEGIN
    + "{} output tokens and your prompt contains at least {} input tokens, for a total of"
    " at least 40961 tokens."
)


def test_output_is_clamped_in_steps_where_the_length_of_the_prompt_is_not_reported():
    """vLLM stops counting the prompt where the requested output would no longer fit."""
    body = {"max_tokens": 128_000, "messages": [{"role": "user", "content": "word " * 9_000}]}

    first = openai_chat.DIALECT.repair(body, 400, error(OUTPUT_ALONE.format(128_000)))
    sent = first.body["max_tokens"]
    second = openai_chat.DIALECT.repair(
        first.body, 400, error(AT_LEAST.format(sent, 40_961 - sent))
    )
    third = openai_chat.DIALECT.repair(second.body, 400, error(AT_LEAST.format(1_024, 39_937)))

    assert 20_000 < sent < 30_000, "a third of the bytes is taken as the length of the prompt"
    assert second.body["max_tokens"] == 1_024
    assert third is None
    assert map_error(400, error(AT_LEAST.format(1_024, 39_937))).message == (
        "prompt is too long: 40961 tokens > 40960 maximum"
    )


def test_a_picture_is_not_counted_by_its_bytes():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900_000}}
    body = {"max_tokens": 128_000, "messages": [{"role": "user", "content": [picture]}]}

    found = openai_chat.DIALECT.repair(body, 400, error(OUTPUT_ALONE.format(128_000)))

    assert found.body["max_tokens"] > 38_000


def test_a_window_that_the_total_may_not_reach_is_clamped_again():
    """SGLang refuses a total that equals the window."""
    text = FITTING["sglang"].replace("128000", "22960").replace("146000", "40960")

    found = openai_chat.DIALECT.repair({"max_tokens": 22_960}, 400, error(text))

    assert found.body == {"max_tokens": 22_944}


@for_each(
    ("text", "limit"),
    [
        (("The maximum tokens you requested exceeds the model limit of 10000. Try again with a maximum"
         " tokens value that is lower than 10000."), 10_000),
        (("Unable to submit request because it has a maxOutputTokens value of 128000 but the supported"
         " range is from 1 (inclusive) to 8193 (exclusive). Update the value and try again."), 8_192),
        (("rpc error: code = InvalidArgument desc = max_tokens (128000) cannot exceed 8192. Please"
         " reduce the length of max output tokens generated."), 8_192),
    ],
    ids=["bedrock", "vertex", "databricks"],
)  # fmt: skip
def test_the_largest_output_of_a_model_is_read(text, limit):
    found = openai_chat.DIALECT.repair({"max_tokens": 128_000}, 400, error(text))

    assert found.body == {"max_tokens": limit}


def test_a_number_of_characters_is_not_a_number_of_tokens():
    text = (
        VLLM_BEGIN + "32000 output tokens and your prompt contains 999999 characters (more than"
        " 88888 characters, which is the upper bound for 8960 input tokens)."
    )

    assert read_token_limits(text).prompt == 0
    assert "999999 tokens" not in map_error(400, error(text)).message


GROQ = (
    "Request too large for model `llama-x` in organization `org_1` service tier `on_demand` on"
    " tokens per minute (TPM): Limit {}, Requested {}, please reduce your message size and try"
    " again."
)
OPENAI = (
    "Request too large for gpt-x in organization org_1 on tokens per min (TPM): Limit {}, Requested"
    " {}. The input or output tokens must be reduced in order to run successfully."
)
LIMITS = {"type": "tokens", "code": "rate_limit_exceeded"}


@for_each(("status", "text"), [(413, GROQ), (429, OPENAI), (429, GROQ)])
def test_a_request_larger_than_the_account_s_quota_is_too_long(status, text):
    mapped = map_error(status, error(text.format(6000, 36114), **LIMITS))

    assert (mapped.status, mapped.should_retry) == (400, False)
    assert mapped.message.startswith("prompt is too long: 36114 tokens > 6000 maximum (")


@for_each("status", [413, 429])
@for_each(
    ("limit", "requested", "prompt", "taken"),
    [
        (6000, 33_000, "Hi", 4_984),  # 1,000 of the prompt and the output of 32,000
        (8000, 32_000, "Hi", 7_961),  # only the larger one counts, as at OpenAI
        (6000, 37_500, "Hi", 0),  # 5,500 of the prompt
        (6000, 5_000, "Hi", 0),
    ],
)
def test_the_output_is_lowered_to_the_account_s_quota(status, limit, requested, prompt, taken):
    body = {"model": "m", "max_tokens": 32_000, "messages": [{"role": "user", "content": prompt}]}

    found = openai_chat.DIALECT.repair(body, status, error(GROQ.format(limit, requested), **LIMITS))

    assert (found.body["max_tokens"] if found else 0) == taken


def test_a_quota_that_is_used_up_for_now_stays_a_rate_limit():
    text = "Rate limit reached for model `m` on tokens per minute (TPM): Limit 6000, Used 5034, Requested 1443. Please try again in 4.77s."

    mapped = map_error(429, error(text, **LIMITS))

    assert (mapped.status, mapped.error_type) == (429, "rate_limit_error")
    assert mapped.retry_after_s == 5
    body = {"model": "m", "max_tokens": 1_200, "messages": []}
    assert openai_chat.DIALECT.repair(body, 429, error(text, **LIMITS)) is None
