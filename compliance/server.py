"""The fixture server that the MCP conformance suite asks for, written as any author would.

python compliance/server.py --port 8000      serves it at http://127.0.0.1:8000/mcp
python compliance/server.py --stdio          serves it on standard input and output
"""

import argparse
import asyncio
import base64
from typing import Annotated, Any

from pydantic import BaseModel, Field

from midcall import (
    Ask,
    Hub,
    ProtocolError,
    ToolError,
    completion,
    method,
    prompt,
    resource,
)
from midcall.content import Audio, Document, Embedded, Image
from midcall.mcp import McpExtension

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")

JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class User(BaseModel):
    """Who is asked."""

    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Defaults(BaseModel):
    """A form with a default for each kind of field."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field("active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def _titled(word: str) -> list[dict[str, str]]:
    ordinals = ("First", "Second", "Third")
    return [{"const": f"value{n}", "title": f"{one} {word}"} for n, one in enumerate(ordinals, 1)]


class Enums(BaseModel):
    """A form with a field for each way to write a choice."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": _titled("Option")})
    legacyEnum: str = Field(
        json_schema_extra={
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        }
    )
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(json_schema_extra={"items": {"anyOf": _titled("Choice")}})


class Name(BaseModel):
    """A name."""

    name: str


class Color(BaseModel):
    """A color."""

    color: str


class Ok(BaseModel):
    """A yes."""

    ok: bool


class Confirmation(BaseModel):
    """A yes, or not."""

    confirm: bool = False
    name: str = ""


class PromptContext(BaseModel):
    """What a prompt is about."""

    context: str


