"""Operations: what can be called of an OpenAPI document, as plain values with JSON Schemas.

All parameters of an operation, wherever they go in its request, are the properties of one object, and so are
the properties of a body that is a plain object; any other body is the property `body`. What cannot be sent is
left out with a reason.
"""

import hashlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from midcall.errors import RegistrationError
from midcall.http.message import HttpError, HttpUrl
from midcall.json_schema import compiled
from midcall.openapi.document import ApiDocument
from midcall.selection import Selectable, readable_tags

MAX_OPERATIONS = 2000
MAX_NAME = 64
MAX_DESCRIPTION = 10_000

SAFE = frozenset({"GET"})
VERBS = ("get", "put", "post", "delete", "patch")
"""Those of operations that become methods: the others say nothing of their own."""

IDEMPOTENCY = "idempotency-key"

_TEMPLATE = re.compile(r"\{([^{}/]+)\}")
_BAD_PATH = re.compile(r"[\s?#\\\x00-\x1f\x7f]")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")
_JSON = re.compile(r"application/([\w.+-]+\+)?json")
_FORM = "application/x-www-form-urlencoded"
_TEXT = "text/plain"
_RESERVED = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie",
     "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "x-http-method", "x-http-method-override", "x-method-override"}
)  # fmt: skip
"""Headers that no caller gives: they would change the request, or whose it is."""
_STYLES = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_PLAIN_OBJECT = frozenset(
    {"type", "properties", "required", "title", "description", "examples", "additionalProperties"}
)
_ASIDE = frozenset({"allOf", "example", "xml", "externalDocs"})

log = logging.getLogger("midcall.openapi")

Location = Literal["path", "query", "header", "cookie"]


class Parameter(Struct, frozen=True):
    """Where an argument goes in the request."""

    argument: str
    name: str
    location: Location
    style: str = "form"
    explode: bool = True
    as_json: bool = False

    @property
    def spreads(self) -> bool:
        """Whether the keys of an object are names of their own in the request."""
        return self.location in ("query", "cookie") and self.explode and not self.as_json


class Body(Struct, frozen=True):
    """How a body is made: of one argument, or of several by the names of their properties."""

    media: str
    argument: str | None = None
    properties: Mapping[str, str] = {}
    required: bool = False


class Operation(Struct, frozen=True):
    """One operation, and how it is called."""

    name: str
    verb: str
    path: str
    title: str
    description: str
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    body: Body | None
    params: dict[str, Any]
    returns: dict[str, Any] | None
    takes_key: bool
    """Whether it takes an `Idempotency-Key`, which is not the caller's to give."""
    given: frozenset[str] = frozenset()
    """Names, in lower case, that are not the caller's to give either."""

    @property
    def safe(self) -> bool:
        """Whether it changes nothing, so that it may be sent twice."""
        return self.verb in SAFE


class _LeftOut(Exception):
    """An operation cannot be called; its text says why."""


class _ApiField(NamedTuple):
    schema: Any
    required: bool
    description: str


def base_of(document: ApiDocument, given: str | None) -> HttpUrl:
    """Where requests go. Raises `RegistrationError` if the document leads elsewhere, or nowhere."""
    try:
        if given is not None:
            return HttpUrl(given)
        servers = document.root.get("servers")
        first = servers[0] if isinstance(servers, list) and servers else {"url": "/"}
        said = _server(first)
        if document.url is None:
            if "://" not in said:
                raise RegistrationError(f"{document.place} does not say where its API is: give base_url")
            return HttpUrl(said)
        found = document.url.join(said)
    except HttpError as error:
        raise RegistrationError(f"{document.place}: {error}") from None
    if found.origin != document.url.origin:
        raise RegistrationError(
            f"{document.place} would have requests, and your credentials, sent to {found}: "
            "if that is right, give it as base_url"
        )
    return found


def _server(server: Any) -> str:
    """The URL of a server, with the usual values of its variables."""
    if not isinstance(server, dict) or not isinstance(server.get("url"), str):
        return "/"
    variables = server.get("variables")
    url: str = server["url"]
    for name, one in variables.items() if isinstance(variables, dict) else ():
        value = one.get("default") if isinstance(one, dict) else None
        url = url.replace("{" + name + "}", str(value))
    return url


