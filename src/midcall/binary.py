"""Bytes in JSON are base64: in parameters, and in structs, dataclasses and models.

pydantic has them as text unless a model's configuration says otherwise, so what it has made of the types
is changed, in a copy. It is slow to import, so this module is imported only where a type is read.
"""

import base64
from typing import Any

from pydantic import BaseModel, EncodedBytes
from pydantic_core import CoreSchema, PydanticCustomError, SchemaSerializer, SchemaValidator, core_schema

OWN_BYTES = ("val_json_bytes", "ser_json_bytes")
"""How the configuration of a model says what its bytes are in JSON."""


def base64_validator(core: CoreSchema) -> SchemaValidator:
    """A validator that takes bytes as base64."""
    # Without the last argument, a model inside is read by its own validator.
    return SchemaValidator(_with_base64(core), _use_prebuilt=False)


def bytes_serializer(model: type[BaseModel]) -> SchemaSerializer | None:
    """What writes a model with its bytes as base64, if it has any."""
    core = model.__pydantic_core_schema__
    return SchemaSerializer(_with_base64(core), _use_prebuilt=False) if has_bytes(core) else None


def has_bytes(core: Any) -> bool:
    """Whether there are bytes anywhere in a type, as pydantic has read it."""
    if isinstance(core, dict):
        inside = (value for key, value in core.items() if key != "metadata")
        return core.get("type") == "bytes" or any(map(has_bytes, inside))
    return isinstance(core, list | tuple) and any(map(has_bytes, core))


def _with_base64(core: Any) -> Any:
    if isinstance(core, list | tuple):
        return type(core)(map(_with_base64, core))
    if not isinstance(core, dict) or _has_own_bytes(core):
        return core
    if core.get("type") == "bytes":
        written = core_schema.plain_serializer_function_ser_schema(to_base64, when_used="json")
        return core_schema.no_info_before_validator_function(
            _from_base64, core, ref=core.get("ref"), serialization=core.get("serialization", written)
        )
    return {key: value if key == "metadata" else _with_base64(value) for key, value in core.items()}


def _has_own_bytes(core: dict[str, Any]) -> bool:
    """Whether an author has said how bytes are written: of a whole model, or by a type for that."""
    function = core.get("function")
    decoder = function.get("function") if isinstance(function, dict) else None
    configuration = core.get("config") or {}
    return isinstance(getattr(decoder, "__self__", None), EncodedBytes) or any(
        key in configuration for key in OWN_BYTES
    )


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:  # also of letters that are not ASCII
        raise PydanticCustomError("base64", "Data should be valid base64") from None


def to_base64(value: bytes) -> str:
    """Bytes as they stand in JSON."""
    return base64.b64encode(value).decode()
