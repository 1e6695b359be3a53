"""JSON Schema and validation for Python types, on pydantic.

`shape_of(type)` reads one type: its JSON Schema, and a check that gives a typed value. Standard
types, dataclasses, pydantic models and `msgspec.Struct`s may be mixed and nested in annotations.
pydantic is slow to import, so the modules that `import midcall` loads import this one only when a
method or form is first read.
"""

import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonschema_rs
import msgspec
from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_STRUCT_MARK = "x-midcall-struct"

_UNDESCRIBABLE = (PydanticUserError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema)

Mode = Literal["validation", "serialization"]


class Shape:
    """One type: `schema` describes it, `validate` and `validate_json` give values of it."""

    __slots__ = ("schema", "validate", "validate_json")

    def __init__(self, python_type: Any) -> None:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(with_structs(python_type))
            self.schema = json_schema(adapter, "validation")
        except _UNDESCRIBABLE as error:
            raise TypeError(_first_line(error)) from error
        self.validate: Callable[[Any], Any] = _reporting(adapter.validate_python)
        self.validate_json: Callable[[bytes], Any] = adapter.validator.validate_json


_shapes: dict[Any, Shape] = {}


def shape_of(python_type: Any) -> Shape:
    """The shape of a type, made once. Raises `TypeError` for a type that JSON cannot describe."""
    shape = _shapes.get(python_type)
    if shape is None:
        shape = _shapes[python_type] = Shape(python_type)
    return shape


def output_schema(python_type: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a method gives, or `None` where it cannot be said."""
    if python_type is Any or python_type is None or python_type is type(None):
        return None
    try:
        return json_schema(TypeAdapter(with_structs(python_type)), "serialization")
    except _UNDESCRIBABLE:
        return None


def json_schema(adapter: TypeAdapter[Any], mode: Mode) -> dict[str, Any]:
    """The adapter's schema, without generated titles, and with the structs among its `$defs`."""
    schema = adapter.json_schema(mode=mode, schema_generator=_Untitled)
    schema.pop("title", None)
    defs: dict[str, Any] = {}
    schema = dict(_place_structs(schema, defs))
    if defs:
        schema["$defs"] = {**defs, **schema.get("$defs", {})}
    return schema


def faults(error: ValidationError) -> list[dict[str, str]]:
    """What is wrong, one `{"path", "message"}` each, in words for a person or a model."""
    return [
        {
            "path": ".".join(str(part) for part in one["loc"]),
            "message": _readable(one["type"], one["msg"]),
        }
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def json_schema_fault(schema: dict[str, Any]) -> Callable[[Any], str | None]:
    """A check against any JSON Schema: gives the first fault, or `None`. `ValueError` if it is no schema."""
    return _compiled(msgspec.json.encode(schema, order="sorted"))


@functools.lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Callable[[Any], str | None]:
    try:
        validator = jsonschema_rs.validator_for(schema.decode())
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"Not a JSON Schema: {error.message}") from None

    def fault(value: Any) -> str | None:
        first = next(validator.iter_errors(value), None)
        return None if first is None else first.message

    return fault


# --- msgspec structs inside pydantic --------------------------------------------------------


def with_structs(annotation: Any) -> Any:
    """The annotation with each `msgspec.Struct` made understandable to pydantic."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return Annotated[annotation, _StructSchema(annotation)]
    args = get_args(annotation)
    origin = get_origin(annotation)
    if not args or origin is Literal:
        return annotation
    if origin is Annotated:
        inner = with_structs(args[0])
        return annotation if inner is args[0] else Annotated[(inner, *args[1:])]
    changed = tuple(arg if arg is Ellipsis else with_structs(arg) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    if origin in (Union, types.UnionType):
        return Union[changed]  # noqa: UP007  built from a tuple
    return origin[changed] if origin is not None else annotation


class _StructSchema:
    """Lets pydantic hand a struct to msgspec, for checking and for its JSON Schema."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.struct = struct

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        struct = self.struct

        def check(value: Any) -> Any:
            return value if isinstance(value, struct) else msgspec.convert(value, struct)

        return core_schema.no_info_plain_validator_function(
            check,
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        made = msgspec.json.schema_components((self.struct,), ref_template="#/$defs/{name}")
        return {_STRUCT_MARK: msgspec.json.encode(made).decode()}  # as text: pydantic would follow the refs


def _place_structs(schema: Any, defs: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        mark = schema.get(_STRUCT_MARK)
        if mark is not None:
            (struct,), components = msgspec.json.decode(mark)
            defs.update(components)
            return {
                **struct,
                **{key: value for key, value in schema.items() if key != _STRUCT_MARK},
            }
        return {key: _place_structs(value, defs) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_place_structs(value, defs) for value in schema]
    return schema


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes from field names; explicit ones stay."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


# --- words ----------------------------------------------------------------------------------

_READABLE = {
    "missing": "is required",
    "unexpected_keyword_argument": "is not a parameter",
    "extra_forbidden": "is not a parameter",
}


def _readable(kind: str, message: str) -> str:
    return _READABLE.get(kind, message)


def _reporting(validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same check, with a fault as a one-line `ValueError`."""

    def check(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            first = faults(error)[0]
            where = f"{first['path']}: " if first["path"] else ""
            raise ValueError(where + first["message"]) from None

    return check


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
