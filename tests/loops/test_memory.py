"""What a run needs of memory and what there is: on abstract states, and on copies of Linux's files."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from small_runs import CATCH

from zerocopy_envs.errors import UserError
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import Config, EnvConfig, R2D2Config, VTraceConfig
from zerocopy_seed.loops import memory
from zerocopy_seed.loops.bridge import init_learner
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.memory import available_memory, check_memory, in_gigabytes, num_bytes
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.loops.serving import table_types
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.replay_layout import make_layout
from zerocopy_seed.types import LearnerState

GB = 10**9
CONFIG = Config(
    env=EnvConfig("a:b", num_envs=10),
    total_env_steps=1,
    agent=R2D2Config(unroll_length=20, period=10, sequence_length=10, replay_capacity=10_000, batch_size=1),
)


@dataclasses.dataclass
class Device:
    """A device with so many bytes; None where it does not tell."""

    bytes_limit: int | None
    device_kind: str = "H200"

    def memory_stats(self):
        return None if self.bytes_limit is None else {"bytes_limit": self.bytes_limit}


def array(size):
    return jax.ShapeDtypeStruct((size,), jnp.uint8)


# 6 times a batch of one sequence of 11 rows in float32, and twice 21 rows of 10 slots; a row has 100 kB.
UPDATE = (6 * 11 * 4 + 2 * 21 * 10) * 100_000


def make_state(config=CONFIG, row_bytes=100_000, params=2 * GB, actor=GB):
    """Types of a run whose replay has `row_bytes` for every row of every slot: 10 GB."""
    rows = 0
    if isinstance(config.agent, R2D2Config):
        rows = make_layout(config.agent, num_slots=config.env.num_envs, frame_stack=1).ring_length
    replay = {"rows": jax.ShapeDtypeStruct((config.env.num_envs, rows, row_bytes), jnp.uint8)}
    values = dict.fromkeys(LearnerState._fields, ()) | {"params": array(params), "replay": replay}
    return TrainState(LearnerState(**values), array(actor), ())  # type: ignore[arg-type]


@pytest.fixture
def available(monkeypatch):
    def set_available(size):
        monkeypatch.setattr(memory, "available_memory", lambda: size)

    set_available(None)
    return set_available


def refusal(config=CONFIG, *, devices, save_replay=False, **sizes):
    with pytest.raises(UserError) as caught:
        check_memory(config, make_state(config, **sizes), devices, save_replay=save_replay)
    message = str(caught.value)
    assert "\n" not in message
    return message


def with_capacity(replay_capacity):
    agent = dataclasses.replace(CONFIG.agent, replay_capacity=replay_capacity)  # type: ignore[type-var]
    return dataclasses.replace(CONFIG, agent=agent)


def test_bytes_of_arrays_types_and_keys():
    tree = {"a": jnp.zeros((3, 4), jnp.bfloat16), "b": jax.random.key(0, impl="threefry2x32"), "c": ()}
    assert num_bytes(tree) == num_bytes(jax.eval_shape(lambda: tree)) == 24 + 8
    assert in_gigabytes(1234 * GB) == "1,234.00 GB"


def test_what_fits_a_device_to_the_byte_passes(available):
    limit = 13 * GB + UPDATE
    check_memory(CONFIG, make_state(), [Device(limit)], save_replay=True)
    message = refusal(devices=[Device(limit - 1)])
    for words in (
        "agent.replay_capacity: expected a run of at most 13.07 GB, what H200 has",
        "found 13.07 GB (10.00 GB replay of 10000 sequences, 3.07 GB all else); use at most 9980",
    ):
        assert words in message


def test_an_update_must_fit_too(available):
    # A sequence of 11 rows takes 4.4 MB in float32.
    agent = dataclasses.replace(CONFIG.agent, batch_size=100_000)  # type: ignore[type-var]
    config = dataclasses.replace(CONFIG, agent=agent)
    message = refusal(config, devices=[Device(100 * GB)])
    assert "agent.batch_size: expected an update of at most 100.00 GB, what H200 has" in message
    assert "found 100000 sequences, with which it takes 2,640.04 GB; lower it" in message
    assert "takes 1,320.02 GB" in refusal(config, devices=[Device(100 * GB)] * 2)
    stacked = dataclasses.replace(config, network=dataclasses.replace(config.network, frame_stack=2))
    # one row more of each sequence, and each row twice
    assert "takes 5,760.04 GB" in refusal(stacked, devices=[Device(100 * GB)])


@pytest.mark.parametrize("limit", [4 * GB, 7 * GB, 12 * GB])
def test_so_many_sequences_as_it_names_fit_and_no_more(available, limit):
    fitting = int(refusal(devices=[Device(limit)]).rpartition("use at most ")[2].split(",")[0])
    check_memory(
        with_capacity(fitting), make_state(with_capacity(fitting)), [Device(limit)], save_replay=False
    )
    more = with_capacity(fitting + 1)
    with pytest.raises(UserError):
        check_memory(more, make_state(more), [Device(limit)], save_replay=False)


def test_devices_share_the_replay_and_the_slots_but_not_the_network(available):
    two = [Device(2 * GB + 5 * GB + GB // 2 + UPDATE // 2)] * 2
    check_memory(CONFIG, make_state(), two, save_replay=True)
    message = refusal(devices=[Device(two[0].bytes_limit - 1)] * 2)  # type: ignore[operator]
    assert "found 7.53 GB (5.00 GB replay of 10000 sequences, 2.53 GB all else)" in message


def test_the_host_must_hold_the_copy_on_its_way_to_a_checkpoint(available):
    devices = [Device(100 * GB)]
    available(125 * GB // 10)
    check_memory(CONFIG, make_state(), devices, save_replay=True)
    available(12 * GB)
    check_memory(CONFIG, make_state(), devices, save_replay=False)
    message = refusal(devices=devices, save_replay=True)
    assert "at most 9.80 GB, what is free here, 12.00 GB, less 2.20 GB to compile and run" in message
    assert "found 10.00 GB (10.00 GB its copy" in message
    assert "use at most 9800, or set checkpoint.replay = false" in message


def test_devices_without_memory_of_their_own_share_the_hosts(available):
    devices = [Device(None)] * 2
    check_memory(CONFIG, make_state(), devices, save_replay=True)  # nothing is known
    available(18 * GB)  # of which 15.2 GB are for it
    check_memory(CONFIG, make_state(), devices, save_replay=False)
    message = refusal(devices=devices, save_replay=True)
    assert "at most 15.20 GB, what is free here, 18.00 GB, less 2.80 GB to compile and run" in message
    assert "found 25.07 GB" in message
    assert "10.00 GB its copy while a checkpoint is saved, 5.07 GB all else" in message
    assert "use at most 5060, or set checkpoint.replay = false" in message
    available(17 * GB)
    message = refusal(devices=devices)
    assert "its copy" not in message and message.endswith(", with checkpoint.replay = false")
    message = refusal(devices=devices, save_replay=True)
    assert "checkpoint.replay" not in message


def test_a_small_run_has_its_place_on_a_small_machine(available):
    available(GB)
    config = with_capacity(1000)
    check_memory(config, make_state(config, row_bytes=1000, params=4 * 10**8, actor=0), [Device(None)],
                 save_replay=False)  # fmt: skip
    message = refusal(config, devices=[Device(None)], row_bytes=1000, params=5 * 10**8, actor=0)
    assert "at most 0.50 GB, what is free here, 1.00 GB, less 0.50 GB" in message


def test_what_is_not_the_replays_fault(available):
    for config in (CONFIG, dataclasses.replace(CONFIG, agent=VTraceConfig())):
        message = refusal(config, devices=[Device(GB)])
        assert message.startswith("env.num_envs: expected a run of at most 1.00 GB")
        assert "GB for 10 environments, the network and an update" in message
    assert "lower env.num_envs as well" in refusal(devices=[Device(3 * GB + UPDATE + 10)])


def test_what_the_bridge_keeps_is_counted():
    spec = make_environment(CATCH.env).spec
    agent = make_agent(CATCH.agent, CATCH.network, spec, num_slots=CATCH.env.num_envs)
    types = jax.eval_shape(lambda: init_learner(agent, 0))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), agent.acting(types.learner))
    engine = Engine(
        agent,
        spec,
        params,
        seed=0,
        num_slots=CATCH.env.num_envs,
        unroll_length=CATCH.agent.unroll_length,
        max_policy_lag=CATCH.bridge.max_policy_lag,
        max_batch=8,
    )
    tables, trajectory = table_types(CATCH, agent, spec, types.learner, num_slots=4)
    kept = jax.eval_shape(lambda x: x, engine.empty_trajectory())
    assert kept == trajectory
    # timesteps with a 4 x 3 board, actions and log-probabilities; last actions, slots, continues
    assert num_bytes(trajectory) == 4 * (6 * (1 + 4 + 4 + 12 * 4) + 5 * (4 + 4) + 4 + 4 + 1)
    # 12 unrolls for 4 slots, whose scalars are three int32; and keys and last actions of the slots
    assert num_bytes(tables) == 12 * (6 * (3 * 4 + 12 * 4) + 5 * (4 + 4) + 4) + 4 * (8 + 4)


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def linux(tmp_path):
    """A root whose machine has 8000 kB available."""
    write(tmp_path, proc__meminfo="MemTotal: 16000 kB\nMemFree: 1 kB\nMemAvailable:    8000 kB\n")
    return tmp_path


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_available_without_limits(linux, tmp_path):
    assert available_memory(linux) == 8_192_000
    assert available_memory(tmp_path / "elsewhere") is None


def test_available_in_a_cgroup_of_version_2(linux):
    (linux / "proc/self").mkdir()
    (linux / "proc/self/cgroup").write_text("0::/pod/box\n")
    base = linux / "sys/fs/cgroup"
    put(base / "pod/box", memory__max="max\n", memory__current="7\n")
    assert available_memory(linux) == 8_192_000
    put(
        base / "pod",
        memory__max="5000\n",
        memory__current="3000\n",
        memory__stat="file 9\ninactive_file 500\n",
    )
    assert available_memory(linux) == 2_500
    put(base / "pod/box", memory__max="1000\n", memory__current="4000\n")
    assert available_memory(linux) == 0


def test_available_in_a_cgroup_of_version_1_that_is_seen_at_the_base(linux):
    (linux / "proc/self").mkdir()
    (linux / "proc/self/cgroup").write_text("4:cpu:/other\n3:memory:/host/box\n0::/\n")
    base = linux / "sys/fs/cgroup/memory"
    put(base, memory__limit_in_bytes="9000\n", memory__usage_in_bytes="4000\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 100\n")  # fmt: skip
    assert available_memory(linux) == 5_100
    put(base / "host/box", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="4000\n")
    assert available_memory(linux) == 5_100


def test_available_here():
    available = available_memory()
    assert available is None or available > 10**6
