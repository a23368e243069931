"""The `a2a-sdk` package has a task's states pushed: python a2a_push.py URL TOKEN PORT. Ends with 1 at the first surprise."""

import asyncio
import http.server
import json
import sys
import threading
import time
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError

url, token, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
pushed = []


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pushed.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        # The first notification of all is refused once: it comes again.
        self.send_response(503 if len(pushed) == 1 else 204)
        self.end_headers()

    def log_message(self, *_):
        pass


receiver = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()


def config(path="/hook", **more):
    return TaskPushNotificationConfig(url=f"http://127.0.0.1:{port}{path}", token="receiver-token", **more)


def said(text, push=None):
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)])
    return SendMessageRequest(
        message=message, configuration=SendMessageConfiguration(return_immediately=True, task_push_notification_config=push)
    )


def until(path, state, patience=60):
    """What was pushed to a path once a task in this state was."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        bodies = [body for at, _, body in list(pushed) if at == path]
        if any(body.get("task", {}).get("status", {}).get("state") == state for body in bodies):
            return bodies
        time.sleep(0.05)
    raise AssertionError((path, state, pushed))


async def refused(client, request):
    try:
        [event async for event in client.send_message(request)]
    except A2AError as error:
        return str(error)
    raise AssertionError(request)


async def main():
    http_client = httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    card = await A2ACardResolver(httpx.AsyncClient(), url).get_agent_card()
    assert card.capabilities.push_notifications, card
    client = ClientFactory(ClientConfig(streaming=False, httpx_client=http_client)).create(card)

    # With the message: every state, the answer at the end, the receiver's token and credentials.
    secret = AuthenticationInfo(scheme="Bearer", credentials="credential-canary")
    [event] = [event async for event in client.send_message(said("hello", config(authentication=secret)))]
    bodies = await asyncio.to_thread(until, "/hook", "TASK_STATE_COMPLETED")
    assert bodies[-1]["task"]["id"] == event.task.id, bodies
    assert bodies[-1]["task"]["artifacts"][0]["parts"][0]["text"] == "You said: hello", bodies
    assert all("task" in body or body["statusUpdate"]["taskId"] == event.task.id for body in bodies), bodies
    for _, headers, _ in pushed:
        assert headers["x-a2a-notification-token"] == "receiver-token" and headers["authorization"] == "Bearer credential-canary", headers

    # Beside a task that waits for a person: made, found, listed, taken away. Secrets are not told back.
    [event] = [event async for event in client.send_message(said("write it"))]
    task = event.task.id
    made = await client.create_task_push_notification_config(config("/later", task_id=task, id="mine", authentication=secret))
    assert made.id == "mine" and made.task_id == task and made.authentication.scheme == "Bearer", made
    assert not made.token and not made.authentication.credentials, made
    found = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(task_id=task, id="mine"))
    assert found.url.endswith("/later"), found
    await client.create_task_push_notification_config(config("/gone", task_id=task, id="gone"))
    listed = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    assert [one.id for one in listed.configs] == ["mine", "gone"], listed
    await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(task_id=task, id="gone"))
    from a2a.types.a2a_pb2 import CancelTaskRequest

    await client.cancel_task(CancelTaskRequest(id=task))
    await asyncio.to_thread(until, "/later", "TASK_STATE_CANCELED")
    gone = [body for at, _, body in pushed if at == "/gone"]
    assert not any("task" in body for body in gone), gone

    # Places that the operator's list does not name, whatever they are called.
    for other in [
        "https://other.example/hook",
        "http://169.254.169.254/latest/meta-data",
        f"http://localhost:{port}/hook",
        f"http://127.0.0.1:{port + 1}/hook",
        f"http://user:pass@127.0.0.1:{port}/hook",
        f"http://127.1:{port + 1}/hook",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
    ]:
        words = await refused(client, said("hello", TaskPushNotificationConfig(url=other)))
        assert "url" in words, (other, words)
    many = [config("/many", task_id=event.task.id, id=f"n{n}") for n in range(9)]
    try:
        for one in many:
            await client.create_task_push_notification_config(one)
        raise AssertionError("nine receivers were taken")
    except A2AError as error:
        assert "at most" in str(error), error
    print("ok")


asyncio.run(main())
