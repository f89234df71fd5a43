"""The ledger: budgets, incarnations, evaluations and phases, without any process."""

import json
import types

import pytest

from troupe.launch.distributed.roles import ledger as ledger_module
from troupe.launch.distributed.roles.ledger import DONE, DRAIN, JUDGE, REPLACED, SAVE, TRAIN, Ledger


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    clock = types.SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(ledger_module, "time", clock)
    return clock


def make(budget=100, state=None, **more):
    counts = {"budget": budget, "evaluation_period": 40, "episodes": 3, "final_episodes": 5}
    return Ledger(**counts, state=state, **more)


def act(ledger, source, incarnation, steps, want=1000):
    return ledger.report(source, incarnation, steps, 0, [], want)


def test_budget_is_granted_once():
    ledger = make()
    a, b = ledger.enter("actor/0"), ledger.enter("actor/1")
    assert act(ledger, "actor/0", a, 0, want=70) == (TRAIN, 70)
    assert act(ledger, "actor/1", b, 0, want=70) == (TRAIN, 30)
    assert act(ledger, "actor/0", a, 70, want=70) == (TRAIN, 70)
    assert act(ledger, "actor/1", b, 30, want=70) == (DRAIN, 30)
    assert ledger.actor_steps == 100


def test_a_budget_of_many_at_once_is_never_exceeded():
    """Three environments of each actor step together; what is left is too little for one more."""
    ledger = Ledger(budget=100, evaluation_period=40, episodes=3, final_episodes=5, quantum=3)
    a, b = ledger.enter("actor/0"), ledger.enter("actor/1")
    assert act(ledger, "actor/0", a, 0, want=50) == (TRAIN, 48)
    assert act(ledger, "actor/1", b, 0, want=1000) == (TRAIN, 51)
    assert act(ledger, "actor/0", a, 47, want=50) == (TRAIN, 47)  # Two are left.
    assert act(ledger, "actor/1", b, 51, want=50) == (DRAIN, 51)
    assert ledger.actor_steps == 98


def test_what_a_dead_actor_was_granted_is_free_again():
    ledger = make()
    first = ledger.enter("actor/0")
    act(ledger, "actor/0", first, 0, want=100)
    act(ledger, "actor/0", first, 60, want=40)
    second = ledger.enter("actor/0")
    assert second != first
    assert act(ledger, "actor/0", second, 0, want=100) == (TRAIN, 40)
    assert ledger.actor_steps == 60


def test_an_earlier_life_is_told_to_end():
    ledger = make()
    first = ledger.enter("actor/0")
    ledger.enter("actor/0")
    assert act(ledger, "actor/0", first, 10) == (REPLACED, 0)
    assert ledger.actor_steps == 0


def test_a_process_that_asks_twice_has_one_incarnation():
    """Its first call may be heard after the second, to which it had an answer."""
    ledger = make()
    incarnation = ledger.enter("actor/0", "one")
    assert act(ledger, "actor/0", incarnation, 5)[0] == TRAIN
    assert ledger.enter("actor/0", "one") == incarnation
    assert act(ledger, "actor/0", incarnation, 10)[0] == TRAIN
    assert ledger.actor_steps == 10
    assert ledger.enter("actor/0", "another") > incarnation
    assert act(ledger, "actor/0", incarnation, 11) == (REPLACED, 0)


def test_a_process_that_was_cut_off_does_not_take_the_place_of_a_later_one():
    """Its call is heard when the cable is back; the process in its place goes on."""
    ledger = make()
    later = ledger.enter("actor/0", "later", 3)
    assert act(ledger, "actor/0", later, 5)[0] == TRAIN
    earlier = ledger.enter("actor/0", "earlier", 2)
    assert earlier < 0
    assert act(ledger, "actor/0", earlier, 1) == (REPLACED, 0)
    assert act(ledger, "actor/0", later, 7)[0] == TRAIN
    assert ledger.actor_steps == 7
    reopened = make(state=ledger.journal())
    reopened.reopen(json.loads(json.dumps(ledger.journal())))
    assert reopened.enter("actor/0", "earlier", 2) < 0
    assert reopened.enter("actor/0", "again", 3) > later


