"""What is swept, from the words of the command line."""

import dataclasses

import pytest

from troupe.agents.dqn import DQNConfig
from troupe.baselines.sweep import space
from troupe.baselines.sweep.space import Choices, Range
from troupe.launch.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("learning_rate", "1e-4:1e-2:log", Range(1e-4, 1e-2, log=True)),
        ("discount", "0.9:1", Range(0.9, 1.0)),
        ("n_step", "1:8", Range(1, 8, integer=True)),
        ("batch_size", "1e1:1e3:log", Range(10, 1000, log=True, integer=True)),
        ("batch_size", "32, 64,1e2", Choices(("32", "64", "100"))),
        ("batch_size", [32, 64], Choices(("32", "64"))),
        ("max_gradient_norm", "none,0.50,40", Choices(("none", "0.5", "40.0"))),
        ("max_gradient_norm", "0.1:10", Range(0.1, 10.0)),
        ("double", "true,no", Choices(("true", "false"))),
        ("hidden_sizes", "64,64/256", Choices(("64,64", "256"))),
    ],
)
def test_ranges_and_choices(field, value, expected):
    found, fixed = space.split(DQNConfig, {"adam_epsilon": "1e-5", field: value})
    assert found == {field: expected}
    assert fixed == {"adam_epsilon": "1e-5"}
    assert space.from_json(space.to_json(found)) == found


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", "32"), ("hidden_sizes", "64,64"), ("hidden_sizes", [64]), ("double", True)],
)
def test_one_value_is_fixed(field, value):
    assert space.split(DQNConfig, {field: value}) == ({}, {field: value})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("learning_rat", "1:2", ["no field 'learning_rat'", "did you mean learning_rate"]),
        ("learning_rate", "1e-2:1e-4:log", ["'1e-2:1e-4:log'", "must be the smaller one"]),
        ("learning_rate", "1e-3:1e-3", ["must be the smaller one"]),
        ("learning_rate", "0:1:log", ["must begin above 0"]),
        ("learning_rate", "1e-4:1e-2:lg", ["'lg'", "LO:HI:log"]),
        ("learning_rate", "1e-4:many", ["learning_rate is 'many'", "a number"]),
        ("discount", "0.9:inf", ["finite"]),
        ("max_gradient_norm", "none:1", ["finite"]),
        ("n_step", "1:2.5", ["n_step is '2.5'", "an integer"]),
        ("batch_size", "32,64,32.0", ["batch_size", "32 twice"]),
        ("batch_size", "32,,64", ["batch_size is ''", "an integer"]),
        ("batch_size", "0:64", ["batch_size is 0", "at least 1"]),
        ("discount", "0.9,1.1", ["discount is 1.1", "at most 1"]),
    ],
)
def test_what_cannot_be_swept(field, value, words):
    with pytest.raises(RequestError) as error:
        space.split(DQNConfig, {field: value})
    for word in words:
        assert word in str(error.value)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two numbers, of which the first is the smaller one."""

    low: int = 1
    high: int = 10

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above {self.high}.")


def test_a_value_that_goes_with_some_of_the_others_may_be_swept():
    found, _ = space.split(Pair, {"low": "1:20", "high": "10:30"})
    assert set(found) == {"low", "high"}
    with pytest.raises(RequestError, match="low is 40, above"):
        space.split(Pair, {"low": "1,40", "high": "10:30"})