class Tools:
    """The tools that the suite calls."""

    namespace = ""

    def __init__(self) -> None:
        self._extra_tool: object | None = None
        self._extra_prompt: object | None = None

    # --- content -----------------------------------------------------------------------------

    @method
    async def test_simple_text(self) -> str:
        """Give a text."""
        return "This is a simple text response for testing."

    @method
    async def test_image_content(self) -> Image:
        """Give a picture."""
        return Image(PNG)

    @method
    async def test_audio_content(self) -> Audio:
        """Give sound."""
        return Audio(WAV)

    @method
    async def test_embedded_resource(self) -> Embedded:
        """Give a resource with its contents."""
        text = "This is an embedded resource content."
        return Embedded(Document("test://embedded-resource", "text/plain", text=text))

    @method
    async def test_multiple_content_types(self) -> list[Any]:
        """Give a text, a picture and a resource."""
        document = Document(
            "test://mixed-content-resource", "application/json", text='{"test":"data","value":123}'
        )
        return ["Multiple content types test:", Image(PNG), Embedded(document)]

    @method
    async def test_error_handling(self) -> None:
        """Fail."""
        raise ToolError("This tool intentionally returns an error for testing")

    @method
    async def test_tool_with_progress(self, ask: Ask) -> str:
        """Report progress."""
        for percentage in (0, 50, 100):
            ask.progress(f"{percentage} of 100", percentage)
            await asyncio.sleep(0.05)
        return "Progress was reported."

    @method
    async def test_tool_with_logging(self, ask: Ask) -> str:
        """Write to the log."""
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            ask.log(line)
            await asyncio.sleep(0.05)
        return "It was logged."

    @method
    async def test_logging_tool(self, ask: Ask) -> str:
        """Write to the log, for those who want to hear it."""
        ask.log("This is only for those who ask for it")
        return "It was logged."

    @method(description="Tool with JSON Schema 2020-12 features", input_schema=JSON_SCHEMA)
    async def json_schema_2020_12_tool(
        self,
        name: str = "",
        address: dict[str, str] | None = None,
        contactMethod: str = "email",  # noqa: N803  as the suite spells it
        phone: str = "",
        email: str = "",
    ) -> str:
        """Take what the schema describes."""
        return f"{name} is reached by {contactMethod}"

    @method
    async def test_custom_header(
        self, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]
    ) -> str:
        """Take an argument that is repeated in a header."""
        return f"In {region}"

    # --- asking ------------------------------------------------------------------------------

    @method
    async def test_sampling(self, prompt: str, ask: Ask) -> str:
        """Ask the client's model."""
        return f"LLM response: {(await ask.sample(prompt, max_tokens=100)).text}"

    @method
    async def test_elicitation(self, message: str, ask: Ask) -> str:
        """Ask the person for a name and an address."""
        user = await ask.form(User, message)
        return f"User response: {user.model_dump_json()}"

    @method
    async def test_elicitation_sep1034_defaults(self, ask: Ask) -> str:
        """Ask with defaults."""
        return f"Elicitation completed: {(await ask.form(Defaults, 'Please check')).model_dump_json()}"

    @method
    async def test_elicitation_sep1330_enums(self, ask: Ask) -> str:
        """Ask for choices."""
        return f"Elicitation completed: {(await ask.form(Enums, 'Please choose')).model_dump_json()}"

    @method(requires=["sampling"])
    async def test_missing_capability(self) -> str:
        """Need a client with a model."""
        return "The client has a model."

    @method
    async def test_streaming_elicitation(self, ask: Ask) -> str:
        """Report progress, then ask."""
        ask.progress("About to ask", 50)
        return f"Hello, {(await ask.form(Name, 'What is your name?')).name}!"

    @method
    async def test_input_required_result_elicitation(self, ask: Ask) -> str:
        """Ask for a name."""
        return f"Hello, {(await ask.form(Name, 'What is your name?', key='user_name')).name}!"

    @method
    async def test_input_required_result_sampling(self, ask: Ask) -> str:
        """Ask the client's model."""
        question = ask.sample("What is the capital of France?", max_tokens=100, key="capital_question")
        return (await question).text

    @method
    async def test_input_required_result_list_roots(self, ask: Ask) -> str:
        """Ask for the client's folders."""
        roots = await ask.roots(key="client_roots")
        return f"Roots: {', '.join(root.uri for root in roots)}"

    @method
    async def test_input_required_result_request_state(self, ask: Ask) -> str:
        """Ask, and go on with what was known before."""
        answer = await ask.form(Ok, "Please confirm", key="confirm")
        return f"state-ok: {answer.ok}"

    @method
    async def test_input_required_result_multiple_inputs(self, ask: Ask) -> str:
        """Ask three things at once."""
        name, greeting, roots = await ask.all(
            ask.form(Name, "What is your name?", key="user_name"),
            ask.sample("Generate a greeting", max_tokens=50, key="greeting"),
            ask.roots(key="client_roots"),
        )
        return f"{greeting.text} {name.name}, {len(roots)} roots"

    @method
    async def test_input_required_result_multi_round(self, ask: Ask) -> str:
        """Ask twice."""
        name = await ask.form(Name, "Step 1: What is your name?", key="step1")
        color = await ask.form(Color, "Step 2: What is your favorite color?", key="step2")
        return f"{name.name} likes {color.color}"

    @method
    async def test_input_required_result_tampered_state(self, ask: Ask) -> str:
        """Ask, and take only what was sealed."""
        return f"Confirmed: {(await ask.form(Ok, 'Please confirm', key='confirm')).ok}"

    @method
    async def test_input_required_result_capabilities(self, ask: Ask) -> str:
        """Ask whoever can be asked: the person, or else the model."""
        if "form" in ask.supported:
            return (await ask.form(Name, "What is your name?", key="user_name")).name
        return (await ask.sample("Make up a name", max_tokens=50, key="made_up")).text

    # --- changes -----------------------------------------------------------------------------

    @method
    async def test_trigger_tool_change(self) -> str:
        """Add a tool, or take it away again."""
        self._extra_tool = _toggled(self._extra_tool, ExtraTool())
        return "The tools have changed."

    @method
    async def test_trigger_prompt_change(self) -> str:
        """Add a prompt, or take it away again."""
        self._extra_prompt = _toggled(self._extra_prompt, ExtraPrompt())
        return "The prompts have changed."

    @method
    async def test_reconnection(self) -> str:
        """Let the client come back for the result."""
        await asyncio.sleep(0.1)
        return "Reconnection test completed successfully."

    # --- tasks -------------------------------------------------------------------------------

    @method
    async def greet(self, name: str) -> str:
        """Greet somebody at once."""
        return f"Hello, {name}!"

    @method(long_running=True)
    async def slow_compute(self, seconds: float, label: str = "") -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return f"{label} is done after {seconds} s"

    @method(long_running=True, requires=["tasks"])
    async def failing_job(self) -> str:
        """Fail after a while."""
        await asyncio.sleep(1)
        raise ToolError("The job has failed")

    @method(long_running=True)
    async def protocol_error_job(self) -> str:
        """Fail with an error of the protocol."""
        await asyncio.sleep(0.1)
        raise ProtocolError("Something is wrong with the server")

    @method(long_running=True)
    async def confirm_delete(self, filename: str, ask: Ask) -> str:
        """Ask before deleting."""
        answer = await ask.form(Confirmation, f"Delete {filename}?")
        return f"{filename} {'is deleted' if answer.confirm else 'stays'}"

    @method(long_running=True)
    async def multi_input(self, ask: Ask) -> str:
        """Ask two things at once."""
        one, two = await ask.all(ask.form(Confirmation, "First?"), ask.form(Confirmation, "Second?"))
        return f"{one.name} and {two.name}"

    @method(requires=["tasks"])
    async def test_tool_with_task(self, ask: Ask) -> str:
        """Ask, and then go on as a task."""
        name = (await ask.form(Name, "What is your name?", key="user_name")).name
        ask.background()
        await asyncio.sleep(0.2)
        return f"Done for {name}"

    # --- resources ---------------------------------------------------------------------------

    @resource("test://static-text", name="Static text", mime_type="text/plain")
    async def static_text(self) -> str:
        """A text that stays the same."""
        return "This is the content of the static text resource."

    @resource("test://static-binary", name="Static binary", mime_type="image/png")
    async def static_binary(self) -> bytes:
        """A picture that stays the same."""
        return PNG

    @resource("test://watched-resource", name="Watched resource", mime_type="text/plain")
    async def watched(self) -> str:
        """A text that can be watched."""
        return "This can be watched."

    @resource("test://template/{id}/data", name="Template", mime_type="application/json")
    async def template(self, id: str) -> dict[str, Any]:
        """Data for an id."""
        return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}

    # --- prompts -----------------------------------------------------------------------------

    @prompt
    async def test_simple_prompt(self) -> str:
        """A prompt without arguments."""
        return "This is a simple prompt for testing."

    @prompt
    async def test_prompt_with_arguments(self, arg1: str, arg2: str) -> str:
        """A prompt with arguments.

        Args:
            arg1: First test argument
            arg2: Second test argument
        """
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @completion("test_prompt_with_arguments", "arg1")
    async def complete_arg1(self, value: str) -> list[str]:
        """Suggest values."""
        return [word for word in ("test", "testing", "tested") if word.startswith(value)]

    @prompt
    async def test_prompt_with_embedded_resource(self, resourceUri: str) -> list[Any]:  # noqa: N803
        """A prompt about a resource."""
        document = Document(resourceUri, "text/plain", text="Embedded resource content for testing.")
        return [Embedded(document), "Please process the embedded resource above."]

    @prompt
    async def test_prompt_with_image(self) -> list[Any]:
        """A prompt about a picture."""
        return [Image(PNG), "Please analyze the image above."]

    @prompt
    async def test_input_required_result_prompt(self, ask: Ask) -> str:
        """A prompt that asks what it is about."""
        question = "What context should the prompt use?"
        return f"Use this: {(await ask.form(PromptContext, question, key='user_context')).context}"


class ExtraTool:
    """A tool that comes and goes."""

    namespace = ""

    @method
    async def test_extra_tool(self) -> str:
        """Is here now, and may be gone later."""
        return "here"


class ExtraPrompt:
    """A prompt that comes and goes."""

    namespace = ""

    @prompt
    async def test_extra_prompt(self) -> str:
        """Is here now, and may be gone later."""
        return "here"


def _toggled(present: object | None, absent: object) -> object | None:
    if present is not None:
        hub.unregister(present)
        return None
    hub.register(absent)
    return absent


hub = Hub("midcall-conformance").register(Tools()).with_extension(McpExtension())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        from midcall.transports.stdio import serve_stdio  # noqa: PLC0415

        asyncio.run(serve_stdio(hub, raw=False))
    else:
        from midcall.transports.http_server import server  # noqa: PLC0415

        asyncio.run(server(hub, port=options.port, log_level="warning").serve())


if __name__ == "__main__":
    main()