def test_a_report_that_is_heard_late_changes_nothing():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    act(ledger, "actor/0", incarnation, 50, want=50)
    assert act(ledger, "actor/0", incarnation, 10, want=10) == (TRAIN, 100)
    other = ledger.enter("actor/1")
    assert act(ledger, "actor/1", other, 0, want=100) == (TRAIN, 0)
    assert ledger.actor_steps == 50


def test_a_report_may_be_repeated():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    for _ in range(3):
        act(ledger, "actor/0", incarnation, 7)
    assert ledger.actor_steps == 7


def test_returns_that_are_reported_again_are_counted_once():
    """An answer that came too late has the same report sent again."""
    ledger = make()
    incarnation = ledger.enter("actor/0")
    for _ in range(3):
        ledger.report("actor/0", incarnation, 7, 2, [(1.0, 3), (2.0, 4)], 0)
    assert ledger.look()["recent"] == [(1.0, 3), (2.0, 4)]
    ledger.report("actor/0", incarnation, 9, 3, [(3.0, 2)], 0)
    assert ledger.look()["recent"] == [(1.0, 3), (2.0, 4), (3.0, 2)]
    assert ledger.episodes == 3


def test_phases_to_the_end():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    act(ledger, "actor/0", incarnation, 100)
    assert ledger.learner({"steps": 5, "version": 3}) == (DRAIN, 100)
    assert ledger.next_evaluation("evaluator/0") is None
    assert ledger.learner({"steps": 6, "version": 4, "drained": True})[0] == JUDGE
    order = ledger.next_evaluation("evaluator/0")
    assert order == {
        "index": 0,
        "episodes": 5,
        "actor_steps": 100,
        "learner_steps": 6,
        "version": 4,
        "final": True,
    }
    assert ledger.next_evaluation("evaluator/1") is None
    ledger.finish_evaluation("evaluator/0", {"index": 0, "mean": 1.0})
    assert ledger.look(0)["phase"] == DONE
    assert ledger.look(0)["evaluations"][0]["counts"]["learner_steps"] == 6


def test_an_evaluator_that_died_is_given_its_order_again():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    act(ledger, "actor/0", incarnation, 41)
    order = ledger.next_evaluation("evaluator/0")
    assert order["actor_steps"] == 41
    assert not order["final"]
    assert ledger.next_evaluation("evaluator/0") == order
    act(ledger, "actor/0", incarnation, 7)  # Meanwhile the others go on.
    ledger.learner({"steps": 9})
    ledger.finish_evaluation("evaluator/0", {"index": order["index"], "mean": 0.0})
    ledger.finish_evaluation("evaluator/0", {"index": order["index"], "mean": 0.0})
    (found,) = ledger.look(0)["evaluations"]
    assert (found["counts"]["actor_steps"], found["counts"]["learner_steps"]) == (41, 0)
    assert ledger.next_evaluation("evaluator/0") is None


def test_an_evaluation_counts_what_was_done_since_the_last_report(clock):
    """It judges the newest variables: with fewer steps than they had, they would look better."""
    ledger = make(budget=1000)
    a, b = ledger.enter("actor/0"), ledger.enter("actor/1")
    clock.now += 2.0
    act(ledger, "actor/0", a, 20, want=100)  # 10 steps a second.
    clock.now += 2.0
    act(ledger, "actor/1", b, 80, want=100)  # 20 steps a second.
    clock.now += 1.0
    order = ledger.next_evaluation("evaluator/0")
    assert order["actor_steps"] == 20 + 30 + 80 + 20
    assert ledger.actor_steps == 100
    journal = json.loads(json.dumps(ledger.journal()))
    again = make(budget=1000, state=journal)
    again.reopen(journal)
    clock.now += 1.0
    assert again.next_evaluation("evaluator/1") is None
    act(again, "actor/1", b, 130, want=10)
    clock.now += 9.0
    # An actor that waits for the replay does not go on: never more than was granted.
    assert again.next_evaluation("evaluator/1")["actor_steps"] == 20 + 100 + 130 + 10


