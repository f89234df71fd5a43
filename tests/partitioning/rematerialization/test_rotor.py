"""The dynamic programme against every plan that there is, on chains small enough to list them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from troupe.partitioning.rematerialization.rotor import Act, Rotor, Stage


def every_plan(first: int, last: int, stages: list[Stage]) -> Iterator[list[Act]]:
    """All plans of the form that the programme considers."""
    if first == last:
        yield [Act("save", first), Act("back", first)]
        return
    for rest in every_plan(first + 1, last, stages):
        yield [Act("save", first), *rest, Act("back", first)]
    for split in range(first + 1, last + 1):
        if any(stage.closed for stage in stages[first : split - 1]):
            break
        swept = [Act("mark", first), *(Act("pass", k) for k in range(first + 1, split))]
        for later in every_plan(split, last, stages):
            for earlier in every_plan(first, split - 1, stages):
                yield [*swept, *later, *earlier]


def cost(acts: list[Act], stages: list[Stage]) -> tuple[float, float]:
    """(seconds, peak bytes) of a plan, played act by act."""
    saved: set[int] = set()
    marked: set[int] = set()  # Results that are kept, by stage.
    seconds = peak = 0.0
    now = -1  # The stage whose result was made last.
    for act in acts:
        k = act.stage
        stage = stages[k]
        kept = sum(stages[s].saved for s in saved)
        kept += sum(stages[m].result for m in marked if m not in saved)
        if act.what == "back":
            peak = max(peak, kept + stage.backward_beside)
            saved.discard(k)
            marked.discard(k - 1)
            now = -1
            continue
        seconds += stage.seconds
        before = k - 1
        assert k == 0 or before == now or before in marked or before in saved
        if act.what in ("mark", "save") and k:
            if before not in marked and before not in saved:
                kept += stages[before].result
            marked.add(before)
        if act.what == "save":
            saved.add(k)
        else:
            reads = stages[before].result if k and act.what == "pass" else 0.0
            peak = max(peak, kept + reads + stage.result + stage.forward_beside)
        now = k
    return seconds, peak


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_is_better(seed: int) -> None:
    chance = np.random.default_rng(seed)
    stages = []
    for _ in range(5):
        result = int(chance.integers(1, 5))
        stages.append(
            Stage(
                float(chance.integers(1, 9)),
                float(result + chance.integers(0, 9)),
                float(result),
                float(chance.integers(0, 3)),
                float(chance.integers(0, 3)),
                bool(chance.random() < 0.25),
            )
        )
    listed = [cost(acts, stages) for acts in every_plan(0, 4, stages)]
    found = [(s, cost(list(acts), stages)) for s, acts in Rotor(stages).plans()]
    assert len({acts for _, acts in Rotor(stages).plans()}) == len(found)
    for thought, (seconds, peak) in found:
        assert seconds == pytest.approx(thought)
        # Memory is counted in slots, a few of which are lost to rounding.
        assert not any(s < seconds - 1e-9 and p <= peak * 0.97 for s, p in listed)
    seconds = [s for s, _ in found]
    assert seconds == sorted(seconds)
    assert found[0][0] == sum(stage.seconds for stage in stages)
    least = min(p for _, p in listed)
    assert found[-1][1][1] <= 1.1 * least
