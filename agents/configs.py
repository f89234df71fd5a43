"""Fields that configs of agents share, with their bounds, and the checks made at construction.

A config is a frozen dataclass that inherits the fields it has in common with others from the
mix-ins below, and gives a field another default by naming it again; its docstring stays:

    @dataclasses.dataclass(frozen=True)
    class MyConfig(OffPolicyConfig, AdamConfig, MLPConfig):
        learning_rate: float = 3e-4
        temperature: float = 1.0
        \"\"\"Of the softmax.\"\"\"

        bounds: ClassVar[AllBounds] = {"temperature": Above(0.0, 100.0)}

Every number has bounds: a run with one that cannot be is refused instead of learning nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from . import other_names
from .bounds import MOST_STEPS, Above, AllBounds, check, show

_MOST_ITEMS = 10**8


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of every agent. A class's `bounds` add to those it inherits."""

    num_envs: int = 1
    """Environments that an actor steps together; each of several agents in one counts as one."""
    steps_per_dispatch: int = 1
    """Gradient steps fused in one dispatch; the pace is kept in blocks of this many."""
    discount: float = 0.99
    """gamma, per step."""

    bounds: ClassVar[AllBounds] = {
        "num_envs": (1, 1 << 20),
        "steps_per_dispatch": (1, 10_000),
        "discount": (0.0, 1.0),
    }

    def __new__(cls, *arguments: Any, **values: Any) -> Any:
        """Refuses fields by names of other libraries.

        Raises:
          TypeError: naming the field here.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values.keys() - {*known}:
            if near := other_names.find_fields(name, known):
                raise TypeError(
                    f"{cls.__name__} has no field {name!r}; did you mean {' or '.join(near)}?"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Checks types and bounds; a class with checks of its own calls this first.

        Raises:
          ValueError: naming the first field that cannot be so, and what is allowed.
        """
        check(self)


@dataclasses.dataclass(frozen=True)
class MLPConfig(Config):
    """Of a network that is an MLP, or the Nature network where observations are images. Grids, as
    MinAtar's, go through one convolution before the MLP."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the MLP's hidden layers; images go through the Nature network."""

    bounds: ClassVar[AllBounds] = {"hidden_sizes": (1, 65_536)}


@dataclasses.dataclass(frozen=True)
class CriticConfig(MLPConfig):
    """Of critics of a state and an action, which may be larger than the policy."""

    critic_network: Literal["mlp", "layer_norm", "residual", "hyperspherical"] = "mlp"
    """Network of the critics: an MLP; one with layer normalisation; normalised residual blocks, as
    many as critic_hidden_sizes has equal numbers (SimBa); or those on unit spheres (SimbaV2)."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Units of the critics' hidden layers; None: hidden_sizes."""

    bounds: ClassVar[AllBounds] = {"critic_hidden_sizes": (1, 65_536)}

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, sizes = self.critic_network, self.critic_sizes
        if kind in ("residual", "hyperspherical") and len({*sizes}) != 1:
            raise ValueError(
                f"critic_network is {kind} and its hidden sizes are {sizes}; blocks add to what "
                "they get, so that all must be equal (set critic_hidden_sizes)."
            )

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """Units of the critics' hidden layers."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes


@dataclasses.dataclass(frozen=True)
class TorsoConfig(MLPConfig):
    """Of an agent that takes any torso, its config's, in place of the convolutions and the MLP."""

    torso: str = "auto"
    """Network from observations to features. auto: an MLP, behind the Nature network where
    observations are images; nature; residual, the network of Espeholt et al. (2018) for images; or
    MODULE:NAME of a function of your own, from the observations' spec to one that makes features
    [B, F] of observations [B, ...]."""

    def __post_init__(self) -> None:
        if callable(self.torso):
            raise ValueError(
                f"torso is {show(self.torso)}; give the text MODULE:NAME by which every process "
                "finds it."
            )
        super().__post_init__()
        module, _, name = self.torso.rpartition(":")
        if self.torso not in ("auto", "nature", "residual") and not (module and name):
            raise ValueError(
                f"torso is {self.torso!r}; it must be one of auto, nature, residual, or "
                "MODULE:NAME of a function of your own."
            )


