"""Measure the lower limit in Python: an ASGI app that relays requests and responses unchanged.

UPSTREAM=http://127.0.0.1:9100 uvicorn benchmarks.gateway.floor:httpx_app
UPSTREAM=http://127.0.0.1:9100 uvicorn benchmarks.gateway.floor:aiohttp_app
"""

import os

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:9100")
KEEP = (b"content-type", b"x-request-id")


async def read_body(receive):
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def lifespan(receive, send, start, stop):
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await start()
            await send({"type": "lifespan.startup.complete"})
        else:
            await stop()
            return await send({"type": "lifespan.shutdown.complete"})


class HttpxApp:
    async def start(self):
        import httpx

        self.client = httpx.AsyncClient(
            timeout=600, limits=httpx.Limits(max_connections=None, max_keepalive_connections=2000)
        )

    async def stop(self):
        await self.client.aclose()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await lifespan(receive, send, self.start, self.stop)
        body = await read_body(receive)
        headers = {"content-type": "application/json", "authorization": "Bearer sk-upstream"}
        async with self.client.stream(
            "POST", UPSTREAM + scope["path"], content=body, headers=headers
        ) as answer:
            response_headers = [(k.lower(), v) for k, v in answer.headers.raw if k.lower() in KEEP]
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status_code,
                    "headers": response_headers,
                }
            )
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return None


class AiohttpApp:
    async def start(self):
        import aiohttp

        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=600),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def stop(self):
        await self.client.close()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await lifespan(receive, send, self.start, self.stop)
        body = await read_body(receive)
        headers = {"content-type": "application/json", "authorization": "Bearer sk-upstream"}
        async with self.client.post(UPSTREAM + scope["path"], data=body, headers=headers) as answer:
            response_headers = [(k.lower(), v) for k, v in answer.raw_headers if k.lower() in KEEP]
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status,
                    "headers": response_headers,
                }
            )
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return None


httpx_app, aiohttp_app = HttpxApp(), AiohttpApp()
