"""Checkpoints: folders that are either complete or not there.

    checkpoints/checkpoint-00000007/
        manifest.json      format, whose it is, counters, and size and SHA-256 of every other file
        learner.npz ...    one file per part (see `npz`),
        learner/...        or a folder, where its arrays lie on several devices (see `sharded`)

A checkpoint is written under a temporary name, synced to the disk and renamed, so that a process
killed at any moment leaves the earlier ones as they were. Where several processes hold the arrays,
one begins, each writes its shards, and the one names it when all have. Reading takes the newest
that is whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any

import jax

from ..errors import RequestError, RunError
from . import npz, sharded
from .copies import Copier, Copies, CopyError

Nest = Any

_FORMAT = 1
_PREFIX = "checkpoint-"
_WRITING = ".writing-"
_REMOVING = ".removing-"
_INCARNATION = ".incarnation"
_MANIFEST = "manifest.json"
_SUMS = ".sums-"
_OF_LEDGERS = ("incarnations", "evaluate_at", "recent")


class CheckpointError(RunError):
    """No checkpoint could be written, or none of those that exist could be read."""


class DamagedError(CheckpointError):
    """One checkpoint is damaged."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint, whose files were compared with their sums."""

    path: pathlib.Path
    identity: Mapping[str, Any]
    """Whose it is: agent, environment, config."""
    counters: Mapping[str, Any]
    """Numbers that the run goes on from."""
    parts: tuple[str, ...]
    """Those that are whole."""
    lost: tuple[str, ...] = ()
    """A line on each part that is not, with what is wrong."""

    def read(self, part: str, like: Nest = None) -> Nest:
        """One part of the state.

        Args:
          part: one of `parts`.
          like: a nest of the same structure (see `npz.read`); where its leaves lie on several
            devices, arrays that lie there.

        Raises:
          RequestError: if the part has another structure: it was made by another agent or config.
        """
        try:
            if (self.path / part).is_dir():
                return sharded.read(self.path / part, like)
            with open(self.path / f"{part}.npz", "rb") as file:
                return npz.read(file, like)
        except npz.NestError as error:
            raise RequestError(
                f"{self.path}: the {part} in it is not that of this agent: {error}"
            ) from error


