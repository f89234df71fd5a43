"""Checks that a learner can run an update, by tracing it: no device is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ...agents.interfaces import Update, UpdateOutput
from ...agents.programs import dispatch
from ..mistakes import Mistake, attempt, compare, leaf_text, program_text

if TYPE_CHECKING:
    from ...agents.replay.items import Sample
    from ..factory import ComponentFactory

Nest = Any
_PURE = (
    "Keep all that changes in the state, and draw random numbers with jax.random from a key that "
    "the state holds."
)


class TracedUpdate(NamedTuple):
    """Shapes of what an update takes and gives, as `jax.ShapeDtypeStruct`."""

    state: Nest
    sample: Sample
    """A batch as the update sees it, [B, ...]."""
    metrics: dict[str, Any]
    variables: dict[str, Nest]


def check_before_launch(factory: ComponentFactory) -> None:
    """Traces the update of an experiment, from its builder alone.

    Raises:
      Mistake: where it cannot be run; before the first step of any environment.
    """

    def parts() -> None:
        builder, spec = factory.builder, factory.spec
        networks = factory.experiment.make_networks(spec)
        policy = builder.make_policy(networks, spec, num_streams=factory.num_streams)
        replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
        check(factory, networks, replay.sample_shapes())

    # Traced as a whole, for what a builder computes at once: the process that launches has no use
    # for any device.
    jax.eval_shape(parts)


def check(factory: ComponentFactory, networks: Any, samples: Sample) -> TracedUpdate | None:
    """Traces the update.

    Args:
      factory: of the experiment.
      networks: as the builder takes them.
      samples: shapes of a batch, [B, ...], as its replay gives them.

    Returns:
      What it takes and gives; None where the builder has no update but a learner of its own.

    Raises:
      Mistake: where it cannot be run.
    """
    try:
        update = attempt("make_update fails", factory.builder.make_update, networks, factory.spec)
    except NotImplementedError:
        return None
    prioritised = factory.builder.make_replay_spec(factory.spec).priority_exponent is not None
    return trace(update, dispatch.on_device(samples), prioritised=prioritised)


def trace(update: Update, sample: Sample, *, prioritised: bool) -> TracedUpdate:
    """Traces an update on the shapes of a batch.

    Args:
      update: any.
      sample: [B, ...], as the update sees it (`dispatch.on_device`).
      prioritised: whether the replay takes priorities.

    Raises:
      Mistake: where it cannot be run.
    """
    if not isinstance(update, Update):
        raise Mistake(
            f"make_update returns a {type(update).__name__}; return agents.Update(init, step, "
            "variables)."
        )
    state = attempt(
        "Update.init(key) cannot be traced",
        lambda: jax.eval_shape(lambda: update.init(jax.random.key(0))),
    )
    variables = attempt(
        "Update.variables(state) cannot be traced", jax.eval_shape, update.variables, state
    )
    if not isinstance(variables, dict) or "policy" not in variables:
        named = ", ".join(variables) if isinstance(variables, dict) else type(variables).__name__
        raise Mistake(
            f"Update.variables(state) gives {named or 'nothing'} and no 'policy', which is what "
            'actors ask for; return {"policy": ...} with what the policy takes as its params.'
        )
    after, output = _trace_step(update, state, sample)
    compare(
        "the state that Update.step returns",
        after,
        state,
        "step must return a state like the one it was given: return all its fields, and keep "
        "their dtypes (astype).",
    )
    size = jax.tree.leaves(sample)[0].shape[0]
    _check_output(output, size, prioritised)
    return TracedUpdate(state, sample, output.metrics, variables)


def check_pure(update: Update, traced: TracedUpdate) -> None:
    """Traces the update twice more.

    Raises:
      Mistake: if that gives two programs, or if its first state holds one array twice.
    """
    arguments = traced.state, traced.sample

    def again() -> tuple[str, list[Any]]:
        return program_text(update.step, *arguments)

    (first, constants), (second, others) = (
        attempt("Update.step cannot be traced a second time", again, hint=_PURE) for _ in range(2)
    )
    same = first == second and len(constants) == len(others)
    same = same and all(_equal(a, b) for a, b in zip(constants, others, strict=True))
    if not same:
        raise Mistake(
            "Update.step is not pure: traced twice, it is two programs, so that something that "
            f"Python draws, counts or reads is built into it. {_PURE}"
        )
    _check_donation(update)


def _trace_step(update: Update, state: Nest, sample: Sample) -> tuple[Nest, UpdateOutput]:
    found: list[Any] = []

    def step(state: Nest, sample: Sample) -> Nest:
        result = update.step(state, sample)
        if not isinstance(result, tuple) or len(result) != 2:
            kind = type(result).__name__
            raise Mistake(f"Update.step returns a {kind}; return (state, agents.UpdateOutput).")
        if not isinstance(result[1], UpdateOutput):
            kind = type(result[1]).__name__
            raise Mistake(
                f"Update.step returns (state, {kind}); return (state, agents.UpdateOutput("
                "metrics))."
            )
        found.append(result)
        return result

    data = sample.data
    batch = ", ".join(
        f"{name} {leaf_text(jax.tree.leaves(part)[0])}"
        for name, part in data._asdict().items()
        if jax.tree.leaves(part)
    )
    return attempt(
        "Update.step(state, sample) cannot be traced",
        lambda: jax.eval_shape(step, state, sample),
        hint=f"sample.data is a {type(data).__name__} of {batch}.",
    )


def _check_output(output: UpdateOutput, size: int, prioritised: bool) -> None:
    if not isinstance(output.metrics, dict):
        raise Mistake(
            f"UpdateOutput.metrics is a {type(output.metrics).__name__}; it must be a dict of "
            "scalars by name."
        )
    for name, value in output.metrics.items():
        if getattr(value, "shape", None) != ():
            raise Mistake(
                f"the metric {name!r} is {leaf_text(value)}; metrics are scalars: take its mean."
            )
    found = output.priorities
    if prioritised and found is None:
        raise Mistake(
            "the replay is prioritised (its spec has a priority_exponent) and Update.step gives "
            f"no priorities; return UpdateOutput(metrics, priorities) with a float32[{size}]."
        )
    if found is not None and getattr(found, "shape", None) != (size,):
        raise Mistake(
            f"UpdateOutput.priorities is {leaf_text(found)}; it must be float32[{size}]: one "
            "number for each item of the batch."
        )


def _check_donation(update: Update) -> None:
    """Raises where the first state holds one array twice."""
    closed, shapes = jax.make_jaxpr(lambda: update.init(jax.random.key(0)), return_shape=True)()
    named = jax.tree_util.tree_flatten_with_path(shapes)[0]
    seen: dict[int, str] = {}
    for (path, _), variable in zip(named, closed.jaxpr.outvars, strict=True):
        name = jax.tree_util.keystr(path)
        if hasattr(variable, "val"):  # A number written into the program is no array.
            continue
        first = seen.setdefault(id(variable), name)
        if first != name:
            raise Mistake(
                f"the state of Update.init holds one array twice, as {first} and as {name}: the "
                "state is donated to the step, which may take no buffer twice. Make a copy "
                "(learning.targets.init, or jnp.copy)."
            )


def _equal(one: Any, other: Any) -> bool:
    if jax.dtypes.issubdtype(getattr(one, "dtype", np.float32), jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)
