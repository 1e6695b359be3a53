"""JSON Schema and validation for Python types, on pydantic.

`shape_of(type)` reads one type: its JSON Schema, and a check that gives a typed value. Standard
types, dataclasses, pydantic models and `msgspec.Struct`s may be mixed and nested in annotations.
pydantic is slow to import, so the modules that `import midcall` loads import this one only when a
method or form is first read.
"""

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from midcall.binary import OWN_BYTES, base64_validator, has_bytes, to_base64
from midcall.items import to_json

_STRUCT_MARK = "x-midcall-struct"

_KEY_PATTERNS = {"int": r"^-?[0-9]+$", "float": r"^-?[0-9]+(\.[0-9]+)?$"}

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
        core = adapter.core_schema
        validator = base64_validator(core) if has_bytes(core) else adapter.validator
        self.validate_json: Callable[[bytes], Any] = validator.validate_json
        self.validate: Callable[[Any], Any] = _reporting(python_type, self.validate_json)


def arguments_shape(name: str, fields: Sequence[tuple[str, Any, Any]], *, as_texts: bool = False) -> Shape:
    """The shape of a method's arguments, from name, type and default of each: a `dict` by their names.

    If they come `as_texts`, as those of prompts do, a list or an object may be JSON. Raises `TypeError` for a
    type that JSON cannot describe.
    """
    # A parameter whose name pydantic has for itself is a numbered field, known outside by its alias.
    names = {
        field if _is_free(field) else f"p{n}_": (field, kind, default)
        for n, (field, kind, default) in enumerate(fields)
    }
    made: dict[str, Any] = {own: (kind, default) for own, (_, kind, default) in names.items()}
    try:
        config = ConfigDict(extra="forbid", allow_inf_nan=False)  # as JSON has no word for those numbers
        model = create_model(name, __config__=config, **made)
    except _UNDESCRIBABLE as error:
        raise TypeError(_first_line(error)) from error
    shape = Shape(model)
    shape.validate_json = _dict_validator(model, {own: field for own, (field, _, _) in names.items()})
    if as_texts:
        shape.validate_json = _texts_read(shape.schema, shape.validate_json)
    return shape


