"""The `mcp` package as a client of the agent, on standard input or over HTTP.

python mcp_client.py stdio CLAWK ARGUMENT... | python mcp_client.py http URL TOKEN OTHER_TOKEN
Ends with 1 at the first surprise."""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult, PromptReference, ResourceTemplateReference, ResourceUpdatedNotification

asked = []
updated = []


async def hear(message):
    """Keeps which resources the agent says have changed."""
    if isinstance(message, ResourceUpdatedNotification):
        updated.append(str(message.params.uri))


async def until(holds):
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come in a minute")


async def elicit(context, params):
    """Approves what writes `yes.txt`, denies the rest."""
    asked.append(params.message)
    assert params.requested_schema["required"] == ["decision"], params
    decision = "approve" if "yes.txt" in params.message else "deny"
    return ElicitResult(action="accept", content={"decision": decision, "reason": "by a test"})


def text(result):
    # The record of a turn stands beside its answer, for the user.
    said = [block for block in result.content if not (block.annotations and block.annotations.audience == ["user"])]
    return "\n".join(block.text for block in said)


async def refused(awaitable, words):
    try:
        result = await awaitable
    except MCPError as error:
        assert words in str(error), error
    else:
        raise AssertionError((words, result))


async def whole(client):
    """Everything that the agent offers."""
    assert client.server_info.name == "real", client.server_info
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    # `shell` is denied by the policy, whatever its arguments: this client does not see it.
    assert sorted(tools) == ["ask", "file-read", "file-write"], tools.keys()
    assert tools["file-read"].input_schema["required"] == ["path"]

    # A message, with progress, and the next one of the same conversation.
    pieces = []

    async def progress(done, total, message):
        pieces.append(message)

    result = await client.call_tool("ask", {"message": "hello", "conversation": "c"}, progress_callback=progress)
    assert text(result) == "You said: hello" and not result.is_error, result
    assert "".join(pieces) == "You said: hello", pieces
    facts = result.structured_content
    assert facts["conversation"] == "c" and facts["stop"] == "answered" and facts["usage"]["input_tokens"] == 12, facts
    for turn in ("turn 1", "turn 2"):
        assert text(await client.call_tool("ask", {"message": "turn", "conversation": "t"})) == turn
    assert text(await client.call_tool("ask", {"message": "turn"})) == "turn 1"
    broken = await client.call_tool("ask", {"message": "broken"})
    assert broken.is_error and broken.structured_content["stop"] == "failed", broken

    # A declared tool; a failed one; one that the policy denies; none.
    assert text(await client.call_tool("file-read", {"path": "in.txt"})) == "a line of text"
    assert (await client.call_tool("file-read", {"path": "none.txt"})).is_error
    denied = await client.call_tool("shell", {"command": "id"})
    assert denied.is_error and denied.meta["clawk/error"]["code"] == -32011, denied
    wrong = await client.call_tool("file-read", {"file": 1})
    assert wrong.is_error and wrong.meta["clawk/error"]["code"] == -32602, wrong
    await refused(client.call_tool("nothing", {}), "nothing")
    await refused(client.call_tool("ask", {"text": "x"}), "message")

    # Questions are put to this client: of a call of its own, and of a turn's.
    done = await client.call_tool("file-write", {"path": "yes.txt", "content": "1"})
    assert not done.is_error and open("yes.txt").read() == "1", done
    done = await client.call_tool("file-write", {"path": "no.txt", "content": "1"})
    assert done.is_error and not os.path.exists("no.txt"), done
    assert done.meta["clawk/error"]["code"] == -32013, done
    turn = await client.call_tool("ask", {"message": "write it"})
    assert text(turn) == "Written.", turn
    assert len(asked) == 3 and all("\n\nwrite " in message for message in asked), asked

    # Skills as prompts.
    prompts = (await client.list_prompts()).prompts
    assert [prompt.name for prompt in prompts] == ["skill-digest"], prompts
    assert [argument.name for argument in prompts[0].arguments] == ["topic"]
    prompt = await client.get_prompt("skill-digest", {"topic": "bees"})
    assert "Read, then tell." in prompt.messages[0].content.text and "bees" in prompt.messages[0].content.text
    await refused(client.get_prompt("skill-digest", {}), "topic")
    await refused(client.get_prompt("skill-none"), "skill-none")

    # Traces and memory as resources.
    resources = {str(resource.uri): resource for resource in (await client.list_resources()).resources}
    trace = f"clawk://traces/{facts['session_id']}"
    assert trace in resources and "clawk://memory/notes" in resources, resources.keys()
    lines = (await client.read_resource(trace)).contents[0].text.splitlines()
    kinds = [json.loads(line)["event_type"] for line in lines]
    assert kinds[0] == "session.started" and "ckp.message.answered" in kinds, kinds
    entries = json.loads((await client.read_resource("clawk://memory/notes")).contents[0].text)["entries"]
    assert entries == [], entries
    templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
    assert "clawk://memory/{store}{?query}" in templates, templates
    await refused(client.read_resource("clawk://traces/00000000-0000-4000-8000-000000000000"), "no resource")
    await refused(client.read_resource("file:///etc/passwd"), "no resource")

    # What an argument may be: stores and traces that this client may see, nothing where anything is allowed.
    async def offered(template, argument, typed):
        reference = ResourceTemplateReference(uri=template)
        return (await client.complete(reference, {"name": argument, "value": typed})).completion.values

    assert await offered("clawk://memory/{store}{?query}", "store", "no") == ["notes"]
    assert await offered("clawk://memory/{store}{?query}", "store", "x") == []
    assert facts["session_id"] in await offered("clawk://traces/{session}", "session", facts["session_id"][:8])
    topic = await client.complete(PromptReference(name="skill-digest"), {"name": "topic", "value": ""})
    assert topic.completion.values == [], topic

    # A trace that grows is told of, until nobody wants to hear it.
    await client.subscribe_resource(trace)
    await client.call_tool("ask", {"message": "hello", "conversation": "c"})
    await until(lambda: trace in updated)
    await client.unsubscribe_resource(trace)
    await refused(client.subscribe_resource("file:///etc/passwd"), "no resource")
    await refused(client.subscribe_resource("clawk://traces/00000000-0000-4000-8000-000000000001"), "no resource")
    return facts["session_id"]


