"""Operations of an OpenAPI document, called over real HTTP."""

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from driving import drive
from midcall import Hub, connect
from midcall.content import Embedded, Image
from midcall.errors import Declined, InvalidArguments, NotSupported, RegistrationError
from midcall.testing import Outcome, run
from shop_api import DOCUMENT, HAMMER, PNG, Shop, served

ID = "123e4567-e89b-12d3-a456-426614174000"


class Side:
    """The shop, and a hub with its operations."""

    def __init__(self, shop: Shop, url: str) -> None:
        self.shop = shop
        self.url = url

    def hub(self, **options: Any) -> Hub:
        return Hub().from_openapi(DOCUMENT, namespace="shop", base_url=f"{self.url}/v2", **options)

    def call(self, name: str, params: Any = None, answers: Any = None, **options: Any) -> Outcome:
        hub = self.hub(**options)

        async def called() -> Outcome:
            try:
                return await run(hub, f"shop.{name}", params, answers=answers)
            finally:
                await hub.close()

        outcome: Outcome = drive(called())
        return outcome

    @property
    def last(self) -> dict[str, Any]:
        return self.shop.seen[-1]


@pytest.fixture
def side() -> Iterator[Side]:
    shop = Shop()
    with served(shop) as url:
        yield Side(shop, url)


def test_parameters_go_where_the_document_says(side: Side) -> None:
    given = {
        "category": ["tool", "toy"], "ids": [1, 2], "price_min": 1.5, "where": {"a": 1}, "X-Trace-Id": "t",
        "filter": {"color": "re d&x=1", "stock": {"min": 3}}, "after": None,
    }  # fmt: skip
    assert side.call("listProducts", given).result == {"items": [HAMMER], "next": None}
    assert side.last["path"] == "/v2/products"
    assert side.last["query"] == (
        "category=tool&category=toy&ids=1,2&price[min]=1.5&filter[color]=re%20d%26x%3D1&filter[stock][min]=3"
        "&where=%7B%22a%22%3A1%7D"
    )
    assert side.last["headers"]["x-trace-id"] == "t"
    side.call("listOrders", {"session": "a; b=c", "status": None, "since": "2026-01-01T00:00:00Z"})
    assert side.last["headers"]["cookie"] == "session=a%3B%20b%3Dc"
    assert side.last["query"] == "since=2026-01-01T00%3A00%3A00Z"
    side.call("getCustomer", {"id": ID, "id_query": "q", "X-Lang": "de"})
    assert (side.last["path"], side.last["query"]) == (f"/v2/customers/{ID}", "id=q")


def test_bodies_are_json_forms_or_text(side: Side) -> None:
    made = {"name": "Saw", "price": {"amount": "1.00", "currency": "EUR"}, "cost": 3}
    outcome = side.call("createProduct", made)
    assert outcome.result == {"id": "2", "name": "Saw", "price": made["price"]}
    assert json.loads(side.last["body"]) == made
    assert side.last["headers"]["content-type"] == "application/json"
    assert side.last["headers"]["idempotency-key"]
    side.call("changeProduct", {"productId": "1", "body": {"name": "Axe"}})
    assert side.last["headers"]["content-type"] == "application/merge-patch+json"
    side.call("placeOrder", {"lines": [{"product": "1", "count": 1}], "gift": True})
    assert json.loads(side.last["body"]) == {"lines": [{"product": "1", "count": 1}], "gift": True}
    side.call("refundOrder", {"orderId": "7", "amount": 1.5, "reasons": ["a b", "c&d"]})
    assert side.last["body"] == "amount=1.5&reasons=a%20b&reasons=c%26d"
    side.call("refundOrder", {"orderId": "7"})
    assert side.last["body"] == ""
    assert side.call("writeNote", {"orderId": "7", "body": "hé"}).result == "hé"
    assert side.last["body"] == "hé"


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_each_call_has_an_idempotency_key_of_its_own(side: Side, era: Any) -> None:
    made = {"name": "Saw", "price": {"amount": "1.00", "currency": "EUR"}, "cost": 3}

    async def main() -> None:
        hub = side.hub()
        async with hub, connect(hub, era=era) as client:
            for _ in range(3):
                await client.call("shop.createProduct", made)

    drive(main())
    assert len({one["headers"]["idempotency-key"] for one in side.shop.seen}) == 3


