"""Tasks of text as environments: what is shown, what answers score, and which prompts come."""

import itertools
import pickle

import numpy as np
import pytest

from troupe import environments
from troupe.environments import specs, text
from troupe.environments.text import CharacterTokenizer, TextEnvironment


def answers_of(environment, *texts):
    """An action of these texts, ended and padded."""
    spec = environment.action_spec()
    found = np.full(spec.shape, spec.pad, np.int32)
    for row, answer in zip(found, texts, strict=True):
        tokens = [*spec.tokenizer.encode(answer), spec.end]
        row[: len(tokens)] = tokens
    return found


class Scripted:
    """Prompts as they are given, in turn; records what it is asked to score."""

    alphabet = "ab"

    def __init__(self, *prompts, scores=(0.0,)):
        self._prompts, self._scores, self.asked = prompts, itertools.cycle(scores), []

    def prompts(self, seed, held_out):
        return itertools.cycle(self._prompts)

    def score(self, prompt, answer):
        self.asked.append((prompt, answer))
        return next(self._scores)


def scripted(task, **options):
    options = {"prompt_length": 3, "answer_length": 2, "answers": 3, "seed": 0} | options
    return TextEnvironment(task, CharacterTokenizer("ab"), **options)


def test_an_episode_is_a_prompt_and_its_answers():
    environment = environments.make("tokens:addition", seed=4, answers=3)
    first = environment.reset()
    tokenizer = environment.action_spec().tokenizer
    prompt, solution = (
        tokenizer.decode(first.observation[name]) for name in ("prompt", "solution")
    )
    assert eval(prompt.removesuffix("=")) == int(solution)
    shown = first.observation["prompt"]
    assert shown[-1] == tokenizer.encode("=")[0]  # Padded on the left.
    assert np.count_nonzero(shown) == len(prompt)
    assert first.observation["solution"][len(solution)] == tokenizer.end
    assert not first.observation["scores"].any()
    last = environment.step(answers_of(environment, solution, "", solution[:-1] + "+"))
    assert last.last()
    assert (last.reward, last.discount) == (np.float32(1 / 3), 0)
    np.testing.assert_array_equal(last.observation["scores"], [1, 0, 0])
    assert not last.observation["prompt"].any()  # Nothing is to be answered.
    assert not last.observation["solution"].any()
    told = {"best_score": 1.0, "different_answers": 3, "solved": 1 / 3}
    assert environment.episode_info == told
    assert environment.episode_text == f"{prompt!r} {solution!r} 1"
    assert environment.step(answers_of(environment, "", "", "")).first()


def test_equal_answers_are_scored_once_and_what_follows_the_end_is_not_read():
    environment = scripted(task := Scripted("ab", scores=(0.5, 2.0)))
    environment.reset()
    a, end, pad = 2, 1, 0
    last = environment.step(np.array([[a, end], [a, pad], [end, a]]))
    assert task.asked == [("ab", "a"), ("ab", "")]
    np.testing.assert_array_equal(last.observation["scores"], [0.5, 0.5, 2.0])
    assert last.reward == 1.0
    assert environment.unwrapped is task


def test_a_reward_is_clipped_and_scores_are_not():
    environment = scripted(Scripted("ab", scores=(3.0,)), reward_clip=1.0)
    environment.reset()
    last = environment.step(np.zeros((3, 2), np.int32))
    assert (last.reward, *last.observation["scores"]) == (1.0, 3.0, 3.0, 3.0)


def test_prompts_that_do_not_fit_are_left_out():
    environment = scripted(Scripted("aaaa", "ab", "bbbbb", "b"))
    shown = [environment.reset().observation["prompt"].tolist() for _ in range(2)]
    assert shown == [[0, 2, 3], [0, 0, 3]]
    environment = scripted(Scripted("aaaa"))
    with pytest.raises(environments.EnvironmentFault, match=r"none of 1,000 prompts fits.*'aaaa'"):
        environment.reset()


@pytest.mark.parametrize("name", ["reverse", "addition"])
@pytest.mark.parametrize("partial", [False, True])
def test_every_solution_scores_one_and_nothing_else_does(name, partial):
    task = text.TASKS[name](partial=partial)
    for prompt in itertools.islice(task.prompts(3, True), 50):
        solution = task.solution(prompt)
        assert task.score(prompt, solution) == 1
        assert {*prompt, *solution} <= {*task.alphabet}
        wrong = solution[:-1] + ("a" if solution[-1] != "a" else "b")
        expected = 1 - 1 / len(solution) if partial else 0
        assert task.score(prompt, wrong) == pytest.approx(expected)
        assert 0 <= task.score(prompt, solution + "1") < 1


