"""The figures of `bench bridge` are what they say; how good they are is for quiet machines."""

import pytest

from zerocopy_seed import cli
from zerocopy_seed.bench import bridge
from zerocopy_seed.bench.bridge_atari import compare_with_ale
from zerocopy_seed.bench.bridge_client import Load, Window
from zerocopy_seed.bench.bridge_streams import add_streams, stop_one


def test_ratios_are_medians_over_pairs():
    ours = [Window(2.0, [0.1] * rate, 0.4) for rate in (10, 30, 50)]
    bare = [Window(2.0, [0.2] * rate, 0.1) for rate in (20, 40, 400)]
    found = bridge.ratios(ours, bare)
    assert (found["ratio_to_grpc"], found["cpu_ratio"]) == (0.5, 0.25)
    assert (found["bridge_messages_per_s"], found["echo_messages_per_s"]) == (15, 20)
    assert (found["p50_ratio"], found["p99_ratio"]) == (0.5, 0.5)
    assert found["bridge_p99_ms"] == pytest.approx(100)


def test_messages_go_both_ways_and_what_arrives_goes_up_once():
    load = Load((3,), "uint8", rows=5, in_flight=2)
    found = bridge.compare(load, 1, num_pairs=1, window_s=0.1)
    assert found["bridge_messages_per_s"] > 0 and found["echo_messages_per_s"] > 0
    assert found["env_steps_per_s"] == 5 * found["bridge_messages_per_s"]
    assert found["bytes_up_per_byte"] == 1.0


def test_what_it_has_no_use_for_is_refused(capsys):
    assert cli.main(["bench", "bridge", "--num-envs", "4"]) == 2
    assert capsys.readouterr().err.startswith("bench bridge: --num-envs: expected none")


@pytest.mark.slow
def test_pong_beside_ale():
    found = compare_with_ale(num_pairs=1, window_s=0.3, num_envs=4)
    assert min(found["bridge_env_steps_per_s"], found["ale_env_steps_per_s"]) > 0


@pytest.mark.slow
def test_streams_compile_nothing_and_take_little():
    found = add_streams(window_s=0.2)
    assert found["programs_compiled"] == 0
    assert found["kb_per_idle_stream"] < 150


@pytest.mark.slow
def test_a_stopped_actor_stops_nobody():
    found = stop_one(num_pairs=1, window_s=0.3)
    assert min(found["env_steps_per_s"], found["third_env_steps"]) > 0
