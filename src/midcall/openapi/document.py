"""An OpenAPI document: where it comes from, what its references mean, and its schemas as JSON Schema 2020-12.

References lead to places in the same document only, and may be rings: a schema that is used becomes a
definition, which others refer to, so that nothing is ever unrolled. Knows nothing of operations.
"""

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from midcall.errors import RegistrationError
from midcall.http.message import HttpError, HttpUrl

MAX_DOCUMENT = 16 * 1024 * 1024
"""Bytes of a document."""
MAX_NODES = 1_000_000
"""Values in a document, each counted as often as an alias of YAML repeats it."""
MAX_DEPTH = 100
MAX_USED = 100_000
"""How many definitions the schemas of all operations have together."""
FETCHING = 30.0
"""Seconds in which a document at a URL has to come."""

_MAX_CHAIN = 50
_VERSION = re.compile(r"3\.[01]\.\d+")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples", "required", "type"})
_DROPPED = frozenset({"discriminator", "xml", "externalDocs", "nullable", "example", "$schema", "$comment"})

Source = Mapping[str, Any] | str | os.PathLike[str]
Use = Literal["request", "response"]
"""What a schema is for: what is only to be read is not sent, and what is only to be written does not come."""


class _Definition(NamedTuple):
    schema: Any
    refers: frozenset[str]


