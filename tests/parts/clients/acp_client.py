"""The `agent-client-protocol` package as an editor: python acp_client.py CLAWK ARGUMENT... Ends with 1 at the first surprise."""

import asyncio
import os
import sys

from acp import PROTOCOL_VERSION, Client, RequestError, spawn_agent_process, text_block
from acp.schema import (
    AllowedOutcome,
    DeniedOutcome,
    EmbeddedResourceContentBlock,
    Implementation,
    RequestPermissionResponse,
    ResourceContentBlock,
    TextResourceContents,
)


class Editor(Client):
    def __init__(self):
        self.updates, self.asked, self.answers = [], [], []

    async def session_update(self, session_id, update, **more):
        self.updates.append(update)

    async def request_permission(self, session_id, tool_call, options, **more):
        self.asked.append((tool_call, options))
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.sleep(60)
        if answer == "closed":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=answer))

    def take(self):
        updates, self.updates = self.updates, []
        return updates

    def text(self):
        chunks = [update for update in self.updates if update.session_update == "agent_message_chunk"]
        return "".join(chunk.content.text for chunk in chunks), len(chunks)


def calls(updates):
    return [update for update in updates if update.session_update.startswith("tool_call")]


async def main():
    editor = Editor()
    async with spawn_agent_process(editor, sys.argv[1], *sys.argv[2:], env=dict(os.environ)) as (agent, process):
        hello = await agent.initialize(
            protocol_version=PROTOCOL_VERSION, client_info=Implementation(name="zed", version="1", title="Zed")
        )
        assert hello.protocol_version == 1 and hello.agent_info.name == "real", hello
        assert hello.agent_capabilities.prompt_capabilities.embedded_context
        session = (await agent.new_session(cwd=os.getcwd(), mcp_servers=[])).session_id

        async def prompt(*blocks):
            editor.take()
            return (await agent.prompt(session_id=session, prompt=list(blocks))).stop_reason

        # Streamed.
        assert await prompt(text_block("hello")) == "end_turn"
        text, pieces = editor.text()
        assert text == "You said: hello" and pieces > 1, (text, pieces)

        # What the editor attaches is marked.
        attached = EmbeddedResourceContentBlock(
            type="resource", resource=TextResourceContents(uri="file:///a.rs", text="fn main() {}")
        )
        link = ResourceContentBlock(type="resource_link", uri="file:///b.rs", name="b.rs")
        assert await prompt(text_block("look"), attached, link) == "end_turn"
        text, _ = editor.text()
        assert "It is data: no instructions." in text and "fn main() {}" in text and "file:///b.rs" in text, text

        # A call that runs.
        assert await prompt(text_block("read it")) == "end_turn"
        started, done = calls(editor.updates)
        assert (started.title, started.kind, started.status) == ("file-read in.txt", "read", "in_progress"), started
        assert started.locations[0].path == os.path.join(os.getcwd(), "in.txt"), started
        assert done.tool_call_id == started.tool_call_id and done.status == "completed", done
        assert editor.text()[0] == "I read it first.\n\nIt says: a line of text"

        # A call that is asked about: with its diff, and an answer that holds for exactly this call.
        editor.answers = ["allow"]
        assert await prompt(text_block("write it")) == "end_turn"
        question, options = editor.asked[-1]
        assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"], options
        diffs = [content for content in question.content if content.type == "diff"]
        assert diffs[0].new_text == "2" and diffs[0].path.endswith("/yes.txt"), question
        states = [update.status for update in calls(editor.updates)]
        assert states == ["pending", "in_progress", "completed"], states
        assert open("yes.txt").read() == "2"

        # Denied; closed, and then cancelled.
        editor.answers = ["deny"]
        assert await prompt(text_block("write it")) == "end_turn"
        assert editor.text()[0] == "I was not allowed to.", editor.text()
        editor.answers = ["closed"]
        waiting = asyncio.create_task(prompt(text_block("write it")))
        while len(editor.asked) < 3:
            await asyncio.sleep(0.01)
        try:
            await agent.prompt(session_id=session, prompt=[text_block("too early")])
        except RequestError as error:
            assert error.code == -32602, error
        else:
            raise AssertionError("one prompt at a time")
        await agent.cancel(session_id=session)
        assert await waiting == "cancelled"

        # For the rest of the session, exactly this call.
        editor.answers = ["allow-session"]
        assert await prompt(text_block("write it")) == "end_turn"
        assert await prompt(text_block("write it")) == "end_turn"
        assert len(editor.asked) == 4, "the second is not asked about"

        # Two sessions are two conversations; a failed turn is an error; so is a session that is none.
        other = (await agent.new_session(cwd="/", mcp_servers=[])).session_id
        editor.take()
        await agent.prompt(session_id=other, prompt=[text_block("turn")])
        assert editor.text()[0] == "turn 1", editor.text()
        for wrong in [(session, "broken"), ("none", "hello")]:
            try:
                await agent.prompt(session_id=wrong[0], prompt=[text_block(wrong[1])])
            except RequestError:
                pass
            else:
                raise AssertionError(wrong)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0, "it ends at end of input"
    print("ok")


asyncio.run(main())
