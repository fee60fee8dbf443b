"""Run requests with an Anthropic SDK in a separate process, with the SDK that it can import.

Read one JSON object from stdin: ``base_url``, ``key`` and ``jobs`` (each with ``id``, ``mode`` and the
``body`` of a request). Run the jobs concurrently and write one JSON object to stdout: the SDK's
version and, for each job id, the final message and the raw events, or the exception.
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


async def run(client, job, slots):
    async with slots:
        try:
            return job["id"], await MODES[job["mode"]](client, job["body"])
        except anthropic.APIStatusError as exc:
            return job["id"], {
                "raised": type(exc).__name__,
                "sdk_error": True,
                "status": exc.status_code,
                "error": exc.body,
                "request_id": exc.request_id,
            }
        except Exception as exc:  # noqa: BLE001 - the test compares it with the expected exception
            return job["id"], {
                "raised": type(exc).__name__,
                "sdk_error": isinstance(exc, anthropic.AnthropicError),
                "text": str(exc)[:300],
            }


async def main():
    task = json.load(sys.stdin)
    slots = asyncio.Semaphore(task.get("slots", 8))
    async with anthropic.AsyncAnthropic(
        base_url=task["base_url"], api_key=task["key"], max_retries=0, timeout=60
    ) as client:
        results = await asyncio.gather(*(run(client, job, slots) for job in task["jobs"]))
    json.dump({"version": anthropic.__version__, "results": dict(results)}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
