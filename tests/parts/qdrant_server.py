"""Qdrant's HTTP API over its own client's local mode, for tests: as much of the API as clawk speaks, and nothing more lenient.

    qdrant_server.py PORT_FILE [API_KEY]

Bodies are read by the client library's own models, which refuse what the API does not know. What the server would refuse and local mode
would not is refused here: ordering or counting by a field without an index, a key that is wrong. Ends at the end of its input.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from qdrant_client import QdrantClient
from qdrant_client.http import models

ORDERED = {"integer"}
COUNTED = {"keyword", "integer"}

local = QdrantClient(":memory:")
lock = threading.Lock()
indexes: dict[str, dict[str, str]] = {}


class Refused(Exception):
    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


def strict(model, body):
    """A body as the API's own model reads it; a member that the model does not know is refused."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    unknown = set(body) - known
    if unknown:
        raise Refused(400, f"{model.__name__} has no {sorted(unknown)}")
    return model.model_validate(body)


def there(name):
    if not local.collection_exists(name):
        raise Refused(404, f"Not found: Collection `{name}` doesn't exist!")


def indexed(name, field, kinds):
    if indexes.get(name, {}).get(field) not in kinds:
        raise Refused(400, f"Index required but not found for {field}")


def point(found):
    dumped = {"id": found.id, "payload": found.payload}
    if getattr(found, "score", None) is not None:
        dumped["score"] = found.score
    return dumped


def queried(name, body):
    asked = strict(models.QueryRequest, body)
    query = asked.query
    if isinstance(query, models.NearestQuery):
        query = query.nearest
    found = local.query_points(
        name,
        query=query,
        using=asked.using,
        query_filter=asked.filter,
        limit=asked.limit or 10,
        with_payload=bool(asked.with_payload),
        score_threshold=asked.score_threshold,
    )
    return {"points": [point(one) for one in found.points]}


def answered(method, parts, body):
    if method == "GET" and parts == ["collections"]:
        return {"collections": [{"name": one.name} for one in local.get_collections().collections]}
    if parts[:1] != ["collections"] or len(parts) < 2:
        raise Refused(404, "no such path")
    name, rest = parts[1], parts[2:]
    if len(name) > 255 or any(c in name for c in '<>:"/\\|?*\0\x1f'):
        raise Refused(400, "collection name can't hold such a character")
    if method == "GET" and rest == ["exists"]:
        return {"exists": local.collection_exists(name)}
    if method == "PUT" and not rest:
        if local.collection_exists(name):
            raise Refused(409, f"Collection `{name}` already exists!")
        made = strict(models.CreateCollection, body)
        local.create_collection(name, vectors_config=made.vectors, sparse_vectors_config=made.sparse_vectors)
        indexes[name] = {}
        return True
    there(name)
    if method == "PUT" and rest == ["index"]:
        made = strict(models.CreateFieldIndex, body)
        indexes[name][made.field_name] = made.field_schema.value
        return {"operation_id": 0, "status": "completed"}
    if method == "PUT" and rest == ["points"]:
        written = strict(models.PointsList, body)
        local.upsert(name, points=written.points)
        return {"operation_id": 0, "status": "completed"}
    if method != "POST":
        raise Refused(405, "no such method")
    if rest == ["points", "delete"]:
        gone = strict(models.PointIdsList, body)
        local.delete(name, points_selector=gone)
        return {"operation_id": 0, "status": "completed"}
    if rest == ["points", "payload"]:
        set_ = strict(models.SetPayload, body)
        local.set_payload(name, payload=set_.payload, points=set_.points)
        return {"operation_id": 0, "status": "completed"}
    if rest == ["points", "count"]:
        asked = strict(models.CountRequest, body)
        return {"count": local.count(name, count_filter=asked.filter, exact=asked.exact).count}
    if rest == ["points", "scroll"]:
        asked = strict(models.ScrollRequest, body)
        if asked.order_by is not None:
            indexed(name, asked.order_by.key, ORDERED)
            if asked.offset is not None:
                raise Refused(400, "order_by knows no offset")
        found, following = local.scroll(
            name,
            scroll_filter=asked.filter,
            limit=asked.limit or 10,
            order_by=asked.order_by,
            offset=asked.offset,
            with_payload=asked.with_payload,
        )
        return {"points": [point(one) for one in found], "next_page_offset": following}
    if rest == ["points", "query"]:
        return queried(name, body)
    if rest == ["points", "query", "batch"]:
        return [queried(name, one) for one in strict(models.QueryRequestBatch, body).model_dump(exclude_unset=True)["searches"]]
    if rest == ["facet"]:
        asked = strict(models.FacetRequest, body)
        indexed(name, asked.key, COUNTED)
        found = local.facet(name, key=asked.key, facet_filter=asked.filter, limit=asked.limit, exact=bool(asked.exact))
        return {"hits": [{"value": hit.value, "count": hit.count} for hit in found.hits]}
    raise Refused(404, "no such path")


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    key = None

    def log_message(self, *_):
        pass

    def do(self):
        try:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            if self.key is not None and self.headers.get("api-key") != self.key:
                raise Refused(401, "Must provide an API key or an Authorization bearer token")
            if length > 32 * 1024 * 1024:
                raise Refused(413, "Payload too large")
            path, _, query = self.path.partition("?")
            if self.command != "GET" and query != "wait=true":
                raise Refused(400, "this test wants wait=true")
            parts = [part for part in path.split("/") if part]
            with lock:
                result = answered(self.command, parts, json.loads(raw) if raw else {})
            status, answer = 200, {"result": result, "status": "ok", "time": 0.0}
        except Refused as refused:
            status, answer = refused.status, {"status": {"error": str(refused)}, "time": 0.0}
        except Exception as error:  # what the models or local mode refuse
            status, answer = 400, {"status": {"error": f"{type(error).__name__}: {error}"}, "time": 0.0}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do


def main():
    if len(sys.argv) > 2:
        Door.key = sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(server.server_address[1]))
    import os

    os.rename(sys.argv[1] + ".new", sys.argv[1])
    sys.stdin.read()


main()
