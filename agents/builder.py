"""The builder: the one description of an agent, from which every launch takes its parts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import jax

from ..environments import action_masks
from ..environments.spaces import ActionMode
from ..environments.specs import EnvironmentSpec
from . import legal_actions
from .acting import policies
from .acting.actor import GenericActor
from .acting.remote import RemoteActor
from .acting.sessions import InferenceSource
from .bounds import show
from .configs import (
    ActorCriticConfig,
    MemoryConfig,
    OfflineConfig,
    OffPolicyConfig,
    PriorityConfig,
)
from .interfaces import ActorCore, Adder, Update, VariableSource
from .learning.learner import SGDLearner
from .networks.core import require_box
from .networks.windows import WindowPolicy
from .programs.placement import Partition
from .replay import Dataset, EmbeddedReplay, Replay, ReplayFactory
from .replay.items import Item, ReplaySpec, Sample, Sequences, Transitions
from .variables.client import VariableClient

Nest = Any
ConfigT = TypeVar("ConfigT")
OfflineConfigT = TypeVar("OfflineConfigT", bound=OfflineConfig)
OffPolicyConfigT = TypeVar("OffPolicyConfigT", bound=OffPolicyConfig)
NetworksT = TypeVar("NetworksT")


class Builder(abc.ABC, Generic[ConfigT, NetworksT]):
    """Makes the parts of one agent.

    An agent says five things: its config, its networks, its policy, its replay and its update. All
    else is common, and stands here. A config has at least the fields `num_envs` (environments an
    actor steps together) and `steps_per_dispatch` (gradient steps fused in one dispatch).
    """

    name: ClassVar[str]
    config_class: ClassVar[type]
    actions: ClassVar[ActionMode] = "strict"
    """Treatment of continuous actions by the environment, as `environments.make` takes it."""
    needs_data: ClassVar[bool] = False
    """True if it learns from data alone. Off-policy agents may: `Experiment(data=...)`."""
    mixes_data: ClassVar[bool] = False
    """True if it acts, and learns from data besides, which `load_data` then gives."""
    honours_action_masks: ClassVar[bool] = False
    """True if it chooses, bootstraps and learns among legal actions, where observations have a mask
    of them (`legal_actions`). Environments with masks are refused to others."""
    networks_observe: ClassVar[bool] = True
    """True if the first input of all its networks is observations."""
    load_data: Callable[[EnvironmentSpec], Dataset] | None = None
    """The data of an experiment, set by whoever runs it."""

    def __init__(self, config: ConfigT | None = None):
        """Takes the config; None: its defaults.

        Raises:
          ValueError: if it is none of `config_class`.
        """
        wanted = self.config_class
        if config is not None and not isinstance(config, wanted):
            raise ValueError(
                f"{type(self).__name__} takes a {wanted.__name__}, not {show(config)}; "
                f"as {type(self).__name__}({wanted.__name__}(...))."
            )
        self.config: ConfigT = wanted() if config is None else config

    # What an agent says.

    @abc.abstractmethod
    def make_networks(self, spec: EnvironmentSpec) -> NetworksT:
        """The agent's networks for an environment.

        Raises:
          ValueError: where the agent cannot drive it, saying what it can.
        """

    @abc.abstractmethod
    def make_policy(
        self,
        networks: NetworksT,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        """Makes the policy, which chooses actions.

        Args:
          evaluation: the policy that is judged, not the one that explores.
          num_streams: environments that act at once, over all actors. A schedule given in actor
            steps runs that much faster in each of them.
        """

    @abc.abstractmethod
    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        """Returns the kind of items, how many are held, and the pace of writing and reading."""

    @abc.abstractmethod
    def make_update(self, networks: NetworksT, spec: EnvironmentSpec) -> Update:
        """Makes the update, by which the agent learns from a batch."""

    # What is common.

    def require_masks_honoured(self, spec: EnvironmentSpec) -> None:
        """Raises ValueError where observations have a mask of actions that it would ignore."""
        if spec.action_mask is None or self.honours_action_masks:
            return
        raise ValueError(
            f"{self.name} does not honour masks of legal actions, and this environment's "
            "observations have one (action_mask); a builder that chooses, bootstraps and learns "
            "among legal actions says `honours_action_masks = True`."
        )

    def make_replay_tables(
        self,
        spec: EnvironmentSpec,
        policy: ActorCore,
        *,
        make_replay: ReplayFactory = EmbeddedReplay,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> Replay:
        """The replay.

        Args:
          make_replay: what makes it; of several processes each has a factory of its own, for the
            proxy that it needs, so that only what comes of it is seen by all of them.
          num_envs: N, environments whose steps this process writes.
          seed: of the draws.
        """
        return make_replay(
            self.make_replay_spec(spec),
            spec,
            self.make_extras_spec(policy),
            num_envs=num_envs,
            seed=seed,
            steps_per_sample=self.steps_per_dispatch,
        )

    def make_extras_spec(self, policy: ActorCore) -> Nest:
        """Returns the spec of what is stored beside an action, as `jax.ShapeDtypeStruct`."""

        def extras() -> Nest:
            # Within, so that no device is touched: a program is made where none may be.
            state = policy.init(jax.random.key(0))
            return policy.get_extras(state, state)

        return jax.eval_shape(extras)

    def make_adder(self, replay: Replay) -> Adder:
        return replay.adder()

    def make_dataset_iterator(self, replay: Replay) -> Iterator[Sample]:
        """Batches for the learner, fused for one dispatch: every array is [K, B, ...]."""
        return replay.dataset(self.steps_per_dispatch)

    def make_actor(
        self,
        key: jax.Array,
        policy: ActorCore,
        spec: EnvironmentSpec,
        variable_source: VariableSource,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
        device: jax.Device | Partition | None = None,
    ) -> GenericActor | RemoteActor:
        """The actor; where `variable_source` is an `InferenceSource`, its server chooses.

        `device` is where else the policy is computed, by `PolicyProgram`.
        """
        self.require_masks_honoured(spec)
        if isinstance(variable_source, InferenceSource):
            infer = variable_source.infer
            return RemoteActor(policy, key, infer, spec.actions, adder, num_envs=num_envs)
        client = VariableClient(variable_source)
        return GenericActor(policy, key, client, adder, num_envs=num_envs, device=device)

    def make_learner(
        self,
        key: jax.Array,
        networks: NetworksT,
        spec: EnvironmentSpec,
        dataset: Iterator[Sample],
        replay: Replay | None = None,
        *,
        device: jax.Device | None = None,
        partition: Partition | None = None,
    ) -> SGDLearner:
        """The learner; priorities go back to `replay` where one is given and wants them."""
        self.require_masks_honoured(spec)
        prioritised = replay is not None and replay.spec.priority_exponent is not None
        learner = SGDLearner(
            self.make_update(networks, spec),
            dataset,
            key,
            steps_per_dispatch=self.steps_per_dispatch,
            write_priorities=replay.update_priorities if prioritised and replay else None,
            device=device,
            partition=partition,
            shapes=None if replay is None else replay.sample_shapes(self.steps_per_dispatch),
        )
        if replay is not None:
            replay.place_batches(learner.place)
        return learner

    @property
    def num_envs(self) -> int:
        return self.config.num_envs  # type: ignore[attr-defined]

    @property
    def steps_per_dispatch(self) -> int:
        return self.config.steps_per_dispatch  # type: ignore[attr-defined]


class OffPolicyBuilder(Builder[OffPolicyConfigT, NetworksT]):
    """An agent that learns from a replay as its config says: networks, policy and update are left
    to be said."""

    def make_item(self, spec: EnvironmentSpec) -> Item:
        """Returns the replay's kind of items: transitions of the config's `n_step`; with a memory,
        windows."""
        config: Any = self.config
        if isinstance(config, MemoryConfig) and config.is_recurrent:
            # One row more: what is bootstrapped from.
            return Sequences(config.burn_in + config.sequence_length + 1, config.sequence_period)
        return Transitions(self.config.n_step, self.config.discount)

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        config = self.config
        return ReplaySpec(
            item=self.make_item(spec),
            batch_size=config.batch_size,
            max_size=config.max_replay_size,
            min_size=config.min_replay_size,
            samples_per_insert=config.samples_per_insert,
            priority_exponent=(
                config.priority_exponent if isinstance(config, PriorityConfig) else None
            ),
        )


class OfflineBuilder(Builder[OfflineConfigT, NetworksT]):
    """An agent that learns from data alone: networks, update and policy are left to be said.

    Nobody acts in training. The policy is what evaluations play, and what `troupe record` plays
    when it is asked to draw (`evaluation=False`).
    """

    needs_data = True

    def make_item(self, spec: EnvironmentSpec) -> Item:
        """Returns a batch's kind of items: single transitions, unless overridden."""
        return Transitions(1, self.config.discount)

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        batch_size = self.config.batch_size
        return ReplaySpec(item=self.make_item(spec), batch_size=batch_size, max_size=batch_size)


