"""Builder of GRPO."""

from __future__ import annotations

from typing import Any

from ...environments.specs import EnvironmentSpec
from ..builder import Builder
from ..generation.groups import WINDOW
from ..generation.model import begin_with
from ..generation.policy import answering
from ..generation.sampling import Sampling
from ..interfaces import ActorCore, Update
from ..learning.learner import SGDLearner
from ..replay.items import ReplaySpec
from .config import GRPOConfig
from .networks import GRPONetworks, make_networks
from .update import make_update


class GRPOBuilder(Builder[GRPOConfig, GRPONetworks]):
    """Group relative policy optimisation of language models, for environments of text.

    Leave-one-out REINFORCE is its `loss` "reinforce" with the `baseline` "leave_one_out".
    """

    name = "grpo"
    config_class = GRPOConfig

    def make_networks(self, spec: EnvironmentSpec) -> GRPONetworks:
        return make_networks(spec, self.config)

    def make_policy(
        self,
        networks: GRPONetworks,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        config = self.config
        if evaluation:
            return answering(*networks, Sampling(temperature=0.0))
        sampling = Sampling(config.temperature, config.top_k, config.top_p)
        return answering(*networks, sampling, supervised_steps=config.supervised_steps)

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        config, size, ahead = self.config, self.config.batch_size, None
        if config.max_staleness is not None:
            # With one batch alone beyond the parameters that answer, none is older by a step.
            ahead = (config.max_staleness + 1) * size
        return ReplaySpec(WINDOW, size, max_size=2 * size, max_ahead=ahead)

    def make_update(self, networks: GRPONetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)

    def make_learner(self, *args: Any, **options: Any) -> SGDLearner:
        """Begins with the weights of the config's folder, where it names one."""
        learner = super().make_learner(*args, **options)
        if self.config.weights is not None:
            names = ("params", "reference") if self.config.kl_cost else ("params",)
            begin_with(learner, self.config.weights, names)
        return learner
