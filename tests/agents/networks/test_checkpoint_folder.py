"""Folders of weights: read onto meshes, written, and held against `transformers`."""

import dataclasses
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe.agents.networks import checkpoint_folder
from troupe.agents.networks.checkpoint_folder import reading
from troupe.agents.networks.decoder import Decoder, DecoderConfig, RotaryScaling, shapes

LLAMA = DecoderConfig(
    vocabulary=64,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_width=8,
    hidden=48,
    rope_theta=5e5,
    norm_epsilon=1e-5,
    tied=False,
    # Of the four frequencies one is kept, one mixed, two are slower.
    rope_scaling=RotaryScaling(factor=8.0, first_context=400),
    context=3200,
)
QWEN3 = dataclasses.replace(
    LLAMA, head_width=16, rope_theta=1e4, tied=True, qk_norm=True, rope_scaling=None
)
CONFIGS = {"llama": LLAMA, "qwen3": QWEN3}
FAMILIES = pytest.mark.parametrize("family", CONFIGS)
TOKENS = np.random.default_rng(1).integers(0, 64, (2, 80))
#: Logits of `transformers` 5.24 (torch 2.15), see `test_transformers_reads_what_is_written`.
GOLDEN = pathlib.Path(__file__).with_name("golden_logits.json")


def make_params(config, dtype=np.float32):
    """Large enough that a wrong angle of a rotation, or norm, is seen in the logits."""
    rng = np.random.default_rng(0)

    def make(shape):
        scale = 1.0 if len(shape) < 3 else 1.5 * shape[-2] ** -0.5
        return (scale * rng.normal(size=shape)).astype(dtype)

    rest = shapes(config)
    layers = {name: make(shape) for name, shape in rest.pop("layers").items()}
    return {"layers": layers, **{name: make(shape) for name, shape in rest.items()}}


def logits_of(folder):
    decoder = Decoder(checkpoint_folder.read_config(folder))
    return decoder.apply(checkpoint_folder.read(folder), TOKENS, jnp.ones(TOKENS.shape, bool))


def write(folder, family="llama", **options):
    checkpoint_folder.write(folder, CONFIGS[family], make_params(CONFIGS[family]), **options)


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@FAMILIES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_is_read(family, dtype, tmp_path):
    config = dataclasses.replace(CONFIGS[family], compute_dtype=dtype)
    params = make_params(config, jnp.dtype(dtype))
    checkpoint_folder.write(tmp_path, config, params, file_bytes=16_000)
    assert checkpoint_folder.read_config(tmp_path) == config
    assert_equal(checkpoint_folder.read(tmp_path), params)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    assert all(file.stat().st_size < 16_000 + 2_000 for file in files)
    # Written anew into fewer files: the others are gone.
    checkpoint_folder.write(tmp_path, config, params)
    assert len(list(tmp_path.iterdir())) == 3
    wide = checkpoint_folder.read(tmp_path, dtype="float32")
    assert_equal(wide, jax.tree.map(lambda x: np.asarray(x, np.float32), params))


