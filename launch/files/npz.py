"""Nests of arrays as files: one npz of plain arrays whose member `structure` is JSON.

No pickle: a file can hold numbers and text and nothing that runs. PRNG keys are stored as their
data and the name of their implementation, types that numpy does not know (bfloat16 and its like)
as bytes and the name of the type. Lists, tuples, dicts, numbers, text and None come back as they
were; any other container that jax has registered (a NamedTuple, a dataclass) comes back through a
nest of the same structure, which the reader gives.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import IO, Any, Literal, Protocol, cast

import jax
import ml_dtypes
import numpy as np

from .frozen import Shards, fetch

Nest = Any

_STRUCTURE = "structure"
_PLAIN_KINDS = "?bhilqBHILQefdFDU"
_BLOCK = 1 << 20
"""Bytes written together: they stay in the cache of a core from one look at them to the next."""


class Writable(Protocol):
    """A file that a nest is written to, from its begin to its end."""

    def write(self, content: Any, /) -> int: ...


Keep = Callable[[Any, str], Any]
Take = Callable[[int, Any, str], Any]


class NestError(ValueError):
    """A file does not hold what its reader expects; the message says where and what."""


def write(file: Writable, nest: Nest) -> None:
    """Writes a nest.

    Args:
      file: open for writing; need not be seekable.
      nest: numbers, text, None and arrays (numpy, jax, PRNG keys), in dicts with text as keys,
        lists, tuples and containers registered with jax.

    Raises:
      NestError: if there is something else in it.
    """
    arrays: list[Any] = []
    structure = encode(nest, lambda array, path: _keep(array, arrays, path))
    with zipfile.ZipFile(
        cast(IO[bytes], file), "w", zipfile.ZIP_STORED, allowZip64=True
    ) as archive:
        for index, array in enumerate(arrays):
            with archive.open(f"{index}.npy", "w", force_zip64=True) as member:
                _write_array(member, array)
        archive.writestr(_STRUCTURE, json.dumps(structure, separators=(",", ":")))


def read(file: IO[bytes], like: Nest = None, *, mapped_bytes: int | None = None) -> Nest:
    """Reads a nest.

    Args:
      file: as `write` left it, seekable.
      like: a nest of the same structure, from which containers other than list, tuple and dict
        are rebuilt; None where there are no others. Of its leaves only the shardings are looked
        at: where one lies on several devices the array is put there, before the next is read.
      mapped_bytes: arrays of at least so many bytes stay in the file, which must have a name, and
        are read as they are needed, without a look at their sums; None: none do.

    Returns:
      The nest, its arrays as numpy arrays (PRNG keys as keys).

    Raises:
      NestError: if the file is damaged or its structure is not that of `like`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            structure = json.loads(archive.read(_STRUCTURE))

            def array(index: int, like: Any, path: str) -> Any:
                member_info = archive.getinfo(f"{index}.npy")
                if mapped_bytes is not None and member_info.file_size >= mapped_bytes:
                    return _mapped(archive, member_info)
                with archive.open(member_info) as member:
                    found = np.lib.format.read_array(
                        io.BufferedReader(member),  # type: ignore[type-var]
                        allow_pickle=False,
                    )
                sharding = getattr(like, "sharding", None)
                if sharding is None or len(sharding.device_set) == 1:
                    return found
                check_like(found.shape, found.dtype, like, path)
                return jax.make_array_from_callback(found.shape, sharding, lambda at: found[at])

            return decode(structure, array, like)
    except (zipfile.BadZipFile, KeyError, EOFError, json.JSONDecodeError, OSError) as error:
        raise NestError(f"damaged: {error}") from error


