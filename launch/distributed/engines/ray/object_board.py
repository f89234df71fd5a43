"""The newest variables: files, which readers of the learner's node map, and objects of Ray's store
for those of all other nodes.

A block of an array that the learner has spread is cut into pieces, each an object of its own, which
a node fetches if one of its devices holds a part of it; so is an array that the learner has whole,
where all who read it spread it. Each process of a gang puts the blocks of its own devices, as
objects alone.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import ray
from ray import exceptions

from .....agents.variables.publisher import Publisher
from .....agents.variables.reader import Server, VariableReader
from .....agents.variables.server import PartServer
from .....agents.variables.stored import Place, StoredArray, blocks_of, merged
from .....agents.variables.version_board import FileShelf, read_version, version_file
from ....files.frozen import fetch
from ...roles import rpc
from ...supervision import role
from . import host

Nest = Any
_FETCH_SECONDS = 60.0
_FIRST_PERIOD = 0.1
"""Between questions before there is a version: a call takes about a millisecond of a processor, and
while a learner starts all that wait for it ask."""
_LOOK_SECONDS = 0.2
"""Between questions of the publisher whether anybody asked from another node."""
_FOLDER = "variables"
_PIECES, _PIECE_BYTES = 16, 1 << 20
"""Pieces of a block at most, and bytes of each at least: a call for a piece takes a millisecond."""


class Page:
    """Two numbers in the shared memory of the learner's node, which cost its readers no call.

    A call of Ray takes a millisecond of a processor at either end, and an object that is read by
    many has its owner, the learner, keep book of each.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens that of a folder of versions; it is made where there is none.

        Raises:
          FileNotFoundError: if there is no such folder.
        """
        self.folder = folder
        descriptor = os.open(folder / "page", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 16)
            # Elements are stored at once: whoever reads sees the old number or the new one.
            self._numbers = np.frombuffer(mmap.mmap(descriptor, 16), np.int64)
        finally:
            os.close(descriptor)

    @property
    def version(self) -> int:
        """The newest whose file is there; -1 where there is none."""
        return int(self._numbers[0]) - 1

    @version.setter
    def version(self, number: int) -> None:
        self._numbers[1] = 0
        self._numbers[0] = number + 1

    @property
    def asked(self) -> bool:
        """True if anybody of this node asked for a newer one."""
        return bool(self._numbers[1])

    def ask(self) -> None:
        self._numbers[1] = 1


class _Shelf(FileShelf):
    """Files, of whose newest a page has the number."""

    def __init__(self, page: Page):
        super().__init__(page.folder)
        self._page = page
        page.version = self.newest()[0]

    def put(self, version: int, variables: Mapping[str, Nest]) -> Any:
        path = super().put(version, variables)
        self._page.version = version
        return path


class _PartShelf(FileShelf):
    """Parts of versions as objects; in its folder is only the number of the newest."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder)
        self._kept: list[Any] = []

    def put(self, version: int, variables: Mapping[str, Nest]) -> Any:
        leaves, structure = jax.tree.flatten(dict(variables))
        for number, leaf in enumerate(leaves):
            blocks = tuple(blocks_of(leaf, number))
            leaves[number] = StoredArray(leaf.shape, np.dtype(leaf.dtype), blocks)
        reference = ray.put(_apart(jax.tree.unflatten(structure, leaves)))
        self._kept = [*self._kept[-1:], reference]
        return [reference]


class _Announcer:
    """The variable server as a publisher knows it: who asks on its own node does so on the page.

    Versions become objects of Ray's store once somebody asks from another node, each then put once
    and fetched once by a node.
    """

    def __init__(self, server: Any, page: Page, spreads: bool = False):
        self._server, self._page, self._spreads = server, page, spreads
        self._afar = False
        self._known, self._look_at = -1, 0.0
        self._announce_at = 0.0
        self._announced: tuple[int, str] | None = None
        self._put = -1
        self._kept: list[Any] = []

    def look(self) -> tuple[int, bool]:
        asked = False
        if (now := time.monotonic()) >= self._look_at:
            self._known, asked = self._server.look()
            self._look_at = now + _LOOK_SECONDS
            self._afar = self._afar or asked
            last = self._announced
            if self._afar and last is not None and last[0] == self._known != self._put:
                self.announce(*last)  # It was announced without an object.
        return self._known, asked or self._page.asked

    def announce(self, version: int, path: str) -> bool:
        now = time.monotonic()
        if not self._afar and now < self._announce_at:
            self._known, self._announced = version, (version, path)  # The page has it.
            return True
        self._announce_at = now + _LOOK_SECONDS
        references = []
        if self._afar:
            references = [ray.put(_apart(read_version(pathlib.Path(path)), self._spreads))]
            self._kept, self._put = [*self._kept[-1:], *references], version
        # In a list: of a reference itself, Ray would hand on what it stands for.
        self._server.announce(version, references)
        self._known, self._announced = version, (version, path)
        return True


