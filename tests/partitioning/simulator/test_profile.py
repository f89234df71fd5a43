"""The symbolic profiler: modules, forward and backward, activations."""

import json

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.simulator.profile import module_of


def loss(params, x):
    with jax.named_scope("mlp"):
        with jax.named_scope("up"):
            h = jnp.tanh(x @ params["up"])
        with jax.named_scope("down"):
            y = h @ params["down"]
    return (y**2).sum()


PARAMS = {
    "up": jax.ShapeDtypeStruct((16, 64), jnp.float32),
    "down": jax.ShapeDtypeStruct((64, 16), jnp.float32),
}
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
PRODUCT = 2 * 8 * 16 * 64


def test_forward_and_backward_are_counted_apart():
    found = pt.profile(jax.grad(loss), PARAMS, X)
    dots = found.kinds["dot_general"]
    assert dots.forward_flops == 2 * PRODUCT
    assert dots.backward_flops == 3 * PRODUCT  # the input of the first layer is not differentiated


def test_modules_are_found_by_scope():
    rows = pt.profile(jax.grad(loss), PARAMS, X).inclusive()
    assert {"", "mlp", "mlp/up", "mlp/down"} <= set(rows)
    slope = rows["mlp/up"].forward_flops - PRODUCT  # of tanh, made in advance
    assert slope in (8 * 64, 2 * 8 * 64)  # as 1 - y by one jax, as 1 - y * y by another
    assert rows["mlp"].flops == rows["mlp/up"].flops + rows["mlp/down"].flops


def test_activations_are_what_the_backward_pass_reads():
    found = pt.profile(jax.grad(loss), PARAMS, X)
    hidden = 8 * 64 * 4
    assert hidden <= found.modules["mlp/up"].activation_bytes <= 2 * hidden
    assert pt.profile(loss, PARAMS, X).activation_bytes == 0


def test_a_loop_counts_as_often_as_it_turns():
    def run(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=7)[0]

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert pt.profile(run, square).flops == 7 * 2 * 8**3


@pytest.mark.parametrize(
    ("scope", "module"),
    [
        ("transpose(jvp(mlp))/linear", "mlp/linear"),
        ("jvp(jit(f))/mlp", "mlp"),
        ("transpose(jvp())", ""),
        ("jvp(mlp)/while/body/layer", "mlp/layer"),
        ("", ""),
    ],
)
def test_module_names(scope, module):
    assert module_of(scope) == module


def test_table_tree_and_json():
    found = pt.profile(jax.grad(loss), PARAMS, X)
    assert "dot_general" in found.table("op")
    assert found.tree().splitlines()[1].startswith("(all)")
    assert str(found) == found.tree()
    data = json.loads(json.dumps(found.to_json()))
    assert data["total"]["forward_flops"] == found.total.forward_flops
    records = list(found.ops())
    assert records[0].source.startswith("test_profile.py:")
    assert sum(r.cost.flops for r in records) == found.flops