class OperationReader:
    """Reads the operations of a document."""

    def __init__(
        self, document: ApiDocument, *, given: Collection[str] = (), names: Mapping[str, str] | None = None
    ) -> None:
        """`given` are names of headers and of query parameters that the author sets, in lower case, and
        `names` those that operations get, by their `operationId`, or as in `"GET /pets"`."""
        self._document = document
        self._given = frozenset((*given, *_keys(document)))
        self._names = dict(names or {})

    def listed(self) -> list[tuple[Selectable, dict[str, Any], dict[str, Any]]]:
        """Every operation by name, tags and path, with its path item: nothing else of it is read yet."""
        found: list[tuple[Selectable, dict[str, Any], dict[str, Any]]] = []
        seen: dict[str, str] = {}
        unused = set(self._names)
        for path, item in self._document.part("paths").items():
            item = self._document.followed(item)
            for verb in VERBS:
                if verb not in item:
                    continue
                operation = self._document.followed(item[verb])
                place = f"{verb.upper()} {path}"
                own = operation.get("operationId")
                name = self._names.get(place) or (self._names.get(own) if isinstance(own, str) else None)
                unused -= {place, own}
                name = name or _name(own if isinstance(own, str) else "", verb, path)
                if name in seen:
                    raise RegistrationError(
                        f"{self._document.place}: {seen[name]} and {place} would both be {name!r}: "
                        f'name one of them, as in names={{"{place}": "other"}}'
                    )
                seen[name] = place
                if len(seen) > MAX_OPERATIONS:
                    raise RegistrationError(
                        f"{self._document.place} has more than {MAX_OPERATIONS} operations"
                    )
                tags = tuple(dict.fromkeys(readable_tags(operation.get("tags"))))
                found.append((Selectable(name, tags, place), item, operation))
        if unused:
            raise RegistrationError(
                f"{self._document.place} has no operation {' or '.join(sorted(map(repr, unused)))}"
            )
        return found

    def read(
        self, which: Selectable, item: dict[str, Any], operation: dict[str, Any], *, results: bool
    ) -> Operation | None:
        """An operation with its schemas; nothing if it cannot be called, and the log says why.

        Raises `RegistrationError`, with its name, for what is no OpenAPI.
        """
        try:
            return self._read(which, item, operation, results)
        except _LeftOut as refused:
            log.warning("%s (%s) is left out: %s", which.name, which.other, refused)
            return None
        except (RegistrationError, ValueError) as error:
            raise RegistrationError(f"{which.name} ({which.other}): {error}") from None
        except RecursionError:
            raise RegistrationError(f"{which.name} ({which.other}): nested too deeply") from None

    def _read(
        self, which: Selectable, item: dict[str, Any], operation: dict[str, Any], results: bool
    ) -> Operation:
        verb, _, path = which.other.partition(" ")
        _check_path(path)
        for one in (item, operation):
            if one.get("servers"):
                raise _LeftOut(f"it is at a server of its own, {_server(one['servers'][0])}")
        fields: dict[str, _ApiField] = {}
        parameters = tuple(self._parameters(path, item, operation, fields))
        body = self._body(verb, operation, fields)
        made, defined = self._document.schemas((one.schema for one in fields.values()), "request")
        params: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        for (name, field), schema in zip(fields.items(), made, strict=True):
            said = {"description": field.description} if field.description else {}
            params["properties"][name] = {**schema, **said}
        required = [name for name, field in fields.items() if field.required]
        params |= {"required": required} if required else {}
        params |= {"$defs": defined} if defined else {}
        compiled(params)
        title, text = (_text(operation.get(key)) for key in ("summary", "description"))
        description = "\n\n".join(dict.fromkeys(one for one in (title, text) if one)) or which.other
        names = {one.name.lower() for one in self._declared(item, operation) if one.location == "header"}
        return Operation(
            which.name,
            verb,
            path,
            title,
            description[:MAX_DESCRIPTION],
            tuple(which.tags),
            parameters,
            body,
            params,
            self._returns(which, operation) if results else None,
            IDEMPOTENCY in names,
            self._given,
        )

    # --- parameters --------------------------------------------------------------------------

    def _declared(self, item: dict[str, Any], operation: dict[str, Any]) -> Iterator[Parameter]:
        for _, one in self._declarations(item, operation):
            yield one

    def _declarations(
        self, item: dict[str, Any], operation: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Parameter]]:
        """What the path and the operation declare; the operation's come in the place of the path's."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for one in (item, operation):
            declared = one.get("parameters")
            for parameter in declared if isinstance(declared, list) else ():
                parameter = self._document.followed(parameter)
                name, location = parameter.get("name"), parameter.get("in")
                if not isinstance(name, str) or not name or location not in _STYLES:
                    raise RegistrationError(f"a parameter has no name, or is in {location!r}")
                found[location, name] = parameter
        for (location, name), parameter in found.items():
            style = parameter.get("style", _STYLES[location][0])
            explode = parameter.get("explode", style == "form")
            as_json = "schema" not in parameter and isinstance(parameter.get("content"), dict)
            yield parameter, Parameter(name, name, location, style, explode is True, as_json)  # type: ignore[arg-type]

    def _parameters(
        self, path: str, item: dict[str, Any], operation: dict[str, Any], fields: dict[str, _ApiField]
    ) -> Iterator[Parameter]:
        inside = _TEMPLATE.findall(path)
        declared = list(self._declarations(item, operation))
        known = {one.name for _, one in declared if one.location == "path"}
        declared += [
            ({"schema": {"type": "string"}}, Parameter(name, name, "path", "simple", False))
            for name in inside
            if name not in known
        ]
        for parameter, one in declared:
            lower = one.name.lower()
            if one.location == "path" and one.name not in inside:
                continue
            if one.location == "header" and (lower in _RESERVED or lower == IDEMPOTENCY):
                continue
            if one.location != "path" and lower in self._given:
                continue  # the author gives it
            required = parameter.get("required") is True or one.location == "path"
            if one.style not in _STYLES[one.location]:
                if not required:
                    continue
                raise _LeftOut(f"its parameter {one.name!r} has the style {one.style!r}")
            schema = parameter.get("schema", {})
            if one.as_json:
                media, content = next(iter(parameter["content"].items()), ("", {}))
                if not _JSON.fullmatch(_plain(media)):
                    raise _LeftOut(f"its parameter {one.name!r} is {media}")
                schema = content.get("schema", {}) if isinstance(content, dict) else {}
            argument = _argument(one.name, one.location, fields)
            fields[argument] = _ApiField(schema, required, _text(parameter.get("description")))
            yield Parameter(argument, one.name, one.location, one.style, one.explode, one.as_json)

    # --- bodies ------------------------------------------------------------------------------

    def _body(self, verb: str, operation: dict[str, Any], fields: dict[str, _ApiField]) -> Body | None:
        if "requestBody" not in operation:
            return None
        body = self._document.followed(operation["requestBody"])
        content, required = body.get("content"), body.get("required") is True
        content = content if isinstance(content, dict) else {}
        order = sorted((place, media) for media in content if (place := _preference(media)) is not None)
        if not order:
            if not required and (not content or verb in ("GET", "DELETE")):
                return None  # the others mean little without, though many documents do not require it
            raise _LeftOut(f"its body is {' or '.join(content) or 'of no kind'}")
        media = order[0][1]
        schema = content[media].get("schema", {}) if isinstance(content[media], dict) else {}
        plain = _plain(media)
        description = _text(body.get("description"))
        if plain != _TEXT:
            flat = self._flat(schema, fields)
            if flat is not None:
                names = {}
                for name, (inner, needed) in flat.items():
                    argument = _argument(name, "body", fields)
                    fields[argument] = _ApiField(inner, needed and required, "")
                    names[argument] = name
                return Body(plain, None, names, required)
            if plain == _FORM:
                raise _LeftOut("its body is a form that is no plain object")
        argument = _argument("body", "body", fields)
        fields[argument] = _ApiField(schema, required, description)
        return Body(plain, argument, {}, required)

    def _flat(self, schema: Any, fields: Mapping[str, _ApiField]) -> dict[str, tuple[Any, bool]] | None:
        """The properties of a plain object, and which are required; nothing if it is something else."""
        found: dict[str, tuple[Any, bool]] = {}
        for part in self._merged(schema, 0, set()) or [{}]:
            if not part.keys() <= _PLAIN_OBJECT or part.get("type", "object") != "object":
                return None
            if part.get("additionalProperties", False) is not False:
                return None
            properties, required = part.get("properties", {}), part.get("required", [])
            if not isinstance(properties, dict) or not isinstance(required, list):
                return None
            for name, one in properties.items():
                if name in found or (isinstance(one, dict) and one.get("readOnly") is True):
                    if name in found and found[name][0] != one:
                        return None
                    continue
                found[name] = (one, name in required)
            for name in required:
                if name in found:
                    found[name] = (found[name][0], True)
        if not found or any(_argument(name, "", {}) in fields for name in found):
            return None
        return found

    def _merged(self, schema: Any, depth: int, seen: set[int]) -> list[dict[str, Any]] | None:
        """The objects that a schema asks for all at once, without those that were `seen` already."""
        if not isinstance(schema, dict) or depth > 10:
            return None
        schema = self._document.followed(schema)
        if id(schema) in seen:
            return []
        seen.add(id(schema))
        own = {key: one for key, one in schema.items() if not key.startswith("x-") and key not in _ASIDE}
        parts = [own] if own.keys() - {"title", "description"} or "allOf" not in schema else []
        for one in schema.get("allOf", ()):
            inner = self._merged(one, depth + 1, seen)
            if inner is None:
                return None
            parts += inner
        return parts

    # --- results -----------------------------------------------------------------------------

    def _returns(self, which: Selectable, operation: dict[str, Any]) -> dict[str, Any] | None:
        """The schema of what comes back if all is well; nothing if it may be something else than JSON."""
        responses = operation.get("responses")
        found: list[Any] = []
        for status, response in responses.items() if isinstance(responses, dict) else ():
            if not re.fullmatch(r"2(\d\d|XX)", status):
                continue
            content = self._document.followed(response).get("content")
            if not isinstance(content, dict) or not content:
                schema: Any = {"type": "null"}
            elif not all(_JSON.fullmatch(_plain(media)) for media in content):
                return None
            else:
                first = next(iter(content.values()))
                schema = first.get("schema") if isinstance(first, dict) else None
                if schema is None:
                    return None
            if schema not in found:
                found.append(schema)
        if not found or found == [{"type": "null"}]:
            return None
        made, defined = self._document.schemas(found, "response")
        whole = made[0] if len(made) == 1 else {"anyOf": made}
        whole = {**whole, "$defs": defined} if defined else whole
        try:
            compiled(whole)
        except ValueError as error:
            log.warning("%s (%s) has no output schema: %s", which.name, which.other, error)
            return None
        return whole


def _keys(document: ApiDocument) -> Iterator[str]:
    """The names of headers, cookies and query parameters that carry keys."""
    schemes = document.part("components").get("securitySchemes")
    for one in schemes.values() if isinstance(schemes, dict) else ():
        one = document.followed(one)
        if one.get("type") == "apiKey" and isinstance(one.get("name"), str):
            yield one["name"].lower()


def _name(operation_id: str, verb: str, path: str) -> str:
    """A name by which a method can be called: that of the document, or one that is always the same."""
    words = operation_id or f"{verb} {path}"
    name = _UNUSUAL.sub("_", words).strip("_") or verb
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 9]}_{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    return name


def _argument(name: str, location: str, taken: Mapping[str, Any]) -> str:
    """The name of an argument: models take letters, digits, and a few signs."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:MAX_NAME] or "value"
    made, number = plain, 2
    while made in taken:
        made = f"{plain}_{location}" if number == 2 else f"{plain}_{location}_{number}"
        number += 1
    return made


def _check_path(path: str) -> None:
    fixed = _TEMPLATE.sub("x", path)
    if not path.startswith("/") or _BAD_PATH.search(fixed) or "{" in fixed or "}" in fixed:
        raise RegistrationError(f"{path!r} is not a path")
    if any(part in (".", "..") for part in fixed.replace("%2e", ".").replace("%2E", ".").split("/")):
        raise RegistrationError(f"{path!r} leads out of the API")


def _preference(media: str) -> int | None:
    plain = _plain(media)
    if _JSON.fullmatch(plain):
        return 0 if plain == "application/json" else 1
    return {_FORM: 2, _TEXT: 3}.get(plain)


def _plain(media: Any) -> str:
    return str(media).partition(";")[0].strip().lower()


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