class Store:
    """The checkpoints of one run."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 2,
        incarnation: int | None = None,
        address: str | None = None,
    ):
        """Opens a folder, which is made by the first `save`.

        Args:
          folder: holds the checkpoints and nothing else.
          keep: so many of the newest are kept, at least 1.
          incarnation: of the run, as `begin_incarnation` gave it: nothing is saved once a later
            one has begun. None: the run has but one.
          address: where copies of them are kept, for those who do not see the folder; None:
            nowhere.
        """
        if keep < 1:
            raise RequestError(f"{keep} checkpoints were to be kept; keep at least 1.")
        self._folder = pathlib.Path(folder)
        self._keep = keep
        self._incarnation = incarnation
        self._copies = self._copier = None
        if address is not None:
            self._copies = Copies(address)
            self._copier = Copier(address, _PREFIX, keep, incarnation)

    def claim(self) -> None:
        """Raises RequestError where the address is not that of a new run."""
        if self._copies is not None:
            self._copies.claim(_PREFIX)

    def begin_incarnation(self) -> int:
        """Begins an incarnation of the run, and returns its number.

        Those before can save nothing more.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        number = self._newest_incarnation() + 1
        temporary = self._folder / f"{_INCARNATION}-{os.getpid()}"
        temporary.write_text(str(number))
        os.replace(temporary, self._folder / _INCARNATION)
        if self._copies is not None:
            self._copies.incarnation = number
        return number

    def _newest_incarnation(self) -> int:
        """Number of the incarnation that began last; -1: there was none."""
        copied = -1 if self._copies is None else self._copies.incarnation
        try:
            return max(copied, int((self._folder / _INCARNATION).read_text()))
        except FileNotFoundError:
            return copied

    def _require_incarnation(self) -> None:
        if self._incarnation is not None and self._newest_incarnation() > self._incarnation:
            raise CheckpointError(
                f"incarnation {self._incarnation} of the run has ended: incarnation "
                f"{self._newest_incarnation()} has taken its place, and writes into {self._folder}."
            )

    def paths(self) -> list[pathlib.Path]:
        """Folders of all checkpoints, complete or damaged, the oldest first."""
        return sorted(self._folder.glob(f"{_PREFIX}*"))

    def save(
        self,
        parts: Mapping[str, Nest],
        counters: Mapping[str, Any],
        identity: Mapping[str, Any],
        others: Callable[[pathlib.Path], Callable[[], None]] | None = None,
    ) -> pathlib.Path:
        """Writes a checkpoint, then removes those that are no longer kept.

        Args:
          parts: nests by name.
          counters: numbers that the run goes on from.
          identity: whose it is.
          others: where other processes hold shards of the parts: has them call `write_shards` with
            the folder that it gets, and returns what waits until they have.

        Returns:
          The folder of the checkpoint.

        Raises:
          CheckpointError: if it could not be written, or a later incarnation of the run has begun;
            the earlier ones are as they were. Also if one before it could not be copied to the
            address, which is done in another thread (see `copied`).
        """
        self._require_incarnation()
        paths = self.paths()
        number = int(paths[-1].name[len(_PREFIX) :]) + 1 if paths else 1
        final = self._folder / f"{_PREFIX}{number:08d}"
        own = "" if self._incarnation is None else f"-{self._incarnation}"
        temporary = self._folder / f"{_WRITING}{number:08d}{own}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary.mkdir()
            spread = {name for name, nest in parts.items() if _is_spread(nest)}
            for name in spread:
                sharded.prepare(temporary / name, parts[name])
            finish = others(temporary) if others is not None else None
            write_shards(temporary, parts)
            if finish is not None:
                finish()
            files = {
                part: _sums_of_shards(temporary, part)
                if part in spread
                else self._write_part(temporary, part, nest)
                for part, nest in parts.items()
            }
            manifest = {
                "format": _FORMAT,
                "identity": dict(identity),
                "counters": dict(counters),
                "parts": files,
            }
            with open(temporary / _MANIFEST, "w") as file:
                json.dump(manifest, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(temporary)
            self._require_incarnation()
            os.rename(temporary, final)  # Fails where another incarnation was faster.
            _sync_folder(self._folder)
        except CheckpointError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        except (OSError, ValueError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, RequestError | npz.NestError):
                raise
            kept = f"the earlier one, {paths[-1].name}, is intact" if paths else "there is none yet"
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"could not write a checkpoint into {self._folder}: {reason}; {kept}."
            ) from error
        needed = set() if self._copier is None else self._copier.needed
        for path in paths[: len(paths) + 1 - self._keep]:
            if path not in needed:
                self._remove(path)
        if self._copier is not None:
            self._copier.offer(final)
            self.copied(0.0)
        return final

    def copied(self, seconds: float | None) -> bool:
        """Waits so long (None: as long as it may take) for copies to the address, if any.

        Returns:
          True if the newest is there.

        Raises:
          CheckpointError: if one could not be copied, or not in time; it is in the folder.
        """
        try:
            return self._copier is None or self._copier.wait(seconds)
        except CopyError as error:
            raise CheckpointError(str(error)) from error

    def newest(
        self,
        warn: Callable[[str], None],
        needs: Collection[str] | None = None,
        spare: Collection[str] = (),
    ) -> Checkpoint | None:
        """The newest checkpoint that will do, or None where there is none at all.

        Args:
          warn: called with a line for every damaged one that an older is taken in place of, and
            for every part that is left out.
          needs: parts that must be whole; None: all. The others are not looked at.
          spare: parts that are left out where they are damaged.

        Raises:
          CheckpointError: if there are checkpoints and all are damaged.
        """
        self._fetch()
        paths = self.paths()
        damages: list[str] = []
        for path in reversed(paths):
            try:
                checkpoint = _open(path, needs, spare)
            except DamagedError as error:
                damages.append(str(error))
                continue
            for damage in damages:
                warn(f"warning: {damage} The one before it is taken.")
            for loss in checkpoint.lost:
                warn(f"warning: {path}: {loss} It is left out.")
            return checkpoint
        if damages:
            raise CheckpointError(
                f"all checkpoints in {self._folder} are damaged ({len(paths)}), the newest: "
                f"{damages[0]} Start a new run."
            )
        return None

    def named(self, name: str) -> Checkpoint:
        """The checkpoint in a folder of this name, which another process has found whole."""
        if self._copies is not None and not (self._folder / name).exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._copies.get(name, self._folder)
        return _open(self._folder / name, needs=())

    def _fetch(self) -> None:
        """Fetches the newest copy, where this folder has none as new."""
        if self._copies is None:
            return
        names, paths = self._copies.names(_PREFIX), self.paths()
        if names and (not paths or paths[-1].name < names[-1]):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._copies.get(names[-1], self._folder)

    @staticmethod
    def _write_part(folder: pathlib.Path, part: str, nest: Nest) -> dict[str, Any]:
        with open(folder / f"{part}.npz", "wb") as file:
            summed = _Summed(file)
            npz.write(summed, nest)
            file.flush()
            os.fsync(file.fileno())
        return summed.sum

    def _remove(self, path: pathlib.Path) -> None:
        # Renamed first: a checkpoint that is half removed must not look like a damaged one.
        doomed = path.with_name(f"{_REMOVING}{path.name}")
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for prefix in (_WRITING, _REMOVING):
            for path in self._folder.glob(f"{prefix}*"):
                shutil.rmtree(path, ignore_errors=True)


