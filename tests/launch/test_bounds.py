"""What fields may hold: every number has bounds, and Python is checked as the command line is."""

import dataclasses
import math
import typing

import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import AGENTS, find_builder
from troupe.agents.bounds import Above, bounds_of, check, kinds_of
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.agents.replay.items import Episodes, ReplaySpec, Rollouts, Sequences, Transitions
from troupe.launch.errors import RequestError


def factory(*, seed, num_envs, evaluation):
    raise NotImplementedError


EXPERIMENT = launch.Experiment(DQNBuilder(), factory, "CartPole-v1", 100_000)
INSTANCES = [
    *(find_builder(name).config_class() for name in sorted(AGENTS)),
    *(launch.Evaluation(), launch.Checkpointing(), launch.Roles(), EXPERIMENT),
    *(Transitions(), Sequences(4, 2), Episodes(10), Rollouts(4), ReplaySpec(Rollouts(4), 8, 80)),
]


def numbers(kind):
    """The kinds of numbers that a type takes: int, float, or a tuple of these."""
    inner = typing.get_args(kind) or (kind,)
    return {int, float} & set(inner)


FIELDS = [
    pytest.param(one, field, id=f"{type(one).__name__}.{field}")
    for one in INSTANCES
    for field, kind in kinds_of(type(one)).items()
    if numbers(kind)
]


def beyond(bounds, whole):
    """Numbers that are not within bounds."""
    low, high = bounds
    least = low if isinstance(bounds, Above) else low - 1
    return [least, -math.inf, 2 * high + 1, math.inf, math.nan, 10**19, *([high + 1] * whole)]


@pytest.mark.parametrize(("one", "field"), FIELDS)
def test_every_number_has_bounds_that_hold(one, field):
    bounds, kind = bounds_of(type(one)).get(field), kinds_of(type(one))[field]
    assert bounds is not None, f"give {type(one).__name__}.{field} bounds"
    assert None not in bounds, f"{type(one).__name__}.{field} needs both bounds"
    in_tuple = typing.get_origin(kind) is tuple
    for number in beyond(bounds, int in numbers(kind)):
        value = (number,) if in_tuple else number
        with pytest.raises(ValueError, match=f"^{field} is .*; (it|each) must be "):
            dataclasses.replace(one, **{field: value})
    wrong = ["1", True, [1j], *([1.5, np.float32(2.0)] if float not in numbers(kind) else [])]
    for number in wrong:
        value = (number,) if in_tuple else number
        with pytest.raises(ValueError, match=f"^{field} is .*; it must be "):
            dataclasses.replace(one, **{field: value})
    if type(None) not in typing.get_args(kind):
        with pytest.raises(ValueError, match=f"^{field} is None; it must be "):
            dataclasses.replace(one, **{field: None})


def test_numbers_of_numpy_and_lists_become_pythons():
    config = DQNConfig(
        batch_size=np.int64(32),
        learning_rate=np.float64(0.5),
        hidden_sizes=[np.int32(8), 4],
        double=np.bool_(False),
    )
    assert config == DQNConfig(batch_size=32, learning_rate=0.5, hidden_sizes=(8, 4), double=False)
    assert [type(size) for size in config.hidden_sizes] == [int, int]
    assert config.double is False


@dataclasses.dataclass(frozen=True)
class Own:
    """Of a user: types that are nothing to us, and a number without bounds."""

    make: typing.Callable = max
    anything: "only.known.elsewhere" = None  # noqa: F821
    limit: float = math.inf
    mode: typing.Literal["fast", "slow"] = "fast"

    def __post_init__(self):
        check(self)


def test_what_is_not_ours_to_check_passes():
    assert Own(make=min, anything=object()).limit == math.inf
    with pytest.raises(ValueError, match="mode is 'medium'; it must be one of fast, slow"):
        Own(mode="medium")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DQNConfig(dueling="false"), "dueling is 'false'; it must be true or false"),
        (lambda: DQNConfig(batch_size=64.5), "batch_size is 64.5; it must be an integer"),
        (lambda: DQNConfig(hidden_sizes=(256.5,)), r"hidden_sizes is \(256.5,\); it must be int"),
        (lambda: DQNConfig(hidden_sizes=256), "hidden_sizes is 256; it must be integers"),
        (lambda: DQNConfig(loss=1), "loss is 1; it must be a text"),
        (lambda: DQNBuilder({"n_step": 2}), r"DQNBuilder takes a DQNConfig, not \{'n_step': 2\}"),
        (lambda: dataclasses.replace(EXPERIMENT, builder=DQNBuilder), "builder is <class"),
        (lambda: dataclasses.replace(EXPERIMENT, builder="dqn"), "'dqn'; it must be a Builder"),
        (lambda: dataclasses.replace(EXPERIMENT, environment_factory="x"), "must be a function"),
        (lambda: dataclasses.replace(EXPERIMENT, num_actor_steps=1.5), "must be an integer"),
        (lambda: dataclasses.replace(EXPERIMENT, env=None), "env is None; it must be a text"),
        (lambda: dataclasses.replace(EXPERIMENT, evaluation=10), "must be a Evaluation"),
        (lambda: dataclasses.replace(EXPERIMENT, partition="data=2"), "launch.Partition or None"),
        (lambda: launch.run("dqn", "out"), "what is run is a launch.Experiment.*not 'dqn'"),
        (lambda: launch.Checkpointing(replay="some"), "must be auto, always or never"),
    ],
)
def test_python_is_told_what_the_command_line_is(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def vector_of(num_envs):
    return environments.make("CartPole-v1", seed=0, num_envs=num_envs)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda **_: None, "the environment_factory made None; it must return what it makes"),
        (lambda **_: object(), "made <object object"),
        (lambda num_envs, **_: vector_of(num_envs + 1), "made a vector of 2; it must make"),
        (lambda num_envs, **_: type("One", (), {"num_envs": num_envs})(), "made <.*One object"),
        (lambda **_: exit(3), r"the environment_factory called sys.exit\(3\)"),
    ],
)
def test_a_factory_makes_what_was_asked_for(made, message, tmp_path):
    experiment = dataclasses.replace(EXPERIMENT, environment_factory=made)
    with pytest.raises(RequestError, match=message):
        launch.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.distributed
def test_a_program_is_launched_and_no_experiment():
    pytest.importorskip("launchpad")
    with pytest.raises(RequestError, match="launch takes the program of make_program"):
        launch.launch(EXPERIMENT)
