"""OpenAPI documents as they are written, and as somebody hostile would write them."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from midcall import Hub
from midcall.errors import RegistrationError
from midcall.json_schema import compiled
from midcall.openapi import document as documents
from shop_api import DOCUMENT

BASE = "http://127.0.0.1:1"


def document(paths: Any = None, version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    paths = {"/x": {"get": {"operationId": "x"}}} if paths is None else paths
    return {"openapi": version, "info": {"title": "T", "version": "1"}, "paths": paths, **more}


def operation(**more: Any) -> dict[str, Any]:
    return document({"/x/{id}": {"post": {"operationId": "x", **more}}})


def body(schema: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def hub_of(given: Any, **options: Any) -> Hub:
    return Hub().from_openapi(given, **{"base_url": BASE, **options})


def names(hub: Hub) -> list[str]:
    return [name for name, _ in hub.methods()]


def test_a_sizeable_document_becomes_methods_with_checkable_schemas() -> None:
    hub = hub_of(DOCUMENT, namespace="shop")
    assert len(names(hub)) == 14
    for _, method in hub.methods():
        compiled(method.params)
        if method.returns is not None:
            compiled(method.returns)
    made = hub.schema("shop.createProduct")["params"]
    assert made["required"] == ["name", "price"]
    assert "id" not in made["properties"]  # it is only read
    assert made["properties"]["note"] == {"type": ["string", "null"]}
    assert made["properties"]["name"]["examples"] == ["Hammer"]
    assert made["properties"]["maker"]["anyOf"][1] == {"type": "null"}
    assert made["$defs"]["Money"]["required"] == ["amount", "currency"]
    listed = hub.schema("shop.listOrders")["params"]
    assert listed["$defs"]["Status"]["enum"] == ["open", "paid", "sent", None]
    assert hub.schema("shop.changeProduct")["returns"]["anyOf"][1] == {"type": "null"}
    assert hub.schema("shop.getPhoto")["returns"] is None
    assert (
        hub.schema("shop.listProducts")["description"] == "List products\n\nNewest first, a page at a time."
    )
    assert hub.schema("shop.getCustomer")["description"] == "GET /customers/{id}"


def test_the_document_of_fastapi_is_read() -> None:
    class Item(BaseModel):
        name: str
        parent: "Item | None" = None

    app = FastAPI()

    @app.post("/items/{item_id}", tags=["items"])
    def put(item_id: int, item: Item, q: str | None = None) -> Item:
        return item

    hub = hub_of(app.openapi())
    ((name, method),) = hub.methods()
    assert name == "api.put_items__item_id__post"
    assert method.tags == ("items",)
    assert set(method.params["properties"]) == {"item_id", "q", "name", "parent"}
    compiled(method.params)


def test_names_are_stable_and_can_be_given() -> None:
    paths = {
        "/pets": {"get": {}, "post": {"operationId": "pets.create!"}},
        "/pets/{id}/photos": {"get": {}},
        "/" + "long/" * 40: {"get": {}},
    }
    hub = hub_of(document(paths), names={"GET /pets": "all_pets"})
    found = names(hub)
    assert found[:3] == ["api.all_pets", "api.pets_create", "api.get_pets_id_photos"]
    assert len(found[3]) == len("api.") + 64
    assert names(hub_of(document(paths)))[3] == found[3]
    with pytest.raises(RegistrationError, match="no operation 'GET /cats'"):
        hub_of(document(paths), names={"GET /cats": "cats"})


def test_two_operations_of_one_name_are_refused_with_a_way_out() -> None:
    paths = {"/a": {"get": {"operationId": "x.y"}}, "/b": {"get": {"operationId": "x_y"}}}
    with pytest.raises(RegistrationError, match="GET /a and GET /b would both be 'x_y'"):
        hub_of(document(paths))
    assert names(hub_of(document(paths), names={"GET /b": "other"})) == ["api.x_y", "api.other"]


def test_operations_are_chosen_by_tag_name_or_path() -> None:
    assert len(names(hub_of(DOCUMENT, only="tag:orders", without="POST *"))) == 3
    assert names(hub_of(DOCUMENT, only=["list*", "GET /orders/{*"])) == [
        "api.listProducts", "api.listOrders", "api.getOrder",
    ]  # fmt: skip
    tagged = hub_of(DOCUMENT, tags={"shop"}, scopes=["buy"]).resolve("api.getOrder").method
    assert (tagged.tags, tagged.extras["scopes"]) == (("orders", "shop"), ("buy",))
    with pytest.raises(
        RegistrationError, match=r"'tag:order' matches nothing. Tags: admin, customers, orders"
    ):
        hub_of(DOCUMENT, only="tag:order")


def test_the_author_sees_where_requests_go(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Hub().from_openapi(DOCUMENT)
    assert "14 methods, which call https://shop.example.com/v2" in caplog.text
    assert "uploadPhoto (PUT /products/{productId}/photo) is left out: its body is multipart" in caplog.text
    assert "getReport (GET /reports) is left out: it is at a server of its own" in caplog.text
    for servers in ([], [{"url": "/v1"}], "x", [5]):
        with pytest.raises(RegistrationError, match="give base_url"):
            Hub().from_openapi(document(servers=servers))
    for url in ("file:///etc/passwd", "ftp://x", "http://", "http://a b/"):
        with pytest.raises(RegistrationError):
            Hub().from_openapi(document(servers=[{"url": url}]))
        with pytest.raises(RegistrationError):
            hub_of(document(), base_url=url)


def test_an_operation_whose_optional_body_cannot_be_sent_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upload = {"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}}
    path = {verb: {"operationId": f"{verb}File", **upload} for verb in ("get", "post", "put", "delete")}
    hub = hub_of(document({"/file": path}))
    assert names(hub) == ["api.getFile", "api.deleteFile"]
    assert "postFile (POST /file) is left out: its body is application/octet-stream" in caplog.text
    assert names(hub_of(document({"/file": {"post": {"requestBody": {}}}}))) == ["api.post_file"]


def test_references_that_are_rings_are_definitions() -> None:
    ring = {
        "A": {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}},
        "B": {"type": "array", "items": {"$ref": "#/components/schemas/A"}},
    }
    given = operation(**body({"$ref": "#/components/schemas/A"}))
    hub = hub_of({**given, "components": {"schemas": ring}})
    assert set(hub.schema("api.x")["params"]["$defs"]) == {"A", "B"}


@pytest.mark.parametrize(
    ("schema", "components", "fault"),
    [
        ({"$ref": "http://evil.example/x.json#/A"}, {}, "only places in the same document"),
        ({"$ref": "other.yaml#/A"}, {}, "only places in the same document"),
        ({"$ref": "file:///etc/passwd"}, {}, "only places in the same document"),
        ({"$ref": "#/components/schemas/None"}, {}, "which is not there"),
        ({"properties": {"a": {"$ref": "#/info/title/0"}}}, {}, "which is not there"),
        ({"properties": {"a": {"$ref": "#/info/title"}}}, {}, "where a schema belongs"),
        ({"$ref": "#/components/schemas/A"}, {"A": {"$ref": "#/components/schemas/A"}}, "references do not end"),
        ({"anyOf": [{"$ref": "#/components/schemas/A"}]}, {"A": {"anyOf": [{"$ref": "#/components/schemas/A"}]}}, "without end"),
        ({"properties": {"a": {"pattern": "("}}}, {}, "Not a JSON Schema"),
        ({"properties": {"a": {"type": "cat"}}}, {}, "Not a JSON Schema"),
        ({"properties": {"a": {"enum": ["x" * 300_000]}}}, {}, "too large"),
        (5, {}, "where a schema belongs"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_with_the_operation(schema: Any, components: Any, fault: str) -> None:
    hub = Hub()
    with pytest.raises(RegistrationError, match=rf"x \(POST /x/\{{id\}}\).*{fault}"):
        hub.from_openapi({**operation(**body(schema)), "components": {"schemas": components}}, base_url=BASE)
    assert names(hub) == []


def test_an_operation_that_is_left_out_may_be_wrong() -> None:
    paths = {"/a": {"get": {"operationId": "a"}}, "/b": {"post": {"operationId": "b", **body({"$ref": "x"})}}}
    assert names(hub_of(document(paths), without="b")) == ["api.a"]


@pytest.mark.parametrize(
    "path", ["x", "/a/../b", "/a/%2e%2E/b", "/a?x=1", "/a#b", "/a b", "/{a", "/a\\b", "/./a"]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(RegistrationError, match=r"not a path|leads out"):
        hub_of(document({path: {"get": {"operationId": "x"}}}))


def test_headers_that_would_change_the_request_are_no_parameters() -> None:
    declared = [
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "cookie",
        "AUTHORIZATION",
        "Connection",
        "X-HTTP-Method-Override",
        "Fine",
    ]
    parameters = [{"name": name, "in": "header", "schema": {}} for name in declared]
    hub = hub_of(operation(parameters=parameters))
    assert list(hub.schema("api.x")["params"]["properties"]) == ["Fine", "id"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"swagger": "2.0", "paths": {}}, "it says swagger 2.0"),
        (document(version="4.0.0"), "not OpenAPI 3.0 or 3.1"),
        (document({}), "no operation that can be called"),
        (document({"/x": {"get": 5}}), "where an object belongs"),
        (document({"/x": {"get": {"operationId": "x", "parameters": [{"in": "body", "name": "x"}]}}}), "is in 'body'"),
        (document({f"/{n}": {"get": {}} for n in range(2001)}), "more than 2000 operations"),
        ("nowhere.json", "cannot be read"),
        ("ftp://x/y.json", "is not an OpenAPI document"),
        ({"openapi": "3.1.0", "x": object()}, "cannot be represented in JSON"),
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(given: Any, fault: str) -> None:
    with pytest.raises(RegistrationError, match=fault):
        hub_of(given)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{no", "is not JSON"),
        ("- a", "it is not an object"),
        ("a: [", "neither JSON nor YAML"),
        ("a: &a [x,x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)), "too many values"),
        ("a: &a {x: 1, y: 2}\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{','.join(['*' + chr(97 + n)] * 10)}]}}\n" for n in range(9)), "too many values"),
        ("!!python/object/apply:os.system ['true']", "neither JSON nor YAML"),
        ("[" * 100_000, "neither JSON nor YAML|too deeply"),
        ('{"a":' * 150 + "1" + "}" * 150, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused_soon(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "api.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(RegistrationError, match=fault):
        hub_of(path)
    assert time.process_time() - began < 30


def test_a_gigantic_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "api.json"
    path.write_text(json.dumps(document()) + " " * 2000)
    monkeypatch.setattr(documents, "MAX_DOCUMENT", 1000)
    with pytest.raises(RegistrationError, match="more than 1000 bytes"):
        hub_of(path)


def test_without_a_reader_of_yaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(RegistrationError, match=r"pip install 'midcall\[yaml\]'"):
        hub_of(DOCUMENT)


def test_many_operations_over_many_schemas_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand operations, each of which refers to all of a thousand schemas."""
    count = 1000
    schemas = {
        f"S{n}": {
            "type": "object",
            "properties": {"next": {"$ref": f"#/components/schemas/S{(n + 1) % count}"}},
        }
        for n in range(count)
    }
    paths = {
        f"/{n}": {"post": {"operationId": f"o{n}", **body({"$ref": f"#/components/schemas/S{n}"})}}
        for n in range(20)
    }
    began = time.process_time()
    assert len(names(hub_of({**document(paths), "components": {"schemas": schemas}}))) == 20
    assert time.process_time() - began < 60
    monkeypatch.setattr(documents, "MAX_USED", 5000)
    with pytest.raises(RegistrationError, match="choose some with `only`"):
        hub_of({**document(paths), "components": {"schemas": schemas}})


