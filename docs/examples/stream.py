"""Stream a response with Anthropic's SDK, and print what it used.

The SDK reads ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN.
"""

import anthropic

client = anthropic.Anthropic()
with client.messages.stream(
    model="claude-sonnet-5-5",
    max_tokens=1024,
    messages=[{"role": "user", "content": "Hello"}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    message = stream.get_final_message()
print(f"\n{message.stop_reason}: {message.usage.output_tokens} tokens")
