"""An authorization server and an MCP server that wants its tokens: python oauth_server.py. Prints the address of the MCP server.

Keys, codes and tokens are made here with PyJWT; the person agrees at once. `/told` says what was asked.
"""

import base64
import hashlib
import json
import secrets
import socket
import sys
import time

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
base = f"http://127.0.0.1:{listener.getsockname()[1]}"
resource = sys.argv[1] if len(sys.argv) > 1 else f"{base}/mcp"
key, other = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
told = {"registered": [], "authorized": [], "tokens": [], "refused": 0, "calls": 0}
clients, codes, refreshes, devices = {}, {}, {}, {}
# How long an access token holds, seconds: short, so that it is renewed.
LIFE = 32


def token(subject="ann", audience=None, issuer=base, life=300, signed_by=key, scope="mcp:use", **more):
    now = int(time.time())
    claims = {"iss": issuer, "sub": subject, "aud": audience or resource, "iat": now, "exp": now + life, "scope": scope}
    return jwt.encode({**claims, **more}, signed_by, algorithm="RS256", headers={"kid": "one", "typ": "at+jwt"})


async def jwks(_):
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return JSONResponse({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]})


async def metadata(_):
    return JSONResponse({
        "issuer": base,
        "authorization_endpoint": f"{base}/authorize",
        "token_endpoint": f"{base}/token",
        "registration_endpoint": f"{base}/register",
        "device_authorization_endpoint": f"{base}/device",
        "jwks_uri": f"{base}/jwks",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "authorization_response_iss_parameter_supported": True,
    })


async def protected(_):
    return JSONResponse({"resource": resource, "authorization_servers": [base], "scopes_supported": ["mcp:use"]})


async def register(request):
    wanted = await request.json()
    told["registered"].append(wanted)
    client = secrets.token_hex(8)
    clients[client] = wanted
    return JSONResponse({**wanted, "client_id": client}, status_code=201)


async def authorize(request):
    asked = dict(request.query_params)
    told["authorized"].append(asked)
    assert asked["redirect_uri"] in clients[asked["client_id"]]["redirect_uris"], asked
    assert asked["code_challenge_method"] == "S256" and asked["response_type"] == "code", asked
    code = secrets.token_hex(8)
    codes[code] = asked
    return RedirectResponse(f"{asked['redirect_uri']}?code={code}&state={asked['state']}&iss={base}")


async def device(request):
    form = dict(await request.form())
    code = secrets.token_hex(8)
    devices[code] = {**form, "asked": 0}
    return JSONResponse({"device_code": code, "user_code": "ABCD-EFGH", "verification_uri": f"{base}/enter", "expires_in": 60, "interval": 1})


def grant(client, scope):
    refresh = secrets.token_hex(8)
    refreshes[refresh] = (client, scope)
    life = {"access_token": token(life=LIFE, scope=scope), "token_type": "Bearer", "expires_in": LIFE, "refresh_token": refresh, "scope": scope}
    return JSONResponse(life)


async def give(request):
    form = dict(await request.form())
    told["tokens"].append({name: value for name, value in form.items() if name in ("grant_type", "resource", "client_id")})
    bad = JSONResponse({"error": "invalid_grant"}, status_code=400)
    match form["grant_type"]:
        case "authorization_code":
            # A code holds once.
            asked = codes.pop(form["code"], None)
            digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
            if not asked or digest != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"] or form["resource"] != resource:
                return bad
            return grant(form["client_id"], asked.get("scope", ""))
        case "refresh_token":
            # So does a refresh token.
            known = refreshes.pop(form["refresh_token"], None)
            return grant(*known) if known else bad
        case _:
            waiting = devices.get(form["device_code"])
            if not waiting:
                return bad
            waiting["asked"] += 1
            if waiting["asked"] < 2:
                return JSONResponse({"error": "authorization_pending"}, status_code=400)
            return grant(form["client_id"], waiting.get("scope", ""))


async def mcp(request):
    given = request.headers.get("authorization", "")
    try:
        jwt.decode(given.removeprefix("Bearer "), key.public_key(), algorithms=["RS256"], audience=resource, issuer=base)
    except jwt.InvalidTokenError:
        told["refused"] += 1
        words = f'Bearer resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
        return PlainTextResponse("no", status_code=401, headers={"WWW-Authenticate": words})
    if request.method != "POST":
        return PlainTextResponse("no", status_code=405)
    asked = await request.json()
    tool = {"name": "whoami", "description": "Says who asks", "inputSchema": {"type": "object"}}
    match asked.get("method"):
        case "initialize":
            result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "guarded", "version": "1"}}
        case "tools/list":
            result = {"tools": [tool]}
        case "tools/call":
            told["calls"] += 1
            result = {"content": [{"type": "text", "text": f"you are known, call {told['calls']}"}]}
        case _ if "id" not in asked:
            return PlainTextResponse("", status_code=202)
        case _:
            return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}})
    return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": result})


async def make(request):
    """A token for a test: of this issuer, or forged."""
    how = dict(request.query_params)
    life = int(how.get("life", 300))
    key_of = other if how.get("key") == "other" else key
    if how.get("alg") == "none":
        claims = jwt.decode(token(), options={"verify_signature": False})
        return PlainTextResponse(jwt.encode(claims, None, algorithm="none"))
    return PlainTextResponse(token(
        subject=how.get("sub", "ann"), audience=how.get("aud"), issuer=how.get("iss", base), life=life, signed_by=key_of, scope=how.get("scope", "mcp:use")
    ))


async def said(_):
    return JSONResponse(told)


app = Starlette(routes=[
    Route("/.well-known/oauth-authorization-server", metadata),
    Route("/.well-known/oauth-protected-resource/mcp", protected),
    Route("/jwks", jwks), Route("/register", register, methods=["POST"]), Route("/authorize", authorize),
    Route("/device", device, methods=["POST"]), Route("/token", give, methods=["POST"]),
    Route("/mcp", mcp, methods=["GET", "POST", "DELETE"]), Route("/make", make), Route("/told", said),
])
listener.listen()
print(base, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
