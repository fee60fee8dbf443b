"""LiteLLM's providers by their prefix in model names, with the upstream settings of each one."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Provider(NamedTuple):
    """The upstream settings for a provider.

    ``base_url``: if empty, the LiteLLM file must have an ``api_base``. ``key``: the environment
    variable of the API key; if empty, no key is needed.
    """

    dialect: str
    profile: str
    base_url: str = ""
    key: str = ""
    tail: str = ""  # appended to LiteLLM's api_base


OPENAI: Final = Provider("responses", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY")

PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": OPENAI,
    "azure": Provider("chat", "azure", key="AZURE_API_KEY", tail="/openai/v1"),
    "azure_ai": Provider("chat", "generic", key="AZURE_AI_API_KEY"),
    "anthropic": Provider(
        "anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"
    ),
    "gemini": Provider(
        "chat",
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    "deepseek": Provider("chat", "deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "openrouter": Provider(
        "chat", "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"
    ),
    "groq": Provider("chat", "generic", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("chat", "generic", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "xai": Provider("chat", "generic", "https://api.x.ai/v1", "XAI_API_KEY"),
    "together_ai": Provider("chat", "generic", "https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "fireworks_ai": Provider(
        "chat", "generic", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"
    ),
    "cerebras": Provider("chat", "generic", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "ollama": Provider("chat", "ollama", "http://localhost:11434/v1", tail="/v1"),
    "ollama_chat": Provider("chat", "ollama", "http://localhost:11434/v1", tail="/v1"),
    "hosted_vllm": Provider("chat", "vllm"),
    "vllm": Provider("chat", "vllm"),
    "lm_studio": Provider("chat", "generic"),
    "llamafile": Provider("chat", "llamacpp"),
    "litellm_proxy": Provider("chat", "generic"),
}
COMPATIBLE: Final = Provider("chat", "generic", key="OPENAI_API_KEY")
"""The provider for ``openai/...`` with an ``api_base`` that is not OpenAI's: such servers have the
Chat Completions API."""


def split_model(model: str) -> tuple[str, str]:
    """Split a LiteLLM model name such as ``azure/gpt-5`` into provider and model.

    Without a prefix, models named ``claude-...`` are Anthropic's, all others OpenAI's.
    """
    head, slash, name = model.partition("/")
    if slash:
        if head == "openai" and name.startswith("responses/"):
            return head, name.removeprefix("responses/")
        return head, name
    return ("anthropic" if model.startswith("claude-") else "openai"), model