class ApiDocument:
    """A document that was read. Get it from `load`."""

    def __init__(self, root: dict[str, Any], place: str, url: HttpUrl | None) -> None:
        version = root.get("openapi")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            said = f"swagger {root['swagger']}" if "swagger" in root else f"openapi {version!r}"
            raise RegistrationError(f"{place} is not OpenAPI 3.0 or 3.1: it says {said}")
        self.root = root
        self.place = place
        """How messages name it."""
        self.url = url
        """Where it was fetched, if it was."""
        self._old = version.startswith("3.0")
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._used = 0
        self._definitions: dict[tuple[str, Use], _Definition] = {}

    def part(self, key: str) -> dict[str, Any]:
        """An object of the root, empty if there is none."""
        found = self.root.get(key)
        return found if isinstance(found, dict) else {}

    def followed(self, value: Any) -> dict[str, Any]:
        """An object, or the one that it refers to. Raises `RegistrationError`."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(value, dict):
                raise RegistrationError(f"{self.place}: {_shown(value)} stands where an object belongs")
            if not isinstance(value.get("$ref"), str):
                return value
            value = self._at(value["$ref"])
        raise RegistrationError(f"{self.place}: references do not end")

    def _at(self, reference: str) -> Any:
        """What is at a place of this document."""
        whole, _, path = reference.partition("#")
        if whole or path[:1] != "/":
            raise RegistrationError(
                f"{self.place} refers to {_shown(reference)}: only places in the same document are followed"
            )
        found: Any = self.root
        for name in path.split("/")[1:]:
            name = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise RegistrationError(f"{self.place} refers to {_shown(reference)}, which is not there")
        return found

    # --- schemas -----------------------------------------------------------------------------

    def schemas(
        self, schemas: Iterable[Any], use: Use
    ) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """Schemas as JSON Schema has them, and the definitions that they refer to, for the root.

        Raises `RegistrationError` for a reference that leads nowhere, or elsewhere.
        """
        refers: set[str] = set()
        made = [self._converted(one, use, refers) for one in schemas]
        defined: dict[str, dict[str, Any]] = {}
        waiting = list(refers)
        while waiting:
            reference = waiting.pop()
            name = self._name(reference)
            if name not in defined:
                found = self._definition(reference, use)
                defined[name] = found.schema
                waiting += found.refers
        self._used += len(defined)
        if self._used > MAX_USED:
            raise RegistrationError(
                f"{self.place} is too large with all that its operations refer to: choose some with `only`"
            )
        return made, dict(sorted(defined.items()))

    def _definition(self, reference: str, use: Use) -> _Definition:
        found = self._definitions.get((reference, use))
        if found is None:
            refers: set[str] = set()
            schema = self._converted(self._at(reference), use, refers)
            found = self._definitions[reference, use] = _Definition(schema, frozenset(refers))
        return found

    def _name(self, reference: str) -> str:
        """What a definition is called: as in the document, and as no other one."""
        if reference not in self._names:
            plain = _UNUSUAL.sub("_", unquote(reference.rpartition("/")[2])) or "schema"
            number = self._counts[plain] = self._counts.get(plain, 0) + 1
            self._names[reference] = plain if number == 1 else f"{plain}__{number}"
        return self._names[reference]

    def _converted(self, schema: Any, use: Use, refers: set[str]) -> dict[str, Any]:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, dict):
            raise RegistrationError(f"{self.place}: {_shown(schema)} stands where a schema belongs")
        reference = schema.get("$ref")
        if isinstance(reference, str):
            refers.add(reference)
            self._at(reference)
            beside = {} if self._old else {k: v for k, v in schema.items() if k != "$ref"}
            return {**self._converted(beside, use, refers), "$ref": f"#/$defs/{self._name(reference)}"}
        made: dict[str, Any] = {}
        for key, one in schema.items():
            if key in _DROPPED or key.startswith("x-"):
                continue
            if key in _BY_NAME and isinstance(one, dict):
                made[key] = {name: self._converted(inner, use, refers) for name, inner in one.items()}
            elif key in _VALUES:
                made[key] = one
            elif isinstance(one, dict):
                made[key] = self._converted(one, use, refers)
            elif isinstance(one, list) and key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                made[key] = [self._converted(inner, use, refers) for inner in one]
            else:
                made[key] = one
        if "example" in schema and "examples" not in made:
            made["examples"] = [schema["example"]]
        self._leave_out(schema, made, use)
        return _modern(schema, made) if self._old else made

    def _leave_out(self, schema: dict[str, Any], made: dict[str, Any], use: Use) -> None:
        """Without the properties that are not for this use."""
        mark = "readOnly" if use == "request" else "writeOnly"
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        gone = {name for name, one in properties.items() if isinstance(one, dict) and one.get(mark) is True}
        if gone:
            made["properties"] = {name: one for name, one in made["properties"].items() if name not in gone}
            if isinstance(made.get("required"), list):
                made["required"] = [name for name in made["required"] if name not in gone]


def _modern(schema: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 says in words of its own, as JSON Schema says it since."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and bound in made:
            made[exclusive] = made.pop(bound)
    if schema.get("nullable") is not True:
        return made
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    if isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        return made
    said: dict[str, Any] = {key: made.pop(key) for key in ("title", "description", "default") if key in made}
    return {**said, "anyOf": [made, {"type": "null"}]} if made else said


# --- reading ------------------------------------------------------------------------------------


def load(source: Source) -> ApiDocument:
    """The document at a URL or in a file, or one that was read already. Raises `RegistrationError`."""
    if isinstance(source, Mapping):
        return _read("The OpenAPI document", None, source)
    text = os.fspath(source)
    if text.startswith(("http://", "https://")):
        try:
            url = HttpUrl(text)
            return _read(str(url), url, _parsed(_fetched(url), str(url)))
        except HttpError as error:
            raise RegistrationError(f"The OpenAPI document cannot be fetched: {error}") from None
    if "://" in text:
        raise RegistrationError(f"{text!r} is not an OpenAPI document: give http://, https://, or a file")
    try:
        with Path(text).open("rb") as file:
            content = file.read(MAX_DOCUMENT + 1)
    except (OSError, ValueError) as error:
        raise RegistrationError(f"The OpenAPI document cannot be read: {error}") from None
    if len(content) > MAX_DOCUMENT:
        raise RegistrationError(f"{text} has more than {MAX_DOCUMENT} bytes")
    return _read(text, None, _parsed(content, text))


def _fetched(url: HttpUrl) -> bytes:
    """What is at a URL. In a thread of its own, as there may be an event loop in this one."""
    import asyncio  # noqa: PLC0415  only for documents at a URL
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  as above

    from midcall.http.client import HttpClient  # noqa: PLC0415  aiohttp takes a while

    async def fetch() -> bytes:
        async with HttpClient() as client:
            response = await client.request("GET", url, timeout=FETCHING, follow=True)
            content = await response.read(MAX_DOCUMENT)
            if response.status != 200 or response.url.origin != url.origin:
                raise HttpError(f"{response.url} answered with {response.status}", sent=True)
            return content

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(fetch())).result()


def _parsed(content: bytes, place: str) -> Any:
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise RegistrationError(f"{place} is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        if content.lstrip()[:1] == b"{":
            raise RegistrationError(f"{place} is not JSON: {error}") from None
    try:
        import yaml  # noqa: PLC0415  an extra
    except ImportError:
        raise RegistrationError(f"{place} is not JSON; for YAML, `pip install 'midcall[yaml]'`") from None
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class BoundedLoader(loader):  # type: ignore[misc]
        """Merges of merges (`<<`) multiply before there are values that could be counted."""

        merged = 0

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            self.merged += len(node.value)
            if self.merged > MAX_NODES:
                raise RegistrationError(f"{place} has too many values")

    try:
        return yaml.load(content, BoundedLoader)  # noqa: S506  both are safe
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise RegistrationError(f"{place} is neither JSON nor YAML: {said}") from None


def _read(place: str, url: HttpUrl | None, value: Any) -> ApiDocument:
    root = _JsonValues(place).of(value, 0)
    if not isinstance(root, dict):
        raise RegistrationError(f"{place} is not an OpenAPI document: it is not an object")
    return ApiDocument(root, place, url)


class _JsonValues:
    """Makes values plain JSON, and counts them."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._left = MAX_NODES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            why = "has too many values" if self._left < 0 else "is nested too deeply"
            raise RegistrationError(f"{self._place} {why}")
        match value:
            case Mapping():
                return {str(key): self.of(one, depth + 1) for key, one in value.items()}
            case list() | tuple():
                return [self.of(one, depth + 1) for one in value]
            case None | str() | bool() | int() | float():
                return value
            case dt.date():  # YAML reads what looks like one
                return value.isoformat()
        raise RegistrationError(f"{self._place}: a {type(value).__name__} cannot be represented in JSON")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
