"""Catalog: what a hub offers, as MCP lists it: tools, resources, templates and prompts.

Made once after each change of the hub. The order is the order of registration, and stays the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from midcall.activation import PART, PERSON_ONLY, TAGS, Activation, Method, RemoteMethod
from midcall.hub import Hub
from midcall.json_schema import inlined, joined, without_null
from midcall.registry import Resolved

_EXPRESSION = re.compile(r"\{[^{}]*\}")


# --- templates of URIs ------------------------------------------------------------------------------------
#
# A URI is a stranger's, so that nothing here ever goes back: each text of a template is looked for once, from
# where the one before it was found.


class Parts:
    """A template of this hub: `notes://{folder}/{name}`. A part has no slash, and is not empty.

    Parts are given as text, without percent-encoding; one with a slash in it then is no part either.
    Where a URI can be parted in several ways, the first part is as long as can be, then the second.
    """

    __slots__ = ("_segments", "names")

    def __init__(self, template: str) -> None:
        self.names = PART.findall(template)
        # As no part has a slash, each slash of a URI is one of the template.
        self._segments = [PART.split(segment)[::2] for segment in template.split("/")]

    def match(self, uri: str) -> dict[str, str] | None:
        """The parts of the URI by their names, if it fits."""
        segments = uri.split("/")
        if len(segments) != len(self._segments):
            return None
        values: list[str] = []
        for texts, segment in zip(self._segments, segments, strict=True):
            found = _between(texts, segment, 1)
            if found is None:
                return None
            values += found
        try:
            values = [unquote(value, errors="strict") for value in values]
        except UnicodeDecodeError:
            return None
        if any("/" in value for value in values):
            return None
        parts = dict(zip(self.names, values, strict=True))
        agree = all(parts[name] == value for name, value in zip(self.names, values, strict=True))
        return parts if agree else None  # a name may stand twice


def _between(texts: list[str], uri: str, least: int) -> list[str] | None:
    """What stands between these texts, `least` characters each; each text is looked for from the end."""
    first, *others = texts
    if not others:
        return [] if uri == first else None
    start, end = len(first), len(uri) - len(others[-1])
    if not uri.startswith(first) or not uri.endswith(others[-1]) or end < start + least:
        return None
    values = []
    for text in reversed(others[:-1]):
        at = uri.rfind(text, start + least, max(start, end - least))
        if at < 0:
            return None
        values.append(uri[at + len(text) : end])
        end = at
    values.append(uri[start:end])
    return values[::-1]


class AnyText:
    """A template of another server, as RFC 6570 has them, which only has to lead there: any text fits, also
    none, where it has an expression."""

    __slots__ = ("_texts",)

    def __init__(self, template: str) -> None:
        self._texts = _EXPRESSION.split(template)

    def match(self, uri: str) -> dict[str, str] | None:
        """The URI itself, if it fits."""
        return None if _between(self._texts, uri, 0) is None else {"uri": uri}


def _comparable(uri: str) -> str:
    """A URI as any server may read it, for whether it is another way to write one that is left out."""
    shown = "".join(letter for letter in unquote(uri) if letter.isprintable()).strip()
    scheme, _, rest = shown.partition(":")
    segments: list[str] = []
    for segment in rest.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    return f"{scheme.lower()}:{'/'.join(segments).rstrip('/')}"


# --- what a hub offers ----------------------------------------------------------------------------------


class Tool(NamedTuple):
    """A method, and how it is listed."""

    found: Resolved
    shown: dict[str, Any]
    plain: bool
    """Whether it neither asks nor streams nor runs long: all that goes back is its result."""
    requires: tuple[str, ...]
    structured: Literal["", "object", "wrapped"]
    """How its result goes out as structured content too: as it is, as `{"result": ...}`, or not at all."""
    headers: tuple[tuple[tuple[str, ...], str], ...]
    """Which arguments are mirrored into HTTP headers: the path of each, and the header's name."""
    remote: RemoteMethod | None = None
    """If another server runs it."""


