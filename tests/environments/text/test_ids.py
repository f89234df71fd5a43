"""Ids of tasks of text: what is made of them, and what is said where that cannot be."""

import pytest

from troupe import environments
from troupe.environments.text import CharacterTokenizer
from troupe.launch.specification.recipe import Recipe

OWN = '''
import itertools
from troupe.environments.text import split

class Doubling:
    """Say a letter twice."""

    def __init__(self, letters="xy"):
        self.letters = letters

    def prompts(self, seed, held_out):
        return itertools.cycle(self.letters)

    def score(self, prompt, answer):
        return float(answer == 2 * prompt)

class Solved(Doubling):
    def solution(self, prompt):
        return 2 * prompt

def number():
    return 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of a user's own."""
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "tokens:own_task:"


def test_options_stand_in_the_id_or_beside_it():
    made = [
        environments.make("tokens:reverse?length=3&letters=4", seed=0),
        environments.make("tokens:reverse?letters=4", seed=0, length=3),
        environments.make("tokens:reverse", seed=0, length=3, letters=4),
    ]
    shapes = [one.observation_spec()["prompt"].shape for one in made]
    assert shapes == [(4,), (4,), (4,)]
    assert {one.action_spec().vocabulary for one in made} == {4 + 1 + 2}
    assert made[0].action_spec().shape == (8, 4)


def test_lengths_can_be_larger_than_needed():
    made = environments.make("tokens:addition?prompt_length=20&answer_length=9&answers=2", seed=0)
    assert made.observation_spec()["prompt"].shape == (20,)
    assert made.action_spec().shape == (2, 9)


def test_a_task_of_ones_own(own):
    made = environments.make(f"{own}Solved", seed=0)
    assert made.action_spec().tokenizer == CharacterTokenizer("xy")
    assert made.action_spec().shape == (8, 3)
    assert made.reset().observation["solution"].tolist() == [2, 2, 1]
    made = environments.make(f"{own}Doubling?letters='pqr'", seed=0, answer_length=4)
    assert made.action_spec().tokenizer == CharacterTokenizer("pqr")
    assert not made.reset().observation["solution"].any()


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("tokens:revers", "unknown environment 'tokens:revers'; near names: tokens:reverse"),
        ("tokens:reverse?length", "options are written as in tokens:reverse.key=value"),
        ("tokens:reverse?lenth=3", "has no argument 'lenth'; did you mean length"),
        ("tokens:reverse?length=x", "length must be a number, got 'x'"),
        ("tokens:reverse?length=0", "length must be an integer of at least 1 .* got 0"),
        ("tokens:reverse?partial=2", "partial must be true or false, got 2"),
        ("tokens:reverse?length=1&letters=2", "none of 10,000 prompts is held out"),
        ("tokens:addition?digits=16", "digits must be an integer .* got 16"),
        ("tokens:addition?answers=0", "answers must be an integer of at least 1 .* got 0"),
        ("tokens:addition?held_out=perhaps", "held_out must be one of True, False"),
        ("tokens:addition?prompt_length=5", r"prompt_length is 5, .* has 6 tokens; give at least"),
        ("tokens:addition?answer_length=3", "has 4 tokens with the one that ends it; give at"),
        ("tokens:no_such:Task", "its module cannot be imported: ModuleNotFoundError"),
        ("tokens:json:dumps", "tokens:json:dumps cannot be made: TypeError: .*'obj'"),
        ("tokens:json:none", "json has no function none"),
        ("tokens:own_task:number", "tokens:own_task:number is 3, which has no prompts; a task has"),
        ("tokens:own_task:Solved?letter=3", "cannot have letter=3: .*unexpected keyword"),
        ("tokens:own_task:Doubling", "has no solution .* give an answer_length"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(own, id, message):
    with pytest.raises(environments.EnvironmentFault, match=message) as found:
        environments.make(id, seed=0, num_envs=2)
    assert "\n" not in str(found.value)
    assert id.partition("?")[0] in str(found.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 3}, "length is given twice"),
        ({"max_episode_steps": 3}, "takes no max_episode_steps"),
        ({"render_mode": "rgb_array"}, "takes no render_mode"),
        ({"episodic_life": True}, "takes no episodic_life"),
        ({"reward_clip": -1}, "reward_clip must be above 0 or None"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(environments.InvalidOptionError, match=message):
        environments.make("tokens:reverse?length=2", seed=0, **options)


def test_evaluations_are_on_held_out_prompts(own):
    from troupe.environments.text import is_held_out

    recipe = Recipe("ppo", "tokens:addition?digits=3")
    for evaluation in (False, True):
        with recipe.make_environment(seed=0, num_envs=4, evaluation=evaluation) as vector:
            decode = vector.action_spec().tokenizer.decode
            shown = [decode(row) for row in vector.reset().observation["prompt"]]
            assert {*map(is_held_out, shown)} == {evaluation}
    recipe = Recipe("ppo", "tokens:addition", environment={"held_out": False})
    with recipe.make_environment(seed=0, num_envs=9, evaluation=True) as vector:
        decode = vector.action_spec().tokenizer.decode
        assert not is_held_out(decode(vector.reset().observation["prompt"][0]))


def test_agents_of_other_actions_say_that_they_cannot():
    from troupe.agents import action_spaces

    environment = environments.make("tokens:reverse", seed=0)
    for agent in action_spaces.DRIVEN:
        if agent not in action_spaces.driving(environment.action_spec()):
            refusal = str(action_spaces.refusal(agent, environment.action_spec()))
            assert "this environment's actions are 8 answers of up to 6 tokens among 11." in refusal
