"""The table of agents: what each of them is checked on. A new agent adds a row to `AGENTS`.

`test_agents.py` has what every row must do, `test_launches.py` does it in every kind of launch.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from troupe import environments, launch
from troupe.agents import examples, find_builder

from .. import demonstrations

FULL = bool(os.environ.get("TROUPE_FULL"))


class Kind(NamedTuple):
    """An environment that agents are tried on."""

    env: str
    options: Mapping[str, Any] = {}
    steps: int = 50
    """Gradient steps of a short run."""
    best: float | None = None
    """Return of a perfect player, where every agent must come near to it."""


KINDS = {
    "discrete": Kind("fake/match", best=16.0),
    "continuous": Kind("fake/match", {"continuous": True}, best=16.0),
    "masked": Kind("fake/match", {"masked": True}, best=16.0),
    "structured": Kind("fake/match", {"structured": True}, best=16.0),
    "ragged": Kind("fake/ragged"),
    "several": Kind("fake/continuous"),
    "nested": Kind("fake/nested", {"single_action": True}),
    "text": Kind("tokens:reverse", {"length": 3, "letters": 3, "answers": 4}),
    "words": Kind("tokens:reverse", {"length": 2, "letters": 6, "answers": 4}, best=1.0),
    # Convolutions take their time.
    "image": Kind("fake/image", {"size": 36}, steps=4),
}
"""One of four choices; one number; some of four choices, others being refused; a dict of a choice
and a tuple of a number and two digits; episodes of one step to twelve, some of them cut short;
several numbers at once; a nest of observations; prompts that are answered, and fewer of
them, all of which can be learned; images."""


class Row(NamedTuple):
    """An agent, its settings, and the kinds of environments that it drives."""

    agent: str
    config: Mapping[str, Any]
    kinds: tuple[str, ...]
    recurrent: bool = False
    """Whether its policy has a memory."""
    mistakes: float = 0.0
    """Of data: the share of the actions that are drawn. Who imitates learns from none; who compares
    actions has to see some."""


TINY = ("hidden_sizes", "width", "num_layers", "num_heads")
"""Fields that make networks small."""
OFF_POLICY = {
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "discount": 0.0,
    "samples_per_insert": 64.0,
}
DQN = {**OFF_POLICY, "epsilon_decay_steps": 1_000}
PPO = {"hidden_sizes": (32,), "rollout_length": 16, "discount": 0.0, "learning_rate": 3e-3}
IMPALA = {"hidden_sizes": (32,), "discount": 0.0, "learning_rate": 1e-2}
GRU = {"core": "gru", "core_size": 16}
BC = {"hidden_sizes": (32,), "batch_size": 32, "learning_rate": 3e-3}
SAC = {**OFF_POLICY, "batch_size": 64, "samples_per_insert": 32.0, "learning_rate": 3e-3}
TD3 = {**SAC, "exploration_std": 0.3}
D4PG = {**TD3, "min_return": -2.0, "max_return": 2.0, "num_atoms": 11, "n_step": 1}
MPO = {
    **SAC,
    "n_step": 1,
    "num_samples": 4,
    "samples_per_insert": 16.0,
    "target_update_period": 20,
    "epsilon_mean": 0.05,
}
C51 = {**DQN, "min_return": 0.0, "max_return": 2.0, "num_atoms": 11}
R2D2 = {
    **{"core_size": 16, "hidden_sizes": (16,), "burn_in": 0, "n_step": 1, "discount": 0.0},
    **{"sequence_length": 8, "sequence_period": 8, "min_replay_size": 20, "batch_size": 16},
    **{"learning_rate": 3e-3, "samples_per_insert": 64.0, "epsilon_decay_steps": 1_000},
}
MUZERO = {
    **{"hidden_sizes": (32,), "state_size": 16, "num_simulations": 4, "unroll_steps": 2},
    **{"sequence_length": 4, "sequence_period": 4, "num_atoms": 11, "discount": 0.0, "n_step": 1},
    **{"min_return": -3.0, "max_return": 3.0, "learning_rate": 3e-3, "target_update_period": 20},
    **{"min_replay_size": 50},
}
GRPO = {
    **{"width": 16, "num_layers": 1, "num_heads": 2, "num_envs": 8, "batch_size": 8},
    **{"supervised_steps": 4, "learning_rate": 1e-2},
}
MEMORY = {
    **{**GRU, "sequence_length": 8, "sequence_period": 8, "burn_in": 0, "min_replay_size": 20},
    **{"batch_size": 16, "samples_per_insert": 64.0},
}
OFFLINE = {**BC, "discount": 0.0}
CQL = {**OFFLINE, "conservative_weight": 0.1, "num_action_samples": 4, "initial_temperature": 0.1}
CLASSES = {"critic_loss": "categorical", "min_return": -3.0, "max_return": 3.0, "num_atoms": 13}
SPHERES = {"critic_network": "hyperspherical", "critic_hidden_sizes": (16, 16)}
EVERY = ("discrete", "continuous", "masked", "structured", "ragged", "several", "nested", "image")
AGENTS = {
    "bc": Row("bc", BC, EVERY),
    "c51": Row("c51", C51, ("discrete", "masked")),
    "c51 of the docs": Row("c51:C51Builder", {**DQN, "max_return": 2.0}, ("discrete",)),
    "d4pg": Row("d4pg", D4PG, ("continuous", "several")),
    "cql": Row("cql", CQL, ("continuous", "several"), mistakes=0.5),
    "crr": Row("crr", OFFLINE, EVERY, mistakes=0.5),
    "crr of binary weights": Row(
        "crr", {**OFFLINE, "weights": "binary"}, ("discrete",), mistakes=0.5
    ),
    "dqn": Row("dqn", DQN, ("discrete", "masked", "ragged", "nested", "image")),
    "dqn with everything": Row(
        "dqn",
        {**DQN, "dueling": True, "priority_exponent": 0.6, "loss": "squared", "num_envs": 3},
        ("discrete",),
    ),
    "grpo": Row("grpo", GRPO, ("text",)),
    "grpo behind imitation": Row(
        "grpo",
        {
            **{**GRPO, "width": 32, "supervised_steps": 150, "supervised_learning_rate": 1e-2},
            **{"learning_rate": 1e-3},
        },
        ("words",),
    ),
    "impala": Row("impala", IMPALA, ("discrete", "continuous", "masked", "structured", "image")),
    "impala with a memory": Row(
        "impala",
        {**IMPALA, **GRU, "optimizer": "rmsprop"},
        ("discrete", "masked"),
        recurrent=True,
    ),
    "mpo": Row("mpo", MPO, ("discrete", "continuous", "masked", "structured")),
    "iql": Row("iql", OFFLINE, EVERY, mistakes=0.5),
    "muzero": Row("muzero", MUZERO, ("discrete", "masked", "image")),
    "ppo": Row(
        "ppo",
        PPO,
        ("discrete", "continuous", "masked", "structured", "ragged", "nested", "image"),
    ),
    "ppo with a memory": Row(
        "ppo",
        {**PPO, **GRU, "num_minibatches": 1, "num_epochs": 8, "target_kl": 0.1},
        ("discrete", "masked", "structured", "ragged"),
        recurrent=True,
    ),
    "ppo of normalised observations": Row(
        "ppo", {**PPO, "normalize_observations": True}, ("continuous", "masked", "several")
    ),
    "ppo with a torso of the docs": Row(
        "ppo", {**PPO, "torso": "encoder:make", "learning_rate": 1e-3}, ("discrete",)
    ),
    "qrdqn, munchausen": Row(
        "qrdqn", {**DQN, "num_atoms": 8, "munchausen_scale": 0.9}, ("discrete", "masked", "image")
    ),
    "r2d2": Row("r2d2", R2D2, ("discrete", "masked", "ragged"), recurrent=True),
    "rainbow": Row(
        "rainbow",
        {k: v for k, v in C51.items() if "epsilon" not in k} | {"n_step": 1},
        ("discrete", "masked", "image"),
    ),
    "sac": Row("sac", SAC, ("continuous", "several")),
    "sac of choices": Row(
        "sac", {**SAC, "target_entropy": 0.1}, ("discrete", "masked", "ragged", "nested")
    ),
    "sac with a memory": Row("sac", {**SAC, **MEMORY}, ("continuous",), recurrent=True),
    "sac with a torso of the docs": Row("sac", {**SAC, "torso": "encoder:make"}, ("continuous",)),
    "td3": Row("td3", TD3, ("continuous", "several")),
    # Whose policy learns at every step: of the critics' targets it says nothing without a discount.
    "td3 with a memory": Row(
        "td3", {**TD3, **MEMORY, "target_update_period": 1}, ("continuous",), recurrent=True
    ),
    "td3 of the docs": Row("td3:TD3Builder", TD3, ("continuous", "several")),
}


RARE = {
    "grpo of sequences, from a reference": Row(
        "grpo",
        {
            **{**GRPO, "ratio": "sequence", "mean": "sequence", "kl_cost": 0.01},
            **{"normalize_advantages": True, "steps_per_dispatch": 2},
        },
        ("text",),
    ),
    "reinforce, leave-one-out": Row(
        "grpo",
        {**GRPO, "loss": "reinforce", "baseline": "leave_one_out", "max_importance": 2.0},
        ("text",),
    ),
    "mpo of distributions": Row(
        "mpo",
        {**MPO, "distributional": True, "min_return": -2.0, "max_return": 2.0, "num_atoms": 11},
        ("discrete", "continuous"),
    ),
    "rnd around normalised dqn": Row("rnd+normalized+dqn", DQN, ("discrete", "masked")),
    "sqil, dqn": Row("sqil+dqn", DQN, ("discrete",)),
    "demonstrations, dqn of priorities": Row(
        "demonstrations+dqn", {**DQN, "priority_exponent": 0.6}, ("discrete",)
    ),
    "demonstrations, normalised sac": Row("demonstrations+normalized+sac", SAC, ("continuous",)),
    "gail, dqn": Row("gail+dqn", {**DQN, "discriminator_learning_rate": 1e-3}, ("discrete",)),
    "gail, td3": Row("gail+td3", {**TD3, "discriminator_learning_rate": 1e-3}, ("continuous",)),
    "sqil, mpo": Row("sqil+mpo", MPO, ("continuous", "structured")),
    "normalised around impala with a memory and rnd": Row(
        "normalized+rnd+impala", {**IMPALA, **GRU}, ("discrete",), recurrent=True
    ),
    "sac of critics with dropout": Row(
        "sac", {**SAC, "critic_dropout": 0.05, "critic_network": "layer_norm"}, ("continuous",)
    ),
    "cql of critics with dropout that classify": Row(
        "cql", {**CQL, **CLASSES, "critic_dropout": 0.05}, ("continuous",), mistakes=0.5
    ),
    "td3 of critics on spheres that classify": Row(
        "td3", {**TD3, **CLASSES, **SPHERES}, ("continuous",)
    ),
    "iql of critics on spheres that classify": Row(
        "iql", {**OFFLINE, **CLASSES, **SPHERES}, ("continuous",), mistakes=0.5
    ),
    "crr of critics that classify": Row(
        "crr", {**OFFLINE, **CLASSES}, ("continuous",), mistakes=0.5
    ),
    "sac of choices that classifies": Row(
        "sac", {**SAC, **CLASSES, "target_entropy": 0.1}, ("discrete", "masked")
    ),
    "normalised rewards, ppo": Row("normalized_rewards+ppo", PPO, ("discrete",)),
    "normalised sac": Row("normalized+sac", SAC, ("continuous",)),
    "sac of residual critics": Row(
        "sac",
        {
            **{**SAC, "critic_network": "residual", "critic_hidden_sizes": (16, 16)},
            **{"num_critics": 4, "num_target_critics": 2},
        },
        ("continuous",),
    ),
    "sac of choices with a memory": Row(
        "sac",
        {**SAC, **MEMORY, **CLASSES, "target_entropy": 0.1},
        ("discrete", "masked"),
        recurrent=True,
    ),
    "rnd, ppo": Row("rnd+ppo", PPO, ("continuous", "structured")),
}
"""With TROUPE_FULL=1, and of wrappers two always."""
ALWAYS = ("rnd around normalised dqn", "sqil, dqn")
AGENTS |= RARE if FULL else {name: RARE[name] for name in ALWAYS}
FEW = {
    "image": {"muzero", "ppo"},
    "masked": {
        *("bc", "crr", "dqn", "impala with a memory", "mpo", "muzero", "ppo", "sac of choices"),
    },
    "nested": {"bc", "ppo"},
    "ragged": {"dqn", "ppo with a memory", "r2d2"},
    "several": {"bc", "d4pg", "ppo of normalised observations", "sac"},
    "structured": {"bc", "mpo", "ppo with a memory"},
}
"""Kinds for which several agents have one code, and the rows that are tried on them; with
TROUPE_FULL=1 all that can. Images that DQN learns are in `test_images.py`, the masks of the other
values in `test_legal_actions.py`."""


class Case(NamedTuple):
    """A row on one kind of environment."""

    row: Row
    kind: Kind

    def builder(self, tiny=True):
        """The agent's, with the config of the row, or but for its tiny networks."""
        builder_class = find_builder(self.row.agent)
        config = {k: v for k, v in self.row.config.items() if tiny or k not in TINY}
        return builder_class(builder_class.config_class(**config))

    def dataset(self):
        """What an agent learns from that never acts."""
        if self.kind.best is None:
            return demonstrations.drawn(self.kind.env, **self.kind.options)
        return demonstrations.match(mistakes=self.row.mistakes, **self.kind.options)

    def experiment(self, seed=0, steps=100_000):
        """What is run; `steps` are actor steps, and ten times the gradient steps where it learns
        from data."""
        builder, kind = self.builder(), self.kind

        def make(*, seed, num_envs, evaluation):
            return environments.make(
                kind.env, seed=seed, num_envs=num_envs, actions=builder.actions, **kind.options
            )

        budget = {"num_actor_steps": steps}
        if builder.mixes_data:
            budget["data"] = self.dataset()
        if builder.needs_data:
            budget = {"data": self.dataset(), "num_learner_steps": steps // 10}
        evaluation = launch.Evaluation(num_envs=10)
        return launch.Experiment(
            builder, make, kind.env, seed=seed, evaluation=evaluation, **budget
        )


def _cases():
    """By name; first those on which all is checked, then those that are to learn."""
    found = {
        f"{name}, {kind}": Case(row, KINDS[kind])
        for name, row in AGENTS.items()
        for kind in row.kinds
        if FULL or name in FEW.get(kind, AGENTS)
    }
    return {name: found[name] for name in sorted(found, key=lambda name: _place(name, found))}


def _place(name, cases):
    case = cases[name]
    is_first = case.kind is KINDS[case.row.kinds[0]]
    return case.kind.best is None, "docs" in name or not is_first


CASES = _cases()
TO_LEARN = [name for name, case in CASES.items() if case.kind.best is not None]
CHECKED = [*CASES] if FULL else [name for name in CASES if not any(_place(name, CASES))]
"""Those of which all is checked: the first kind of each row, and with TROUPE_FULL=1 every one."""
PARTITIONED = {name for name in CHECKED if name.partition(",")[0] in examples.AGENTS}
"""Those whose updates `tests/partitioning/semantics` has on meshes of eight devices."""
# A fixture of the whole file is shared by cases that have one place in all three.
assert [*CASES][: len(TO_LEARN)] == TO_LEARN
assert [*CASES][: len(CHECKED)] == CHECKED