class Readable(NamedTuple):
    """A resource or a template, and how it is listed."""

    uri: str
    found: Resolved
    shown: dict[str, Any]
    template: Parts | AnyText
    """Gives the arguments for reading a URI, if it fits: its parts, or for a server behind the whole."""
    subscribed: Callable[[str, str | None], None] | None = None
    """Is told who subscribes to it."""


class Template(NamedTuple):
    """A prompt, and how it is listed."""

    found: Resolved
    shown: dict[str, Any]
    given: Mapping[str, str] = {}
    """Arguments that its name says."""


class Lister(NamedTuple):
    """What lists the resources, or the prompts, of a template."""

    found: Resolved
    prefix: str
    """What the names of prompts begin with."""
    needs: Mapping[str, Any]
    """Its scopes and those of what it lists, as `principal.missing_scopes` reads them."""


class Completer(NamedTuple):
    """What suggests values for an argument."""

    found: Resolved
    needs: dict[str, Any]
    """Its scopes and those of what it completes, as `principal.check_scopes` reads them."""


class Catalog:
    """All that a hub offers."""

    def __init__(self, hub: Hub) -> None:
        self.tools = {name: tool_of(hub.resolve(name)) for name, _ in hub.methods()}
        self.resources: dict[str, Readable] = {}
        self.templates: list[Readable] = []
        self.prompts: dict[str, Template] = {}
        self.completers: dict[tuple[str, str], Completer] = {}
        self.listers: dict[str, list[Lister]] = {"resources": [], "prompts": []}
        """What has more to list than is known beforehand."""
        self._named: list[Template] = []
        """Prompts with a part in their name."""
        self._others: list[Readable] = []
        """Servers behind, which may have more than they list."""
        uris, self._prompts_left_out = hub.left_out()
        self._uris_left_out = {_comparable(uri) for uri in uris}
        """What no template stands for either."""
        completions: list[tuple[str, Method, tuple[str, ...]]] = []
        for namespace, activation in hub.activations():
            provenance = (hub.name, *([namespace] if namespace else ()))
            prefix = f"{namespace}." if namespace else ""
            for method in activation.resources:
                readable = _readable(method, provenance, prefix)._replace(
                    subscribed=getattr(activation.source, "subscribed", None)
                )
                if "uriTemplate" in readable.shown:
                    self.templates.append(readable)
                elif not isinstance(method, RemoteMethod) or readable.uri not in self.resources:
                    self.resources[readable.uri] = readable
            for name, method in activation.prompts.items():
                if not isinstance(method, RemoteMethod) and PART.search(name):
                    self._named.append(Template(Resolved(prefix + name, method, provenance), {}))
                elif not isinstance(method, RemoteMethod) or prefix + name not in self.prompts:
                    self.prompts[prefix + name] = _template(Resolved(prefix + name, method, provenance))
            if activation.reader is not None:
                found = Resolved(namespace or "resource", activation.reader, provenance)
                self._others.append(Readable("", found, {}, AnyText("{+uri}")))
            completions += [(prefix, method, provenance) for method in activation.completions]
            self._add_listers(activation, prefix, provenance)
        for prefix, method, provenance in completions:  # now that everything is there to be completed
            self._add_completer(prefix, method, provenance)

    def _add_listers(self, activation: Activation, prefix: str, provenance: tuple[str, ...]) -> None:
        listed = {method.extras["uri"]: ("resources", method) for method in activation.resources}
        listed |= {name: ("prompts", method) for name, method in activation.prompts.items()}
        for method in activation.listings:
            part, template = listed[method.extras["of"]]
            scopes = dict.fromkeys(s for one in (method, template) for s in one.extras.get("scopes", ()))
            found = Resolved(prefix + method.name, method, provenance)
            self.listers[part].append(Lister(found, prefix, {"scopes": tuple(scopes)}))

    def prompt(self, name: str) -> Template | None:
        """A prompt by its name."""
        is_elsewhere = name in self.prompts or name in self._prompts_left_out
        for one in () if is_elsewhere else self._named:
            names, texts = PART.findall(one.found.name), PART.split(one.found.name)[::2]
            values = _between(texts, name, 1)
            if values is not None:
                given = dict(zip(names, values, strict=True))
                return Template(one.found._replace(name=name), {"name": name}, given)
        return self.prompts.get(name)

    def _add_completer(self, prefix: str, method: Method, provenance: tuple[str, ...]) -> None:
        """A completion is there for those who may use what it completes, and not if that is not there."""
        of, argument = method.extras["of"], method.extras["argument"]
        prompts = [self.prompts.get(prefix + of), self.prompts.get(of), *self._named]
        readable = (*self.templates, *self.resources.values())
        completed = [one.found for one in prompts if one is not None and one.found.name in (prefix + of, of)]
        completed += [one.found for one in readable if one.uri == of]
        if not completed and not isinstance(method, RemoteMethod):
            return
        methods = [method, *(one.method for one in completed)]
        scopes = dict.fromkeys(scope for one in methods for scope in one.extras.get("scopes", ()))
        completer = Completer(Resolved(of, method, provenance), {"scopes": tuple(scopes)})
        if isinstance(method, RemoteMethod):
            self.completers.setdefault((of, argument), completer)
        else:
            self.completers[of, argument] = completer
        self.completers.setdefault((prefix + of, argument), completer)

    def completer(self, of: str, argument: str) -> Completer | None:
        """What suggests values for an argument; a server behind does so for all of them."""
        return self.completers.get((of, argument)) or self.completers.get((of, ""))

    def is_left_out(self, part: str, shown: Mapping[str, Any]) -> bool:
        """Whether an item of a list, as a `@listing` gives it, is one that is left out."""
        if part == "prompts":
            return shown.get("name") in self._prompts_left_out
        return self._has_left_out(str(shown.get("uri")))

    def _has_left_out(self, uri: str) -> bool:
        whole = uri.partition("#")[0].removesuffix("?")
        return bool(self._uris_left_out) and not self._uris_left_out.isdisjoint(
            map(_comparable, (uri, whole))
        )

    def changed_since(self, before: "Catalog") -> list[str]:
        """Which of `tools`, `prompts` and `resources` are listed otherwise than before."""
        return [part for part, shown in self._lists().items() if shown != before._lists()[part]]

    def _lists(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "tools": [tool.shown for tool in self.tools.values()],
            "prompts": [prompt.shown for prompt in self.prompts.values()],
            "resources": [one.shown for one in (*self.resources.values(), *self.templates)],
        }

    def find(self, uri: str) -> tuple[Readable, dict[str, str]] | None:
        """What is read at this URI, and with which arguments."""
        exact = self.resources.get(uri)
        if exact is None and self._has_left_out(uri):
            return None
        for readable in (exact, *self.templates) if exact is not None else self.templates:
            parts = readable.template.match(uri)
            if parts is not None:
                return readable, parts
        return self._elsewhere(uri)

    def _elsewhere(self, uri: str) -> tuple[Readable, dict[str, str]] | None:
        """A server behind that may have what nobody lists: the only one, or one with URIs of this kind."""
        if not self._others:
            return None
        found = self._others
        if len(found) > 1:
            scheme = uri.partition(":")[0] + ":"
            listed = (*self.resources.values(), *self.templates)
            places = {one.found.provenance for one in listed if one.uri.startswith(scheme)}
            found = [one for one in found if one.found.provenance in places]
        return (found[0], {"uri": uri}) if found else None