def over_http(url, token):
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    return Client(streamable_http_client(url, http_client=http), elicitation_callback=elicit, message_handler=hear, cache=None)


async def main():
    if sys.argv[1] == "stdio":
        server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:], env=dict(os.environ), cwd=os.getcwd())
        async with Client(server, elicitation_callback=elicit, message_handler=hear, cache=None) as client:
            await whole(client)
        print("ok")
        return
    url, token, other = sys.argv[2:5]
    async with over_http(url, token) as client:
        session = await whole(client)
        # Another token reads: no tools, nothing of ours.
        async with over_http(url, other) as stranger:
            assert [tool.name for tool in (await stranger.list_tools()).tools] == []
            assert (await stranger.list_prompts()).prompts == []
            await refused(stranger.call_tool("ask", {"message": "x"}), "scope")
            await refused(stranger.call_tool("file-read", {"path": "in.txt"}), "scope")
            await refused(stranger.read_resource(f"clawk://traces/{session}"), "no resource")
            await refused(stranger.subscribe_resource(f"clawk://traces/{session}"), "no resource")
            reference = ResourceTemplateReference(uri="clawk://traces/{session}")
            values = (await stranger.complete(reference, {"name": "session", "value": ""})).completion.values
            assert session not in values, values
    # A session is its owner's: whoever knows its id has nothing.
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
             "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}}
    async with httpx2.AsyncClient(headers=headers) as http:
        assert (await http.post(url, json=hello)).status_code == 401
        mine = {"Authorization": f"Bearer {token}"}
        opened = await http.post(url, json=hello, headers=mine)
        known = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        theirs = {"Authorization": f"Bearer {other}"}
        assert (await http.post(url, json=ping, headers={**theirs, **known})).status_code == 404
        assert (await http.get(url, headers={**theirs, **known, "Accept": "text/event-stream"})).status_code == 404
        assert (await http.delete(url, headers={**theirs, **known})).status_code == 404
        assert (await http.post(url, json=ping, headers={**mine, **known})).status_code == 200
        foreign = {"Origin": "https://evil.example"}
        assert (await http.post(url, json=ping, headers={**mine, **known, **foreign})).status_code == 403
        # The end of a session is told as clients expect it, once.
        assert (await http.delete(url, headers={**mine, **known})).status_code == 204
        assert (await http.delete(url, headers={**mine, **known})).status_code == 404
        assert (await http.post(url, json=ping, headers={**mine, **known})).status_code == 404
    print("ok")


asyncio.run(main())
