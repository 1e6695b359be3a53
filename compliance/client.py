"""The client under test: `python compliance/client.py URL`, with the scenario's name in the environment.

The conformance suites start it for each scenario, against a server of their own that looks at what it sends.
It is written with midcall's public API, as an author would write it: a function for each kind of scenario,
which ends normally if all went as the scenario wants it. Where access is to be refused, that is a refusal.
"""

import asyncio
import http.client
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from midcall import Client, Request, connect
from midcall.client.oauth import (
    Auth,
    ClientCredentials,
    EnterpriseManaged,
    MemoryStore,
    OAuth,
    PrivateKeyJwt,
    WorkloadIdentity,
)
from midcall.errors import LoginFailed

SCENARIO = "MCP_CONFORMANCE_SCENARIO"
CONTEXT = "MCP_CONFORMANCE_CONTEXT"
REVISION = "MCP_CONFORMANCE_PROTOCOL_VERSION"

NOT_PLAYED = 77
"""The exit code for a scenario about something that midcall's client does not have."""

DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The address of the client's metadata that the suite expects; nobody reads it."""

Context = dict[str, Any]
"""What the suite tells the client beside the URL: credentials, or calls to make."""


def main() -> None:
    """Play the scenario that the environment names."""
    name = os.environ.get(SCENARIO)
    if name is None or len(sys.argv) < 2:
        raise SystemExit(f"{SCENARIO}=NAME python client.py URL\nNames: {', '.join(SCENARIOS)}")
    if name not in SCENARIOS:
        sys.exit(NOT_PLAYED)
    asyncio.run(SCENARIOS[name](sys.argv[-1], json.loads(os.environ.get(CONTEXT, "{}"))))


def server_at(url: str, **options: Any) -> Client:
    """A client that finds the era out by itself; a legacy server is asked for the revision of the suite."""
    wanted = os.environ.get(REVISION, "")
    return connect(url, revision=wanted if "2025" in wanted else None, **options)


# --- tools, headers, questions --------------------------------------------------------------


async def look_around(url: str, context: Context) -> None:
    """List what there is."""
    async with server_at(url, answer=accept, sample=lambda sample: "Yes", roots=["."]) as server:
        await server.tools()
        await server.prompts()
        await server.resources()


async def call_first_tool(url: str, context: Context) -> None:
    """List the tools, and call the first one."""
    async with server_at(url) as server:
        tools = await server.tools()
        await server.call(tools[0]["name"], {"a": 5, "b": 3})


async def use_everything(url: str, context: Context) -> None:
    """Call each tool, read each resource, get each prompt."""
    async with server_at(url) as server:
        for tool in await server.tools():
            required = tool["inputSchema"].get("required", ())
            await server.call(tool["name"], dict.fromkeys(required, "value"))
        for resource in await server.resources():
            await server.read(resource["uri"])
        for prompt in await server.prompts():
            await server.prompt(prompt["name"])


async def call_as_told(url: str, context: Context) -> None:
    """List the tools, and make the calls that the scenario asks for."""
    async with server_at(url) as server:
        await server.tools()
        for call in context["toolCalls"]:
            await server.call(call["name"], call["arguments"])


async def answer_questions(url: str, context: Context) -> None:
    """Call all tools at once, and answer what they ask."""
    async with server_at(url, answer=accept) as server:
        names = [tool["name"] for tool in await server.tools()]
        results = await server.call_tools([{"id": name, "name": name} for name in names], parallel=True)
        failed = [result for result in results if not result["success"]]
        assert not failed, failed


