"""Names in pictures of a plan are short, and different values keep different names."""

from troupe.partitioning.simulator.pictures import short_names

LAYER = "hidden_layers_of_the_network/~/linear_1/w"


def test_names_that_differ_in_the_middle_stay_apart():
    names = [
        f"state/policy/params/{LAYER}",
        f"state/critic/params/{LAYER}",
        f"state/target_critic/params/{LAYER}",
        f"state/optimizers/critic/mu/{LAYER}",
        f"state/optimizers/critic/nu/{LAYER}",
    ]
    short = short_names(names)
    assert len(set(short)) == len(names)
    for name, one in zip(names, short, strict=True):
        assert len(one) < len(name)
        assert one.startswith("state/")
        assert one.endswith("linear_1/w")
    for word, one in zip(("policy", "critic", "target_critic", "mu", "nu"), short, strict=True):
        assert word in one.split("/"), one


def test_parameters_are_told_from_their_targets():
    names = [f"state/{part}/mlp_1/~/linear_1/w" for part in ("params/critic", "target_params")]
    assert all(
        part in one
        for part, one in zip(("params/", "target_params/"), short_names(names), strict=True)
    )


def test_names_that_are_short_or_the_same_are_as_they_are():
    assert short_names(["params/w", "params/w", "b"]) == ["params/w", "params/w", "b"]
    long = f"state/policy/params/{LAYER}"
    assert len(set(short_names([long, long]))) == 1


def test_names_without_parts_stay_apart():
    names = ["a" * 30 + "b" * 40, "c" * 30 + "b" * 40]
    assert len(set(short_names(names))) == 2