def test_devices_read_their_slices_alone(tmp_path, monkeypatch):
    write(tmp_path, file_bytes=16_000)
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    specs = {
        "layers": {
            "query": PartitionSpec(None, "data", "model"),
            "output": PartitionSpec(None, ("model", "data")),
            "down": PartitionSpec("data", "model"),
        },
        "embedding": PartitionSpec("model", "data"),
    }
    shardings = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), make_params(LLAMA))
    for path, spec in jax.tree_util.tree_leaves_with_path(
        specs, is_leaf=lambda x: isinstance(x, PartitionSpec)
    ):
        place = shardings
        for key in path[:-1]:
            place = place[key.key]
        place[path[-1].key] = NamedSharding(mesh, spec)
    read_sizes = {}

    def record(source, *args):
        found = reading_slice(source, *args)
        read_sizes.setdefault(source.names[0], []).append(found.size)
        return found

    reading_slice = reading._slice
    monkeypatch.setattr(reading, "_slice", record)
    params = checkpoint_folder.read(tmp_path, shardings)
    assert_equal(params, make_params(LLAMA))
    assert params["layers"]["query"].sharding == shardings["layers"]["query"]
    # A device's share of one layer at a time; what several devices hold is read once.
    layers = LLAMA.num_layers
    assert read_sizes["model.layers.0.self_attn.q_proj.weight"] == [32 * 32 // 8] * 8 * layers
    assert read_sizes["model.layers.0.mlp.down_proj.weight"] == [48 * 32 // 4] * 4 * layers
    assert read_sizes["model.embed_tokens.weight"] == [64 * 32 // 8] * 8
    assert read_sizes["model.layers.0.input_layernorm.weight"] == [32] * layers


@FAMILIES
def test_logits_are_those_of_transformers(family, tmp_path):
    """As they were recorded: where the library is not installed, too."""
    write(tmp_path, family)
    logits = logits_of(tmp_path)
    np.testing.assert_allclose(
        logits[:, ::13, ::9], json.loads(GOLDEN.read_text())[family], atol=1e-4
    )


@FAMILIES
def test_transformers_reads_what_is_written(family, tmp_path):
    """And the other way: a folder of its own, in several files, and what is written of that."""
    torch, transformers = import_transformers()
    write(tmp_path / "ours", family, file_bytes=16_000)
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    expected = ours(torch.tensor(TOKENS)).logits.detach().numpy()
    np.testing.assert_allclose(logits_of(tmp_path / "ours"), expected, atol=1e-4)
    golden = json.loads(GOLDEN.read_text())[family]
    np.testing.assert_allclose(expected[:, ::13, ::9], golden, atol=1e-4)

    ours.save_pretrained(tmp_path / "theirs", max_shard_size="16KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    assert checkpoint_folder.read_config(tmp_path / "theirs") == CONFIGS[family]
    np.testing.assert_allclose(logits_of(tmp_path / "theirs"), expected, atol=1e-4)


def import_transformers():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch, pytest.importorskip("transformers")


def test_the_library_of_safetensors_reads_and_writes_such_files(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    write(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = numpy.load_file(file)
    np.testing.assert_array_equal(
        tensors["model.layers.1.mlp.up_proj.weight"], make_params(LLAMA)["layers"]["up"][1].T
    )
    # One file under the name that it has without an index.
    for path in (file, tmp_path / reading.INDEX):
        path.unlink()
    numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert_equal(checkpoint_folder.read(tmp_path), make_params(LLAMA))


def edit(folder, **changes):
    path = folder / "config.json"
    held = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in held.items() if v != "removed"}))


def test_configs_of_older_versions_are_read(tmp_path):
    write(tmp_path)
    scaling = {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 400,
    }
    edit(tmp_path, rope_parameters="removed", rope_scaling=scaling)
    assert checkpoint_folder.read_config(tmp_path) == LLAMA


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM;"),
        ({"attention_bias": True}, "attention_bias=True; decoders have only False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; decoders have only 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn'; decoders have 'default'"),
        ({"hidden_size": "removed"}, "has no hidden_size"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "has no factor"),
    ],
)
def test_configs_that_are_no_decoders_are_refused(changes, message, tmp_path):
    write(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoint_folder.read(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 40}, r"mlp.gate_proj.weight is \[48, 32\], and by .* \[40, 32\]"),
        ({"num_hidden_layers": 3}, "has no tensors model.layers.2.input_layernorm.weight, .* 9 of"),
        ({"num_hidden_layers": 1}, "has tensors model.layers.1.input_layernorm.weight, .* 9 that"),
        ({"model_type": "qwen3"}, "has no tensors model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_tensors_that_are_not_of_the_config_are_refused(changes, message, tmp_path):
    write(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoint_folder.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json is missing; a folder of weights"):
        checkpoint_folder.read_config(tmp_path)
    write(tmp_path, file_bytes=16_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    content = files[1].read_bytes()
    files[1].write_bytes(content[:-1])
    with pytest.raises(ValueError, match=rf"{files[1].name} has .* it is cut short; copy it anew"):
        checkpoint_folder.read(tmp_path)
    files[1].write_bytes(content[:3])
    with pytest.raises(ValueError, match=rf"{files[1].name} has 3 bytes and is cut short"):
        checkpoint_folder.read(tmp_path)
    files[1].unlink()
    with pytest.raises(FileNotFoundError, match=rf"lacks {files[1].name}, 1 of the {len(files)}"):
        checkpoint_folder.read(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors.index.json nor"):
        checkpoint_folder.read(tmp_path)


def test_parameters_of_another_config_are_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"layers/query is \[2, 32, 32\], and by the config"):
        checkpoint_folder.write(tmp_path, QWEN3, make_params(LLAMA))