async def echo_schema(url: str, context: Context) -> None:
    """Send back a tool's schema as it was listed."""
    async with server_at(url) as server:
        schemas = {tool["name"]: tool["inputSchema"] for tool in await server.tools()}
        await server.call("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


def accept(request: Request) -> Any:
    """Say yes, and leave the fields of a form as they are proposed."""
    return True if request.request_type.kind == "confirm" else {}


# --- access ---------------------------------------------------------------------------------


async def log_in(url: str, context: Context) -> None:
    """Have a person log in, with an id that the client has already if there is one."""
    await use_protected(url, person(**context))


async def be_refused(url: str, context: Context) -> None:
    """Do the same where something is wrong: the client must notice, and give up."""
    try:
        await use_protected(url, person())
    except LoginFailed as error:
        print(f"As it should be: {error}")
    else:
        raise SystemExit("The client was let in, and should not have gone there")


async def use_secret(url: str, context: Context) -> None:
    """Have access in the program's own name, by a secret."""
    await use_protected(url, ClientCredentials(context["client_id"], context["client_secret"]))


async def use_key(url: str, context: Context) -> None:
    """Have access in the program's own name, by a key."""
    algorithm = context.get("signing_algorithm")
    auth = PrivateKeyJwt(context["client_id"], context["private_key_pem"], algorithm=algorithm)
    await use_protected(url, auth)


async def use_workload(url: str, context: Context) -> None:
    """Have access by what the platform says of the program."""
    await use_protected(url, WorkloadIdentity(context["client_id"], context["valid_jwt"]))


async def use_enterprise(url: str, context: Context) -> None:
    """Have access by a login at the company's identity provider."""
    auth = EnterpriseManaged(
        context["client_id"],
        context["client_secret"],
        id_token=context["idp_id_token"],
        idp_issuer=context["idp_issuer"],
        idp_client_id=context["idp_client_id"],
    )
    await use_protected(url, auth)


async def use_protected(url: str, auth: Auth) -> None:
    """List the tools of a server that lets nobody in without a token, and call one."""
    async with server_at(url, auth=auth) as server:
        for tool in await server.tools():
            await server.call(tool["name"])


def person(client_id: str | None = None, client_secret: str | None = None, **_: Any) -> OAuth:
    """Access by a person's login. Nothing is kept: each scenario is the first one."""
    return OAuth(
        client_id=client_id,
        client_secret=client_secret,
        client_metadata_url=DOCUMENT,
        redirect=browse,
        store=MemoryStore(),
    )


async def browse(url: str) -> str:
    """A person with a browser who agrees to everything: gives the address that the page leads to."""

    def visit() -> str:
        page = urlsplit(url)
        connection = http.client.HTTPConnection(page.netloc, timeout=10)
        connection.request("GET", f"{page.path}?{page.query}")
        response = connection.getresponse()
        return response.headers["Location"]

    return await asyncio.to_thread(visit)


# --- which scenario is of which kind --------------------------------------------------------

SCENARIOS: dict[str, Callable[[str, Context], Awaitable[None]]] = {
    "initialize": look_around,
    "request-metadata": look_around,
    "json-schema-ref-no-deref": look_around,
    "json-schema-2020-12-preservation": echo_schema,
    "tools_call": call_first_tool,
    "sse-retry": call_first_tool,
    "http-standard-headers": use_everything,
    "http-invalid-tool-headers": use_everything,
    "http-custom-headers": call_as_told,
    "elicitation-sep1034-client-defaults": answer_questions,
    "sep-2322-client-request-state": answer_questions,
    "auth/2025-03-26-oauth-endpoint-fallback": log_in,
    "auth/2025-03-26-oauth-metadata-backcompat": log_in,
    "auth/authorization-server-migration": log_in,
    "auth/basic-cimd": log_in,
    "auth/dpop": log_in,
    "auth/dpop-nonce": log_in,
    "auth/iss-not-advertised": log_in,
    "auth/iss-supported": log_in,
    "auth/metadata-default": log_in,
    "auth/metadata-var1": log_in,
    "auth/metadata-var2": log_in,
    "auth/metadata-var3": log_in,
    "auth/offline-access-not-supported": log_in,
    "auth/offline-access-scope": log_in,
    "auth/pre-registration": log_in,
    "auth/scope-from-scopes-supported": log_in,
    "auth/scope-from-www-authenticate": log_in,
    "auth/scope-omitted-when-undefined": log_in,
    "auth/scope-step-up": log_in,
    "auth/token-endpoint-auth-basic": log_in,
    "auth/token-endpoint-auth-none": log_in,
    "auth/token-endpoint-auth-post": log_in,
    "auth/iss-normalized": be_refused,
    "auth/iss-supported-missing": be_refused,
    "auth/iss-unexpected": be_refused,
    "auth/iss-wrong-issuer": be_refused,
    "auth/metadata-issuer-mismatch": be_refused,
    "auth/resource-mismatch": be_refused,
    "auth/scope-retry-limit": be_refused,
    "auth/client-credentials-basic": use_secret,
    "auth/client-credentials-jwt": use_key,
    "auth/wif-jwt-bearer": use_workload,
    "auth/cross-app-access-complete-flow": use_enterprise,
    "auth/enterprise-managed-authorization": use_enterprise,
}


if __name__ == "__main__":
    main()