@dataclasses.dataclass(frozen=True)
class CoreConfig(Config):
    """Of the part of a network that may have a memory, behind its torso."""

    core: Literal["none", "lstm", "gru", "transformer"] = "none"
    """Memory: none, an LSTM, a GRU, or a gated transformer (Parisotto et al., 2019)."""
    core_size: int = 128
    """Units of the LSTM or GRU, features of the transformer."""
    core_layers: int = 1
    """Layers of the core."""
    core_heads: int = 4
    """Heads of the transformer's attention; divides core_size."""
    core_loop: bool = True
    """Compile the transformer's layers as one loop. Without it each layer has arrays of its own, so
    that the stages of a pipeline can divide them; many layers take long to compile."""
    memory_length: int = 32
    """Steps that each of the transformer's layers looks back."""

    bounds: ClassVar[AllBounds] = {
        "core_size": (1, 65_536),
        "core_layers": (1, 1_000),
        "core_heads": (1, 1_024),
        "memory_length": (1, 65_536),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.core == "transformer" and self.core_size % self.core_heads:
            raise ValueError(
                f"core_size is {self.core_size} and core_heads is {self.core_heads}; core_heads "
                "must divide core_size."
            )

    @property
    def is_recurrent(self) -> bool:
        """True if the network has a memory."""
        return self.core != "none"


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(CoreConfig, TorsoConfig):
    """Of a network that may have a memory, in sizes from thousands of parameters to billions.

    Observations go through a torso (an MLP of `hidden_sizes`, say), its features
    through a core, and what comes of that to the agent's heads. A transformer layer has about 25
    `core_size`^2 parameters: one of 192 features is a million, 10 of 2,048 are a billion.
    """

    torso_width: int = 1
    """Times the channels and features that networks of images were published with."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of torso and core; parameters, heads and optimizer stay float32."""

    bounds: ClassVar[AllBounds] = {"torso_width": (1, 64)}


@dataclasses.dataclass(frozen=True)
class AdamConfig(Config):
    """Of gradient descent by Adam."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    adam_epsilon: float = 1e-8
    """Added to the root of Adam's second moment."""
    max_gradient_norm: float | None = 10.0
    """Gradients are scaled down to this global norm; None leaves them."""
    learning_rate_schedule: str = "linear"
    """Course of the step size in learning_rate_steps, down to 0: linear or cosine. Or MODULE:NAME
    of a function from this config to an optax schedule, of the count of gradient steps."""
    learning_rate_steps: int | None = None
    """Gradient steps in which the step size falls to 0, after those of the warm-up; None: it
    stays."""
    learning_rate_warmup_steps: int = 0
    """Gradient steps in which the step size first rises linearly from 0."""

    bounds: ClassVar[AllBounds] = {
        "learning_rate": (0.0, 100.0),
        "learning_rate_steps": (1, MOST_STEPS),
        "learning_rate_warmup_steps": (0, MOST_STEPS),
        # Less is 0 in 32 bits, and a gradient of 0 would be divided by it.
        "adam_epsilon": (1e-30, 1.0),
        "max_gradient_norm": Above(0.0, 1e6),
    }

    def __post_init__(self) -> None:
        if callable(self.learning_rate):  # A schedule, as other libraries take it.
            raise ValueError(
                "learning_rate is a function; it must be a number. A schedule of one's own is "
                "named: learning_rate_schedule='MODULE:NAME'."
            )
        super().__post_init__()
        if ":" not in self.learning_rate_schedule:
            require_choice(self, "learning_rate_schedule", ("linear", "cosine"))
        elif self.learning_rate_steps is not None or self.learning_rate_warmup_steps:
            raise ValueError(
                f"learning_rate_schedule is {self.learning_rate_schedule}, which says the whole "
                "course; leave out learning_rate_steps and learning_rate_warmup_steps."
            )


@dataclasses.dataclass(frozen=True)
class TargetConfig(Config):
    """Of a target network."""

    target_update_period: int = 100
    """Gradient steps between updates of the target network."""
    target_update_rate: float = 1.0
    """Part of the way that the target goes at each update: 1 copies, less is Polyak averaging."""

    bounds: ClassVar[AllBounds] = {
        "target_update_period": (1, MOST_STEPS),
        "target_update_rate": Above(0.0, 1.0),
    }


@dataclasses.dataclass(frozen=True)
class EpsilonGreedyConfig(Config):
    """Of exploration by random actions."""

    epsilon_start: float = 1.0
    """Chance of a random action at the first step."""
    epsilon_end: float = 0.05
    """Chance of a random action after the decay."""
    epsilon_decay_steps: int = 10_000
    """Actor steps, over all environments, in which the chance goes linearly from start to end."""
    evaluation_epsilon: float = 0.0
    """Chance of a random action in evaluation. 0 is greedy."""

    bounds: ClassVar[AllBounds] = {
        "epsilon_start": (0.0, 1.0),
        "epsilon_end": (0.0, 1.0),
        "epsilon_decay_steps": (0, MOST_STEPS),
        "evaluation_epsilon": (0.0, 1.0),
    }


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(Config):
    """Of learning from a replay, at a pace."""

    n_step: int = 1
    """Rewards summed before bootstrapping."""
    batch_size: int = 64
    """Transitions (or sequences) per gradient step."""
    min_replay_size: int = 1_000
    """Transitions (or sequences) collected before learning begins."""
    max_replay_size: int = 100_000
    """Transitions (or sequences) held."""
    samples_per_insert: float = 32.0
    """Transitions (or sequences) drawn per one collected; gradient steps per one collected are this
    / batch_size."""
    steps_per_dispatch: int = 8

    bounds: ClassVar[AllBounds] = {
        "n_step": (1, 1_000),
        "batch_size": (1, 1_000_000),
        "min_replay_size": (1, _MOST_ITEMS),
        "max_replay_size": (1, _MOST_ITEMS),
        "samples_per_insert": Above(0.0, 1e6),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_replay_size > self.max_replay_size:
            raise ValueError(
                f"min_replay_size is {self.min_replay_size} and max_replay_size is "
                f"{self.max_replay_size}; learning would never begin."
            )


@dataclasses.dataclass(frozen=True)
class PriorityConfig(OffPolicyConfig):
    """Of prioritised replay."""

    priority_exponent: float | None = None
    """alpha of prioritised replay (Schaul et al., 2016); None samples uniformly."""
    importance_exponent: float = 0.4
    """beta of prioritised replay at the first gradient step."""
    importance_exponent_steps: int = 100_000
    """Gradient steps in which beta goes linearly to 1."""

    bounds: ClassVar[AllBounds] = {
        "priority_exponent": (0.0, 10.0),
        "importance_exponent": (0.0, 1.0),
        "importance_exponent_steps": (0, MOST_STEPS),
    }


@dataclasses.dataclass(frozen=True)
class WindowConfig(Config):
    """Of learning from windows of episodes."""

    sequence_length: int = 20
    """Steps of a sequence that are learned from."""
    sequence_period: int = 10
    """Steps from the start of one sequence to that of the next."""

    bounds: ClassVar[AllBounds] = {
        "sequence_length": (1, 100_000),
        "sequence_period": (1, 100_000),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_period > self.sequence_length:
            raise ValueError(
                f"sequence_period is {self.sequence_period} and sequence_length is "
                f"{self.sequence_length}; with a period greater than the length there are steps "
                "that are never learned from."
            )


@dataclasses.dataclass(frozen=True)
class SequenceConfig(WindowConfig):
    """Likewise, with priorities of windows."""

    priority_mix: float = 0.9
    """eta: part of a sequence's priority that is its greatest error; the rest is the mean."""

    bounds: ClassVar[AllBounds] = {"priority_mix": (0.0, 1.0)}


@dataclasses.dataclass(frozen=True)
class MemoryConfig(CoreConfig, WindowConfig):
    """Of an actor and critics that may have a memory each. With one, replayed items are sequences,
    which batch_size and the sizes of the replay count."""

    burn_in: int = 10
    """Steps before those of a sequence that only warm the memories up; with a core."""

    bounds: ClassVar[AllBounds] = {"burn_in": (0, 100_000)}


@dataclasses.dataclass(frozen=True)
class AtomsConfig(Config):
    """Of estimating distributions of returns."""

    num_atoms: int = 51
    """Returns that a categorical distribution tells apart, evenly spaced; or quantiles, where those
    are estimated."""
    min_return: float = -10.0
    """The least return of a categorical distribution."""
    max_return: float = 10.0
    """The greatest."""

    bounds: ClassVar[AllBounds] = {
        "num_atoms": (2, 10_000),
        "min_return": (-1e9, 1e9),
        "max_return": (-1e9, 1e9),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_return < self.max_return:
            raise ValueError(
                f"min_return is {self.min_return} and max_return is {self.max_return}; the least "
                "return must be below the greatest."
            )


@dataclasses.dataclass(frozen=True)
class CriticLossConfig(AtomsConfig):
    """Of critics of mean returns, which may learn them as a classification."""

    critic_loss: Literal["squared", "categorical"] = "squared"
    """Loss of the critics: squared errors; or categorical, the cross entropy of smoothed histograms
    (HL-Gauss) of num_atoms returns from min_return to max_return."""
    num_atoms: int = 101
    min_return: float = -100.0
    max_return: float = 100.0

    @property
    def critic_support(self) -> tuple[int | None, float, float]:
        """Atoms of which critics give logits, or None; the least and the greatest."""
        is_squared = self.critic_loss == "squared"
        return None if is_squared else self.num_atoms, self.min_return, self.max_return


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(OffPolicyConfig, TargetConfig, AdamConfig, CriticConfig):
    """Of learning a policy, and critics that judge its actions, from a replay."""

    learning_rate: float = 3e-4
    """Step size of Adam, for policy and critics."""
    max_gradient_norm: float | None = None
    batch_size: int = 256
    samples_per_insert: float = 256.0
    target_update_period: int = 1
    target_update_rate: float = 0.005
    random_steps: int = 0
    """Actor steps, over all environments, whose actions are drawn uniformly, before the policy's
    are."""

    bounds: ClassVar[AllBounds] = {"random_steps": (0, MOST_STEPS)}


@dataclasses.dataclass(frozen=True)
class GaussianNoiseConfig(Config):
    """Of exploration by noise on the action of a policy that draws nothing."""

    exploration_std: float = 0.1
    """Standard deviation of the noise on actions, where their range is from -1 to 1."""

    bounds: ClassVar[AllBounds] = {"exploration_std": (0.0, 10.0)}


@dataclasses.dataclass(frozen=True)
class OfflineConfig(Config):
    """Of learning from data alone, in which nobody acts."""

    num_envs: int = 1
    """Always 1: nobody acts but in evaluations, which say themselves how many there are."""
    batch_size: int = 256
    """Transitions (or sequences) per gradient step."""
    steps_per_dispatch: int = 10

    bounds: ClassVar[AllBounds] = {"num_envs": (1, 1), "batch_size": (1, 1_000_000)}


@dataclasses.dataclass(frozen=True)
class GaussianConfig(Config):
    """Of a policy whose real actions are drawn from normal distributions."""

    initial_log_std: float = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""
    least_log_std: float = -5.0
    """Lower bound of that logarithm: without one, data of a policy that draws nothing would have
    the deviation shrink for ever."""

    bounds: ClassVar[AllBounds] = {
        "initial_log_std": (-20.0, 20.0),
        "least_log_std": (-20.0, 20.0),
    }

    def log_stds(self) -> dict[str, float]:
        """These two, as `networks.policies.make_stochastic_policy` takes them."""
        return {"initial_log_std": self.initial_log_std, "least_log_std": self.least_log_std}


@dataclasses.dataclass(frozen=True)
class WeightedConfig(OfflineConfig, TargetConfig, GaussianConfig):
    """Of a policy that makes actions of the data likely, the more the better they are."""

    temperature: float = 1.0
    """Of the weights exp(advantage / temperature): near 0 only the best actions count."""
    max_weight: float = 20.0
    """The greatest weight."""
    target_update_period: int = 1
    target_update_rate: float = 0.005

    bounds: ClassVar[AllBounds] = {"temperature": Above(0.0, 1e6), "max_weight": Above(0.0, 1e6)}


def require_choice(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Checks that a field is one of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")


def forbid_two_schedules(config: Any) -> None:
    """Checks that the step size goes by actor steps or by gradient steps, not by both."""
    steps, kind = config.learning_rate_steps, config.learning_rate_schedule
    if config.anneal_steps is not None and (steps is not None or ":" in kind):
        given = "learning_rate_schedule" if steps is None else "learning_rate_steps"
        raise ValueError(
            f"anneal_steps is {config.anneal_steps} and {given} is given too; the learning rate "
            "falls by actor steps or by gradient steps: give one."
        )
