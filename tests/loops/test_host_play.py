"""Evaluation on host environments, and videos."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM

from zerocopy_envs.catch import Catch
from zerocopy_envs.errors import UserError
from zerocopy_envs.gymnax_drawing import draw_cart_pole
from zerocopy_envs.host_adapter import HostedEnvironment
from zerocopy_envs.types import ArraySpec, EnvironmentSpec
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.loops import evaluate as evaluate_module
from zerocopy_seed.loops.environments import HostEnvironments, make_environment
from zerocopy_seed.loops.evaluate import evaluate
from zerocopy_seed.loops.video import check_video_path, picture_of, record_video

CONFIG = dataclasses.replace(CATCH, network=LSTM)
BOARD = Vectorized(Catch(4, 3))


class Unpunctual(HostedEnvironment):
    """Answers for one or two slots at a time, in no particular order."""

    def reset(self, seeds):
        self._answers, self._rng = [], np.random.default_rng(0)
        self._actions = np.zeros(self.num_envs, np.int32)
        self._asked = np.arange(self.num_envs)
        return super().reset(seeds)

    def send(self, actions):
        self._actions[self._asked] = actions
        if not self._answers:
            super().send(self._actions)
            slots, timestep = super().recv()
            order = self._rng.permutation(slots)
            pieces = np.split(order, range(2, self.num_envs, 2))
            self._answers = [(piece, jax.tree.map(lambda x, p=piece: x[p], timestep)) for piece in pieces]

    def recv(self):
        self._asked, timestep = self._answers.pop()
        return self._asked, timestep


def punctual(num_envs=1):
    return HostedEnvironment(BOARD, num_envs)


def unpunctual(num_envs=1):
    return Unpunctual(BOARD, num_envs)


@pytest.fixture(scope="module")
def player():
    agent = make_agent(CONFIG.agent, CONFIG.network, BOARD.spec, num_slots=4)
    return agent, agent.acting(jax.jit(agent.init)(jax.random.key(3, impl="threefry2x32")))


@pytest.mark.parametrize("factory", ["punctual", "unpunctual"])
def test_episodes_on_the_host_are_those_on_the_device(player, factory, monkeypatch):
    for limit in ("_MAX_SLOTS", "_MAX_HOST_SLOTS"):
        monkeypatch.setattr(evaluate_module, limit, 3)
    agent, params = player
    on_device = evaluate(agent, make_environment(CONFIG.env), params, num_episodes=6, seed=1)
    host = HostEnvironments(f"{__name__}:{factory}", {}, BOARD.spec)
    on_host = evaluate(agent, host, params, num_episodes=6, seed=1)
    assert set(on_device.returns) == {-1.0, 1.0}, "all episodes alike would prove nothing"
    np.testing.assert_array_equal(on_host.returns, on_device.returns)
    np.testing.assert_array_equal(on_host.lengths, on_device.lengths)


def test_a_spec_alone_cannot_be_evaluated_on(player):
    host = HostEnvironments(f"{__name__}:spec_alone", {}, BOARD.spec)
    agent, params = player
    with pytest.raises(UserError, match="spec_alone': expected one that can be made, found a spec alone"):
        evaluate(agent, host, params, num_episodes=1, seed=0)


def spec_alone(num_envs=1):
    return BOARD.spec


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.png", r"expected a file name that ends in \.gif or \.mp4, found '\.png'"),
        ("nowhere/a.gif", "expected an existing folder"),
    ],
)
def test_a_video_that_cannot_be_written_is_refused_first(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        check_video_path(tmp_path / name)


def test_what_cannot_be_drawn_is_refused(player, tmp_path):
    agent, params = player
    board = Catch(4, 3)
    board.spec = EnvironmentSpec(ArraySpec((4,), np.float32), BOARD.spec.action)
    with pytest.raises(UserError, match=r"--video of mine:Vectors: expected .* found observation \[4\]"):
        record_video(agent, Vectorized(board), params, tmp_path / "a.gif", name="mine:Vectors", seed=0)


def test_pictures_of_observations():
    assert picture_of(np.array([[0, 255]], np.uint8)).tolist() == [[[0, 0, 0], [255, 255, 255]]]
    colors = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(picture_of(colors), colors)
    channels = picture_of(np.eye(2, dtype=bool)[None])  # [1, 2, 2]
    assert channels.shape == (1, 2, 3) and (channels[0, 0] != channels[0, 1]).any()


def test_a_cart_and_its_pole():
    @dataclasses.dataclass
    class State:
        x: float
        theta: float

    upright, right, leaning = (
        np.asarray(draw_cart_pole(State(jnp.float32(x), jnp.float32(theta))))
        for x, theta in ((0, 0), (1, 0), (0, 0.5))
    )
    assert upright.shape == (160, 240, 3) and upright.dtype == np.uint8
    pole = (upright == (205, 150, 95)).all(-1)
    assert pole[:, 120].sum() == 49 and not pole[:, :115].any(), "a metre is 50 pixels"
    np.testing.assert_array_equal(right[:, 70:], upright[:, 20:-50])
    assert (leaning == (205, 150, 95)).all(-1)[:, 124:].sum() > 100, "a positive angle leans to the right"
