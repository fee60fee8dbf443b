"""Plays an Anthropic SDK's part, in a process of its own, with whichever SDK it can import.

Reads one JSON object from stdin: ``base_url``, ``key`` and ``jobs`` (each with ``id``, ``mode`` and the
``body`` of a request); runs the jobs side by side and writes one JSON object to stdout: the SDK's
version and, per job id, the final message and the raw events, or the exception.
"""

import asyncio
import json
import sys

import anthropic


async def with_helper(client, body):
    async with client.messages.stream(**body) as stream:
        events = [event.type async for event in stream]
        message = await stream.get_final_message()
    return {"message": message.to_dict(), "kinds": events}


async def with_raw_stream(client, body):
    events = [event.to_dict() async for event in await client.messages.create(**body, stream=True)]
    return {"events": events}


async def without_streaming(client, body):
    message = await client.messages.create(**body)
    return {"message": message.to_dict(), "request_id": message._request_id}


MODES = {"helper": with_helper, "raw": with_raw_stream, "whole": without_streaming}


async def run(client, job, seats):
    async with seats:
        try:
            return job["id"], await MODES[job["mode"]](client, job["body"])
        except anthropic.APIStatusError as exc:
            return job["id"], {
                "raised": type(exc).__name__,
                "ours": True,
                "status": exc.status_code,
                "error": exc.body,
                "request_id": exc.request_id,
            }
        except Exception as exc:  # noqa: BLE001 - the test tells it apart from what it expected
            return job["id"], {
                "raised": type(exc).__name__,
                "ours": isinstance(exc, anthropic.AnthropicError),
                "said": str(exc)[:300],
            }


async def main():
    task = json.load(sys.stdin)
    seats = asyncio.Semaphore(task.get("seats", 8))
    async with anthropic.AsyncAnthropic(
        base_url=task["base_url"], api_key=task["key"], max_retries=0, timeout=60
    ) as client:
        done = await asyncio.gather(*(run(client, job, seats) for job in task["jobs"]))
    json.dump({"version": anthropic.__version__, "done": dict(done)}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
