"""Generators of reasoning-gym as tasks; each of them can be made, and its solution is right."""

import itertools
import pickle
import subprocess
import sys

import pytest

from troupe import environments
from troupe.environments.text import CharacterTokenizer, ids, is_held_out

PREFIX = "tokens:reasoning_gym/"
SMALL = {"max_terms": 2, "max_digits": 1}

#: Without a solution of their own: many answers are right, and the score judges each.
UNSOLVED = {
    "boxnet": "a plan of moves",
    "graph_color": "any proper colouring",
    "propositional_logic": "any conclusion that follows",
    "rubiks_cube": "any moves that solve it",
    "rush_hour": "any moves that free the car",
}
#: Arguments of those that cannot be made without, or take minutes with their defaults.
NEEDED = {
    "composite": {"datasets": [{"name": "chain_sum", "weight": 1.0, "config": SMALL}]},
    "knight_swap": {"min_nodes": 6, "max_nodes": 6, "max_attempts": 1000},
    "zebra_puzzles": {"num_people": 2, "num_characteristics": 2},
}


@pytest.fixture(autouse=True, scope="module")
def installed():
    pytest.importorskip("reasoning_gym")


def questions(task, held_out=False, seed=0, count=20):
    return [*itertools.islice(task.prompts(seed, held_out), count)]


def test_a_generator_is_a_task():
    environment = environments.make(f"{PREFIX}chain_sum", seed=0, **SMALL)
    first = environment.reset()
    tokenizer = environment.action_spec().tokenizer
    prompt, solution = (
        tokenizer.decode(first.observation[name].tolist()) for name in ("prompt", "solution")
    )
    assert prompt.endswith(f"problem: {prompt.split(': ')[1]}")
    assert prompt.endswith(" =\n")
    assert eval(prompt.split(": ")[1].removesuffix(" =\n")) == int(solution)


def test_prompts_follow_from_the_seed_and_are_held_out():
    task = ids.make_task(f"{PREFIX}chain_sum", SMALL | {"max_digits": 3})
    first = questions(task)
    assert first == questions(task) != questions(task, seed=1)
    # Seeds side by side share nothing, though generators add an index to theirs.
    assert len({*first} & {*questions(task, seed=1)}) < 5
    assert not any(map(is_held_out, first))
    assert all(map(is_held_out, questions(task, held_out=True)))
    assert len({*questions(task, count=1200)}) > 900  # Of three generators.


def test_the_generators_score_counts():
    task = ids.make_task(f"{PREFIX}spell_backward", {"max_word_len": 4})
    prompt = questions(task)[0]
    word = prompt.entry["metadata"]["word"]
    assert task.solution(prompt) == word[::-1]
    assert task.score(prompt, word[::-1]) == 1
    assert 0 < task.score(prompt, word[::-1][:-1] + "7") < 1


def test_without_partial_scores_an_answer_is_right_or_scores_nothing():
    task = ids.make_task(f"{PREFIX}spell_backward", {"max_word_len": 4, "partial": False})
    prompt = questions(task)[0]
    solution = task.solution(prompt)
    for copy in (task, pickle.loads(pickle.dumps(task))):
        assert copy.score(prompt, solution) == 1
        assert copy.score(prompt, solution[:-1] + "7") == copy.score(prompt, solution + "7") == 0


def test_a_template_takes_the_place_of_the_question():
    task = ids.make_task(f"{PREFIX}chain_sum", {"template": "{expression} =", **SMALL})
    prompt = questions(task)[0]
    assert str(prompt) == prompt.entry["metadata"]["expression"] + " ="
    assert eval(prompt.removesuffix(" =")) == int(task.solution(prompt))


def test_a_task_and_its_questions_go_through_a_pickle():
    task = ids.make_task(f"{PREFIX}chain_sum", SMALL | {"template": "{expression}?"})
    prompt = questions(task)[0]
    copy, asked = pickle.loads(pickle.dumps((task, prompt)))
    assert asked == prompt
    assert copy.score(asked, copy.solution(asked)) == 1
    assert questions(copy) == questions(task)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chain_sums", "unknown environment .*; near names: tokens:reasoning_gym/chain_sum"),
        ("chain_sum?max_term=3", "no argument 'max_term'; did you mean max_terms"),
        ("chain_sum?max_terms=1", "cannot have max_terms=1: max_terms must be >= min_terms"),
        ("chain_sum?max_terms=many", "max_terms must be a number, got 'many'"),
        ("chain_sum?max_terms=2.5", "max_terms must be a whole number, got 2.5"),
        ("chain_sum?allow_negation=3", "allow_negation must be true or false, got 3"),
        ("chain_sum?partial=2", "partial must be true or false, got 2"),
        ("chain_sum?seed=3", "seed follows from the run's seed"),
        ("chain_sum?size=3", "size follows from the run's seed"),
        ("chain_sum?template=3", "template must be a text, got 3"),
        ("chain_sum?template={x}=", r"cannot be filled \(KeyError: 'x'\); .* {expression}"),
        ("chain_sum?template={", r"cannot be filled \(ValueError"),
        ("chain_sum?prompt_length=40", "prompt_length is 40, but the prompt 'State the final"),
        ("basic_arithmetic?operators=plus", "operators must be a list, such as .* got 'plus'"),
        ("spell_backward?data_file=3", "data_file must be a text, got 3"),
        ("composite", "needs arguments: Must specify at least one dataset"),
        ("graph_color", "has no solution that would tell how long answers are"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(name, message):
    with pytest.raises(environments.EnvironmentFault, match=message) as found:
        environments.make(f"{PREFIX}{name}", seed=0, num_envs=2)
    assert "\n" not in str(found.value)
    assert str(found.value).count(PREFIX + name.partition("?")[0]) >= 1


def test_it_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    message = r"chain_sum needs an extra: pip install 'troupe\[tokens\]'"
    with pytest.raises(environments.MissingExtraError, match=message):
        environments.make(f"{PREFIX}chain_sum", seed=0)


def test_it_is_imported_only_where_it_is_asked_for():
    code = (
        "import sys; from troupe import environments; environments.make('tokens:reverse', seed=0); "
        "print([name for name in ('reasoning_gym', 'sympy', 'tokenizers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_lengths_are_found_once(monkeypatch):
    def shape(**options):
        made = environments.make(
            f"{PREFIX}chain_sum", seed=0, template="{expression} is", **options
        )
        return made.observation_spec()["prompt"].shape

    first = shape()
    monkeypatch.setattr(ids, "find_layout", None)
    assert shape() == first
    for options in ({"max_terms": 3}, {"tokenizer": CharacterTokenizer("0123456789+- is")}):
        with pytest.raises(TypeError):
            shape(**options)
    monkeypatch.undo()
    assert shape(max_terms=3) != first


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Some leave their data's files open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_generator_can_be_made_and_its_solution_scores_one():
    from reasoning_gym.factory import DATASETS

    assert len(DATASETS) > 100
    assert {*UNSOLVED, *NEEDED} <= {*DATASETS}
    wrong, unsolved = {}, set()
    for name in sorted(DATASETS):
        try:
            task = ids.make_task(f"{PREFIX}{name}", NEEDED.get(name, {}))
            for prompt in questions(task, count=3):
                solution = task.solution(prompt)
                if solution is None:
                    unsolved.add(name)
                elif task.score(prompt, solution) != 1:
                    wrong[name] = (str(prompt), solution, task.score(prompt, solution))
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong
    assert unsolved == {*UNSOLVED}
