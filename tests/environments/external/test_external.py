"""Simulators that are served from outside: equal to environments that are here, and lost ones."""

import ast
import contextlib
import copy
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest
import tree
from gymnasium import spaces

from troupe import environments
from troupe.baselines.command.line import main
from troupe.environments import external
from troupe.environments.external import client
from troupe.environments.external.client import messages
from troupe.environments.external.client.spaces import pack

CLIENT = pathlib.Path(client.__file__).parent


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv(messages.TOKEN, raising=False)
    monkeypatch.delenv(messages.TOKEN_PATH, raising=False)


@pytest.fixture
def serving():
    """Serves what a function makes; returns the id."""
    servers = []

    def serve(make, **options):
        found, is_there = [], threading.Event()

        def started(server):
            found.append(server)
            is_there.set()

        arguments = (make, "127.0.0.1:0")
        options = {**options, "started": started}
        thread = threading.Thread(target=client.serve, args=arguments, kwargs=options, daemon=True)
        thread.start()
        assert is_there.wait(30)
        servers.append((found[0], thread))
        return f"external:{found[0].address}"

    yield serve
    for server, thread in servers:
        server.close()
        thread.join(30)
        assert not thread.is_alive()


class Everything(gymnasium.Env):
    """All kinds of spaces, values drawn; an episode has five steps and a number in info."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "pair": spaces.Tuple(
                [spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2,), np.float64)]
            ),
            "lights": spaces.MultiBinary(5),
            "uneven": spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 4])),
        }
    )
    action_space = spaces.Dict(
        {
            "turn": spaces.MultiDiscrete([3, 4]),
            "push": spaces.Box(-1, 1, (2, 2), np.float32),
            "press": spaces.Discrete(2),
        }
    )

    def __init__(self):
        self.observation_space = copy.deepcopy(self.observation_space)  # Draws of its own.

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        reward = float(action["push"].sum() + action["turn"][1] + action["press"])
        info = {"distance": np.float32(self.steps), "note": "text stays where it is"}
        return self.observation_space.sample(), reward, self.steps == 5, False, info


class Masked(gymnasium.Env):
    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(3)

    def _seen(self):
        self.legal = np.roll(np.array([1, 0, 0], np.int8), self.steps)
        return np.array([self.steps], np.float32), {"action_mask": self.legal}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen()

    def step(self, action):
        assert self.legal[action]
        self.steps += 1
        observation, info = self._seen()
        return observation, 1.0, False, self.steps == 9, info


def equal(one, other):
    leaves = (tree.flatten(tuple(timestep)) for timestep in (one, other))
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("make", [lambda: gymnasium.make("CartPole-v1"), Everything, Masked])
def test_it_is_what_the_same_environment_is_here(serving, make):
    here = environments.Vector(
        [
            environments.GymnasiumEnvironment(
                make(), seed=environments.derive_seed(3, i), max_episode_steps=30
            )
            for i in range(3)
        ]
    )
    with environments.make(serving(make), seed=3, num_envs=3, max_episode_steps=30) as there:
        assert isinstance(there, external.ids.ExternalVector)
        assert repr(environments.make_spec(there)) == repr(environments.make_spec(here))
        one, other = here.reset(), there.reset()
        draws = np.random.default_rng(0)
        spec = here.action_spec()
        for _ in range(40):
            equal(one, other)
            if isinstance(spec, dict):
                actions = {
                    key: draws.uniform(part.minimum, part.maximum, (3, *part.shape)).astype(
                        part.dtype
                    )
                    for key, part in spec.items()
                }
            elif make is Masked:
                actions = one.observation["action_mask"].argmax(-1).astype(np.int32)
            else:
                actions = draws.integers(0, spec.num_values, 3).astype(np.int32)
            one, other = here.step(actions), there.step(actions)
        if make is Everything:
            assert there.episode_info(0) == {"distance": 5.0}


def test_simulators_compute_at_once(serving):
    """Three that wait for one another within a step: in turn they would wait for ever."""
    meeting = threading.Barrier(3)

    class Meeting(Masked):
        def step(self, action):
            meeting.wait(30)
            return super().step(action)

    with environments.make(serving(Meeting), seed=0, num_envs=3) as vector:
        timestep = vector.reset()
        for _ in range(4):
            timestep = vector.step(timestep.observation["action_mask"].argmax(-1))
        assert timestep.reward.tolist() == [1.0] * 3


def play(server, episodes):
    """A simulator with a loop of its own, whose episodes have three steps."""
    player = server.wait()
    with contextlib.suppress(client.ProtocolError):
        for _ in range(episodes):
            player.wait()
            action = player.begin([0.0, 0.0])
            for step in range(3):
                if action is None:
                    break
                seen = [float(step), sum(action)]
                if step == 2:
                    player.end(seen, 1.0, terminated=False)
                else:
                    action = player.step(seen, 0.5, {"step": step})
    player.close()


@pytest.fixture
def own_loop():
    with client.SimulatorServer("127.0.0.1:0", client.box((2,)), client.box((2,), -1, 1)) as server:
        yield server


def test_a_simulator_may_have_a_loop_of_its_own(own_loop):
    thread = threading.Thread(target=play, args=(own_loop, 4))
    thread.start()
    with environments.make(f"external:{own_loop.address}", seed=0) as environment:
        timestep = environment.reset()
        kinds, rewards = [], []
        for _ in range(8):
            timestep = environment.step(np.array([0.25, 0.5], np.float32))
            kinds.append(int(timestep.step_type))
            rewards.append(timestep.reward)
        assert kinds == [1, 1, 2, 0, 1, 1, 2, 0]
        assert rewards == [0.5, 0.5, 1.0, None, 0.5, 0.5, 1.0, None]
        assert timestep.observation.tolist() == [0.0, 0.0]
        # An agent may leave an episode for the next one.
        timestep = environment.step(np.array([0.25, 0.5], np.float32))
        assert timestep.observation.tolist() == [0.0, 0.75]
        assert environment.reset().first()
    thread.join(30)
    assert not thread.is_alive()


def test_who_has_no_environment_left_is_said_to_be_taken(own_loop):
    thread = threading.Thread(target=play, args=(own_loop, 1))
    thread.start()
    id = f"external:{own_loop.address}"
    with environments.make(id, seed=0) as environment:
        environment.reset()
        with pytest.raises(environments.LostSimulatorError, match=r"in 0\.1 s .*it is taken"):
            environments.make(id, seed=0, patience=0.1)
    thread.join(30)


def test_a_lost_simulator_ends_its_episode_and_another_goes_on(own_loop):
    with client.SimulatorServer("127.0.0.1:0", client.box((2,)), client.box((2,), -1, 1)) as other:
        # The first leaves after an episode's first step, when nobody listens in its place.
        def leave():
            player = own_loop.wait()
            player.begin([1.0, 2.0])
            own_loop.close()
            player.close()

        threads = [
            threading.Thread(target=leave),
            threading.Thread(target=play, args=(other, 1)),
        ]
        for thread in threads:
            thread.start()
        id = f"external:{own_loop.address},{other.address}"
        with environments.make(id, seed=0, patience=10.0) as environment:
            action = np.zeros(2, np.float32)
            assert environment.reset().observation.tolist() == [1.0, 2.0]
            lost = environment.step(action)
            assert lost.last()
            assert lost.reward == 0.0
            assert lost.discount == 1.0
            assert lost.observation.tolist() == [1.0, 2.0]
            assert environment.episode_info == {"lost_simulator": 1.0}
            assert environment.step(action).first()
            assert environment.step(action).reward == 0.5
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_one_that_does_not_answer_in_time_is_lost(own_loop):
    is_over = threading.Event()

    def hang():
        player = own_loop.wait()
        player.begin([0.0, 0.0])
        is_over.wait(30)
        player.close()

    thread = threading.Thread(target=hang)
    thread.start()
    with environments.make(f"external:{own_loop.address}", seed=0, time_limit=0.5) as environment:
        environment.reset()
        assert environment.step(np.zeros(2, np.float32)).last()
        assert environment.episode_info == {"lost_simulator": 1.0}
    is_over.set()
    thread.join(30)


def test_a_simulator_that_raises_is_named_with_its_error(serving):
    class Broken(Masked):
        def step(self, action):
            raise RuntimeError("the physics exploded")

    with environments.make(serving(Broken), seed=0) as environment:
        environment.reset()
        with pytest.raises(environments.LostSimulatorError, match="RuntimeError: the physics"):
            environment.step(0)


def test_only_who_knows_the_token_plays(serving, monkeypatch, tmp_path):
    id = serving(Masked, token="one")
    with pytest.raises(environments.EnvironmentFault, match="another token"):
        environments.make(id, seed=0)
    monkeypatch.setenv(messages.TOKEN, "two")
    with pytest.raises(environments.EnvironmentFault, match="another token"):
        environments.make(id, seed=0)
    file = tmp_path / "token"
    file.write_text("one\n")
    environments.make(id, seed=0, token_path=str(file)).close()
    monkeypatch.delenv(messages.TOKEN)
    monkeypatch.setenv(messages.TOKEN_PATH, str(file))
    environments.make(id, seed=0).close()


def test_a_server_that_does_not_know_the_token_is_not_believed():
    """It cannot answer with what it was sent: either side proves something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend():
            connection, _ = server.accept()
            with connection:
                messages.send(connection, {"kind": "challenge", "protocol": 1, "nonce": "n"})
                hello, _ = messages.receive(connection)
                space = client.discrete(2)
                spaces = {"observation": space, "action": space, "proof": hello["proof"]}
                messages.send(connection, {"kind": "spaces", **spaces})

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(environments.EnvironmentFault, match="another token"):
            environments.make(f"external:127.0.0.1:{server.getsockname()[1]}", seed=0)
        thread.join(30)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        messages.LENGTHS.pack(2, 0) + b"[]",
        messages.LENGTHS.pack(14, 0) + b'{"kind": "hi"}',
    ],
)
def test_strangers_are_refused_and_keep_nobody(serving, said):
    id = serving(Masked)
    with socket.create_connection(messages.parse_address(id.removeprefix("external:"))) as other:
        messages.receive(other)
        other.sendall(said)
        with environments.make(id, seed=0) as environment:
            assert environment.reset().first()
        other.settimeout(30)
        try:
            other.shutdown(socket.SHUT_WR)
            while other.recv(1 << 16):  # Until it is shown out.
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # It was, already.


