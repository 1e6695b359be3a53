"""Reads `WWW-Authenticate` (RFC 9110, 6750, 9728, 9449): what a server wants of the next request. No I/O."""

import re

from msgspec import Struct

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  what RFC 9110 calls a token
_GAP = re.compile(r"[\s,]*")
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|$)")
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)")
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')

SCHEMES = ("bearer", "dpop")
"""The ways to show a token that we know."""


class Challenge(Struct, frozen=True):
    """What a server says of a request that it refuses."""

    scheme: str = ""
    """In lower case; empty if the server says nothing."""
    error: str = ""
    description: str = ""
    scopes: tuple[str, ...] = ()
    resource_metadata: str = ""


def read_challenge(header: str | None) -> Challenge | None:
    """The challenge for a token; an empty one if the server says nothing; `None` if it wants something else.

    If it takes both kinds of tokens, the plain one is taken.
    """
    if header is None or not header.strip():
        return Challenge()
    found = {scheme: _made(scheme, given) for scheme, given in reversed(_parts(header)) if scheme in SCHEMES}
    for scheme in SCHEMES:
        if scheme in found:
            return found[scheme]
    return None


def _made(scheme: str, given: dict[str, str]) -> Challenge:
    return Challenge(
        scheme,
        error=given.get("error", ""),
        description=given.get("error_description", ""),
        scopes=tuple(dict.fromkeys(given.get("scope", "").split())),
        resource_metadata=given.get("resource_metadata", ""),
    )


def _parts(header: str) -> list[tuple[str, dict[str, str]]]:
    """The challenges of a header, each with its parameters; what cannot be read ends it."""
    challenges: list[tuple[str, dict[str, str]]] = []
    place = 0
    while True:
        gap = _GAP.match(header, place)
        place = gap.end() if gap else place
        if challenges and (parameter := _PARAMETER.match(header, place)):
            name, quoted, plain = parameter.groups()
            value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            challenges[-1][1].setdefault(name.lower(), value)
            place = parameter.end()
        elif scheme := _SCHEME.match(header, place):
            challenges.append((scheme[1].lower(), {}))
            place = scheme.end()
            if opaque := _TOKEN68.match(header, place):
                place = opaque.end()
        else:
            return challenges
