"""The `a2a-sdk` package as another agent that speaks A2A 0.3: python a2a_old_client.py URL TOKEN PORT. Ends with 1 at the first surprise."""

import asyncio
import http.server
import json
import sys
import threading
import time
import uuid

import httpx
from a2a.client import A2ACardResolver
from a2a.compat.v0_3 import types as old
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError

url, token, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
pushed = []


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pushed.append((self.headers["X-A2A-Notification-Token"], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


receiver = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()


def said(text, wait=True, push=None, context=""):
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], context_id=context)
    configuration = SendMessageConfiguration(return_immediately=not wait, task_push_notification_config=push)
    return SendMessageRequest(message=message, configuration=configuration)


async def refused(awaitable, kind):
    try:
        result = await awaitable
    except kind:
        return
    raise AssertionError((kind, result))


async def main():
    # The card is one of 0.3, too, by the types of 0.3.
    raw = (await httpx.AsyncClient().get(f"{url}/.well-known/agent-card.json")).json()
    card = old.AgentCard.model_validate(raw)
    assert card.protocol_version == "0.3.0" and card.url == f"{url}/a2a" and card.preferred_transport == "JSONRPC", raw
    assert card.additional_interfaces[0].url == card.url and card.security == [{"bearer": []}], raw
    assert card.security_schemes["bearer"].root.type == "http", raw
    parsed = await A2ACardResolver(httpx.AsyncClient(), url).get_agent_card()
    assert [one.protocol_version for one in parsed.supported_interfaces] == ["1.0", "0.3.0"], parsed

    wire = httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    client = CompatJsonRpcTransport(wire, parsed, f"{url}/a2a")
    task = (await client.send_message(said("hello"))).task
    assert task.status.state == TaskState.TASK_STATE_COMPLETED and task.artifacts[0].parts[0].text == "You said: hello", task
    assert (await client.get_task(GetTaskRequest(id=task.id))).artifacts[0].parts[0].text == "You said: hello"
    await refused(client.cancel_task(CancelTaskRequest(id=task.id)), TaskNotCancelableError)
    await refused(client.get_task(GetTaskRequest(id="none")), TaskNotFoundError)

    events = [event async for event in client.send_message_streaming(said("read it"))]
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds[0] == "task" and (kinds[-1] == "status_update" or kinds == ["task"]), kinds
    # What was said before the stream began is in the task that it begins with.
    held = "".join(part.text for artifact in events[0].task.artifacts for part in artifact.parts)
    pieces = held + "".join(event.artifact_update.artifact.parts[0].text for event in events if event.HasField("artifact_update"))
    assert pieces == "I read it first.\n\nIt says: a line of text", pieces

    asked = (await client.send_message(said("write it"))).task
    assert asked.status.state == TaskState.TASK_STATE_AUTH_REQUIRED, asked
    secret = AuthenticationInfo(scheme="Bearer", credentials="credential-canary")
    config = TaskPushNotificationConfig(task_id=asked.id, id="mine", url=f"http://127.0.0.1:{port}/hook", token="mine", authentication=secret)
    made = await client.create_task_push_notification_config(config)
    assert made.task_id == asked.id and made.id == "mine" and made.authentication.scheme == "Bearer" and not made.token, made
    found = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(task_id=asked.id, id="mine"))
    assert found.url == config.url, found
    await client.create_task_push_notification_config(TaskPushNotificationConfig(task_id=asked.id, id="other", url=config.url))
    listed = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=asked.id))
    assert [one.id for one in listed.configs] == ["mine", "other"], listed
    await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(task_id=asked.id, id="other"))

    events, follows = [], asyncio.Event()

    async def follow():
        async for event in client.subscribe(SubscribeToTaskRequest(id=asked.id)):
            events.append(event)
            follows.set()

    following = asyncio.create_task(follow())
    # What is cancelled before it is followed has nothing more to tell.
    await asyncio.wait_for(follows.wait(), 60)
    deadline = time.monotonic() + 60
    while not any(body["status"]["state"] == "auth-required" for key, body in list(pushed) if key == "mine"):
        assert time.monotonic() < deadline, pushed
        await asyncio.sleep(0.05)
    assert (await client.cancel_task(CancelTaskRequest(id=asked.id))).status.state == TaskState.TASK_STATE_CANCELED
    await following
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED, events
    while not any(body["status"]["state"] == "canceled" for key, body in list(pushed) if key == "mine"):
        assert time.monotonic() < deadline, pushed
        await asyncio.sleep(0.05)
    # A receiver of 0.3 is told whole tasks in the shape of 0.3.
    told = [old.Task.model_validate(body) for key, body in pushed if key == "mine"]
    assert all(one.id == asked.id and one.kind == "task" for one in told), told

    # The methods of one version are not those of the other.
    get = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": asked.id}}
    assert (await wire.post(f"{url}/a2a", json=get)).json()["result"]["kind"] == "task"
    answer = (await wire.post(f"{url}/a2a", json=get, headers={"A2A-Version": "1.0"})).json()
    assert answer["error"]["code"] == -32009, answer
    answer = (await wire.post(f"{url}/a2a", json={**get, "method": "tasks/list"})).json()
    assert answer["error"]["code"] == -32601, answer
    print("ok")


asyncio.run(main())
