"""Things that users of stable-baselines3, CleanRL, RLlib, Tianshou and Acme try first, as data.

A row has what is tried, the command or the expression, and where it is refused what the answer must
say in its one line. SMALL stands for settings of a short run of the agent, RUN for a copy of a
complete run, DIR for a folder. `python tests/baselines/things.py` prints the table that
docs/coming.md has.
"""

_TRAIN = "train ppo --env CartPole-v1"
_SHORT = "--steps 16 --evaluation-episodes 1 --final-evaluation-episodes 1 --out DIR/new"
_DQN = f"--config.hidden_sizes 4 --config.min_replay_size 8 --config.batch_size 2 {_SHORT}"
_PPO = (
    "--config.hidden_sizes 4 --config.rollout_length 8 --config.num_epochs 1 "
    f"--config.num_minibatches 1 {_SHORT}"
)
SMALL = {"dqn": _DQN, "ppo": _PPO}

REFUSED = [
    # Commands and their flags.
    ("`enjoy.py`, `rllib rollout`", "enjoy --algo ppo --env CartPole-v1", "troupe evaluate DIR"),
    ("a script's `--algo ppo`", "train --algo ppo --env A", "agent's name after the command"),
    ("RLlib's `tune`", "tune ppo --env CartPole-v1", "troupe sweep"),
    ("`--env-id`", "train ppo --env-id CartPole-v1", "--env ID"),
    ("`--total-timesteps`", f"{_TRAIN} --total-timesteps 9", "--steps N"),
    ("`-n` of the Zoo", f"{_TRAIN} -n 9", "--steps N"),
    ("`--num-envs`", f"{_TRAIN} --num-envs 4", "--config.num_envs"),
    ("`--n-envs`", f"{_TRAIN} --n-envs 4", "--config.num_envs"),
    ("`--num-steps`", f"{_TRAIN} --num-steps 128", "--config.rollout_length"),
    ("`--learning-rate`", f"{_TRAIN} --learning-rate 1e-3", "--config.learning_rate"),
    ("`--gamma=0.99`", f"{_TRAIN} --gamma=0.99", "--config.discount"),
    ("`--ent-coef`", f"{_TRAIN} --ent_coef 0.01", "--config.entropy_cost"),
    ("`--update-epochs`", f"{_TRAIN} --update-epochs 4", "--config.num_epochs"),
    ("`--anneal-lr`", f"{_TRAIN} --anneal-lr", "--config.anneal_steps"),
    ("`--hyperparams`", f"{_TRAIN} --hyperparams gamma:0.9", "--config.FIELD VALUE"),
    ("`--env-kwargs`", f"{_TRAIN} --env-kwargs gravity:5", "--env.KEY VALUE"),
    ("`--track`", f"{_TRAIN} --track", "--wandb PROJECT"),
    ("`--tensorboard-log`", f"{_TRAIN} --tensorboard-log logs", "always written"),
    ("`--progress`", f"{_TRAIN} --progress", "a terminal has a progress line"),
    ("`--capture-video`", f"{_TRAIN} --capture-video", "troupe evaluate DIR --video FILE"),
    ("`--render`", f"{_TRAIN} --render", "troupe evaluate DIR --render"),
    ("`--cuda`", f"{_TRAIN} --cuda false", "--learner-device gpu or cpu"),
    ("`--device cuda`", f"{_TRAIN} --device cuda", "--learner-device"),
    ("`--num-gpus 2`", f"{_TRAIN} --num-gpus 2", "--mesh data=N"),
    ("`--num-env-runners`", f"{_TRAIN} --num-env-runners 4", "--launch processes --actors N"),
    ("`--eval-freq`", f"{_TRAIN} --eval-freq 1000", "--evaluate-every N"),
    ("`--n-eval-episodes`", f"{_TRAIN} --n-eval-episodes 5", "--evaluation-episodes N"),
    ("`--save-freq`", f"{_TRAIN} --save-freq 1000", "--checkpoint-every SECONDS"),
    ("`--save-model`", f"{_TRAIN} --save-model", "every run saves itself"),
    ("`-i model.zip`", f"{_TRAIN} -i model.zip", "--from DIR"),
    ("`--resume`", f"{_TRAIN} --resume", "troupe resume DIR"),
    ("`--stop-reward`", f"{_TRAIN} --stop-reward 200", "--target RETURN --stop-at-target"),
    ("`--optimize`", f"{_TRAIN} --optimize", "troupe sweep"),
    # Fields.
    ("`n_steps` of PPO", f"{_TRAIN} --config.n_steps 128", "rollout_length"),
    ("`clip_range`, `clip_coef`", f"{_TRAIN} --config.clip_range 0.2", "clip?"),
    ("`vf_coef`", f"{_TRAIN} --config.vf_coef 0.5", "value_cost"),
    ("`batch_size` of PPO", f"{_TRAIN} --config.batch_size 64", "num_minibatches"),
    ("`net_arch`", f"{_TRAIN} --config.net_arch 64,64", "hidden_sizes"),
    ("`learning_rate` `lin_3e-4`", f"{_TRAIN} --config.learning_rate lin_3e-4", "_schedule"),
    ("`buffer_size`", "train dqn --env CartPole-v1 --config.buffer_size 9", "max_replay_size"),
    ("`learning_starts`", "train dqn --env A --config.learning_starts 9", "min_replay_size"),
    ("`train_freq`", "train dqn --env A --config.train_freq 4", "samples_per_insert"),
    ("`tau`", "train sac --env A --config.tau 0.005", "target_update_rate"),
    ("`ent_coef` of SAC", "train sac --env A --config.ent_coef auto", "initial_temperature"),
    ("`exploration_fraction`", "train dqn --env A --config.exploration_fraction 1", "epsilon_"),
    ("`beta` of GRPO", "train grpo --env tokens:reverse --config.beta 0.04", "kl_cost"),
    ("`num_generations`", "train grpo --env tokens:reverse --num_generations 8", "--env.answers N"),
    ("`group_size`", "train grpo --env tokens:reverse --config.group_size 8", "--env.answers N"),
    # Agents.
    ("`rloo`", "train rloo --env tokens:reverse", "--config.baseline leave_one_out"),
    ("`PPO`", "train PPO --env CartPole-v1", "Did you mean ppo?"),
    ("`a2c`", "train a2c --env CartPole-v1", "impala"),
    ("`ddpg`", "train ddpg --env Pendulum-v1", "td3"),
    ("`RecurrentPPO`, `ppo_lstm`", "train ppo_lstm --env A", "ppo with --config.core lstm"),
    ("`MaskablePPO`", "train MaskablePPO --env A", "honour masks"),
    ("`her`", "train her --env A", "a builder of your own"),
    ("`tqc`", "train tqc --env A", "sac"),
    ("`DreamerV3`", "train dreamer_v3 --env A", "muzero"),
    ("TD3, discrete actions", f"train td3 --env CartPole-v1 {_SHORT}", "Agents that can: "),
    # Environments.
    ("`gym:CartPole-v1`", "train ppo --env gym:CartPole-v1", "it is CartPole-v1"),
    ("`HalfCheetah-v2`", "train sac --env HalfCheetah-v2", "HalfCheetah-v5"),
    ("`HalfCheetahBulletEnv-v0`", "train sac --env HalfCheetahBulletEnv-v0", "HalfCheetah-v5"),
    ("`LunarLander-v2`", "train ppo --env LunarLander-v2", "LunarLander-v3"),
    ("`BreakoutDeterministic-v4`", "train dqn --env BreakoutDeterministic-v4", "ALE/Breakout-v5"),
    ("`FetchReach-v3`", "train sac --env FetchReach-v3", "gymnasium_robotics:FetchReach-v3"),
    ("`MiniGrid-Empty-5x5-v0`", "train ppo --env MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-"),
]