def test_what_comes_back_is_data_text_or_a_file(side: Side) -> None:
    assert side.call("get_categories_tree").result["children"][0]["name"] == "tools"
    assert side.call("deleteProduct", {"productId": "1"}).result is None
    picture = side.call("getPhoto", {"productId": "1"}).result
    assert isinstance(picture, Image)
    assert picture.data == PNG
    for answer, result in (
        (Response(b"\x00\x01", media_type="application/zip"), b"\x00\x01"),
        (PlainTextResponse("so so"), "so so"),
        (Response(b"{no json", media_type="application/json"), "{no json"),
        (Response(b"\xe9", media_type="text/plain; charset=iso-8859-1"), "é"),
    ):
        side.shop.answers = [answer]
        given = side.call("getPhoto", {"productId": "1"}).result
        assert (given.resource.blob if isinstance(given, Embedded) else given) == result
    side.shop.answers = [Response(b"RIFF", media_type="audio/wav")]
    assert side.call("getPhoto", {"productId": "1"}).result.data == b"RIFF"


def test_an_mcp_client_gets_structured_content_that_fits_the_output_schema(side: Side) -> None:
    async def called() -> None:
        hub = side.hub()
        async with connect(hub) as client:
            tools = {one["name"]: one for one in await client.tools()}
            tool = tools["shop.products_get"]
            assert tool["outputSchema"]["required"] == ["id", "name", "price"]
            assert "cost" not in tool["outputSchema"]["properties"]
            assert tool["title"] == "Show a product"
            assert tool["annotations"]["readOnlyHint"] is True
            assert tool["_meta"]["fastmcp"] == {"tags": ["products"]}
            assert tools["shop.deleteProduct"]["annotations"]["destructiveHint"] is True
            assert (await client.call("shop.products_get", {"productId": "1"})).structured == HAMMER
            orders = (await client.call("shop.listOrders")).structured
            assert orders == {"result": [{"id": 1, "lines": [{"product": "1", "count": 2}]}]}
        await hub.close()

    drive(called())


@pytest.mark.parametrize(
    "value", ["..", ".", "../admin", "a/../../b", "a\\..\\b", "", "x/."], ids=lambda value: value or "empty"
)
def test_a_path_parameter_cannot_lead_to_another_path(side: Side, value: str) -> None:
    with pytest.raises(InvalidArguments, match="productId"):
        side.call("deleteProduct", {"productId": value})
    assert side.shop.seen == []


@pytest.mark.parametrize(
    "value", ["a/b", "a?x=1#y", "%2e%2e", "a b", "ü", "a;b", "{orderId}", "@evil.example"]
)
def test_a_path_parameter_is_escaped(side: Side, value: str) -> None:
    side.call("products_get", {"productId": value})
    assert side.last["query"] == ""
    sent = side.last["path"].removeprefix("/v2/products/")
    assert "/" not in sent
    assert unquote(sent) == value


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "\x00", "snow ☃"])
def test_a_header_cannot_be_ended_by_a_value(side: Side, value: str) -> None:
    with pytest.raises(InvalidArguments, match="X-Lang"):
        side.call("getCustomer", {"id": ID, "X-Lang": value})
    assert side.shop.seen == []


