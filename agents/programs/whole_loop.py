"""Acting, environment, replay and learning as one program on one device.

The order of things is that of a loop in one process: all N environments take a step, what came of
it is added to the replay, and the learner steps as far as the replay lets it. So the same builder
learns from the same items at the same pace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from ...environments.functional import FunctionalEnvironment, streams
from ..acting import policies
from ..interfaces import ActorCore, Update
from ..replay.device import DeviceReplay, ReplayState
from . import compilation, convolutions, dispatch

Nest = Any
MOST_EPISODES = 100
"""Of which the returns are kept."""


class Acting(NamedTuple):
    """All that acting changes. N: environments."""

    streams: streams.Streams
    timestep: dm_env.TimeStep
    """[N, ...], the newest"""
    policy: Nest
    """State of the policy, [N, ...]"""
    replay: ReplayState
    actor_steps: jax.Array
    """int32 []: actions taken, over all environments; a step that begins an episode takes none"""
    episodes: jax.Array
    """int32 []: episodes ended"""
    returns: jax.Array
    """float32 [N], of the present episodes"""
    lengths: jax.Array
    """int32 [N]"""
    finished: jax.Array
    """float32 [H, 2]: returns and lengths of the newest episodes; episode e is at e mod H"""


class Learning(NamedTuple):
    """All that learning changes."""

    state: Nest
    """Of the update"""
    steps: jax.Array
    """int32 []: gradient steps taken"""
    metrics: dict[str, jax.Array]
    """float32 [], of the newest gradient step; 0 before the first"""


class LoopState(NamedTuple):
    """All that the program changes."""

    acting: Acting
    learning: Learning


class WholeLoop:
    """Compiles the loop; `init` makes its state and `advance` goes on with it."""

    def __init__(
        self,
        environment: FunctionalEnvironment,
        policy: ActorCore,
        update: Update,
        replay: DeviceReplay,
        steps_per_dispatch: int,
        device: jax.Device,
    ):
        """Compiles nothing yet.

        Args:
          environment: that is acted in.
          policy: that explores.
          update: of the learner.
          replay: of the rows of N environments.
          steps_per_dispatch: K, gradient steps between two looks at the replay.
          device: that runs it all.
        """
        update = dispatch.strongly_typed(update)
        self._environment, self._policy, self._update = environment, policy, update
        self._replay, self._steps_per_dispatch, self.device = replay, steps_per_dispatch, device
        self._act = policies.batch(policy)
        self._learn = dispatch.fuse_update(update, steps_per_dispatch)
        run = convolutions.for_device(self._advance, device)
        self._run = jax.jit(run, donate_argnums=0)
        self._variables = jax.jit(
            functools.partial(dispatch.copy_variables, update), static_argnums=1
        )

    def init(
        self, stream_keys: jax.Array, actor_key: jax.Array, learner_key: jax.Array
    ) -> LoopState:
        """Returns the first state, on the device.

        Args:
          stream_keys: [N], of the environments.
          actor_key: of the policy's states.
          learner_key: of the update's state.
        """
        make = compilation.compile_once(self._init, self.device)
        return jax.device_put(make(stream_keys, actor_key, learner_key), self.device)

    def _init(
        self, stream_keys: jax.Array, actor_key: jax.Array, learner_key: jax.Array
    ) -> LoopState:
        n = stream_keys.shape[0]
        begun, timestep = streams.reset(self._environment, stream_keys)
        policy = policies.begin(self._policy, jax.random.split(actor_key, n))
        zero = jnp.int32(0)
        acting = Acting(
            begun,
            timestep,
            policy,
            self._begin_replay(timestep),
            actor_steps=zero,
            episodes=zero,
            returns=jnp.zeros(n, jnp.float32),
            lengths=jnp.zeros(n, jnp.int32),
            finished=jnp.zeros((max(MOST_EPISODES, n), 2), jnp.float32),
        )
        state = self._update.init(learner_key)
        metrics = {
            name: jnp.zeros((), jnp.float32) for name in self._metric_names(state, acting.replay)
        }
        return LoopState(acting, Learning(state, zero, metrics))

    def empty_replay(self, timestep: dm_env.TimeStep) -> ReplayState:
        """Returns a replay whose next rows follow a time step [N, ...], on the device."""
        return jax.device_put(jax.jit(self._begin_replay)(timestep), self.device)

    def _begin_replay(self, timestep: dm_env.TimeStep) -> ReplayState:
        return self._replay.add_first(self._replay.init(), timestep)

    def host_callers(self, num_envs: int) -> list[str]:
        """Returns which of the environment and the policy call the host; nothing runs."""
        keys = jax.ShapeDtypeStruct((num_envs,), jax.random.key(0).dtype)
        key = jax.ShapeDtypeStruct((), keys.dtype)
        state = jax.eval_shape(self._init, keys, key, key)
        params = jax.eval_shape(self._update.variables, state.learning.state)["policy"]
        begun, acting = state.acting.streams, state.acting
        chosen = (params, acting.timestep.observation, acting.policy, begun.over)
        action, *_ = jax.eval_shape(self._act, *chosen)

        def step(begun: streams.Streams, action: Nest) -> Any:
            return streams.step(self._environment, begun, action)

        parts: dict[str, Any] = {
            "the environment": (step, begun, action),
            "the policy": (self._act, *chosen),
        }
        return [
            name
            for name, (fn, *arguments) in parts.items()
            if jax.make_jaxpr(fn)(*arguments).effects
        ]

    def _metric_names(self, state: Nest, replay: ReplayState) -> list[str]:
        def output(state: Nest, replay: ReplayState) -> dict[str, jax.Array]:
            _, sample = self._replay.sample(replay, jax.random.key(0))
            return self._learn(state, dispatch.without_keys(sample))[1].metrics

        return sorted(jax.eval_shape(output, state, replay))

    def advance(self, state: LoopState, key: jax.Array, until: int, turns: int) -> LoopState:
        """Goes on until a number of actor steps is taken, or for so many turns, at least one.

        Args:
          state: is donated.
          key: of the draws from the replay.
          until: actor steps; passed by at most N - 1.
          turns: steps of all environments.
        """
        return self._run(state, key, jnp.int32(until), jnp.int32(turns))

    def _advance(
        self, state: LoopState, key: jax.Array, until: jax.Array, turns: jax.Array
    ) -> LoopState:
        def goes_on(carry: tuple[LoopState, jax.Array]) -> jax.Array:
            (acting, _), taken = carry
            return (taken == 0) | ((acting.actor_steps < until) & (taken < turns))

        def act_and_learn(carry: tuple[LoopState, jax.Array]) -> tuple[LoopState, jax.Array]:
            (acting, learning), taken = carry
            acting, more = self._act_until_due(acting, learning, until, turns - taken)
            acting, learning = self._learn_while_due(acting, learning, key)
            return LoopState(acting, learning), taken + more

        return jax.lax.while_loop(goes_on, act_and_learn, (state, jnp.int32(0)))[0]

    def _act_until_due(
        self, acting: Acting, learning: Learning, until: jax.Array, turns: jax.Array
    ) -> tuple[Acting, jax.Array]:
        """Takes turns until the replay lets the learner step.

        Parameters do not change meanwhile: they stand outside of the loop, which carries none.

        Returns:
          The state, and the number of turns taken, at least one.
        """
        params = self._update.variables(learning.state)["policy"]

        def goes_on(carry: tuple[Acting, jax.Array]) -> jax.Array:
            acting, taken = carry
            due = self._replay.can_sample(acting.replay)
            return (taken == 0) | (~due & (acting.actor_steps < until) & (taken < turns))

        def turn(carry: tuple[Acting, jax.Array]) -> tuple[Acting, jax.Array]:
            acting, taken = carry
            return self._turn(acting, params), taken + 1

        return jax.lax.while_loop(goes_on, turn, (acting, jnp.int32(0)))

    def _turn(self, acting: Acting, params: Nest) -> Acting:
        """Takes one step in every environment."""
        before = acting.timestep
        action, extras, policy = self._act(
            params, before.observation, acting.policy, before.step_type == 0
        )
        begun, timestep = streams.step(self._environment, acting.streams, action)
        replay = self._replay.add(acting.replay, action, timestep, extras)
        acted, last = timestep.step_type != 0, timestep.step_type == 2
        returns, lengths = acting.returns + timestep.reward, acting.lengths + acted
        numbers = acting.episodes + jnp.cumsum(last, dtype=jnp.int32) - 1
        size = acting.finished.shape[0]
        rows = jnp.stack([returns, lengths.astype(jnp.float32)], 1)
        places = jnp.where(last, numbers % size, size)
        return Acting(
            begun,
            timestep,
            policy,
            replay,
            acting.actor_steps + acted.sum(dtype=jnp.int32),
            acting.episodes + last.sum(dtype=jnp.int32),
            jnp.where(last, 0.0, returns),
            jnp.where(last, 0, lengths),
            acting.finished.at[places].set(rows, mode="drop"),
        )

    def _learn_while_due(
        self, acting: Acting, learning: Learning, key: jax.Array
    ) -> tuple[Acting, Learning]:
        """Has the learner step as far as the replay lets it; once where nothing bounds that."""

        def due(carry: tuple[ReplayState, Learning]) -> jax.Array:
            return self._replay.can_sample(carry[0])

        def dispatch_once(carry: tuple[ReplayState, Learning]) -> tuple[ReplayState, Learning]:
            replay, learning = carry
            replay, sample = self._replay.sample(replay, jax.random.fold_in(key, learning.steps))
            state, output = self._learn(learning.state, dispatch.without_keys(sample))
            if self._replay.spec.priority_exponent is not None and output.priorities is not None:
                replay = self._replay.update_priorities(replay, sample.info.keys, output.priorities)
            metrics = {
                name: output.metrics[name][-1].astype(jnp.float32) for name in learning.metrics
            }
            steps = learning.steps + self._steps_per_dispatch
            return replay, Learning(state, steps, metrics)

        # Rows are only read here: the loop carries what drawing changes.
        rows = acting.replay.rows
        without: ReplayState = acting.replay._replace(rows=())

        def with_rows(body: Callable[..., Any]) -> Callable[..., Any]:
            def run(carry: tuple[ReplayState, Learning]) -> Any:
                return body((carry[0]._replace(rows=rows), carry[1]))

            return run

        def once(carry: tuple[ReplayState, Learning]) -> tuple[ReplayState, Learning]:
            replay, learning = with_rows(dispatch_once)(carry)
            return replay._replace(rows=()), learning

        if self._replay.spec.is_bounded:
            replay, learning = jax.lax.while_loop(with_rows(due), once, (without, learning))
        else:
            replay, learning = jax.lax.cond(
                with_rows(due)((without, learning)), once, lambda carry: carry, (without, learning)
            )
        return acting._replace(replay=replay._replace(rows=rows)), learning

    def variables(self, state: LoopState, names: tuple[str, ...]) -> list[Nest]:
        """Returns copies of the named variables, which outlive the state."""
        return self._variables(state.learning.state, names)
