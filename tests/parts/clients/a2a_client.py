"""The `a2a-sdk` package as another agent: python a2a_client.py URL TOKEN OTHER_TOKEN first|later. Ends with 1 at the first surprise."""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import PushNotificationNotSupportedError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

url, token, other, run = sys.argv[1:5]
KNOWN = str(uuid.UUID(int=7))


def said(text, message_id=None, context="", task="", wait=True):
    message = Message(
        message_id=message_id or str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], context_id=context, task_id=task
    )
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=not wait))


async def client(token, streaming):
    http = httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    # The card is for everybody.
    card = await A2ACardResolver(httpx.AsyncClient(), url).get_agent_card()
    factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=http))
    return card, factory.create(card)


async def all_of(stream):
    return [event async for event in stream]


async def refused(awaitable, kind):
    try:
        result = await awaitable
    except kind:
        return
    raise AssertionError((kind, result))


async def ckp(http, method, params, number):
    answer = await http.post("/claw", json={"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    return answer.json()


async def main():
    card, whole = await client(token, False)
    _, streamed = await client(token, True)
    if run == "later":
        task = await whole.get_task(GetTaskRequest(id=KNOWN))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED and task.artifacts[0].parts[0].text == "You said: keep this", task
        await refused(whole.cancel_task(CancelTaskRequest(id=KNOWN)), TaskNotCancelableError)
        _, stranger = await client(other, False)
        print("ok")
        return

    # The card: who it is and what it can do; of the prompt, not a word.
    assert card.name == "real" and [skill.id for skill in card.skills] == ["digest"], card
    assert card.supported_interfaces[0].url == f"{url}/a2a" and card.capabilities.streaming
    text = (await httpx.AsyncClient().get(f"{url}/.well-known/agent-card.json")).text
    assert "calling tools" not in text and "Read, then tell" not in text, text

    # Whole.
    [answer] = await all_of(whole.send_message(said("hello")))
    task = answer.task
    assert task.status.state == TaskState.TASK_STATE_COMPLETED, task
    assert task.artifacts[0].parts[0].text == "You said: hello", task
    assert (await whole.get_task(GetTaskRequest(id=task.id))).status.state == TaskState.TASK_STATE_COMPLETED

    # The same message is the same task; a context is a conversation.
    one, again = said("turn", context="c"), None
    [first] = await all_of(whole.send_message(one))
    [again] = await all_of(whole.send_message(one))
    assert first.task.id == again.task.id and again.task.artifacts[0].parts[0].text == "turn 1", again
    [second] = await all_of(whole.send_message(said("turn", context="c")))
    assert second.task.artifacts[0].parts[0].text == "turn 2" and second.task.context_id == "c", second

    # Streamed: the task, its pieces, its states to the last.
    events = await all_of(streamed.send_message(said("read it")))
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds[0] == "task" and (kinds[-1] == "status_update" or kinds == ["task"]), kinds
    # What was said before the stream began is in the task that it begins with.
    held = "".join(part.text for artifact in events[0].task.artifacts for part in artifact.parts)
    pieces = held + "".join(event.artifact_update.artifact.parts[0].text for event in events if event.HasField("artifact_update"))
    assert pieces == "I read it first.\n\nIt says: a line of text", pieces
    end = events[-1].task.status if kinds == ["task"] else events[-1].status_update.status
    assert end.state == TaskState.TASK_STATE_COMPLETED, end

    # Failed.
    [failed] = await all_of(whole.send_message(said("broken")))
    assert failed.task.status.state == TaskState.TASK_STATE_FAILED and "no such model" in failed.task.status.message.parts[0].text, failed

    # One that waits for a person is told so, followed, and cancelled; what has ended is not.
    [asked] = await all_of(whole.send_message(said("write it")))
    assert asked.task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED, asked
    events, follows = [], asyncio.Event()

    async def follow():
        async for event in streamed.subscribe(SubscribeToTaskRequest(id=asked.task.id)):
            events.append(event)
            follows.set()

    following = asyncio.create_task(follow())
    await asyncio.wait_for(follows.wait(), 60)
    task = await whole.cancel_task(CancelTaskRequest(id=asked.task.id))
    assert task.status.state == TaskState.TASK_STATE_CANCELED, task
    await following
    assert events[0].task.id == task.id and events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED, events
    await refused(whole.cancel_task(CancelTaskRequest(id=task.id)), TaskNotCancelableError)
    await refused(all_of(whole.send_message(said("more", task=task.id))), UnsupportedOperationError)
    await refused(whole.get_task(GetTaskRequest(id="none")), TaskNotFoundError)

    # Nobody is pushed anything where the operator names no hosts.
    assert not card.capabilities.push_notifications, card
    push = said("hello")
    push.configuration.task_push_notification_config.url = "https://example.com/hook"
    await refused(all_of(whole.send_message(push)), PushNotificationNotSupportedError)

    # Listed, by context and state.
    tasks = (await whole.list_tasks(ListTasksRequest())).tasks
    assert len(tasks) == 6, tasks
    assert len((await whole.list_tasks(ListTasksRequest(context_id="c"))).tasks) == 2
    page = await whole.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_CANCELED))
    assert [one.id for one in page.tasks] == [task.id], page

    # Another token's tasks are another's.
    async with httpx.AsyncClient(base_url=url) as http:
        get = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task.id}}
        assert (await http.post("/a2a", json=get)).status_code == 401
        answer = (await http.post("/a2a", json=get, headers={"Authorization": f"Bearer {other}"})).json()
        assert answer["error"]["code"] == -32602 and "scope" in answer["error"]["message"], answer
        old = {"Authorization": f"Bearer {token}", "A2A-Version": "0.3"}
        assert (await http.post("/a2a", json=get, headers=old)).json()["error"]["code"] == -32009

    # The same tasks over CKP.
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        hello = {"protocolVersion": "0.3.0", "clientInfo": {"name": "t", "version": "1"}, "manifest": {"kind": "Claw", "metadata": {"name": "real"}},
                 "capabilities": {}}
        answer = await http.post("/claw", json={"jsonrpc": "2.0", "id": 0, "method": "claw.initialize", "params": hello})
        http.headers["Claw-Session-Id"] = answer.headers["claw-session-id"]
        create = {"task_id": KNOWN, "message": "keep this"}
        made = await ckp(http, "claw.task.create", create, 1)
        assert made["result"]["task_id"] == KNOWN, made
        while (found := await ckp(http, "claw.task.get", {"task_id": KNOWN}, 2))["result"]["state"] != "completed":
            await asyncio.sleep(0.05)
        assert found["result"]["text"] == "You said: keep this", found
        assert (await ckp(http, "claw.task.create", create, 3))["result"]["state"] == "completed"
        reused = await ckp(http, "claw.task.create", {**create, "message": "other words"}, 4)
        assert reused["error"]["code"] == -32602, reused
        assert (await ckp(http, "claw.task.cancel", {"task_id": KNOWN, "reason": "late"}, 5))["result"]["state"] == "completed"
        assert (await ckp(http, "claw.task.subscribe", {"task_id": KNOWN}, 6))["result"]["subscribed"] is True
        assert len((await ckp(http, "claw.task.list", {}, 7))["result"]["tasks"]) == 7
        for number, (method, params) in enumerate([("get", {"task_id": "none"}), ("get", {}), ("create", {}), ("cancel", {"task_id": "none"})]):
            answer = await ckp(http, f"claw.task.{method}", params, 10 + number)
            assert answer["error"]["code"] == -32602, (method, answer)
        assert (await ckp(http, "claw.task.explode", {}, 20))["error"]["code"] == -32601
        task = await whole.get_task(GetTaskRequest(id=KNOWN))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
    print("ok")


asyncio.run(main())