def tool_of(found: Resolved) -> Tool:
    """A method as a tool."""
    name, method, _ = found
    if isinstance(method, RemoteMethod):
        shown = {**method.listed, "name": name}
        return Tool(found, shown, False, (), "", tuple(_headers(method.params)), method)
    schema = dict(method.extras.get("input_schema") or {"type": "object", **method.params})
    shown = {"name": name, "description": method.description, "inputSchema": schema, **_common(method)}
    structured: Literal["", "object", "wrapped"] = ""
    if method.output is not None:
        shown["outputSchema"] = output = inlined(method.output)
        structured = "object"
        if output.get("type") != "object":
            shown["outputSchema"] = _wrapped(output)
            structured = "wrapped"
    plain = not (method.interactive or method.streaming or method.extras.get("long_running"))
    requires = tuple(method.extras.get("requires", ()))
    return Tool(found, shown, plain, requires, structured, tuple(_headers(schema)))


def for_legacy(shown: dict[str, Any]) -> dict[str, Any]:
    """A tool as a legacy client may see it: results of a tool are objects there, or have no schema."""
    output = shown.get("outputSchema")
    if output is None or (isinstance(output, dict) and output.get("type") == "object"):
        return shown
    return {key: value for key, value in shown.items() if key != "outputSchema"}


