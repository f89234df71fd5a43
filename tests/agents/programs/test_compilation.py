"""Compiled programs are kept for the next process; what runs once has the same values."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.programs import compilation

from ...processes import python

COMPILE = """
import json, os, pathlib, sys, warnings
os.environ.update(json.loads(sys.argv[1]))
warnings.simplefilter("error")
import jax, numpy
from troupe.agents.programs import compilation

counts = {}
jax.monitoring.register_event_listener(
    lambda name, **_: counts.update({name: counts.get(name, 0) + 1})
)
compilation.keep_compiled()
compilation.keep_compiled()
value = jax.jit(lambda x: jax.random.normal(jax.random.key(3), (64,)) @ x)(numpy.ones(64))
found = [counts.get(f"/jax/compilation_cache/cache_{kind}", 0) for kind in ("hits", "misses")]
print(json.dumps([*found, numpy.asarray(value).tobytes().hex()]))
"""


def start(**variables):
    """Hits, misses and the value of a process that compiles, with these variables."""
    unset = {compilation.VARIABLE: "", "JAX_COMPILATION_CACHE_DIR": ""}
    return json.loads(python(COMPILE, json.dumps({**unset, **variables})))


def test_the_second_process_finds_what_the_first_compiled(tmp_path):
    first, second = (start(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert first[0] == 0 < first[1]
    assert second == [first[1], 0, first[2]]
    kept = tmp_path / "troupe" / "compiled"
    (processor,) = kept.iterdir()
    assert processor.stat().st_mode & 0o077 == 0  # Who writes there runs code here.
    assert all(path.parent == processor for path in kept.rglob("*-cache"))


def test_a_program_that_was_half_written_is_compiled_again(tmp_path):
    first = start(TROUPE_COMPILATION_CACHE=str(tmp_path))
    for path in tmp_path.rglob("*-cache"):
        os.truncate(path, path.stat().st_size // 2)
    second = start(TROUPE_COMPILATION_CACHE=str(tmp_path))
    assert second[0] == 0
    assert second[2] == first[2]


@pytest.mark.parametrize("place", ["off", "below a file"])
def test_nothing_is_kept(tmp_path, place):
    (tmp_path / "file").touch()
    named = "off" if place == "off" else str(tmp_path / "file" / "folder")
    hits, misses, _ = start(TROUPE_COMPILATION_CACHE=named, XDG_CACHE_HOME=str(tmp_path))
    assert (hits, misses) == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_setting_of_jax_comes_first(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    start(JAX_COMPILATION_CACHE_DIR=str(theirs), TROUPE_COMPILATION_CACHE=str(ours))
    assert theirs.exists()
    assert not ours.exists()


def test_what_was_used_longest_ago_goes_first(tmp_path, monkeypatch):
    folder = tmp_path / "processor"
    folder.mkdir()
    for age in range(5):
        (folder / f"{age}").write_bytes(bytes(100))
        os.utime(folder / f"{age}", (1000 - age, 1000 - age))
    monkeypatch.setattr(compilation, "MOST_BYTES", 250)
    compilation._prune(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]


@pytest.mark.usefixtures("optimized")
def test_what_runs_once_has_the_values_of_any_other():
    def init(key):
        one, two, three = jax.random.split(key, 3)
        return (
            jax.random.truncated_normal(one, -2, 2, (65, 37)) * 0.1,
            jax.nn.initializers.orthogonal(2.0)(two, (64, 64)),
            jnp.full(3, jax.nn.softplus(jax.random.uniform(three))),
        )

    key = jax.random.key(7)
    once = compilation.compile_once(init, jax.devices()[0])(key)
    for left, right in zip(once, jax.jit(init)(key), strict=True):
        np.testing.assert_array_equal(left, right)
