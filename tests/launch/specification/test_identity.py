"""Whose a checkpoint is."""

import pytest

from troupe.launch.errors import RequestError
from troupe.launch.experiment import check_identity


def test_a_field_that_was_not_there_yet_is_no_other_run():
    ours = {"agent": "dqn", "env": "C", "seed": 0, "config": {"old": 1, "new": "linear"}}
    check_identity({**ours, "config": {"old": 1}}, ours, "a checkpoint")
    for config in ({"old": 2, "new": "linear"}, {"old": 1, "gone": 3}, {"old": 1, "new": "cosine"}):
        with pytest.raises(RequestError, match="was written by a run with config"):
            check_identity({**ours, "config": config}, ours, "a checkpoint")