@pytest.mark.parametrize(
    ("name", "given", "fault"),
    [
        ("listProducts", {"limit": 101}, "limit"),
        ("listProducts", {"category": ["car"]}, "category"),
        ("listProducts", {"price_min": 0}, "price_min"),
        ("products_get", {}, "productId"),
        ("products_get", {"productId": "1", "Authorization": "Bearer mine"}, "Authorization"),
        ("getCustomer", {"id": ID, "api_key": "mine"}, "api_key"),
        ("createProduct", {"id": "5", "name": "x", "price": {"amount": "1.00", "currency": "EUR"}}, "id"),
        ("createProduct", {"name": "x", "price": {"amount": "1", "currency": "EUR"}}, "amount"),
        ("placeOrder", [[]], "lines"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(side: Side, name: str, given: Any, fault: str) -> None:
    with pytest.raises(InvalidArguments, match=fault):
        side.call(name, given)
    assert side.shop.seen == []


def test_an_error_of_the_api_is_told_with_a_bounded_body(side: Side) -> None:
    error = side.call("products_get", {"productId": "missing"}).error
    assert str(error) == (
        'GET /products/{productId} answered 404 Not Found. It said: {"title":"No such product","status":404}'
    )
    side.shop.answers = [PlainTextResponse("x" * 100_000, 503)]
    error = side.call("createProduct", {"name": "x", "price": {"amount": "1.00", "currency": "EUR"}}).error
    assert error is not None
    assert error.recoverable
    assert 1900 < len(str(error)) < 2200
    side.shop.answers = [Response(b"\x00\x01", 599)]
    assert str(side.call("deleteProduct", {"productId": "1"}).error).endswith("answered 599.")


def test_an_answer_that_is_not_as_the_document_says_is_an_error_unless_nobody_checks(side: Side) -> None:
    error = str(side.call("products_get", {"productId": "odd"}).error)
    assert 'not as its document says: "id" is a required property. It said: {"name":5}' in error
    assert side.call("products_get", {"productId": "odd"}, check_results=False).result == {"name": 5}
    side.shop.answers = [Response(PNG, 201, media_type="image/png")]
    error = str(
        side.call("createProduct", {"name": "x", "price": {"amount": "1.00", "currency": "EUR"}}).error
    )
    assert "it is a file. It was done." in error


def test_an_answer_that_is_too_large_is_not_read_to_its_end(side: Side) -> None:
    assert "sent more than 4194304 bytes" in str(side.call("products_get", {"productId": "large"}).error)


def test_redirects_are_followed_within_the_api_and_never_with_a_body(side: Side) -> None:
    assert side.call("products_get", {"productId": "moved"}).result == HAMMER
    error = side.call("products_get", {"productId": "elsewhere"}, headers={"X-Api-Key": "k"}).error
    assert "which is not followed" in str(error)
    side.shop.answers = [Response(status_code=307, headers={"Location": "/v2/products/2"})]
    assert "307" in str(side.call("deleteProduct", {"productId": "1"}).error)
    side.shop.answers = [
        Response(status_code=302, headers={"Location": "/v2/products/1"}) for _ in range(5)
    ] * 3
    assert "redirects too often" in str(side.call("products_get", {"productId": "1"}).error)


def test_credentials_are_the_authors_alone(side: Side) -> None:
    names: list[str | None] = []

    async def token(caller: str | None) -> dict[str, str]:
        names.append(caller)
        return {"Authorization": f"Bearer of {caller}", "X-Trace-Id": "mine"}

    hub = side.hub(headers=token, query={"api_key": "k&y"})

    async def called() -> None:
        for who in ("ada", None):
            await run(hub, "shop.listProducts", {"X-Trace-Id": "theirs"}, principal=who)
        await hub.close()

    drive(called())
    assert names == ["ada", None]
    assert [one["headers"]["authorization"] for one in side.shop.seen] == ["Bearer of ada", "Bearer of None"]
    assert side.last["headers"]["x-trace-id"] == "mine"
    assert side.last["query"] == "api_key=k%26y"
    fixed = side.hub(headers={"x-trace-id": "mine"}).schema("shop.listProducts")
    assert "X-Trace-Id" not in fixed["params"]["properties"]


@pytest.mark.parametrize("location", ["query", "cookie"])
def test_the_keys_of_an_object_are_no_way_to_give_the_authors_credentials(side: Side, location: str) -> None:
    hub = Hub().from_openapi(
        {
            "openapi": "3.1.0",
            "paths": {
                "/products": {
                    "get": {
                        "operationId": "find",
                        "parameters": [{"name": "filter", "in": location, "schema": {"type": "object"}}],
                    }
                }
            },
            "components": {"securitySchemes": {"session": {"type": "apiKey", "in": location, "name": "sid"}}},
        },
        base_url=f"{side.url}/v2",
        query={"api_key": "mine"},
    )
    for name in ("api_key", "API_KEY", "sid"):
        with pytest.raises(InvalidArguments, match=f"filter: has '{name}'"):
            drive(run(hub, "api.find", {"filter": {"colour": "red", name: "theirs"}}))
    assert side.shop.seen == []
    drive(run(hub, "api.find", {"filter": {"colour": "red"}}))
    assert side.last["query"] == ("colour=red&api_key=mine" if location == "query" else "api_key=mine")


def test_unsafe_verbs_are_confirmed_with_a_readable_question(side: Side) -> None:
    made = {"name": 'Saw"\nPOST http://x', "price": {"amount": "1.00", "currency": "EUR"}}
    outcome = side.call("createProduct", made, answers=[True], confirm="unsafe")
    assert outcome.result["id"] == "2"
    (asked,) = outcome.questions
    assert asked.request_type.message.splitlines() == [
        "Create a product?",
        f"POST {side.url}/v2/products",
        'name: "Saw\\"\\nPOST http://x"',
        'price: {"amount":"1.00","currency":"EUR"}',
    ]
    before = len(side.shop.seen)
    refused = side.call("deleteProduct", {"productId": "1"}, answers=[False], confirm="unsafe").error
    assert isinstance(refused, Declined)
    unasked = side.call("deleteProduct", {"productId": "1"}, confirm="unsafe").error
    assert isinstance(unasked, NotSupported)
    assert len(side.shop.seen) == before
    assert side.call("products_get", {"productId": "1"}, confirm="unsafe").questions == []
    long = side.call("writeNote", {"orderId": "1", "body": "x" * 5000}, answers=[True], confirm="unsafe")
    assert len(long.questions[0].request_type.message) < 1000


def test_what_is_confirmed_can_be_chosen(side: Side) -> None:
    hub = side.hub(confirm=["DELETE *", "tag:orders"])
    asks = {name for name, one in hub.methods() if one.interactive}
    assert asks == {f"shop.{one}" for one in (
        "deleteProduct", "listOrders", "placeOrder", "getOrder", "writeNote", "refundOrder"
    )}  # fmt: skip
    with pytest.raises(RegistrationError, match="'always' matches nothing"):
        side.hub(confirm="always")


def test_an_api_that_is_away_is_a_clear_error() -> None:
    hub = Hub().from_openapi(DOCUMENT, base_url="http://127.0.0.1:1/v2")

    async def called() -> Any:
        outcome = await run(hub, "api.deleteProduct", {"productId": "1"})
        await hub.close()
        return outcome.error

    assert "http://127.0.0.1:1/v2/products/1 cannot be reached" in str(drive(called()))


@pytest.mark.parametrize("closes", [True, False])
def test_a_hub_may_be_used_in_one_event_loop_after_another(
    side: Side, closes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hub = side.hub()
    caplog.clear()

    async def called() -> Any:
        result = (await run(hub, "shop.products_get", {"productId": "1"})).result
        if closes:
            await hub.close()
        return result

    assert [asyncio.run(called()) for _ in range(2)] == [HAMMER, HAMMER]
    gc.collect()
    assert caplog.messages == []  # connections that are left open are told of


def test_a_document_is_fetched_and_its_server_is_where_it_is(side: Side) -> None:
    async def inside_a_loop() -> Any:
        hub = Hub().from_openapi(f"{side.url}/openapi.json")
        outcome = await run(hub, "api.all")
        await hub.close()
        return outcome.result

    assert drive(inside_a_loop())["items"] == [HAMMER]
    assert side.last["path"] == "/v2/products"
    side.shop.answers = [JSONResponse({"openapi": "3.1.0", "servers": [{"url": "https://evil.example"}]})]
    with pytest.raises(RegistrationError, match=r"sent to https://evil\.example/: if that is right"):
        Hub().from_openapi(f"{side.url}/openapi.json")
    side.shop.answers = [PlainTextResponse("no", 500)]
    with pytest.raises(RegistrationError, match="answered with 500"):
        Hub().from_openapi(f"{side.url}/openapi.json")
    with pytest.raises(RegistrationError, match="cannot be fetched"):
        Hub().from_openapi("http://127.0.0.1:1/openapi.json")