WORKS = [
    ("`evaluate_policy`, deterministic", "evaluate RUN --episodes 1"),
    ("evaluation on another environment", "evaluate RUN --episodes 1 --env.max_episode_steps 9"),
    ("the best model", "evaluate RUN --best"),
    ("`VecVideoRecorder`", "evaluate RUN --episodes 1 --video DIR/film.gif"),
    ("`model.learn` once more", "resume RUN --steps 36"),
    ("`set_env`", "train dqn --env CartPole-v1 --from RUN --env.sutton_barto_reward true SMALL"),
    ("`get_parameters`", "weights RUN"),
    ("`VecNormalize`", "train normalized+dqn --env CartPole-v1 SMALL"),
    ("a recurrent policy", "train ppo --env CartPoleMasked-v1 --config.core gru SMALL"),
    ("a schedule", "train dqn --env CartPole-v1 --config.learning_rate_steps 9 SMALL"),
    ("masks of actions", "train dqn --env fake/match --env.masked true SMALL"),
    ("Dict observations", "train ppo --env fake/nested SMALL"),
    ("`StopTrainingOnRewardThreshold`", f"{_TRAIN} --target 1 --stop-at-target SMALL"),
    ("`make_vec_env(n_envs=2)`", f"{_TRAIN} --config.num_envs 2 SMALL"),
    ("several seeds", f"{_TRAIN} --seeds 2 SMALL"),
    ("several devices", "train dqn --env CartPole-v1 --mesh data=2 SMALL"),
    ("`gymnasium:CartPole-v1`", "train dqn --env gymnasium:CartPole-v1 SMALL"),
]

