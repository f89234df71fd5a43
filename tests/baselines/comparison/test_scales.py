"""Scales, as the command line names them."""

import pytest

from troupe.baselines.comparison.scales import Scale, parse_scales
from troupe.launch.errors import RequestError
from troupe.launch.specification.recipe import Recipe


def test_a_scale_named_twice_is_refused():
    assert len(parse_scales(["one-process", "compiled", "threads", "threads:2"])) == 4
    with pytest.raises(RequestError, match="'threads:2' and 'threads:02' are the same"):
        parse_scales(["one-process", "threads:2", "threads:02"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one-process", ("one-process", {}, None, None)),
        ("compiled@data=8", ("compiled", {}, "data=8", None)),
        ("processes:4", ("processes", {"actors": 4}, None, None)),
        ("threads:2@data=2@batch:data", ("threads", {"actors": 2}, "data=2", "batch:data")),
        ("ray:2+inference", ("ray", {"actors": 2, "inference_servers": 1}, None, None)),
        (
            "ray:4+gang:2+inference:2@data=2",
            ("ray", {"actors": 4, "learner_hosts": 2, "inference_servers": 2}, "data=2", None),
        ),
        ("gang:2", ("processes", {"learner_hosts": 2}, None, None)),
    ],
)
def test_scales(text, expected):
    scale = Scale.parse(text)
    assert (scale.launch, scale.roles, scale.mesh, scale.schedule) == expected
    assert not set(scale.folder) & set("/:@,")


def test_a_recipe_is_that_of_the_scale():
    recipe = Scale.parse("one-process@data=2@batch:data").of(Recipe("dqn", "CartPole-v1", seed=3))
    assert (recipe.launch, recipe.mesh, recipe.schedule) == ("one-process", "data=2", "batch:data")
    assert (recipe.seed, recipe.roles) == (3, {})


def test_roles_that_a_launch_has_not_are_refused_by_the_name_of_the_scale():
    with pytest.raises(RequestError, match=r"'compiled\+inference': .* needs --launch threads"):
        Scale.parse("compiled+inference").of(Recipe("dqn", "CartPole-v1"))
    with pytest.raises(
        RequestError, match="the scales 'gang:2' and 'processes\\+gang:2' are the same"
    ):
        parse_scales(["gang:2", "processes+gang:2"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "process", "processes:many", "processes:", "threads@", "threads@data=2@batch@more"),
        *("gang", "ray+gang", "ray+inference:", "ray+learners:2", "ray+gang:2+gang:3", "ray+"),
    ],
)
def test_what_is_no_scale_lists_what_is(text):
    with pytest.raises(RequestError, match="one-process, threads, processes"):
        Scale.parse(text)
