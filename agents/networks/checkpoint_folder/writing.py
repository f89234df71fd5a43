"""Writes parameters as a folder that `transformers` reads."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np

from ..decoder import DecoderConfig, Params
from .configs import FILE, to_json
from .names import sources
from .reading import INDEX
from .tensor_files import TensorShape, write_tensors


def write(
    folder: str | os.PathLike[str],
    config: DecoderConfig,
    params: Params,
    file_bytes: int = 5_000_000_000,
) -> None:
    """Writes `config.json` and safetensors with an index, in the dtypes that parameters have.

    One layer of one array is on the host at a time. What was in the folder of another writing is
    removed; `config.json` comes last, so that a folder with it is whole.

    Args:
      folder: made where there is none.
      config: of the parameters.
      params: wherever they lie, in this process.
      file_bytes: the most that a file has, but for a tensor that is larger.

    Raises:
      ValueError: where the parameters are not those of the config.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    places: dict[str, tuple[Any, int | None, bool]] = {}
    tensors: dict[str, TensorShape] = {}
    for path, source in sources(config).items():
        array: Any = params
        for key in path:
            array = array[key]
        if array.shape != source.shape:
            raise ValueError(
                f"{'/'.join(path)} is {list(array.shape)}, and by the config {list(source.shape)}"
            )
        for layer, name in enumerate(source.names):
            places[name] = (array, layer if source.is_stacked else None, source.is_transposed)
            tensors[name] = TensorShape(source.stored_shape, np.dtype(array.dtype))

    def get(name: str) -> np.ndarray:
        array, layer, is_transposed = places[name]
        held = np.asarray(array if layer is None else array[layer])
        return held.T if is_transposed else held

    groups = _groups(tensors, file_bytes)
    files = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for file, names in zip(files, groups, strict=True):
        write_tensors(folder / file, {name: tensors[name] for name in names}, get)
    weight_map = {name: file for file, names in zip(files, groups, strict=True) for name in names}
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    for old in folder.glob("model*.safetensors"):
        if old.name not in files:
            old.unlink()
    dtype = str(params["embedding"].dtype)
    (folder / FILE).write_text(json.dumps(to_json(config, dtype), indent=2))


def _groups(tensors: dict[str, TensorShape], file_bytes: int) -> list[list[str]]:
    """Names in order, as many to a file as it may have bytes of."""
    groups: list[list[str]] = []
    held = 0
    for name, tensor in tensors.items():
        if not groups or held + tensor.nbytes > file_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += tensor.nbytes
    return groups
