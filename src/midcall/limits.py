"""Limits: how long names, URIs, keys and ids of callers may be. Every protocol reads them with these types.

What is longer is refused where it comes in: nothing is looked up by it, compared with it, kept or sent back.
"""

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, TypeAlias

from msgspec import Meta

from midcall.errors import TooLong

MAX_NAME = 512
MAX_URI = 8 * 1024
MAX_KEY = 1024
MAX_STATE = 128 * 1024
"""Of a sealed state, in which there may be a URI."""

Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
"""Of a method, a prompt, an argument, a level."""
Uri: TypeAlias = Annotated[str, Meta(max_length=MAX_URI)]
Key: TypeAlias = Annotated[str, Meta(max_length=MAX_KEY)]
"""By which a call, a question, a session, a request or a page of a list is found."""

_MOST_COMPARED = 1000


def check_keys(keys: Iterable[str]) -> None:
    """Raise `TooLong` if one is. For those that do not come in JSON."""
    if any(len(one) > MAX_KEY for one in keys):
        raise TooLong(f"A name or an id has {MAX_KEY} characters at most")


def near_matches(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that somebody may have meant who wrote this one, the most alike first."""
    if len(name) > MAX_NAME:
        return []
    short = (one for one in names if len(one) <= MAX_NAME)
    return difflib.get_close_matches(name, list(islice(short, _MOST_COMPARED)), n=3, cutoff=0.6)
