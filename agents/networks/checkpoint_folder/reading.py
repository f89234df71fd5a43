"""Reads the tensors of a folder as parameters, each device's slice alone."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..decoder import DecoderConfig, Params
from .configs import read_config
from .names import TensorSource, sources
from .tensor_files import open_tensors

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"
Index = tuple[slice, ...]


def read(folder: str | os.PathLike[str], shardings: Any = None, dtype: str | None = None) -> Params:
    """The parameters of a folder.

    A host reads the slices of its devices only, one layer at a time: besides what is mapped from
    files it holds no more than a device's share of one layer of one array.

    Args:
      folder: with `config.json` and safetensors, in one file or in several with an index.
      shardings: of `jax.sharding`, nested as parameters are, or one for all; by default all lie on
        the first device.
      dtype: of the parameters; by default the one that each tensor has.

    Raises:
      FileNotFoundError: where the config or a file of tensors is missing.
      ValueError: where tensors are missing, too many or of another shape, or a file is cut short.
    """
    folder = pathlib.Path(folder)
    config = read_config(folder)
    tensors = _open(folder)
    wanted = sources(config)
    _check(folder, config, wanted, tensors)
    if shardings is None:
        shardings = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    params: Params = {"layers": {}}
    for path, source in wanted.items():
        sharding = shardings
        for key in path:
            sharding = sharding[key] if isinstance(sharding, dict) else sharding
        place = params["layers"] if len(path) > 1 else params
        place[path[-1]] = _array(source, [tensors[name] for name in source.names], sharding, dtype)
    return params


def _open(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a folder by name, mapped."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / ALONE).exists():
            raise FileNotFoundError(f"{folder} has neither {INDEX} nor {ALONE}: no weights")
        return open_tensors(folder / ALONE)
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if missing := [name for name in files if not (folder / name).exists()]:
        raise FileNotFoundError(
            f"{folder} lacks {_some(missing)}, {len(missing)} of the {len(files)} files that "
            f"{INDEX} names; copy them there"
        )
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        tensors |= open_tensors(folder / name)
    return tensors


def _check(
    folder: pathlib.Path,
    config: DecoderConfig,
    wanted: dict[tuple[str, ...], TensorSource],
    tensors: dict[str, np.ndarray],
) -> None:
    shapes = {name: source.stored_shape for source in wanted.values() for name in source.names}
    if missing := [name for name in shapes if name not in tensors]:
        raise ValueError(
            f"{folder} has no tensors {_some(missing)}, {len(missing)} of the {len(shapes)} that "
            "its config.json is of"
        )
    for name, shape in shapes.items():
        if (held := tensors[name].shape) != shape:
            raise ValueError(f"{folder}: {name} is {list(held)}, and by config.json {list(shape)}")
    # Tied weights may stand twice; frequencies stood in files before version 4.31 and follow
    # from the config.
    known = {*shapes, *(["lm_head.weight"] if config.tied else [])}
    rest = [name for name in tensors if name not in known and not name.endswith("inv_freq")]
    if rest:
        raise ValueError(
            f"{folder} has tensors {_some(rest)}, {len(rest)} that its config.json is not of"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _array(
    source: TensorSource, tensors: list[np.ndarray], sharding: Any, dtype: str | None
) -> jax.Array:
    """An array of parameters over the devices of this process."""
    kind = jnp.dtype(dtype) if dtype else tensors[0].dtype
    devices: dict[Any, tuple[Index, list[jax.Device]]] = {}
    for device, index in sharding.addressable_devices_indices_map(source.shape).items():
        whole = tuple(slice(*s.indices(n)) for s, n in zip(index, source.shape, strict=True))
        key = tuple((s.start, s.stop) for s in whole)
        devices.setdefault(key, (whole, []))[1].append(device)
    # Devices that hold the same slice are served by one reading of it.
    shards = [
        shard
        for index, same in devices.values()
        for shard in _shards(source, tensors, index, kind, same)
    ]
    return jax.make_array_from_single_device_arrays(source.shape, sharding, shards)


def _shards(
    source: TensorSource,
    tensors: list[np.ndarray],
    index: Index,
    dtype: np.dtype,
    devices: list[jax.Device],
) -> list[jax.Array]:
    """A slice of an array on each of some devices."""
    if not source.is_stacked:
        return jax.device_put([_slice(source, tensors[0], index, dtype)] * len(devices), devices)
    shape = tuple(s.stop - s.start for s in index)
    shards = [jnp.zeros(shape, dtype, device=device) for device in devices]
    for row, tensor in enumerate(tensors[index[0]]):
        layer = _slice(source, tensor, index[1:], dtype)
        shards = [
            _put(shard, jax.device_put(layer, device), row)
            for shard, device in zip(shards, devices, strict=True)
        ]
    return shards


def _slice(source: TensorSource, tensor: np.ndarray, index: Index, dtype: np.dtype) -> np.ndarray:
    """A slice of a tensor in our order of dimensions, in memory of its own."""
    if source.is_transposed:
        return np.ascontiguousarray(tensor[index[::-1]].T, dtype)
    return np.ascontiguousarray(tensor[index], dtype)


@functools.partial(jax.jit, donate_argnums=0)
def _put(stack: jax.Array, layer: jax.Array, row: int) -> jax.Array:
    """A stack with one layer written, in place."""
    return jax.lax.dynamic_update_index_in_dim(stack, layer, row, 0)