class StochasticPolicy(Builder[ConfigT, NetworksT]):
    """An agent, besides, whose policy is a distribution: what draws in training, and what is judged
    by its likeliest action.

    Its networks have `policy`, a `Network` of observations to parameters [B, P], and `actions`, the
    `Distribution`.
    """

    def make_policy(
        self,
        networks: Any,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:

        def choose(parameters: Callable[[Nest, Nest], jax.Array]) -> ActorCore:
            if evaluation:
                return policies.mode(parameters, networks.actions)
            drawn = policies.stochastic(parameters, networks.actions)
            first = _random_steps(self.config, num_streams)
            return policies.uniform_first(drawn, spec.actions, first)

        return _with_memory(networks.policy, choose)


class PolicyRegressionBuilder(
    StochasticPolicy[OfflineConfigT, NetworksT], OfflineBuilder[OfflineConfigT, NetworksT]
):
    """An agent that learns from data alone, by making actions of the data likely.

    Its policy is one of `networks.policies.make_stochastic_policy`, which gives illegal actions no
    probability.
    """

    # The likelihood is that of the action in the data; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"
    honours_action_masks = True


class DeterministicPolicy(Builder[ConfigT, NetworksT]):
    """An agent, besides, whose policy is one action, and explores by noise on it.

    Its networks have `policy`, a `Network` of observations to actions [B, ...] of a box; its config
    is a `GaussianNoiseConfig`.
    """

    def make_policy(
        self,
        networks: Any,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        config: Any = self.config

        def choose(action: Callable[[Nest, Nest], jax.Array]) -> ActorCore:
            if evaluation:
                return policies.deterministic(action)
            box, std = require_box(self.name, spec), config.exploration_std
            noisy = policies.gaussian_noise(action, box.minimum, box.maximum, std)
            return policies.uniform_first(noisy, box, _random_steps(config, num_streams))

        return _with_memory(networks.policy, choose)


def _with_memory(
    policy: Any, choose: Callable[[Callable[[Nest, Nest], jax.Array]], ActorCore]
) -> ActorCore:
    """Returns a policy that chooses by what its network says, which may have a memory.

    Args:
      policy: a `Network`, or a `WindowPolicy`.
      choose: makes a policy without a memory from `(params, observation) -> outputs`.
    """
    if not isinstance(policy, WindowPolicy):
        return choose(policy.apply_one)

    def step(params: Nest, observation: Nest, memory: Nest) -> tuple[Nest, Nest]:
        outputs, memory = policy.step(params, observation, memory)
        return legal_actions.beside(outputs, observation), memory

    chooses = choose(lambda params, outputs: action_masks.visible(outputs))
    return policies.recurrent(step, policy.initial_state, chooses)


def _random_steps(config: Any, num_streams: int) -> float:
    """Actions of each stream that are drawn before the policy's."""
    return config.random_steps / num_streams if isinstance(config, ActorCriticConfig) else 0.0
