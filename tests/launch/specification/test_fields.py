"""The fields of a config on the command line."""

import dataclasses
from typing import Literal

import pytest

from troupe.agents import AGENTS, find_builder
from troupe.agents.configs import AdamConfig
from troupe.agents.ppo import PPOConfig
from troupe.launch.errors import RequestError
from troupe.launch.specification import fields


@dataclasses.dataclass(frozen=True)
class Base:
    """A base."""

    rate: float = 0.5
    """How fast.

    In units a step."""


@dataclasses.dataclass(frozen=True)
class Config(Base):
    """A config."""

    count: int = 3
    """How many."""
    limit: float | None = None
    """How far; None: no limit."""
    number: int | float = 1
    sizes: tuple[int, ...] = (4, 5)
    """How large."""
    span: tuple[float, str] = (0.0, "a")
    """From where."""
    on: bool = False
    """Whether."""
    mode: Literal["fast", "slow"] = "fast"
    """Which."""
    name: str | None = "x"
    """What."""

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count is {self.count}; it must be at least 1.")


def test_every_field_has_its_type_default_and_docstring():
    found = fields.fields(Config)
    assert list(found) == [field.name for field in dataclasses.fields(Config)]
    assert found["rate"].doc == "How fast. In units a step."
    assert found["number"].doc == ""
    assert found["limit"].doc == "How far; None: no limit."
    assert {name: field.default for name, field in found.items()} == dataclasses.asdict(Config())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-3", 1e-3),
        ("rate", "-2", -2.0),
        ("count", "100_000", 100_000),
        ("count", "1e5", 100_000),
        ("limit", "none", None),
        ("limit", "None", None),
        ("limit", "4", 4.0),
        ("number", "2", 2),
        ("number", "2.5", 2.5),
        ("sizes", "64,64", (64, 64)),
        ("sizes", "(64, 32,)", (64, 32)),
        ("sizes", "7", (7,)),
        ("sizes", "", ()),
        ("span", "1.5,b", (1.5, "b")),
        ("on", "true", True),
        ("on", "No", False),
        ("mode", "slow", "slow"),
        ("name", "none", None),
        ("name", "12", "12"),
    ],
)
def test_texts_become_values_of_the_type(name, text, value):
    made = getattr(fields.make(Config, {name: text}), name)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rat": "1"}, r"Config has no field 'rat'; did you mean rate\?"),
        ({"zzzz": "1"}, r"Config has no field 'zzzz'; it has rate, count, .*, name\."),
        ({"count": "many"}, r"config\.count is 'many'; it must be an integer\."),
        ({"count": "1.5"}, r"config\.count is '1\.5'; it must be an integer\."),
        ({"limit": "far"}, r"it must be a number or none\."),
        ({"sizes": "4,x"}, r"it must be integers separated by commas\."),
        ({"span": "1"}, r"config\.span is '1'; it must be a number, a text\."),
        ({"on": "maybe"}, r"it must be true or false\."),
        ({"mode": "medium"}, r"it must be one of fast, slow\."),
        ({"count": "0"}, r"--config.count is 0; it must be at least 1\."),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(overrides, message):
    with pytest.raises(RequestError, match=message):
        fields.make(Config, overrides)


def test_values_of_json_become_those_of_the_config():
    config = Config(limit=2.0, sizes=(1, 2), mode="slow")
    values = {**dataclasses.asdict(config), "sizes": [1, 2], "span": [0.0, "a"]}
    assert fields.make(Config, values) == config


def test_the_text_of_a_default_parses_to_it():
    for field in fields.fields(Config).values():
        assert field.parse(fields.text(field.default)) == field.default


def test_fields_of_mixins_keep_their_docstrings_under_another_default():
    found = fields.fields(PPOConfig)
    assert found["learning_rate"].doc == fields.fields(AdamConfig)["learning_rate"].doc
    assert (found["learning_rate"].default, AdamConfig().learning_rate) == (3e-4, 1e-3)
    assert found["steps_per_dispatch"].doc == "Updates in one dispatch. On-policy learning has one."
    assert fields.make(PPOConfig, {"learning_rate": "1e-4"}).learning_rate == 1e-4


@pytest.mark.parametrize("agent", AGENTS)
def test_every_field_of_every_agent_is_a_documented_flag(agent):
    for field in fields.fields(find_builder(agent).config_class).values():
        assert field.doc, f"config.{field.name} of {agent} has no docstring"
        assert field.parse(fields.text(field.default)) == field.default
