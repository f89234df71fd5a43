"""Getting work to the device with as little delay as the platform allows.

Two facts of XLA on CPU decide how small programs must be given to it. Measured on one core with jax 0.6.2, an
epsilon-greedy choice from two hidden layers of 64:

* by default a call hands the program to a thread pool and waits for it: 400 us. Dispatched in the
  caller's thread (`configure_cpu`): 105 us;
* a program of more than a few operations is spread over threads, operation by operation, which costs more
  than operations this small take. The body of a loop is not, hence `one_trip`: 57 us.

A convolution is ten times slower inside a loop than outside, so programs that hold one are left as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

Nest = Any

_ONE = np.int32(1)


def configure_cpu() -> None:
    """Makes calls on CPU run in the caller's thread. Call it before jax touches a device.

    With several CPU devices in the process nothing is changed: they need to run side by side.
    """
    devices = jax.config.jax_num_cpu_devices
    flags = jax.config.jax_platforms or ""
    if "cuda" not in flags and devices <= 1 and not _virtual_devices():
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def _virtual_devices() -> bool:
    import os

    return "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")


def holds_convolution(fn: Callable, *shapes: Nest) -> bool:
    """Whether `fn`, traced on these shapes, convolves anywhere."""

    def within(jaxpr) -> bool:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "conv_general_dilated":
                return True
            for parameter in equation.params.values():
                for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                    if isinstance(inner, jex_core.ClosedJaxpr):
                        inner = inner.jaxpr
                    if hasattr(inner, "eqns") and within(inner):
                        return True
        return False

    return within(jax.make_jaxpr(fn)(*shapes).jaxpr)


def one_trip(fn: Callable) -> Callable:
    """`fn`, run as the body of a loop of one trip.

    The trip count is an argument at run time, or the compiler would unroll the loop again. The result takes
    it first: call `functools.partial(jit(one_trip(fn)), 1)`.
    """

    def looped(trips, *args):
        zeros = jax.tree.map(lambda x: _zeros(x), jax.eval_shape(fn, *args))
        return jax.lax.fori_loop(0, trips, lambda _, __: fn(*args), zeros)

    return looped


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(0, impl=jax.random.key_impl(shape)), shape.shape)
        return keys if shape.shape else keys.reshape(())
    return jnp.zeros(shape.shape, shape.dtype)


def jit_small(fn: Callable, *shapes: Nest, platform: str) -> Callable:
    """`jax.jit(fn)` in the form in which a call on `platform` takes least time.

    Args:
      fn: a pure function of the arguments that `shapes` describe.
      shapes: nests of arrays or `jax.ShapeDtypeStruct`.
      platform: where it will run: "cpu", "gpu", "tpu".
    """
    if platform != "cpu" or holds_convolution(fn, *shapes):
        return jax.jit(fn)
    return functools.partial(jax.jit(one_trip(fn)), _ONE)


def fuse(step: Callable, num_steps: int, *, unroll: bool) -> Callable:
    """Several gradient steps as one program.

    Args:
      step: `(state, batch) -> (state, output)`.
      num_steps: K; every array of the fused program's batch is [K, ...], so is its output.
      unroll: lay the steps out one after another instead of looping over them.
    """
    if unroll and num_steps > 1:

        def unrolled(state, batches):
            outputs = []
            for k in range(num_steps):
                state, output = step(state, jax.tree.map(lambda x, k=k: x[k], batches))
                outputs.append(output)
            return state, jax.tree.map(lambda *xs: jnp.stack(xs), *outputs)

        return unrolled
    if num_steps == 1:

        def single(state, batches):
            state, output = step(state, jax.tree.map(lambda x: x[0], batches))
            return state, jax.tree.map(lambda x: x[None], output)

        return single
    return lambda state, batches: jax.lax.scan(step, state, batches)
