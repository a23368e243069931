"""The `mcp` package finds its way to a token by itself: python mcp_oauth.py URL. Ends with 1 at the first surprise."""

import asyncio
import sys
from urllib.parse import parse_qs, urlparse

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

url = sys.argv[1]
came_back = {}


class Kept:
    tokens = info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.info

    async def set_client_info(self, info):
        self.info = info


async def browser(address):
    """The person agrees at once; the browser is sent back, and this is where to."""
    async with httpx2.AsyncClient() as http:
        answer = await http.get(address, follow_redirects=False)
    came_back.update({name: values[0] for name, values in parse_qs(urlparse(answer.headers["location"]).query).items()})


async def callback():
    return AuthorizationCodeResult(code=came_back["code"], state=came_back["state"], iss=came_back.get("iss"))


async def main():
    metadata = OAuthClientMetadata(
        client_name="test", redirect_uris=["http://127.0.0.1:1/callback"], grant_types=["authorization_code", "refresh_token"], response_types=["code"]
    )
    auth = OAuthClientProvider(url, metadata, Kept(), redirect_handler=browser, callback_handler=callback)
    async with httpx2.AsyncClient(auth=auth, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), cache=None) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert "ask" in names, names
            result = await client.call_tool("ask", {"message": "hello"})
            assert result.content[0].text == "You said: hello", result
    assert came_back["code"], came_back
    print("ok")


asyncio.run(main())
