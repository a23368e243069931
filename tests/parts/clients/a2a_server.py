"""Another agent, by the `a2a-sdk` package: python a2a_server.py [ENDPOINT | 0.3]. Prints its address; wants the token `peer-token`.
With `0.3`, it speaks that version of the protocol alone, and its card has that version's shape."""

import asyncio
import json
import socket
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

cancelled, seen, methods = [], [], []
old = sys.argv[1:] == ["0.3"]


class Echo(AgentExecutor):
    async def execute(self, context, queue):
        text = context.get_user_input()
        seen.append((context.message.message_id, context.context_id, text))
        await queue.enqueue_event(
            Task(id=context.task_id, context_id=context.context_id, status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
        )
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.start_work()
        if text in ("sleep", "slow"):
            await asyncio.sleep(60 if text == "sleep" else 4)
        await asyncio.sleep(0.4)
        if text == "fail":
            await updater.failed(updater.new_agent_message([Part(text="it did not work")]))
            return
        if text == "which":
            await updater.requires_input(updater.new_agent_message([Part(text="which one?")]))
            return
        await updater.add_artifact([Part(text=f"the peer heard: {text}")], name="answer")
        await updater.complete()

    async def cancel(self, context, queue):
        cancelled.append(context.task_id)
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
endpoint = sys.argv[1] if len(sys.argv) > 1 and not old else f"{url}/rpc"
card = AgentCard(
    name="echo",
    description="Repeats what it hears.",
    version="1.0.0",
    supported_interfaces=[AgentInterface(url=endpoint, protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
)
handler = DefaultRequestHandler(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)


async def told(request):
    return JSONResponse({"cancelled": cancelled, "seen": seen, "methods": methods})


async def old_card(request):
    """As agents of 0.3 tell of themselves; the preferred transport is one that is not spoken here."""
    return JSONResponse(
        {
            "protocolVersion": "0.3.0", "name": "echo", "description": "Repeats what it hears.", "version": "1.0.0",
            "url": f"{url}/grpc", "preferredTransport": "GRPC",
            "additionalInterfaces": [{"url": f"{url}/grpc", "transport": "GRPC"}, {"url": endpoint, "transport": "JSONRPC"}],
            "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [], "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}, "security": [{"bearer": []}],
        }
    )


class Guarded:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        headers = dict(scope.get("headers") or [])
        if scope["type"] == "http" and scope["path"] == "/rpc" and headers.get(b"authorization") != b"Bearer peer-token":
            await PlainTextResponse("no", status_code=401)(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == "/rpc" and old:
            assert headers[b"a2a-version"] == b"0.3", headers
            message = await receive()
            body = json.loads(message["body"])
            methods.append(body["method"])
            first = [message]

            async def again():
                return first.pop() if first else await receive()

            if "/" not in body["method"]:
                await JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "only 0.3"}})(scope, again, send)
                return
            await self.app(scope, again, send)
            return
        await self.app(scope, receive, send)


cards = [Route("/.well-known/agent-card.json", old_card)] if old else create_agent_card_routes(card)
rpc = create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=old)
app = Starlette(routes=[*cards, *rpc, Route("/told", told)])
listener.listen()
print(url, flush=True)
uvicorn.Server(uvicorn.Config(Guarded(app), log_level="error")).run(sockets=[listener])