@dataclasses.dataclass(frozen=True)
class _Block:
    """A block of an array in Ray's store, fetched when it is read and then let go."""

    reference: Any

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        try:
            return np.asarray(ray.get(self.reference, timeout=_FETCH_SECONDS), dtype)
        except exceptions.RayError as error:
            raise rpc.Unreachable("a block of a version is gone") from error


def _apart(variables: Nest, spreads: bool = False) -> Nest:
    """Variables whose blocks, of arrays that were spread, are objects in pieces.

    Args:
      variables: arrays and `StoredArray`s, of whose blocks one at a time is brought to the host.
      spreads: True if the same is to be done with large arrays that are whole.
    """

    def put(leaf: Any) -> Any:
        if spreads and isinstance(leaf, np.ndarray) and leaf.nbytes >= 2 * _PIECE_BYTES:
            leaf = StoredArray(leaf.shape, leaf.dtype, tuple(blocks_of(leaf)))
        if not isinstance(leaf, StoredArray):
            return leaf
        blocks = []
        for place, values in leaf.blocks:
            pieces = _pieces(place, fetch(values))
            blocks += [(part, _Block(ray.put(np.asarray(one, order="C")))) for part, one in pieces]
        return dataclasses.replace(leaf, blocks=tuple(blocks))

    return jax.tree.map(put, variables)


def _pieces(place: Place, values: np.ndarray) -> list[tuple[Place, np.ndarray]]:
    """Halves a block along its longest dimension, and again, so that a reader whose devices hold a
    part of it fetches little more than that."""
    found = [(place, values)]
    while 2 * len(found) <= _PIECES and found[0][1].nbytes >= 2 * _PIECE_BYTES:
        shape = found[0][1].shape
        dim = shape.index(max(shape))
        found = [half for piece in found for half in _halves(*piece, dim)]
    return found


def _halves(place: Place, values: np.ndarray, dim: int) -> list[tuple[Place, np.ndarray]]:
    """Both halves of a block along a dimension of at least 2."""
    start, stop, before = place[dim].start, place[dim].stop, place[:dim]
    middle = (stop - start) // 2
    return [
        (
            (*before, slice(start + part.start, start + part.stop), *place[dim + 1 :]),
            values[(slice(None),) * dim + (part,)],
        )
        for part in (slice(0, middle), slice(middle, stop - start))
    ]


class RayBoard:
    """The board of a variable server (`roles.board.VariableBoard`)."""

    def __init__(self, server: Any):
        """Takes the `VariableRole`, from afar."""
        self._server = server

    def publisher(self, part: int = 0, parts: int = 1, *, spreads: bool = False) -> Publisher:
        folder = role.current().workspace / _FOLDER
        if parts > 1:
            folder = folder / str(part)
            folder.mkdir(parents=True, exist_ok=True)
            return Publisher(_PartShelf(folder), PartServer(self._server, part, parts))
        folder.mkdir(exist_ok=True)
        page = Page(folder)
        return Publisher(_Shelf(page), _Announcer(self._server, page, spreads))

    def reader(self, on_host: bool = False) -> VariableReader:
        return VariableReader(
            self._server,
            fetch=_fetching([role.current().workspace, host.workspace_here()]),
            first_period=_FIRST_PERIOD,
            while_waiting=rpc.check_stop,
            on_host=on_host,
        )


def _fetching(
    workspaces: list[pathlib.Path],
) -> Callable[[Server, int], tuple[int, dict[str, Nest]] | None]:
    """Reads of the learner's page, if it is in one of these folders; else asks its server."""
    page: Page | None = None

    def fetch(server: Server, newer_than: int) -> tuple[int, dict[str, Nest]] | None:
        nonlocal page
        if page is None:
            here = next((w for w in workspaces if (w / _FOLDER / "page").exists()), None)
            if here is None:
                return _from_afar(server, newer_than)
            page = Page(here / _FOLDER)
        version = page.version
        if version <= newer_than:
            page.ask()
            return None
        try:
            return version, read_version(version_file(page.folder, version))
        except FileNotFoundError:  # There are two newer ones by now.
            return None

    return fetch


def _from_afar(server: Server, newer_than: int) -> tuple[int, dict[str, Nest]] | None:
    found = server.get(newer_than, False)
    if found is None or not found[1]:  # None, or not yet an object.
        return None
    version, references, _ = found
    try:
        return version, merged(ray.get(references, timeout=_FETCH_SECONDS))
    except exceptions.RayError as error:  # It went with the learner; there will be another.
        raise rpc.Unreachable(f"version {version} is gone") from error