def _texts_read(schema: dict[str, Any], check: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The same check of arguments that come as texts: what is a list or an object is read from its JSON."""
    from midcall.json_schema import followed, variants  # noqa: PLC0415  only where there are prompts

    def kinds(one: dict[str, Any]) -> set[Any]:
        forms = [followed(form, schema) for form in (one, *variants(followed(one, schema)))]
        return {form.get("type") for form in forms}

    fields = {name: kinds(one) for name, one in schema.get("properties", {}).items()}
    data = {name for name, found in fields.items() if found & {"array", "object"} and "string" not in found}

    def read(encoded: bytes) -> bytes:
        try:
            given = msgspec.json.decode(encoded or b"{}", type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return encoded  # it is told what is wrong with it
        for name in data & given.keys():
            if bytes(given[name])[:1] == b'"':
                with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                    text = msgspec.json.decode(given[name], type=str)
                    if isinstance(msgspec.json.decode(text), list | dict):
                        given[name] = msgspec.Raw(text.encode())
        return msgspec.json.encode(given)

    return (lambda encoded: check(read(encoded))) if data else check


def misfit(fields: Sequence[tuple[str, Any, Any]]) -> str:
    """Which of these has a type that JSON cannot describe, and why; nothing if that is none alone."""
    for field in fields:
        try:
            arguments_shape("one", [field])
        except TypeError as error:
            return (
                f"parameter {field[0]}: {str(error).rstrip('.')}. "
                "For what callers do not send, write Annotated[..., Depends(function)]"
            )
    return ""


def _dict_validator(model: type[BaseModel], names: Mapping[str, str]) -> Callable[[bytes], dict[str, Any]]:
    """What reads the fields of a model into a dict: half as much work as making the model itself."""
    core: Any = model.__pydantic_core_schema__
    definitions = []
    if core["type"] == "definitions":
        core, definitions = core["schema"], core["definitions"]
    fields = {
        names[name]: core_schema.typed_dict_field(
            field["schema"],
            required=field["schema"]["type"] != "default",
            validation_alias=field.get("validation_alias"),
        )
        for name, field in core["schema"]["fields"].items()
    }
    whole: CoreSchema = core_schema.typed_dict_schema(fields, config=core["config"])
    if definitions:
        whole = core_schema.definitions_schema(whole, definitions)
    validator = base64_validator(whole) if has_bytes(whole) else SchemaValidator(whole)
    return validator.validate_json


def _is_free(name: str) -> bool:
    return not name.startswith(("_", "model_")) and not hasattr(BaseModel, name)


_shapes: dict[Any, Shape] = {}


def shape_of(python_type: Any) -> Shape:
    """The shape of a type, made once. Raises `TypeError` for a type that JSON cannot describe."""
    shape = _shapes.get(python_type)
    if shape is None:
        shape = _shapes[python_type] = Shape(python_type)
    return shape


def output_schema(python_type: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a method gives, or `None` if that may be anything.

    Raises `TypeError` for a type that JSON cannot describe.
    """
    if python_type is Any or python_type is None or python_type is type(None):
        return None
    try:
        return json_schema(TypeAdapter(with_structs(python_type)), "serialization")
    except _UNDESCRIBABLE as error:
        raise TypeError(_first_line(error)) from error


def json_schema(adapter: TypeAdapter[Any], mode: Mode) -> dict[str, Any]:
    """The adapter's schema, without generated titles, and with the structs among its `$defs`."""
    schema = adapter.json_schema(mode=mode, schema_generator=_Untitled)
    schema.pop("title", None)
    schema = dict(_mark_files(schema))
    marks = list(dict.fromkeys(_marks(schema)))
    if not marks:
        return schema
    taken = schema.get("$defs", {})
    for name in ("{name}", "struct.{name}"):  # the second where a model has the name of a struct
        structs, components = msgspec.json.schema_components(
            [_marked[mark].struct for mark in marks], ref_template=f"#/$defs/{name}"
        )
        defs = {name.format(name=key): value for key, value in components.items()}
        if not defs.keys() & taken.keys():
            break
    placed: dict[str, Any] = _place_structs(schema, dict(zip(marks, structs, strict=True)))
    return {**placed, "$defs": {**_mark_files(defs), **placed.get("$defs", {})}}


def faults(error: ValidationError) -> list[dict[str, str]]:
    """What is wrong, one `{"path", "message"}` each, in words for a person or a model."""
    return [
        {
            "path": ".".join(str(part) for part in one["loc"]),
            "message": _readable(one["type"], one["msg"]),
        }
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _mark_files(schema: Any) -> Any:
    """What is said of base64 by msgspec and by pydantic's types for it, said as of bytes."""
    if isinstance(schema, list):
        return [_mark_files(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and schema.get("contentEncoding") == "base64":
        return {**schema, "format": "binary"}
    return {key: _mark_files(value) for key, value in schema.items()}


# --- msgspec structs inside pydantic --------------------------------------------------------


def with_structs(annotation: Any) -> Any:
    """The annotation with each `msgspec.Struct` made understandable to pydantic."""
    args = get_args(annotation)
    origin = get_origin(annotation)
    plain = origin or annotation  # of `Box[int]`, the struct `Box`
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return Annotated[annotation, _StructSchema(annotation, plain)]
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


_marked: weakref.WeakValueDictionary[int, "_StructSchema"] = weakref.WeakValueDictionary()
_marks_made = itertools.count()
"""No `id`s: of what is in a `Sequence`, pydantic makes copies."""


class _StructSchema:
    """Lets pydantic hand a struct to msgspec, for checking and for its JSON Schema."""

    def __init__(self, struct: Any, plain: type[msgspec.Struct]) -> None:
        self.struct = struct
        self.plain = plain
        self.mark = next(_marks_made)
        _marked[self.mark] = self

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        struct, plain = self.struct, self.plain
        tag_field = plain.__struct_config__.tag_field

        def check(value: Any) -> Any:
            if isinstance(value, plain):
                return value
            if tag_field is not None and isinstance(value, dict) and tag_field not in value:
                raise ValueError(f"Object missing required field `{tag_field}`")  # msgspec would guess
            try:
                return msgspec.convert(value, struct, str_keys=True)
            except msgspec.ValidationError:  # 1.0 is an integer in JSON Schema, though not in msgspec
                return msgspec.convert(_whole(value), struct, str_keys=True)

        return core_schema.no_info_plain_validator_function(
            check,
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {_STRUCT_MARK: self.mark}  # `json_schema` puts msgspec's there, all structs at once


def _whole(value: Any) -> Any:
    """The same JSON value, with each integral number as an `int`."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _marks(schema: Any) -> Iterator[int]:
    if isinstance(schema, dict):
        if _STRUCT_MARK in schema:
            yield schema[_STRUCT_MARK]
        for value in schema.values():
            yield from _marks(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _marks(value)


def _place_structs(schema: Any, structs: dict[int, dict[str, Any]]) -> Any:
    """Put the schemas of structs where their marks are."""
    if isinstance(schema, dict):
        rest = {key: _place_structs(value, structs) for key, value in schema.items()}
        return {**structs[rest.pop(_STRUCT_MARK)], **rest} if _STRUCT_MARK in rest else rest
    if isinstance(schema, list):
        return [_place_structs(value, structs) for value in schema]
    return schema


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes from field names; explicit ones stay."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Say also which keys are refused."""
        made = super().dict_schema(schema)
        pattern = _KEY_PATTERNS.get(schema.get("keys_schema", {}).get("type", ""))
        if pattern is not None:
            made["propertyNames"] = {"pattern": pattern}
        if "patternProperties" in made:
            made["additionalProperties"] = False
        return made

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Say that bytes are base64, with the lengths that they have then."""
        made = super().bytes_schema(schema)
        configuration = self._config.config_dict
        if any(key in configuration for key in OWN_BYTES):
            is_base64 = configuration.get("val_json_bytes") == "base64"
            encoding = {"contentEncoding": "base64"} if is_base64 else {}
            return {"type": "string", **encoding}
        if "minLength" in made:
            made["minLength"] = -(-made["minLength"] // 3) * 4
        if "maxLength" in made:
            made["maxLength"] = -(-made["maxLength"] // 3) * 4
        return {**made, "format": "binary", "contentEncoding": "base64"}

    def get_decimal_pattern(self, schema: core_schema.DecimalSchema) -> str | None:
        """Say which texts are numbers."""
        return self.build_decimal_pattern(schema)

    def encode_default(self, dft: Any) -> Any:
        """Sets have no order of their own, but the hash of a schema must be the same in each process."""
        made = to_base64(dft) if isinstance(dft, bytes) else super().encode_default(dft)
        return sorted(made, key=repr) if isinstance(dft, set | frozenset) else made


# --- words ----------------------------------------------------------------------------------

_READABLE = {
    "missing": "is required",
    "unexpected_keyword_argument": "is not a parameter",
    "extra_forbidden": "is not a parameter",
}


def _readable(kind: str, message: str) -> str:
    return _READABLE.get(kind, message)


def _reporting(python_type: Any, validate_json: Callable[[bytes], Any]) -> Callable[[Any], Any]:
    """The same check of a value that was read already, with a fault as a one-line `ValueError`.

    The rules are those of JSON, where a strict model takes a date as text; instances are taken as they are.
    """
    plain = python_type if isinstance(python_type, type) else ()

    def check(value: Any) -> Any:
        if not isinstance(value, dict) and isinstance(value, plain):
            return value
        try:
            return validate_json(to_json(value))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        except ValidationError as error:
            first = faults(error)[0]
            where = f"{first['path']}: " if first["path"] else ""
            raise ValueError(where + first["message"]) from None

    return check


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0]
