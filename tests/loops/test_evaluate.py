import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence
from small_runs import CATCH, LSTM

from zerocopy_envs.errors import UserError
from zerocopy_envs.host_adapter import HostedEnvironment
from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed import cli
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.keys import Stream, slot_keys
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops import evaluate as evaluate_module
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run, num_evaluation_slots
from zerocopy_seed.loops.run_checkpoint import restore_acting
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.policy import load_policy

CONFIG = dataclasses.replace(CATCH, network=LSTM)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with two checkpoints."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    assert train(CONFIG, run_dir) == 0
    assert train(dataclasses.replace(CONFIG, total_env_steps=600), run_dir, resume=True) == 0
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(trained, tmp_path / "run")


def steps(run_dir):
    with Checkpointer(run_dir / "checkpoints") as saves:
        return saves.steps()


def flip_a_byte(item_dir):
    largest = max(
        (path for path in item_dir.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def play_alone(run_dir, slot, num_episodes, seed=0):
    """Returns and lengths of a slot's first episodes, one step at a time, by the published policy."""
    policy = load_policy(run_dir)
    environment = make_environment(CONFIG.env)
    env_state, timestep = environment.reset(
        slot_keys(seed, Stream.EVALUATION_ENVIRONMENT, jnp.array([slot], jnp.int32))
    )
    step = jax.jit(environment.step)
    state = policy.initial_state(1)
    returns, lengths = [], []
    while len(returns) < num_episodes:
        if timestep.step_type[0] == StepType.FIRST:
            total, length = 0.0, 0
        action, state = policy.step(timestep, state)
        env_state, timestep = step(env_state, action)
        if timestep.step_type[0] != StepType.FIRST:
            total, length = total + float(timestep.reward[0]), length + 1
        if timestep.step_type[0] == StepType.LAST:
            returns.append(total)
            lengths.append(length)
    return returns, lengths


def test_every_slot_plays_the_same_number_of_episodes():
    for num_episodes in (*range(1, 600), 10_000, 10_007):
        slots = num_evaluation_slots(num_episodes)
        assert 1 <= slots <= 256 and num_episodes % slots == 0
    assert [num_evaluation_slots(n) for n in (1, 128, 256, 512, 300)] == [1, 128, 256, 256, 150]


def test_evaluation_is_the_policy_played_episode_by_episode(trained, monkeypatch):
    monkeypatch.setattr(evaluate_module, "_MAX_SLOTS", 3)
    monkeypatch.setattr(evaluate_module, "_CHUNK", 7)
    result = evaluate_run(trained, num_episodes=12)
    assert result.returns.shape == result.lengths.shape == (12,)
    assert -1.0 < result.returns.mean() < 1.0, "all episodes alike would prove nothing"
    for slot in range(3):
        returns, lengths = play_alone(trained, slot, 4)
        mine = slice(4 * slot, 4 * slot + 4)
        assert result.returns[mine].tolist() == returns
        assert result.lengths[mine].tolist() == lengths == [3, 3, 3, 3]


def test_short_episodes_are_not_favoured(trained, monkeypatch):
    # Were the first episodes to end counted, a mean over slots of unequal pace would lean to the quick.
    monkeypatch.setattr(evaluate_module, "_MAX_SLOTS", 8)

    class Uneven:
        """Slots' episodes last 1 or 40 steps, reward 1 a step; the environment's seed decides."""

        spec = dataclasses.replace(make_environment(CONFIG.env).spec, max_episode_steps=40)

        def reset(self, keys):
            long = jax.vmap(lambda key: jax.random.bernoulli(key))(keys)
            state = (jnp.where(long, 40, 1), jnp.zeros(keys.shape, jnp.int32), jnp.ones(keys.shape, bool))
            return state, self._timestep(jnp.zeros(keys.shape, jnp.int8), jnp.zeros(keys.shape))

        def step(self, state, action):
            limit, time, _ = state
            over = time >= limit
            time = jnp.where(over, 0, time + 1)
            step_type = jnp.where(over, 0, jnp.where(time >= limit, 2, 1)).astype(jnp.int8)
            return (limit, time, over), self._timestep(step_type, jnp.where(over, 0.0, 1.0))

        def _timestep(self, step_type, reward):
            shape = (*step_type.shape, CONFIG.env.settings["rows"], CONFIG.env.settings["columns"])
            discount = jnp.where(step_type == 2, 0.0, 1.0)
            return TimeStep(step_type, reward, discount, jnp.zeros(shape))

    agent = make_agent(
        CONFIG.agent, CONFIG.network, make_environment(CONFIG.env).spec, num_slots=CONFIG.env.num_envs
    )
    params = agent.acting(jax.jit(agent.init)(jax.random.key(0, impl="threefry2x32")))
    result = evaluate_module.evaluate(agent, Uneven(), params, num_episodes=24, seed=0)  # type: ignore[arg-type]
    by_slot = result.returns.reshape(8, 3)
    assert set(by_slot[:, 0]) == {1.0, 40.0}
    assert (by_slot == by_slot[:, :1]).all()
    np.testing.assert_array_equal(result.returns, result.lengths)


def test_an_endless_episode_is_refused(trained, monkeypatch):
    monkeypatch.setattr(evaluate_module, "_CHUNK", 7)
    agent, environment, _, params = restore_acting(trained)
    spec = dataclasses.replace(environment.spec, max_episode_steps=1)
    monkeypatch.setattr(type(environment), "spec", spec)
    with pytest.raises(UserError, match="at most 1 steps"):
        evaluate_module.evaluate(agent, environment, params, num_episodes=2, seed=0)


def test_a_seed_gives_its_episodes_again(trained):
    one, again, other = (evaluate_run(trained, num_episodes=64, seed=seed) for seed in (5, 5, 6))
    assert one.to_json_object() == again.to_json_object()
    assert one.returns.tolist() != other.returns.tolist()
    assert one.params_sha256 == other.params_sha256


def test_evaluation_reads_only_the_acting_item(trained, run_dir):
    newest = steps(run_dir)[-1]
    for item in ("learner", "loop"):
        shutil.rmtree(run_dir / "checkpoints" / str(newest) / item)
    for name in ("metrics.jsonl", "learning_curve.png"):
        (run_dir / name).unlink()
    before = sorted(run_dir.rglob("*"))
    result = evaluate_run(run_dir, num_episodes=8)
    assert result.to_json_object() == evaluate_run(trained, num_episodes=8).to_json_object()
    assert result.checkpoint_step == result.env_steps == newest == read_metrics(trained)[-1]["env_steps"]
    assert sorted(run_dir.rglob("*")) == before


def test_a_damaged_checkpoint_gives_way_to_the_one_before(trained, run_dir):
    older, newest = steps(run_dir)
    expected = evaluate_run(trained, num_episodes=8, step=older)
    assert expected.checkpoint_step == older
    flip_a_byte(run_dir / "checkpoints" / str(newest) / "acting")
    with pytest.warns(UserWarning, match=f"checkpoint {newest} is damaged and skipped"):
        result = evaluate_run(run_dir, num_episodes=8)
    assert result.to_json_object() == expected.to_json_object()
    with pytest.raises(UserError, match=f"checkpoint {newest}: expected an intact checkpoint"):
        evaluate_run(run_dir, num_episodes=8, step=newest)
    flip_a_byte(run_dir / "checkpoints" / str(older) / "acting")
    with pytest.warns(UserWarning), pytest.raises(UserError, match="expected an intact checkpoint"):
        evaluate_run(run_dir, num_episodes=8)


def test_params_sha256_is_of_what_acts(trained):
    policies = {evaluate_run(trained, num_episodes=1, step=step).params_sha256 for step in steps(trained)}
    assert len(policies) == 2
    environment = make_environment(CONFIG.env)
    agent = make_agent(CONFIG.agent, CONFIG.network, environment.spec, num_slots=CONFIG.env.num_envs)
    target = jax.eval_shape(lambda: agent.acting(agent.init(jax.random.key(0, impl="threefry2x32"))))
    with Checkpointer(trained / "checkpoints") as saves:
        _, params = saves.restore("acting", target)
    assert tree_sha256(params) in policies


def test_another_environment_must_have_the_same_spec(trained):
    with pytest.raises(UserError, match=r"--env gymnax:CartPole-v1: observation: expected .*same spec"):
        evaluate_run(trained, num_episodes=1, env="gymnax:CartPole-v1")


def hosted_board(num_envs=1):
    return HostedEnvironment(make_environment(CONFIG.env), num_envs)


def test_a_video_shows_one_episode(trained, tmp_path, capsys):
    path = tmp_path / "episode.gif"
    path.write_bytes(b"old")
    words = [
        "evaluate",
        str(trained),
        "--episodes",
        "1",
        "--env",
        f"{__name__}:hosted_board",
        "--video",
        str(path),
    ]
    assert cli.main(words) == 0
    assert f"{path}: 3 steps, return " in capsys.readouterr().out
    with Image.open(path) as video:
        assert len(ImageSequence.all_frames(video)) == 4 and video.size == (159, 212)
        for row in range(4):
            video.seek(row)
            board = np.asarray(video.convert("L"))[26::53, 26::53]
            assert board.shape == (4, 3) and (board[row] > 200).any(), "the ball falls a row a step"
    assert [*tmp_path.iterdir()] == [path]


def test_json_comes_last_and_whole(trained, capsys):
    assert cli.main(["evaluate", str(trained), "--episodes", "8", "--seed", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.keys() >= {
        "num_episodes", "return_mean", "return_std", "return_median", "length_mean", "returns", "env_steps",
        "checkpoint_step", "params_sha256",
    }  # fmt: skip
    assert found["num_episodes"] == len(found["returns"]) == 8
    assert found["return_mean"] == np.mean(found["returns"])
    assert found["return_std"] == np.std(found["returns"])
    assert found["return_median"] == np.median(found["returns"])
    assert found["length_mean"] == 3.0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--step", "17"], "expected checkpoint 17"),
        (["--env", "zerocopy:Cacth"], "did you mean Catch"),
        (["--episodes", "0"], "--episodes"),
        (["--video", "DIR.gif"], "expected a file, found a folder"),
    ],
)
def test_mistakes_are_one_line(trained, tmp_path, capsys, words, named):
    (tmp_path / "DIR.gif").mkdir()
    words = [word.replace("DIR", str(tmp_path / "DIR")) for word in words]
    assert cli.main(["evaluate", str(trained), *words]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and named in errors


def test_a_policy_acts_on_numpy_timesteps(trained):
    policy = load_policy(trained)
    assert policy.spec.observation.shape == (4, 3)
    state = policy.initial_state(3)
    boards = np.zeros((3, 4, 3), np.float32)
    boards[:, 0, 0] = boards[:, 3, 1] = 1.0
    first = TimeStep(np.zeros(3, np.int8), np.zeros(3, np.float32), np.ones(3, np.float32), boards)
    middle = first._replace(step_type=np.ones(3, np.int8))

    action, state = policy.step(first, state)
    assert action.shape == (3,) and set(np.asarray(action)) <= {0, 1, 2} and len(set(np.asarray(action))) == 1
    begun = jax.tree.leaves(state.recurrent)
    _, state = policy.step(middle, state)
    gone_on = jax.tree.leaves(state.recurrent)
    assert any((a != b).any() for a, b in zip(begun, gone_on, strict=True))
    # FIRST forgets what was before, in its slot alone.
    mixed = first._replace(step_type=np.array([0, 1, 1], np.int8))
    _, state = policy.step(mixed, state)
    for a, b in zip(begun, jax.tree.leaves(state.recurrent), strict=True):
        np.testing.assert_allclose(a[0], b[0], atol=1e-6)
    core = np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(state.recurrent.core)], -1)
    assert (core[0] != core[1]).any() and (core[1] == core[2]).all()


def test_a_policy_refuses_what_does_not_fit_its_spec(trained):
    policy = load_policy(trained)
    state = policy.initial_state(3)
    fitting = TimeStep(np.zeros(3, np.int8), np.zeros(3), np.ones(3), np.zeros((3, 4, 3)))  # float64 may pass
    policy.step(fitting, state)
    boards = r"^timestep\.observation: expected float32\[3, 4, 3\], .* found "
    for change, message in (
        ({"observation": np.zeros((3, 5, 3), np.float32)}, boards + r"float32\[3, 5, 3\]$"),
        ({"observation": np.zeros((4, 3), np.float32)}, boards + r"float32\[4, 3\]$"),
        ({"observation": np.zeros((3, 4, 3), np.uint8)}, boards + r"uint8\[3, 4, 3\]$"),
        ({"observation": {"board": np.zeros((3, 4, 3))}}, r"expected timestep.observation, .*board; give it"),
        ({"reward": 0.0}, r"^timestep\.reward: expected shape \[3\], .* found shape \[\]$"),
    ):
        with pytest.raises(UserError, match=message):
            policy.step(fitting._replace(**change), state)


def test_a_policy_of_an_older_checkpoint(trained):
    older, _ = steps(trained)
    assert load_policy(str(trained), step=older).spec == load_policy(trained).spec
    with pytest.raises(UserError, match="expected checkpoint 3"):
        load_policy(trained, step=3)