def _headers(schema: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    waiting: list[tuple[Any, tuple[str, ...]]] = [(schema, ())]
    while waiting:  # a schema of another server may be nested more deeply than calls can be
        one, path = waiting.pop()
        if path and "x-mcp-header" in one:
            yield path, str(one["x-mcp-header"])
        properties = one.get("properties")
        inner = properties.items() if isinstance(properties, dict) else ()
        waiting += [(schema, (*path, name)) for name, schema in inner if isinstance(schema, dict)][::-1]


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of `{"result": ...}`, as what is no object is sent: MCP wants objects.

    The mark has FastMCP's client give the value without the wrapping.
    """
    (part,), definitions = joined([schema])
    named = {"$defs": definitions} if definitions else {}
    whole = {"type": "object", "properties": {"result": part}, "required": ["result"], **named}
    return {**whole, "x-fastmcp-wrap-result": True}


def _readable(method: Method, provenance: tuple[str, ...], prefix: str) -> Readable:
    uri: str = method.extras["uri"]
    if isinstance(method, RemoteMethod):
        listed = method.listed
        return Readable(uri, Resolved(listed["name"], method, provenance), listed, AnyText(uri))
    found = Resolved(prefix + method.name, method, provenance)
    template = Parts(uri)
    shown = {"name": found.name, "description": method.description, **_common(method)}
    shown["uriTemplate" if template.names else "uri"] = uri
    if "mime_type" in method.extras:
        shown["mimeType"] = method.extras["mime_type"]
    return Readable(uri, found, shown, template)


def _template(found: Resolved) -> Template:
    name, method, _ = found
    if isinstance(method, RemoteMethod):
        return Template(found, {**method.listed, "name": name})
    required = method.params.get("required", [])
    arguments = [
        {"name": one, "required": one in required}
        | ({"description": about} if (about := _about(schema, method.params)) else {})
        for one, schema in method.params["properties"].items()
    ]
    shown = {"name": name, "description": method.description, **_common(method)}
    if arguments:
        shown["arguments"] = arguments
    return Template(found, shown)


def _about(schema: dict[str, Any], root: dict[str, Any]) -> str:
    """What is said of an argument of a prompt, which comes as text."""
    description: str = schema.get("description", "")
    kind = without_null(schema, root)[0].get("type")
    if kind not in ("array", "object"):
        return description
    return f"{description} (a JSON {kind})" if description else f"a JSON {kind}"


def _common(method: Method) -> dict[str, Any]:
    extras = method.extras
    shown = {key: extras[key] for key in ("title", "annotations", "icons") if key in extras}
    meta = {**extras.get("meta", {}), **({PERSON_ONLY: True} if extras.get("person_only") else {})}
    if method.tags:
        tags = list(method.tags)
        meta = {"fastmcp": {"tags": tags}, **meta, TAGS: tags}  # the first is where FastMCP's client looks
    return {**shown, "_meta": meta} if meta else shown
