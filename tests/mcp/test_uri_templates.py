"""Templates of URIs: what fits them, and that a stranger's URI costs no more than reading it."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcall import Hub, resource
from midcall.mcp.catalog import AnyText, Catalog, Parts

PARTS = "x://{a}-{b}.{c}-{d}-{e}-{f}-{g}-{h}"
HOSTILE = "x://" + "-a" * 50_000 + "/"
"""A matcher that goes back tries 10^30 ways to part this in eight before it gives up."""


def expected(template: str, uri: str) -> dict[str, str] | None:
    """What the template means, as a regular expression says it."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template))
    found = re.fullmatch(pattern, uri)
    return None if found is None else found.groupdict()


@pytest.mark.parametrize(
    ("template", "uri", "parts"),
    [
        ("notes://{folder}/{name}", "notes://work/today", {"folder": "work", "name": "today"}),
        ("notes://{folder}/{name}", "notes://work/", None),
        ("notes://{folder}/{name}", "notes://work/a/b", None),
        ("file://{name}.{ext}", "file://a.b.c", {"name": "a.b", "ext": "c"}),
        ("x://{a}{b}", "x://abc", {"a": "ab", "b": "c"}),
        ("x://{a}{b}", "x://a", None),
        ("x://{a}aa", "x://aaa", {"a": "a"}),
        ("x://{a}-{b}", "y://1-2", None),
        ("x://plain", "x://plain", {}),
        ("x://plain", "x://plain/", None),
        ("x://{a}/{a}", "x://1/1", {"a": "1"}),
        ("x://{a}/{a}", "x://1/2", None),
        ("notes://{name}", "notes://caf%C3%A9%20%31", {"name": "café 1"}),
        ("notes://{name}", "notes://..%2Fpasswords", None),
        ("notes://{name}", "notes://%ff", None),
        ("x://{a}/{a}", "x://%31/1", {"a": "1"}),
        ("x://{not a part}/{a}", "x://{not a part}/1", {"a": "1"}),
    ],
)
def test_the_parts_of_a_uri_are_found(template: str, uri: str, parts: dict[str, str] | None) -> None:
    assert Parts(template).match(uri) == parts


TEXTS = st.text("ab-/.", max_size=8)
TEMPLATES = st.lists(TEXTS, min_size=1, max_size=4).map(
    lambda texts: "".join(
        itertools.chain(*zip(texts, [f"{{p{n}}}" for n in range(len(texts) - 1)] + [""], strict=True))
    )
)


@given(TEMPLATES, TEXTS)
def test_a_uri_fits_as_the_regular_expression_says(template: str, uri: str) -> None:
    assert Parts(template).match(uri) == expected(template, uri)


@given(TEMPLATES, st.lists(TEXTS, min_size=3, max_size=3))
def test_a_uri_made_from_a_template_fits_it(template: str, values: list[str]) -> None:
    uri = template
    for n, value in enumerate(values):
        uri = uri.replace(f"{{p{n}}}", value)
    assert AnyText(template).match(uri)
    pattern = re.sub(r"\\\{\w+\\\}", ".*", re.escape(template))
    fits = AnyText(template).match(uri + "x") is not None
    assert fits == bool(re.fullmatch(pattern, uri + "x"))


class Hostage:
    """A template with many parts."""

    @resource(PARTS, scopes=["read"])
    async def read(self, a: str, b: str, c: str, d: str, e: str, f: str, g: str, h: str) -> str:
        """All of them."""
        return a + b + c + d + e + f + g + h


def test_a_long_uri_is_held_against_a_local_template_without_going_back() -> None:
    assert Catalog(Hub("plexus").register(Hostage())).find(HOSTILE) is None


def test_a_long_uri_is_held_against_a_template_of_another_server_without_going_back() -> None:
    template = AnyText("x://{+a}-{b*}-{c}-{d}-{e}-{?f}-{/g}b")
    assert not template.match(HOSTILE)
    assert template.match(HOSTILE[:-1] + "b")
