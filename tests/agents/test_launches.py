"""Every row of the table of agents runs to its end in every kind of launch."""

import pytest

from troupe.launch import running
from troupe.launch.data import recording
from troupe.launch.experiment import Evaluation
from troupe.launch.specification.recipe import Recipe

from .rows import AGENTS, CASES, FULL

LAUNCHES = {
    "threads": ("threads", {"actors": 2}),
    "processes": ("processes", {"actors": 2}),
    "inference server": ("processes", {"actors": 2, "inference_servers": 1}),
    "two hosts": ("processes", {"learner_hosts": 2}),
    "ray": ("ray", {"actors": 2}),
    "ray, inference server": ("ray", {"actors": 2, "inference_servers": 1}),
    "ray, two hosts": ("ray", {"learner_hosts": 2}),
}
QUICK = {
    ("grpo", "ray", "text"),
    ("ppo", "threads", "discrete"),
    ("dqn", "inference server", "discrete"),
    ("bc", "two hosts", "discrete"),
    ("mpo", "inference server", "structured"),
    ("mpo", "ray, inference server", "structured"),
}
"""Those that run always; the others with TROUPE_FULL=1 in the environment."""
TABLE = [
    (name, launch, kind)
    for name, row in AGENTS.items()
    for launch in LAUNCHES
    for kind in dict.fromkeys((row.kinds[0], "structured"))
    if "docs" not in name and kind in row.kinds
]
RUN = [one for one in TABLE if FULL or one in QUICK]
NEEDS = {"ray": ["ray"], "threads": ["launchpad", "reverb"], "processes": ["launchpad", "reverb"]}


def marks(launch):
    return [] if LAUNCHES[launch][0] == "ray" else [pytest.mark.distributed]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "launch", "kind"),
    [pytest.param(*one, id=", ".join(one), marks=marks(one[1])) for one in RUN],
)
def test_it_runs_to_its_end(name, launch, kind, tmp_path, monkeypatch):
    for module in NEEDS[LAUNCHES[launch][0]]:
        pytest.importorskip(module)
    monkeypatch.setenv("XLA_FLAGS", "")
    case = CASES[f"{name}, {kind}"]
    engine, roles = LAUNCHES[launch]
    data, steps = None, 1_500
    if case.builder().needs_data:
        data, steps = tmp_path / "data.npz", 100
        recording.write(data, case.dataset(), {})
        roles = {name: number for name, number in roles.items() if name == "learner_hosts"}
    elif case.builder().mixes_data:
        data = tmp_path / "data.npz"
        recording.write(data, case.dataset(), {})
    recipe = Recipe(
        case.row.agent,
        case.kind.env,
        case.row.config,
        steps=steps,
        data=data and str(data),
        environment=case.kind.options,
        evaluation=Evaluation(every=10**6, final_episodes=2),
        launch=engine,
        roles=roles,
    )
    run = running.runner(engine, roles)
    result = run(recipe.experiment(), tmp_path / "run", request=recipe.to_json(), progress=False)
    assert result.launch == engine
    assert result.learner_steps > 0
    # What actors did not need of their shares is not spent.
    assert (
        result.learner_steps if case.builder().needs_data else result.actor_steps
    ) >= 0.95 * steps
    assert result.evaluation[-1]["episodes"] == 2
