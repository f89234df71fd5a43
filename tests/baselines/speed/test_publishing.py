"""The benchmark of a learner that publishes: it publishes, and measures both beside each other."""

from troupe.baselines.speed.learner import publishing


def test_steps_with_publishing_are_measured_beside_steps_without():
    found = publishing.measure(units=8, batch_size=4, steps=3, rounds=2)
    assert set(found["seconds_per_step"]) == {"with", "without"}
    assert all(seconds > 0 for seconds in found["seconds_per_step"].values())
    assert [len(ratios) for ratios in found["ratios"].values()] == [2, 2]
    assert 0 < found["written_per_step"] <= 1.0
    numbers = 64 * 8 + 8 + 8 * 8 + 8 + 8 * 6 + 6
    assert found["published_megabytes"] == round(4 * numbers / 1e6, 2)