class _Summed:
    """A file that is written from its begin to its end, and summed meanwhile."""

    def __init__(self, file: IO[bytes]):
        self._file, self._bytes, self._digest = file, 0, hashlib.sha256()

    def flush(self) -> None:
        """The file is flushed by who opened it."""

    def write(self, content: Any, /) -> int:
        written = self._file.write(content)
        self._digest.update(content)
        self._bytes += written
        return written

    @property
    def sum(self) -> dict[str, Any]:
        """Size and SHA-256, as the manifest has them."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}


def write_shards(folder: pathlib.Path, parts: Mapping[str, Nest]) -> None:
    """Writes this process's shards of the parts that lie on several devices, and their sums."""
    for part, nest in parts.items():
        if not _is_spread(nest):
            continue
        sums = {f"{part}/{name}": one for name, one in sharded.write(folder / part, nest).items()}
        rank = jax.process_index()
        (folder / f"{part}{_SUMS}{rank}").write_text(json.dumps(sums))


def _is_spread(nest: Nest) -> bool:
    return any(map(sharded.is_spread, jax.tree.leaves(nest)))


def _sums_of_shards(folder: pathlib.Path, part: str) -> dict[str, Any]:
    """Returns the manifest's entry of a part in shards."""
    sums = {
        str(file.relative_to(folder)): _sum(file)
        for file in [folder / part / "structure.json", *(folder / part).glob("*/zarr.json")]
    }
    for path in folder.glob(f"{part}{_SUMS}*"):
        sums |= json.loads(path.read_text())
        path.unlink()
    for inner in [folder / part, *(path for path in (folder / part).rglob("*") if path.is_dir())]:
        _sync_folder(inner)
    return {"files": sums}


def _sum(path: pathlib.Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _open(
    path: pathlib.Path, needs: Collection[str] | None = None, spare: Collection[str] = ()
) -> Checkpoint:
    """Reads the manifest and compares the files of the parts that are needed with it.

    Raises:
      DamagedError: if one of the parts that are needed (None: of all) differs or is missing.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        if manifest["format"] != _FORMAT:
            raise DamagedError(
                f"{path} has format {manifest['format']}; this version reads format {_FORMAT}."
            )
        parts, lost = [], []
        for part, found in manifest["parts"].items():
            looked_at = needs is None or part in needs or part in spare
            damage = _damage(path, part, found) if looked_at else None
            if damage is None:
                parts.append(part)
            elif part in spare:
                lost.append(f"the {part} in it is damaged ({damage}).")
            else:
                raise DamagedError(f"{path} is damaged ({damage}).")
        identity, counters = manifest["identity"], dict(manifest["counters"])
        for name, value in counters.pop("ledger", {}).items():  # As versions up to 0.3 wrote it.
            counters |= {name: value} if name in _OF_LEDGERS else {}
        return Checkpoint(path, identity, counters, tuple(parts), tuple(lost))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged ({error}).") from error


def _damage(folder: pathlib.Path, part: str, found: Mapping[str, Any]) -> str | None:
    """Names the damage of a part of a checkpoint; None: it is as it was written."""
    for name, expected in found.get("files", {f"{part}.npz": found}).items():
        file = folder / name
        try:
            # The size first: a file that was cut off need not be read.
            if file.stat().st_size != expected["bytes"] or _sum(file) != expected:
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def sha256_of(path: pathlib.Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(path: pathlib.Path) -> None:
    """Makes the names in a folder last: a rename is only on the disk once its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