def test_nobody_listens_to_others_without_a_token():
    with pytest.raises(ValueError, match="other machines can connect"):
        client.SimulatorServer("0.0.0.0:0", client.discrete(2), client.discrete(2))
    with client.SimulatorServer(
        "0.0.0.0:0", client.discrete(2), client.discrete(2), token="t"
    ) as server:
        assert server.port > 0


@pytest.mark.parametrize(
    "space",
    [
        None,
        {},
        {"type": "Graph"},
        {"type": "Box", "shape": [2], "dtype": "complex64"},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
        {"type": "Discrete", "n": 0},
        {"type": "Dict", "spaces": [client.discrete(2)]},
    ],
)
def test_a_space_that_is_none_is_named(space):
    with client.SimulatorServer("127.0.0.1:0", space, client.discrete(2)) as server:
        thread = threading.Thread(target=lambda: server.wait().close())
        thread.start()
        with pytest.raises(environments.UnsupportedSpaceError, match="describes a space as"):
            environments.make(f"external:{server.address}", seed=0)
        thread.join(30)


@pytest.mark.parametrize(
    ("space", "value", "reason"),
    [
        (client.box((2,)), [1, 2, 3], "has 3 numbers, not 2"),
        (client.box((2,)), np.zeros((2, 1)), r"has shape \(2, 1\), not \(2,\)"),
        (client.nest({"eyes": client.box((2,))}), {"eyes": [1]}, "eyes has 1 numbers, not 2"),
    ],
)
def test_what_does_not_fit_its_space_is_named_to_the_simulator(space, value, reason):
    with pytest.raises(ValueError, match=reason):
        pack(space, value)