PYTHON_REFUSED = [
    ("`PPO(gamma=0.9)`", "PPOConfig(gamma=0.9)", "discount"),
    ("`PPO(n_steps=64)`", "PPOConfig(n_steps=64)", "rollout_length"),
    ("`learning_rate=lambda f: ...`", "PPOConfig(learning_rate=abs)", "learning_rate_schedule"),
    ("an id in place of a factory", "experiment('CartPole-v1')", "environments.make(ID"),
    ("a class in place of a factory", "experiment(Chain)", "environments.make(ID"),
    ("an instance", "experiment(Chain())", "environments.make(ID"),
    ("a factory of Gymnasium's", "run(lambda **_: Chain())", "environments.Vector"),
    ("`gymnasium.make_vec`", "run(lambda **_: make_vec('CartPole-v1', 1))", "environments.Vector"),
    ("an environment with the old API", "run(vector(OldChain))", "reset(self, *, seed=None"),
    ("Text observations", "run(vector(TextChain))", "Text has no spec"),
    ("a function as a callback", "experiment(vector(Chain), callbacks=[print])", "launch.Callback"),
    (
        "`make_distributed_experiment`",
        "launch.make_distributed_experiment",
        "launch.running.runner",
    ),
    ("`evaluate_policy`", "launch.evaluate_policy", "launch.evaluate"),
    ("`load`", "launch.load", "launch.load_policy"),
]

PYTHON_WORKS = [
    ("`PongNoFrameskip-v4`", "pong('PongNoFrameskip-v4') == pong('ALE/Pong-v5')"),
    ("`net_arch=[64, 64]`", "PPOConfig(hidden_sizes=[64, 64]).hidden_sizes == (64, 64)"),
    ("a class that is not registered", "run(vector(Chain)).actor_steps == 16"),
    ("`Monitor`", "run(vector(Monitored)).episodes"),
    ("a callback that stops", "run(vector(Chain), callbacks=[Stop()]).actor_steps < 16"),
    ("`env.unwrapped`", "environments.make('CartPole-v1', seed=0).unwrapped.gravity == 9.8"),
    ("`model.predict`", "predict('RUN') in (0, 1)"),
]


def table() -> str:
    """Returns the rows as the table of docs/coming.md."""
    rows = [
        (tried, f"`{answer.strip()}`" if answer.startswith(("-", "troupe ")) else answer.strip())
        for tried, _, answer in (*REFUSED, *PYTHON_REFUSED)
    ]
    works = [
        (tried, f"works: `{code if python else 'troupe ' + code.replace(' SMALL', '')}`")
        for python, part in ((False, WORKS), (True, PYTHON_WORKS))
        for tried, code in part
    ]
    lines = [f"| {tried} | {answer} |" for tried, answer in (*rows, *works)]
    return "\n".join(["| tried | here |", "|---|---|", *lines])


if __name__ == "__main__":
    print(table())
