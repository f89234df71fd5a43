"""What the commands of the command line do."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from ...launch.errors import RequestError, RunError
from ...launch.experiment import Checkpointing, Evaluation
from ...launch.files.directory import RunDirectory
from ...launch.files.result import Result
from ...launch.request.recipe import Recipe
from ...launch.telling import report
from ..tuned import Tuned


def train(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe train AGENT --env ID`"""
    tuned = _find(options, settings)
    evaluation = _given(
        every=options.evaluate_every or tuned.evaluation_every,
        episodes=options.evaluation_episodes,
        target_return=options.target,
    )
    checkpointing = _given(every_seconds=options.checkpoint_every, replay=options.checkpoint_replay)
    recipe = _recipe(
        options,
        tuned,
        seed=options.seed,
        evaluation=Evaluation(**evaluation),
        checkpointing=Checkpointing(**checkpointing),
        mesh=options.mesh,
        schedule=options.schedule,
        launch=options.launch,
        roles={**_roles(options), **_given(listen=options.listen)},
    )
    return _run(recipe, options.out or _free_directory(recipe), resume=False)


def resume(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe resume DIR`"""
    recipe = Recipe.from_json(RunDirectory(options.run).read_config())
    if options.steps is not None:
        recipe = dataclasses.replace(recipe, steps=options.steps)
    changed = _given(actors=options.actors, listen=options.listen)
    spread = _given(mesh=options.mesh, schedule=options.schedule)
    recipe = dataclasses.replace(recipe, roles={**recipe.roles, **changed}, **spread)
    return _run(recipe, options.run, resume=True)


def evaluate(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe evaluate DIR`"""
    from ...launch.judging import checkpoint

    outcome = checkpoint.evaluate(
        options.run,
        episodes=options.episodes,
        seed=options.seed,
        save_video=options.video,
        reporter=report.for_stderr(),
    )
    summary = outcome.summary()
    if options.json:
        print(json.dumps(summary))
    else:
        print(
            f"return {summary['mean']:.1f} +- {summary['std']:.1f} (least {summary['min']:.1f}, "
            f"most {summary['max']:.1f}) over {summary['episodes']} episodes, after "
            f"{summary['actor_steps']:,} actor steps"
        )
    return 0


def plot(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe plot DIR ...`"""
    folder = pathlib.Path(options.runs[0]) if len(options.runs) == 1 else pathlib.Path()
    print(_draw(options.runs, folder, options.save))
    return 0


def plan(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe plan AGENT --env ID --mesh AXES --schedule TACTICS`"""
    tuned = _find(options, settings)
    recipe = _recipe(options, tuned, mesh=options.mesh, schedule=options.schedule)
    from ...launch.request import planning

    made = planning.plan(recipe.experiment(), options.device)
    print(made.to_json() if options.json else made)
    return 0


def compare(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe compare AGENT --env ID --scales SPEC ... --out DIR`"""
    from .. import comparison
    from ..scales import Scale

    tuned = _find(options, settings)
    scales = [Scale.parse(text) for text in dict.fromkeys(options.scales)]
    comparison.check(len(scales), options.seeds)
    recipes = {
        scale: _recipe(
            options,
            tuned,
            evaluation=Evaluation(**_given(every=tuned.evaluation_every)),
            mesh=scale.mesh,
            schedule=scale.schedule,
            launch=scale.launch,
            roles=_given(actors=scale.actors),
        )
        for scale in scales
    }
    for recipe in recipes.values():  # Before the first of many runs.
        recipe.experiment()
        _runner(recipe)
    out = pathlib.Path(options.out)
    returns = {
        scale.text: [
            _final_return(dataclasses.replace(recipe, seed=seed), out / scale.folder / str(seed))
            for seed in range(options.seeds)
        ]
        for scale, recipe in recipes.items()
    }
    rows = comparison.compare(returns)
    found = json.dumps([dataclasses.asdict(row) for row in rows])
    (out / "comparison.json").write_text(found + "\n")
    print(found if options.json else comparison.table(rows))
    differing = ", ".join(row.scale for row in rows if row.differs)
    if differing:
        raise RunError(f"the returns at {differing} differ from those at {rows[0].scale}.")
    return 0


def _final_return(recipe: Recipe, path: pathlib.Path) -> float:
    """The mean return of the final evaluation of a run, which is done where it is not yet."""
    directory = RunDirectory(path)
    begun = directory.config.exists()
    request = recipe.to_json()
    if begun and directory.read_config() != json.loads(json.dumps(request)):
        raise RequestError(f"{path} holds a run that was asked for otherwise; name another --out.")
    if not directory.result.exists():
        reporter = report.for_stderr()
        run, experiment = _runner(recipe), recipe.experiment()
        try:
            run(experiment, path, resume=begun, reporter=reporter, request=request)
        finally:
            reporter.close()
    return json.loads(directory.result.read_text())["evaluation"][-1]["mean"]


def graph(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe graph AGENT --env ID`"""
    roles = _roles(options)
    recipe = _recipe(options, _find(options, settings), launch="processes", roles=roles)
    from ...launch.distributed.deploy import deploy
    from ...launch.distributed.picture import draw

    print(draw(deploy(recipe.experiment(), "runs", **roles), options.save))
    return 0


def list(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    """`troupe list`"""
    from ...agents import AGENTS, find_builder

    rows = [(name, _summary(find_builder(name).config_class)) for name in sorted(AGENTS)]
    _print_table("agents", rows)
    _print_table(
        "environments with tuned settings",
        [
            (
                one.env,
                f"{one.agent}, {one.steps:,} steps"
                + (f" to a return of {one.target:g}" if one.target is not None else ""),
            )
            for one in sorted(settings, key=lambda one: (one.env, one.agent))
        ],
    )
    from ...partitioning import tactics
    from ...partitioning.simulator import DEVICES

    named = sorted(tactics.NAMED.items())
    _print_table("tactics", [(name, _summary(tactic)) for name, tactic in named])
    gigabytes = {name: one.memory_bytes / 2**30 for name, one in DEVICES.items()}
    _print_table("devices", [(name, f"{size:.0f} GiB") for name, size in gigabytes.items()])
    return 0


def _run(recipe: Recipe, out: str | pathlib.Path, *, resume: bool) -> int:
    run = _runner(recipe)
    experiment = recipe.experiment()
    reporter = report.for_stream()
    try:
        result = run(experiment, out, resume=resume, reporter=reporter, request=recipe.to_json())
    finally:
        reporter.close()
    final = result.evaluation[-1]
    print(
        f"return {final['mean']:.1f} +- {final['std']:.1f} over {final['episodes']} episodes after "
        f"{result.actor_steps:,} actor steps in {report.duration(result.wall_seconds)}; "
        f"see {pathlib.Path(out, 'result.json')} and {_draw([out], pathlib.Path(out))}"
    )
    if result.reached is False:
        raise RunError(
            f"the evaluation return of {final['mean']:.1f} is below the target of "
            f"{result.target_return:g}."
        )
    return 0


def _runner(recipe: Recipe) -> Callable[..., Result]:
    """What runs experiments in the recipe's kind of launch."""
    if recipe.launch == "one-process":
        from ...launch.local.run import run

        return run
    _require_distributed()
    from ...launch.distributed.engines.launchpad import engine

    return functools.partial(engine.run, kind=recipe.launch, roles=recipe.roles)


def _require_distributed() -> None:
    """Raises RequestError where Launchpad or Reverb is not installed."""
    for name in ("launchpad", "reverb"):
        if importlib.util.find_spec(name) is None:
            raise RequestError(
                f"launching several roles needs {name}, which is not installed: "
                "pip install 'troupe[distributed]' under Python 3.10."
            )


def _roles(options: argparse.Namespace) -> dict[str, Any]:
    return _given(
        actors=options.actors,
        inference_servers=options.inference_servers,
        learner_hosts=options.learner_hosts,
        learner_device=options.learner_device,
    )


def _find(options: argparse.Namespace, settings: Sequence[Tuned]) -> Tuned:
    """What is tuned for an agent and an environment; where nothing is, the defaults."""
    asked = options.agent, options.env
    return next((one for one in settings if (one.agent, one.env) == asked), Tuned(*asked))


def _recipe(options: argparse.Namespace, tuned: Tuned, **more: Any) -> Recipe:
    """What was asked for, from what is tuned."""
    return Recipe(
        options.agent,
        options.env,
        config={**tuned.config, **options.overrides},
        steps=getattr(options, "steps", None) or tuned.steps,
        environment=tuned.environment,
        training_environment=tuned.training_environment,
        **more,
    )


def _given(**values: Any) -> dict[str, Any]:
    """Those that were given; the others keep the defaults of where they go."""
    return {name: value for name, value in values.items() if value is not None}


def _draw(
    runs: Sequence[str | pathlib.Path], folder: pathlib.Path, save: str | None = None
) -> pathlib.Path:
    """Draws the curves of runs, into a folder where no file is named."""
    from ...launch.telling.plot import plot

    return plot(runs, save or folder / "curve.png")


def _free_directory(recipe: Recipe) -> pathlib.Path:
    """The first of runs/AGENT-ENV-SEED, runs/AGENT-ENV-SEED-2 and so on that is not there."""
    words = (recipe.agent.rpartition(":")[2], recipe.env, str(recipe.seed))
    name = "-".join(re.sub(r"[^\w.-]+", "_", word) for word in words)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for one in names if not (path := pathlib.Path("runs", one)).exists())


def _summary(documented: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((documented.__doc__ or "").split()).partition(". ")[0].removesuffix(".")


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    print(title)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows or [("none", "")]:
        print(f"  {name:<{width}}  {text}".rstrip())
