"""Let the model call a function, and send the result back until it answers.

The SDK reads ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN.
"""

import anthropic

TOOL = {
    "name": "get_weather",
    "description": "Return the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def get_weather(city: str) -> str:
    return f"It is sunny in {city}."


client = anthropic.Anthropic()
messages = [{"role": "user", "content": "Use get_weather: how is the weather in Oslo?"}]
while True:
    message = client.messages.create(
        model="claude-sonnet-5-5", max_tokens=1024, tools=[TOOL], messages=messages
    )
    messages.append({"role": "assistant", "content": message.content})
    if message.stop_reason != "tool_use":
        break
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": get_weather(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]
    print(f"The model called {TOOL['name']} {len(results)} times.")
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in message.content if block.type == "text"))
