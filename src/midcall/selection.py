"""Selections: which methods, resources and prompts of a hub are there for callers, by tag or name.

A pattern is `tag:admin`, or a name as in `files.*`; of a resource, also its URI. What a selection leaves out
is neither listed nor callable (see `Registry.restrict`). This module compares texts, and knows no methods.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from midcall.errors import RegistrationError

TAG = "tag:"

MAX_TAG = 100

_MOST_TOLD = 20
"""How many names are told of a hub in which a pattern finds nothing."""


class Selectable(NamedTuple):
    """Something that a pattern may mean."""

    name: str
    """The full one."""
    tags: Sequence[str] = ()
    other: str = ""
    """What it is known by beside its name: the URI of a resource, the path of an operation."""


class Selection(NamedTuple):
    """Patterns: of what is taken, all if there are none, and of what is left out nevertheless."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    prefix: str = ""
    """What the names of a nested hub begin with."""

    def takes(self, one: Selectable) -> bool:
        """Whether something is left in."""
        one = one._replace(name=self.prefix + one.name)
        if any(_matches(pattern, one) for pattern in self.without):
            return False
        return not self.only or any(_matches(pattern, one) for pattern in self.only)

    def takes_unlisted(self, name: str) -> bool:
        """The same of what a server has not listed yet: its tags are not known, so none may be asked for."""
        by_tag = any(pattern.startswith(TAG) for pattern in self.without)
        return not by_tag and self.takes(Selectable(name))

    def below(self, namespace: str) -> "Selection":
        """The same for a hub that is nested there."""
        return self._replace(prefix=f"{self.prefix}{namespace}.")

    def unmatched(self, there: Iterable[Selectable]) -> list[str]:
        """The patterns that mean nothing of what is there."""
        found = list(there)
        return [
            pattern
            for pattern in (*self.only, *self.without)
            if not any(_matches(pattern, one) for one in found)
        ]


def selection(only: Sequence[str] | str, without: Sequence[str] | str) -> Selection:
    """A selection of patterns. Raises `RegistrationError` for what is none."""
    given = [(one,) if isinstance(one, str) else tuple(one) for one in (only, without)]
    made = Selection(given[0], given[1])
    for pattern in (*made.only, *made.without):
        if not isinstance(pattern, str) or not pattern.removeprefix(TAG).strip():
            raise RegistrationError(f"{pattern!r} is not a pattern, as in 'files.*' or 'tag:admin'")
    return made


def check_matched(chosen: Selection, there: Sequence[Selectable]) -> None:
    """Raise `RegistrationError` if a pattern means nothing, and say what there is."""
    unmatched = chosen.unmatched(there)
    if unmatched:
        raise RegistrationError(f"{' and '.join(map(repr, unmatched))} matches nothing. {known(there)}")


def known(there: Iterable[Selectable]) -> str:
    """The tags and names that there are, in words."""
    found = list(there)
    tags = sorted({tag for one in found for tag in one.tags})
    names = list(dict.fromkeys(one.name for one in found))
    said = [f"Tags: {_some(tags)}." if tags else "Nothing has a tag.", f"Names: {_some(names)}."]
    return " ".join(said if names else ["There is nothing."])


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Tags in order, each once. Raises `TypeError` for a text, whose letters would be tags, and the like."""
    if isinstance(tags, str):
        raise TypeError(f'tags={tags!r}: tags are several, as in tags={{"{tags}"}}')
    found = sorted(set(tags))
    for tag in found:
        if not isinstance(tag, str) or not tag.strip() or len(tag) > MAX_TAG or not tag.isprintable():
            raise TypeError(f"{tag!r} is not a tag")
    return tuple(found)


def readable_tags(tags: Any) -> Iterator[str]:
    """Those of a stranger's tags that are tags."""
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, str) and tag.strip() and len(tag) <= MAX_TAG and tag.isprintable():
            yield tag


def _matches(pattern: str, one: Selectable) -> bool:
    if pattern.startswith(TAG):
        return any(fnmatch.fnmatchcase(tag, pattern.removeprefix(TAG)) for tag in one.tags)
    return any(fnmatch.fnmatchcase(name, pattern) for name in (one.name, one.other) if name)


def _some(words: Sequence[str]) -> str:
    more = len(words) - _MOST_TOLD
    return ", ".join(words[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")
