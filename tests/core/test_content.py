"""Content, and bytes that are taken out of a result."""

from typing import Any

import pytest

from midcall.content import Audio, Image, take_bytes

LISTS = {"$ref": "#/$defs/Lists", "$defs": {"Lists": {"type": "array", "items": {"$ref": "#/$defs/Lists"}}}}


def test_bytes_are_taken_out_by_the_schema_and_their_size_stays() -> None:
    schema = {"type": "object", "properties": {"scan": {"type": "string", "contentEncoding": "base64"}}}
    value, files = take_bytes({"scan": "aGVsbG8=", "note": "aGVsbG8="}, schema, "result")
    assert value == {"scan": "[a file of 5 bytes]", "note": "aGVsbG8="}
    assert files == [("scan", b"hello")]


def test_a_result_that_is_nested_too_deeply_stays_as_it_is() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    value, files = take_bytes(deep, LISTS, "result")
    assert value is deep
    assert files == []


@pytest.mark.parametrize("kind", [Image, Audio])
def test_content_of_a_path_in_the_place_of_bytes_is_refused_with_what_to_do(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} takes bytes, and got str; of a file, Path"):
        kind("picture.png")
