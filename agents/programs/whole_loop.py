"""Acting, environment, replay and learning as pure functions of one state.

The order of things is that of a loop in one process: all N environments take a step, what came of
it is added to the replay, and the learner steps as far as the replay lets it. So the same builder
learns from the same items at the same pace.

All is written for one run. Under `jax.vmap` with a named axis it is several, in lockstep (`lanes`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from ...environments.functional import FunctionalEnvironment, streams
from ..acting import opponents, policies
from ..interfaces import ActorCore, Update
from ..replay.device import DeviceReplay, ReplayState
from . import dispatch, lanes

Nest = Any
_FIRST, _LAST = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)
MOST_EPISODES = 100
"""Of which the returns are kept."""


class Acting(NamedTuple):
    """All that acting changes. N: environments."""

    streams: streams.Streams
    timestep: dm_env.TimeStep
    """[N, ...], the newest"""
    policy: Nest
    """State of the policy, [N, ...]"""
    replay: Any
    """`ReplayState`"""
    actor_steps: jax.Array
    """int32 []: actions taken, over all environments; a step that begins an episode takes none"""
    episodes: jax.Array
    """int32 []: episodes ended"""
    returns: jax.Array
    """float32 [N], of the present episodes"""
    lengths: jax.Array
    """int32 [N]"""
    finished: Any
    """float32 [H, 2]: returns and lengths of the newest episodes; episode e is at e mod H"""
    versions: Any = ()
    """Older ones of the policy, which the learner plays against (`opponents.Versions`)"""


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


class Progress(NamedTuple):
    """Counts and metrics that a host reads as the loop goes on: copies, which outlive its state."""

    actor_steps: jax.Array
    """int32 []"""
    episodes: jax.Array
    """int32 []"""
    finished: jax.Array
    """float32 [H, 2], as of `Acting`"""
    learner_steps: jax.Array
    """int32 []"""
    metrics: dict[str, jax.Array]
    """float32 []"""
    inserted: jax.Array
    """int32 []: items ever inserted"""
    sampled: jax.Array
    """int32 []: items ever drawn, modulo 2^32"""
    size: jax.Array
    """int32 []: items held"""


class WholeLoop:
    """The functions of the loop; nothing of them is compiled here.

    Attributes:
      replay: its functions.
      remarks: the update's.
    """

    def __init__(
        self,
        environment: FunctionalEnvironment,
        policy: ActorCore,
        update: Update,
        replay: DeviceReplay,
        steps_per_dispatch: int,
        axis: str | None = None,
    ):
        """Computes nothing yet.

        Args:
          environment: that is acted in.
          policy: that explores.
          update: of the learner.
          replay: of the rows of N environments.
          steps_per_dispatch: K, gradient steps between two looks at the replay.
          axis: name of the axis of `jax.vmap` along which runs go on together; None: it is one.
        """
        update = dispatch.strongly_typed(update)
        self._environment, self._policy, self._update = environment, policy, update
        self.replay, self._steps_per_dispatch, self._axis = replay, steps_per_dispatch, axis
        self._act = policies.batch(policy)
        self._learn = dispatch.fuse_update(update, steps_per_dispatch)
        self.remarks = update.remarks

    def init(
        self, stream_keys: jax.Array, actor_key: jax.Array, learner_key: jax.Array
    ) -> LoopState:
        """Returns the first state.

        Args:
          stream_keys: [N], of the environments.
          actor_key: of the policy's states.
          learner_key: of the update's state.
        """
        n, how = stream_keys.shape[0], self._environment.self_play
        state = self._update.init(learner_key)
        params = self._update.variables(state)["policy"]
        environment: FunctionalEnvironment = self._environment
        versions: Any = ()
        if how is not None:
            environment = opponents.facing(environment, self._policy, params)
            versions = opponents.empty(how, params)
        begun, timestep = streams.reset(environment, stream_keys)
        policy = policies.begin(self._policy, jax.random.split(actor_key, n))
        zero = jnp.int32(0)
        acting = Acting(
            begun,
            timestep,
            policy,
            self.empty_replay(timestep),
            actor_steps=zero,
            episodes=zero,
            returns=jnp.zeros(n, jnp.float32),
            lengths=jnp.zeros(n, jnp.int32),
            finished=jnp.zeros((max(MOST_EPISODES, n), 2), jnp.float32),
            versions=versions,
        )
        metrics = {
            name: jnp.zeros((), jnp.float32) for name in self._metric_names(state, acting.replay)
        }
        return LoopState(acting, Learning(state, zero, metrics))

    @property
    def variable_names(self) -> tuple[str, ...]:
        """Of the update, sorted."""

        def variables(key: jax.Array) -> dict[str, Nest]:
            return self._update.variables(self._update.init(key))

        return tuple(sorted(jax.eval_shape(variables, jax.random.key(0))))

    def empty_replay(self, timestep: dm_env.TimeStep) -> ReplayState:
        """Returns a replay whose next rows follow a time step [N, ...]."""
        return self.replay.add_first(self.replay.init(), timestep)

    def host_callers(self, num_envs: int) -> list[str]:
        """Returns which of the environment and the policy call the host; nothing runs."""
        keys = jax.ShapeDtypeStruct((num_envs,), jax.random.key(0).dtype)
        key = jax.ShapeDtypeStruct((), keys.dtype)
        state = jax.eval_shape(self.init, keys, key, key)
        params = jax.eval_shape(self._update.variables, state.learning.state)["policy"]
        acting = state.acting
        chosen = (params, acting.timestep.observation, acting.policy, acting.streams.over)
        action, *_ = jax.eval_shape(self._act, *chosen)

        def step(acting: Acting, params: Nest, action: Nest) -> Any:
            return streams.step(self._opposed(acting, params), acting.streams, action)

        parts: dict[str, Any] = {
            "the environment": (step, acting, params, action),
            "the policy": (self._act, *chosen),
        }
        return [
            name
            for name, (fn, *arguments) in parts.items()
            if jax.make_jaxpr(fn)(*arguments).effects
        ]

    def _metric_names(self, state: Nest, replay: ReplayState) -> list[str]:
        def output(state: Nest, replay: ReplayState) -> dict[str, jax.Array]:
            _, sample = self.replay.sample(replay, jax.random.key(0))
            return self._learn(state, dispatch.without_keys(sample))[1].metrics

        return sorted(jax.eval_shape(output, state, replay))

    def advance(
        self, state: LoopState, key: jax.Array, until: jax.Array, turns: jax.Array
    ) -> LoopState:
        """Goes on until a number of actor steps is taken, or for so many turns.

        Args:
          state: where it is.
          key: of the draws from the replay.
          until: actor steps, int32 []; passed by at most N - 1.
          turns: steps of all environments, int32 [].
        """

        def goes_on(carry: tuple[LoopState, jax.Array]) -> jax.Array:
            (acting, _), taken = carry
            return (acting.actor_steps < until) & (taken < turns)

        def act_and_learn(
            carry: tuple[LoopState, jax.Array], active: lanes.Active
        ) -> tuple[LoopState, jax.Array]:
            (acting, learning), taken = carry
            acting, more = self._act_until_due(acting, learning, active, until, turns - taken)
            acting, learning = self._learn_while_due(acting, learning, active, key)
            return LoopState(acting, learning), taken + more

        return lanes.while_any(goes_on, act_and_learn, (state, jnp.int32(0)), self._axis)[0]

    def _act_until_due(
        self,
        acting: Acting,
        learning: Learning,
        active: lanes.Active,
        until: jax.Array,
        turns: jax.Array,
    ) -> tuple[Acting, jax.Array]:
        """Takes turns until the replay lets the learner step.

        Parameters do not change meanwhile: they stand outside of the loop, which carries none.

        Returns:
          The state, and the number of turns taken, at least one where the run is active.
        """
        params = self._update.variables(learning.state)["policy"]
        if (how := self._environment.self_play) is not None:
            versions = opponents.renew(how, acting.versions, params, acting.actor_steps, active)
            acting = acting._replace(versions=versions)

        def goes_on(carry: tuple[Acting, jax.Array]) -> jax.Array:
            acting, taken = carry
            due = self.replay.can_sample(acting.replay)
            more = (taken == 0) | (~due & (acting.actor_steps < until) & (taken < turns))
            return active & more

        def turn(carry: tuple[Acting, jax.Array], active: lanes.Active) -> tuple[Acting, jax.Array]:
            acting, taken = carry
            return self._turn(acting, params, active), taken + active

        return lanes.while_any(goes_on, turn, (acting, jnp.int32(0)), self._axis)

    def _turn(self, acting: Acting, params: Nest, active: lanes.Active) -> Acting:
        """Takes one step in every environment."""
        before = acting.timestep
        action, extras, policy = self._act(
            params, before.observation, acting.policy, before.step_type == _FIRST
        )
        environment = self._opposed(acting, params)
        begun, timestep = streams.step(environment, acting.streams, action)
        replay = self.replay.add(acting.replay, action, timestep, extras, active)
        acted, last = timestep.step_type != _FIRST, timestep.step_type == _LAST
        returns, lengths = acting.returns + timestep.reward, acting.lengths + acted
        numbers = acting.episodes + jnp.cumsum(last, dtype=jnp.int32) - 1
        size = acting.finished.shape[0]
        rows = jnp.stack([returns, lengths.astype(jnp.float32)], 1)
        places = jnp.where(last & active, numbers % size, size)
        after = Acting(
            begun,
            timestep,
            policy,
            replay=(),
            actor_steps=acting.actor_steps + acted.sum(dtype=jnp.int32),
            episodes=acting.episodes + last.sum(dtype=jnp.int32),
            returns=jnp.where(last, 0.0, returns),
            lengths=jnp.where(last, 0, lengths),
            finished=(),
            versions=acting.versions,
        )
        # What is added to is masked where it is: a choice would copy it.
        after = lanes.choose(active, after, acting._replace(replay=(), finished=()))
        finished = acting.finished.at[places].set(rows, mode="drop")
        return after._replace(replay=replay, finished=finished)

    def _opposed(self, acting: Acting, params: Nest) -> FunctionalEnvironment:
        """Returns the environment of a step, with whoever plays against the learner in it."""
        environment, begun = self._environment, acting.streams
        if environment.self_play is None:
            return environment
        key = jax.random.fold_in(begun.keys[0], begun.step)
        chosen = opponents.draw(environment.self_play, acting.versions, params, key)
        return opponents.facing(environment, self._policy, chosen)

    def _learn_while_due(
        self, acting: Acting, learning: Learning, active: lanes.Active, key: jax.Array
    ) -> tuple[Acting, Learning]:
        """Has the learner step as far as the replay lets it; once where nothing bounds that."""
        first = learning.steps
        # Rows are only read here: the loop carries what drawing changes.
        rows = acting.replay.rows

        def due(carry: tuple[ReplayState, Learning]) -> jax.Array:
            replay, learning = carry
            again = self.replay.spec.is_bounded | (learning.steps == first)
            return self.replay.can_sample(replay._replace(rows=rows)) & again & active

        def dispatch_once(
            carry: tuple[ReplayState, Learning], active: lanes.Active
        ) -> tuple[ReplayState, Learning]:
            before, learning = carry
            step_key = jax.random.fold_in(key, learning.steps)
            replay, sample = self.replay.sample(before._replace(rows=rows), step_key)
            replay = lanes.choose(active, replay._replace(rows=()), before)
            state, output = self._learn(learning.state, dispatch.without_keys(sample))
            if self.replay.spec.priority_exponent is not None and output.priorities is not None:
                replay = self.replay.update_priorities(
                    replay, sample.info.keys, output.priorities, active
                )
            metrics = {
                name: output.metrics[name][-1].astype(jnp.float32) for name in learning.metrics
            }
            steps = learning.steps + self._steps_per_dispatch
            return replay, lanes.choose(active, Learning(state, steps, metrics), learning)

        begun: ReplayState = acting.replay._replace(rows=())
        replay, learning = lanes.while_any(due, dispatch_once, (begun, learning), self._axis)
        return acting._replace(replay=replay._replace(rows=rows)), learning

    def progress(self, state: LoopState) -> Progress:
        """Returns copies of what a host looks at."""
        acting, learning = state
        items = acting.replay.items
        return jax.tree.map(
            jnp.copy,
            Progress(
                acting.actor_steps,
                acting.episodes,
                acting.finished,
                learning.steps,
                learning.metrics,
                items.next,
                items.sampled,
                self.replay.size(acting.replay),
            ),
        )

    def with_num_actions(self, state: LoopState, count: jax.Array) -> LoopState:
        """Returns a state whose schedules go on as if every stream had taken `count` actions."""
        policy = jax.vmap(self._policy.set_num_actions, (0, None))(state.acting.policy, count)
        return state._replace(acting=state.acting._replace(policy=policy))

    def variables(self, state: LoopState, names: tuple[str, ...]) -> list[Nest]:
        """Returns copies of the named variables, which outlive the state."""
        return dispatch.copy_variables(self._update, state.learning.state, names)
