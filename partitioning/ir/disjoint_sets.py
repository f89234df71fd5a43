"""Sets that are joined one after the other, without common members."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Any number of sets; what was never joined is a set of its own (Tarjan 1975)."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def root(self, member: T) -> T:
        """The member that stands for a member's set."""
        parent = self._parent
        while (above := parent.setdefault(member, member)) is not member:
            parent[member] = parent.setdefault(above, above)
            member = parent[member]
        return member

    def join(self, one: T, other: T) -> None:
        """Joins two sets; the root of the first one stands for both."""
        root = self.root(one)
        self._parent[self.root(other)] = root

    def groups(self) -> list[list[T]]:
        """The sets of all members that were named so far, in the order of naming."""
        found: dict[T, list[T]] = {}
        for member in [*self._parent]:
            found.setdefault(self.root(member), []).append(member)
        return [*found.values()]