def test_an_evaluation_counts_gradient_steps_since_the_last_report(clock):
    ledger = make(clock="learner_steps")
    clock.now += 1.0
    ledger.learner({"steps": 40})
    clock.now += 0.5
    assert ledger.next_evaluation("evaluator/0")["learner_steps"] == 60
    clock.now += 5.0
    assert ledger.learner({"steps": 90})[0] == TRAIN
    clock.now += 5.0
    assert ledger.next_evaluation("evaluator/1")["learner_steps"] == 100
    assert ledger.learner({"steps": 100, "drained": True})[0] == JUDGE
    clock.now += 5.0
    assert ledger.next_evaluation("evaluator/2")["learner_steps"] == 100


def test_a_stop_waits_for_the_learner_to_save():
    ledger = make()
    ledger.request_stop()
    assert ledger.look(0)["phase"] == SAVE
    assert ledger.learner({"steps": 1, "saved": True})[0] == DONE


def test_the_journal_loses_nothing():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    act(ledger, "actor/0", incarnation, 41)
    order = ledger.next_evaluation("evaluator/0")
    ledger.learner({"steps": 9, "version": 2})
    journal = json.loads(json.dumps(ledger.journal()))
    again = make(state=journal)
    again.reopen(journal)
    assert again.look(0) == ledger.look(0)
    assert again.next_evaluation("evaluator/0") == order
    assert act(again, "actor/0", incarnation, 50)[0] == TRAIN
    assert again.actor_steps == 50
    assert again.enter("actor/0") > incarnation


def test_a_life_that_the_journal_does_not_know_is_booked():
    ledger = make()
    journal = json.loads(json.dumps(ledger.journal()))
    incarnation = ledger.enter("actor/0")
    again = make(state=journal)
    again.reopen(journal)
    act(again, "actor/0", incarnation, 30)
    assert again.actor_steps == 30
    assert again.enter("actor/0") > incarnation


def test_a_resumed_ledger_goes_on_from_the_checkpoint():
    ledger = make()
    incarnation = ledger.enter("actor/0")
    ledger.report("actor/0", incarnation, 60, 4, [(10.0, 15)], 10)
    state = json.loads(json.dumps(ledger.save()))
    again = make(state=state)
    assert again.actor_steps == 60
    assert again.episodes == 4
    assert again.enter("actor/0") > incarnation
    assert act(again, "actor/0", again.enter("actor/0"), 0, want=1000) == (TRAIN, 40)


@pytest.mark.parametrize("actors", [1, 3, 8])
def test_any_number_of_actors_spends_exactly_the_budget(actors):
    ledger = make(budget=1000)
    incarnations = {f"actor/{i}": ledger.enter(f"actor/{i}") for i in range(actors)}
    steps = dict.fromkeys(incarnations, 0)
    for _ in range(1000):
        for name, incarnation in incarnations.items():
            phase, granted = act(ledger, name, incarnation, steps[name], want=7)
            steps[name] = granted
        if phase != TRAIN:
            break
    assert sum(steps.values()) == ledger.actor_steps == 1000


def test_a_budget_of_gradient_steps_needs_no_actor():
    ledger = make(clock="learner_steps")
    assert ledger.learner({"steps": 30}) == (TRAIN, 30)
    assert ledger.next_evaluation("evaluator/0") is None
    assert ledger.learner({"steps": 50})[0] == TRAIN
    assert ledger.next_evaluation("evaluator/0")["learner_steps"] == 50
    again = make(clock="learner_steps", state=json.loads(json.dumps(ledger.save())))
    assert again.look()["phase"] == TRAIN
    assert again.learner({"steps": 100})[0] == DRAIN
    assert again.learner({"steps": 100, "drained": True})[0] == JUDGE
    order = again.next_evaluation("evaluator/0")
    assert (order["learner_steps"], order["final"]) == (100, True)