def test_difficulty_is_an_option():
    words = [*itertools.islice(text.Reverse(length=7, letters=3).prompts(0, False), 500)]
    assert {len(word) - 1 for word in words} == {*range(1, 8)}
    assert {*"".join(words)} == {*"abc="}
    sums = itertools.islice(text.Addition(digits=3, terms=4).prompts(0, False), 500)
    numbers = [[*map(int, one[:-1].split("+"))] for one in sums]
    assert {*map(len, numbers)} == {4}
    assert 900 < max(map(max, numbers)) < 1000


def test_held_out_prompts_are_not_trained_on():
    def drawn(seed, held_out):
        return {*itertools.islice(text.Addition().prompts(seed, held_out), 3000)}

    held, trained = drawn(0, True), drawn(1, False)
    assert not held & trained
    assert all(map(text.is_held_out, held))
    assert len(held) < 1200  # Of a tenth of all.
    everything = held | trained
    assert 0.08 < sum(map(text.is_held_out, everything)) / len(everything) < 0.4
    share = np.mean([text.is_held_out(f"{i}+{j}=") for i in range(100) for j in range(100)])
    assert 0.09 < share < 0.11


def test_too_few_prompts_to_hold_any_out():
    with pytest.raises(environments.EnvironmentFault, match="none of 10,000 prompts is held out"):
        next(text.split(itertools.repeat("b"), True))


def test_a_seed_repeats_the_prompts_and_rows_of_a_vector_differ():
    def shown(**options):
        with environments.make("tokens:reverse", num_envs=3, **options) as vector:
            none = np.zeros((3, *vector.action_spec().shape), np.int32)
            steps = [vector.reset(), *(vector.step(none) for _ in range(8))]
            return np.stack([step.observation["prompt"] for step in steps], 1)

    first = shown(seed=0)
    np.testing.assert_array_equal(first, shown(seed=0))
    assert (first != shown(seed=1)).any()
    assert (first[0] != first[1]).any()
    alone = environments.make("tokens:reverse", seed=0).reset().observation["prompt"]
    np.testing.assert_array_equal(first[0, 0], alone)


def test_the_spec_of_answers_goes_through_a_pickle():
    grammar = np.array([[-1, 0, 1, -1], [-1, 1, -1, -1]])
    spec = specs.AnswerArray((3, 2), 4, 0, 1, grammar, CharacterTokenizer("ab"), "answers")
    copy = pickle.loads(pickle.dumps(spec))
    assert specs.equal(spec, copy)
    assert (copy.shape, copy.vocabulary, copy.pad, copy.end) == ((3, 2), 4, 0, 1)
    assert specs.describe(copy) == "3 answers of up to 2 tokens among 4"
    others = {"grammar": None, "tokenizer": CharacterTokenizer("ba"), "end": 2, "shape": (3, 1)}
    for name, value in others.items():
        assert not specs.equal(spec, spec.replace(**{name: value})), name


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (np.zeros((2, 3), int), r"int32 \[states, 4\], got int64\[2, 3\]"),
        (np.zeros((2, 4)), "float64"),
        (np.full((2, 4), 2), "its 2 states or -1, got 2 to 2"),
        (np.full((2, 4), -2), "got -2 to -2"),
    ],
)
def test_a_grammar_must_be_of_the_vocabulary(grammar, message):
    with pytest.raises(environments.InvalidOptionError, match=message):
        specs.AnswerArray((3, 2), 4, 0, 1, grammar)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((3, 3), int), r"must be int32 \[3, 2\], got int64\[3, 3\]"),
        (np.zeros((3, 2)), "got float64"),
        (np.full((3, 2), 4), "from 0 to 3, got 4 to 4"),
        (np.full((3, 2), -1), "got -1 to -1"),
    ],
)
def test_actions_that_are_no_answers(action, message):
    environment = scripted(Scripted("a"))
    environment.reset()
    with pytest.raises(environments.InvalidActionError, match=message):
        environment.step(action)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None, "1", 1e300])
def test_scores_that_are_no_numbers(score):
    environment = scripted(Scripted("ab", scores=[score]), name="mine")
    environment.reset()
    with pytest.raises(environments.InvalidRewardError, match="mine: the score of the answer ''"):
        environment.step(np.zeros((3, 2), np.int32))
