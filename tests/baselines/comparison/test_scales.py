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
        ("one-process", ("one-process", None, None, None)),
        ("compiled", ("compiled", None, None, None)),
        ("processes:4", ("processes", 4, None, None)),
        ("threads:2@data=2@batch:data", ("threads", 2, "data=2", "batch:data")),
    ],
)
def test_scales(text, expected):
    scale = Scale.parse(text)
    assert (scale.launch, scale.actors, scale.mesh, scale.schedule) == expected
    assert not set(scale.folder) & set("/:@,")


def test_a_recipe_is_that_of_the_scale():
    recipe = Scale.parse("one-process@data=2@batch:data").of(Recipe("dqn", "CartPole-v1", seed=3))
    assert (recipe.launch, recipe.mesh, recipe.schedule) == ("one-process", "data=2", "batch:data")
    assert (recipe.seed, recipe.roles) == (3, {})


@pytest.mark.parametrize("text", ["", "process", "processes:many", "processes:", "threads@data=2"])
def test_what_is_no_scale_lists_what_is(text):
    with pytest.raises(RequestError, match="one-process, threads, processes"):
        Scale.parse(text)
