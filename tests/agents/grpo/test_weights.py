"""Decoders of presets and of folders of weights."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from dm_env import specs

from troupe import partitioning as pt
from troupe.agents.grpo import GRPOBuilder, GRPOConfig
from troupe.agents.networks import checkpoint_folder
from troupe.agents.networks.decoder import Decoder
from troupe.agents.networks.decoder_presets import preset
from troupe.agents.programs.placement import Partition
from troupe.environments.specs import AnswerArray, EnvironmentSpec

CONFIG = preset("tiny", vocabulary=24)


def spec(vocabulary=12, prompt=3, length=5):
    answers = AnswerArray((4, length), vocabulary, pad=0, end=1)
    number, tokens = specs.Array((), np.float32), specs.BoundedArray((prompt,), np.int32, 0, 9)
    seen = {"prompt": tokens, "solution": tokens, "scores": specs.Array((4,), np.float32)}
    return EnvironmentSpec(seen, answers, number, number)


@pytest.fixture
def folder(tmp_path):
    config = dataclasses.replace(CONFIG, context=32)
    params = Decoder(config).init(jax.random.key(5))
    checkpoint_folder.write(tmp_path / "model", config, params)
    return tmp_path / "model", params


def learner_of(builder, **options):
    networks, key = builder.make_networks(spec()), jax.random.key(0)
    policy = builder.make_policy(networks, spec())
    replay = builder.make_replay_tables(spec(), policy, num_envs=builder.num_envs)
    return builder.make_learner(key, networks, spec(), itertools.repeat(None), replay, **options)


@pytest.mark.parametrize("layout", ["", "data=2,model=2"])
def test_a_learner_begins_with_the_weights_of_a_folder(folder, layout):
    path, params = folder
    options = {"num_envs": 4, "batch_size": 4, "kl_cost": 0.1, "weights": str(path)}
    partition = None
    if layout:
        schedule = pt.parse_schedule("batch:data,megatron:model")
        partition = Partition(pt.parse_mesh(layout), schedule)
    learner = learner_of(GRPOBuilder(GRPOConfig(**options)), partition=partition)
    (policy,) = learner.get_variables(["policy"])
    for found in (policy["decoder"], learner.state.params, learner.state.reference):
        for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert learner.steps == policy["steps"] == 0
    if layout:
        assert any(
            not x.sharding.is_fully_replicated for x in jax.tree.leaves(learner.state.params)
        )


def test_a_folder_without_a_file_is_named(folder):
    path, _ = folder
    builder = GRPOBuilder(GRPOConfig(weights=str(path)))
    for file in path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ValueError, match=rf"^weights {path} cannot be read: .*safetensors"):
        learner_of(builder)
    with pytest.raises(ValueError, match=r"^weights nowhere cannot be read: .*config.json"):
        GRPOBuilder(GRPOConfig(weights="nowhere")).make_networks(spec())


def test_what_does_not_fit_the_decoder_is_named(folder):
    builder = GRPOBuilder(GRPOConfig(weights=str(folder[0])))
    with pytest.raises(ValueError, match="the tokenizer has 30 tokens and the decoder 24"):
        builder.make_networks(spec(vocabulary=30))
    with pytest.raises(ValueError, match=r"30 tokens and answers of 5 do not fit .* of 32"):
        builder.make_networks(spec(prompt=30))


def test_a_preset_has_its_sizes_and_room_for_the_tokenizer():
    config = GRPOConfig(preset="tiny", dtype="bfloat16", rematerialize=True)
    for vocabulary, wanted in ((12, 128), (500, 500)):
        sizes = GRPOBuilder(config).make_networks(spec(vocabulary)).decoder.config
        given = {"vocabulary": wanted, "compute_dtype": "bfloat16", "rematerialize": True}
        assert sizes == preset("tiny", **given)
    with pytest.raises(ValueError, match="no preset 'tinny'"):
        GRPOBuilder(GRPOConfig(preset="tinny")).make_networks(spec())
