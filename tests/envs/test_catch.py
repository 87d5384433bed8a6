import jax
import numpy as np

from zerocopy_envs import StepType, make


def play(environment, step, key, choose):
    """Boards, rewards and the last timestep of one episode."""
    state, timestep = environment.reset(key)
    boards, rewards = [np.asarray(timestep.observation)], []
    while timestep.step_type != StepType.LAST:
        state, timestep = step(state, choose(boards[-1]))
        boards.append(np.asarray(timestep.observation))
        rewards.append(float(timestep.reward))
    return boards, rewards, timestep


def towards(board):
    *air, ground = board
    ball, paddle = int(np.sum(air, axis=0).argmax()), int(ground.argmax())
    return np.int32(1 + np.sign(ball - paddle))


def away(board):
    *air, _ = board
    return np.int32(0 if np.sum(air, axis=0).argmax() >= 2 else 2)


def test_rules():
    environment = make("zerocopy:Catch")
    step = jax.jit(environment.step)
    columns = set()
    for seed in range(8):
        key = jax.random.key(seed, impl="threefry2x32")
        boards, rewards, last = play(environment, step, key, towards)
        assert rewards == [0.0] * 8 + [1.0]
        assert last.discount == 0
        for t, board in enumerate(boards[:-1]):
            assert board.shape == (10, 5) and board.sum() == 2 and board[t].sum() == 1 and board[9].sum() == 1
        assert boards[-1].sum() == 1, "the caught ball is where the paddle is"
        columns.add(int(boards[0][0].argmax()))
        _, rewards, last = play(environment, step, key, away)
        assert rewards == [0.0] * 8 + [-1.0] and last.discount == 0
    assert len(columns) > 2


def test_the_paddle_stays_on_the_board():
    environment = make("zerocopy:Catch", rows=12, columns=3)
    state, _ = environment.reset(jax.random.key(0, impl="threefry2x32"))
    for action, column in [(0, 0), (0, 0), (2, 1), (2, 2), (2, 2), (1, 2)]:
        state, timestep = environment.step(state, np.int32(action))
        assert timestep.observation[-1].argmax() == column