def test_the_client_runs_by_itself(tmp_path):
    """The folder alone, without packages that are installed, and as Python 3.8 has it."""
    shutil.copytree(CLIENT, tmp_path / "client", ignore=shutil.ignore_patterns("__pycache__"))
    for file in CLIENT.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))
    script = tmp_path / "simulator.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import client\n"
        "spaces = client.box((2,)), client.discrete(2)\n"
        "with client.SimulatorServer('127.0.0.1:0', *spaces) as server:\n"
        "    print(server.address, flush=True)\n"
        "    player = server.wait()\n"
        "    action = player.begin([0, 0])\n"
        "    while action is not None:\n"
        "        action = player.step([1, action], action)\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        id = f"external:{process.stdout.readline().strip()}"
        with environments.make(id, seed=0, max_episode_steps=2) as environment:
            environment.reset()
            assert environment.step(1).observation.tolist() == [1.0, 1.0]
            assert environment.step(0).last()
            environment.unwrapped.ask()  # For an episode: the step before was the loop's last.
            assert process.wait(30) == 0


def test_an_agent_learns_and_is_evaluated(serving, tmp_path, capsys):
    id = serving(lambda: gymnasium.make("CartPole-v1"))
    out = str(tmp_path / "run")
    arguments = ["train", "dqn", "--env", id, "--steps", "300", "--out", out]
    small = ["--config.min_replay_size", "50", "--config.hidden_sizes", "8"]
    assert main([*arguments, *small, "--evaluation-episodes", "1"]) == 0
    assert main(["evaluate", out, "--episodes", "1"]) == 0
    assert "after 300 actor steps" in capsys.readouterr().out
