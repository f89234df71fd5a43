"""Interfaces between the parts of an agent.

`Actor`, `Learner`, `VariableSource` and `Worker` have the signatures of `acme.core`, so that agents
made here run under acme's `EnvironmentLoop` and acme's components run in programs made here. They
are protocols: nothing needs to inherit from them, and acme need not be installed.

Letters used for shapes, here and in every agent: N environments stepped together, B batch,
T time, K gradient steps fused in one dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import dm_env
import jax

Nest = Any  # A pytree of arrays.
Key = jax.Array


@runtime_checkable
class Worker(Protocol):
    """Something that runs until it is done."""

    def run(self) -> None: ...


@runtime_checkable
class VariableSource(Protocol):
    """Something that parameters can be asked of."""

    def get_variables(self, names: Sequence[str]) -> list[Nest]:
        """The named collections of variables, in the order of `names`."""


@runtime_checkable
class Actor(Protocol):
    """Chooses actions and is told what came of them.

    With N environments every array has a leading dimension N, and `timestep.step_type` is an array
    of shape [N]; with one environment there is no such dimension.
    """

    def select_action(self, observation: Nest) -> Nest: ...

    def observe_first(self, timestep: dm_env.TimeStep) -> None: ...

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None: ...

    def update(self, wait: bool = False) -> None:
        """Fetches newer parameters where there are any; with `wait`, before it returns."""


@runtime_checkable
class Adder(Protocol):
    """Writes what an actor sees into a replay (the signatures of `acme.adders.Adder`)."""

    def add_first(self, timestep: dm_env.TimeStep) -> None: ...

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None: ...

    def reset(self) -> None: ...


@runtime_checkable
class Learner(VariableSource, Worker, Protocol):
    """Consumes batches, makes parameters."""

    def step(self) -> None: ...

    def save(self) -> Nest: ...

    def restore(self, state: Nest) -> None: ...


@runtime_checkable
class ManagedLearner(Learner, Protocol):
    """A learner with all that a run asks of it, in every kind of launch.

    A builder's `make_learner` may give a learner without some of it, acme's for one: `Learner` is
    required, the rest is optional. `agents.learning.managed` adds what is missing, as told here.
    """

    @property
    def steps(self) -> int:
        """Gradient steps taken, those before a `restore` too. Default: `step` is counted, and the
        count saved beside the state."""

    @property
    def version(self) -> int:
        """Changes whenever the variables do. Default: every `step` and `restore` changes it."""

    @property
    def variable_names(self) -> tuple[str, ...]:
        """The collections that `get_variables` knows. Default: ("policy",)."""

    @property
    def saved_shapes(self) -> Nest:
        """Shapes of what `save` gives, as arrays or `jax.ShapeDtypeStruct`, with the shardings that
        `restore` takes best. Default: what `save` gives."""

    def metrics(self) -> Mapping[str, float]:
        """Those of the last gradient step. Default: none."""

    def remarks(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        """Sentences by name that a user should know of these metrics (`Update.remarks`). Default:
        none."""

    def live_state(self) -> Nest:
        """Returns what `save` gives, where it lies: good until the next `step`. Default: `save`."""

    def assist(self, names: Sequence[str]) -> None:
        """Takes part where another process of a gang gets variables. Default: `get_variables`."""


class ActorCore(NamedTuple):
    """A policy: pure functions of one observation, batched by whoever calls it.

    A policy's state holds all that changes between two actions: a key, a count, a memory.

    Attributes:
      init: `key -> state`.
      select_action: `(params, observation, state) -> (action, state)`.
      get_extras: `(before, after) -> extras`, a nest stored in the replay beside the action: what a
        learner needs to compute that step again. `before` is the state that `select_action` was
        given (reset where an episode begins), which has the memory the step began with; `after` is
        the one it returned, which has what the step found, such as the action's probability.
      reset: `state -> state`, at the first step of an episode; None where nothing is forgotten.
      set_num_actions: `(state, count) -> state`, the state as if `count` actions had been taken
        (int32 []). Schedules go by the count; a policy without one stays as it is.
      set_stream: `(state, number) -> state`, of the stream of this number (int32 []) among all that
        act at once; None where they all act alike.
    """

    init: Callable[[Key], Nest]
    select_action: Callable[[Nest, Nest, Nest], tuple[Nest, Nest]]
    get_extras: Callable[[Nest, Nest], Nest] = lambda before, after: ()
    reset: Callable[[Nest], Nest] | None = None
    set_num_actions: Callable[[Nest, jax.Array], Nest] = lambda state, count: state
    set_stream: Callable[[Nest, jax.Array], Nest] | None = None


class UpdateOutput(NamedTuple):
    """Output of one gradient step besides its new state."""

    metrics: dict[str, jax.Array]
    """Scalars, by name."""
    priorities: jax.Array | None = None
    """New priorities of the items of the batch, [B], where the replay is prioritised."""


class Update(NamedTuple):
    """An agent's learning, as pure functions written for one device and the global batch.

    Attributes:
      init: `key -> state`, all that learning changes, PRNG key included.
      step: `(state, sample) -> (state, UpdateOutput)`, where sample is a `replay.Sample`.
      variables: `state -> {name: params}`, what actors may ask for. Actors ask for "policy".
      steps: `K -> (state, sample [K, B, ...]) -> (state, output [K, ...])`, K steps as one program,
        for an agent that can do them together with less work than one after another. None: K of
        `step`. A partitioned learner uses `step`.
      remarks: `metrics -> {name: sentence}`, what a user should know of the metrics of a step, in a
        sentence; each name is told once in a run.
    """

    init: Callable[[Key], Nest]
    step: Callable[[Nest, Any], tuple[Nest, UpdateOutput]]
    variables: Callable[[Nest], dict[str, Nest]]
    steps: Callable[[int], Callable[[Nest, Any], tuple[Nest, UpdateOutput]]] | None = None
    remarks: Callable[[Mapping[str, float]], Mapping[str, str]] = lambda metrics: {}