def test_parts_of_parts_do_not_multiply() -> None:
    schemas: dict[str, Any] = {
        f"S{n}": {"allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 10} for n in range(9)
    }
    given = operation(**body({"$ref": "#/components/schemas/S0"}))
    began = time.process_time()
    schemas["S9"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    made = hub_of({**given, "components": {"schemas": schemas}})
    assert set(made.schema("api.x")["params"]["properties"]) == {"id", "a"}
    schemas["S9"] = {"allOf": []}
    with pytest.raises(RegistrationError, match="too large"):
        hub_of({**given, "components": {"schemas": schemas}})
    assert time.process_time() - began < 60


def test_parameters_that_cannot_be_written_leave_out_their_operation_if_they_are_needed() -> None:
    matrix = {"name": "id", "in": "path", "style": "matrix", "schema": {}}
    other = {"name": "q", "in": "query", "content": {"text/csv": {}}}
    paths = {"/x/{id}": {"get": {"operationId": "x", "parameters": [matrix]}}, "/y": {"get": {"operationId": "y", "parameters": [other]}}, "/z": {"get": {"operationId": "z"}}}  # fmt: skip
    assert names(hub_of(document(paths))) == ["api.z"]


def test_old_bounds_and_marks_are_said_as_json_schema_says_them() -> None:
    schema = {"type": "object", "properties": {
        "a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False},
        "b": {"nullable": True, "description": "any"},
        "c": {"type": "string", "enum": ["x"], "nullable": True, "xml": {}, "x-own": 1},
    }}  # fmt: skip
    given = {**operation(**body(schema)), "openapi": "3.0.0"}
    properties = hub_of(given).schema("api.x")["params"]["properties"]
    assert properties["a"] == {"type": "integer", "exclusiveMinimum": 1, "maximum": 5}
    assert properties["b"] == {"description": "any"}
    assert properties["c"] == {"type": ["string", "null"], "enum": ["x", None]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"oneOf": [{"type": "object"}, {"type": "string"}]},
        {"type": "object", "properties": {"id": {"type": "string"}}},
        {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "integer"}}}]},
        True,
    ],
)  # fmt: skip
def test_a_body_that_is_no_plain_object_is_one_parameter(schema: Any) -> None:
    properties = hub_of(operation(**body(schema))).schema("api.x")["params"]["properties"]
    assert set(properties) == {"id", "body"}