def _write_array(member: IO[bytes], array: Any) -> None:
    plain = np.asarray(fetch(array), order="C")
    if plain.dtype.char not in _PLAIN_KINDS:
        plain = plain.reshape(-1).view(np.uint8)
    header = np.lib.format.header_data_from_array_1_0(plain)
    np.lib.format.write_array_header_1_0(member, header)
    content = plain.reshape(-1).view(np.uint8)
    for start in range(0, content.size, _BLOCK):
        member.write(content[start : start + _BLOCK].data)


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """An array where it lies in the file, which stores it as it is."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise NestError(f"{info.filename} is compressed.")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(member)
        header_bytes = member.tell()
    name = str(archive.filename)
    with open(name, "rb") as file:
        # Of the member's own header: what stands before its name, and two lengths at its end.
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    offset = info.header_offset + 30 + int(lengths.sum()) + header_bytes
    order: Literal["C", "F"] = "F" if is_fortran else "C"
    return np.memmap(name, dtype, "r", offset, shape, order)


def encode(nest: Nest, keep: Keep, path: str = "") -> Any:
    """The structure of a nest as JSON.

    Args:
      nest: as `write` takes it.
      keep: `(array, path) -> JSON` that stands for an array, which `decode` then finds.

    Raises:
      NestError: if something in it cannot be stored.
    """
    kind = type(nest)
    if nest is None or kind in (bool, int, float, str):
        # JSON has no word for a float without a value; text that `float` reads does for all.
        return {"float": repr(nest)} if kind is float else {"value": nest}
    if kind in (list, tuple):
        items = [encode(item, keep, f"{path}[{i}]") for i, item in enumerate(nest)]
        return {kind.__name__: items}
    if kind is dict:
        if not all(isinstance(key, str) for key in nest):
            raise NestError(f"at {path or 'the root'}: every key of a dict must be text.")
        return {"dict": {key: encode(item, keep, f"{path}.{key}") for key, item in nest.items()}}
    if isinstance(nest, np.ndarray | np.generic | jax.Array | Shards):
        return keep(nest, path)
    children, _ = _one_level(nest)
    if children is None:
        raise NestError(f"at {path or 'the root'}: cannot store a {kind.__qualname__}.")
    return {
        "node": kind.__qualname__,
        "children": [encode(item, keep, f"{path}{name}") for name, item in children],
    }


def _keep(array: Any, arrays: list[Any], path: str) -> Any:
    """Appends an array to `arrays`; returns the JSON that stands for it."""
    index = len(arrays)
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        arrays.append(jax.random.key_data(array))
        return {"key": index, "impl": str(jax.random.key_impl(array))}
    dtype = np.dtype(array.dtype)
    arrays.append(array)
    if dtype.char in _PLAIN_KINDS:
        return {"array": index}
    if dtype.kind == "V" or hasattr(ml_dtypes, dtype.name):
        return {"array": index, "dtype": dtype.name, "shape": array.shape}
    raise NestError(f"at {path or 'the root'}: cannot store an array of {dtype}.")


def decode(structure: Any, array: Take, like: Nest, path: str = "") -> Nest:
    """The nest whose structure `encode` gave.

    Args:
      structure: as JSON.
      array: `(index, leaf of like, path) -> array`.
      like: as `read` takes it.

    Raises:
      NestError: if the structure is damaged or not that of `like`.
    """
    where = path or "the root"
    match structure:
        case {"value": value}:
            return value
        case {"float": text}:
            return float(text)
        case {"key": index, "impl": impl}:
            return jax.random.wrap_key_data(jax.numpy.asarray(array(index, None, path)), impl=impl)
        case {"array": index, "dtype": name, "shape": shape}:
            return array(index, None, path).view(np.dtype(getattr(ml_dtypes, name))).reshape(shape)
        case {"array": index}:
            return array(index, like, path)
        case {"list": items}:
            likes = _likes(like, list, len(items), where)
            pairs = enumerate(zip(items, likes, strict=True))
            return [decode(item, array, part, f"{path}[{i}]") for i, (item, part) in pairs]
        case {"tuple": items}:
            likes = _likes(like, tuple, len(items), where)
            pairs = enumerate(zip(items, likes, strict=True))
            return tuple(decode(item, array, part, f"{path}[{i}]") for i, (item, part) in pairs)
        case {"dict": items}:
            if like is not None and (type(like) is not dict or like.keys() != items.keys()):
                raise NestError(f"at {where}: the file has {_names(items)}, not {_describe(like)}.")
            return {
                key: decode(item, array, None if like is None else like[key], f"{path}.{key}")
                for key, item in items.items()
            }
        case {"node": name, "children": items}:
            children, rebuild = (None, None) if like is None else _one_level(like)
            if children is None or rebuild is None or type(like).__qualname__ != name:
                raise NestError(f"at {where}: the file has a {name}, not {_describe(like)}.")
            if len(children) != len(items):
                raise NestError(
                    f"at {where}: the file has {len(items)} parts in a {name}, not {len(children)}."
                )
            parts = zip(items, children, strict=True)
            return rebuild([decode(item, array, c, f"{path}{key}") for item, (key, c) in parts])
    raise NestError(f"damaged: at {where} there is {structure!r:.60}.")


def check_like(shape: tuple[int, ...], dtype: Any, like: Any, path: str) -> None:
    """Raises NestError where an array has not the shape and dtype of its leaf of `like`."""
    if tuple(shape) != tuple(like.shape) or dtype != like.dtype:
        found = f"{np.dtype(dtype).name}{list(shape)}"
        raise NestError(
            f"at {path}: the file has {found}, not {np.dtype(like.dtype).name}{list(like.shape)}."
        )


def _one_level(nest: Nest) -> tuple[list[tuple[str, Any]] | None, Callable[..., Any] | None]:
    """The named children of a registered container and how to rebuild it; None for others."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(nest, is_leaf=lambda x: x is not nest)
    if jax.tree_util.treedef_is_leaf(treedef) and paths and paths[0][1] is nest:
        return None, None
    children = [(jax.tree_util.keystr(path), child) for path, child in paths]
    return children, lambda parts: jax.tree.unflatten(treedef, parts)


def _likes(like: Any, kind: type[list] | type[tuple], length: int, where: str) -> list[Any]:
    if like is None:
        return [None] * length
    if type(like) is not kind or len(like) != length:
        message = f"the file has a {kind.__name__} of {length}, not {_describe(like)}."
        raise NestError(f"at {where}: {message}")
    return list(like)


def _describe(like: Nest) -> str:
    if type(like) is dict:
        return _names(like)
    if type(like) in (list, tuple):
        return f"a {type(like).__name__} of {len(like)}"
    return "nothing" if like is None else f"a {type(like).__qualname__}"


def _names(items: Any) -> str:
    names = ", ".join(sorted(items)[:6])
    return f"a dict of {names}{', ...' if len(items) > 6 else ''}" if names else "an empty dict"
