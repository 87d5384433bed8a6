"""Actors, inference in a thread of its own and a learner at once, under a bound on the policy's lag."""

import asyncio
import collections
import sys
import threading

import numpy as np
import pytest
from counting_agent import PARAMS, SPEC, make_counting_agent

from zerocopy_envs.types import StepType
from zerocopy_seed.remote.drivers import LoopDriver, ThreadDriver
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.requests import make_request

NUM_STEPS, NUM_SLOTS, LENGTH, EPISODE = 300, 7, 3, 5


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("max_policy_lag", [0, 1])
def test_arrivals_race_with_inference_and_the_learner(max_policy_lag, frequent_switches):
    engine = Engine(
        make_counting_agent(),
        SPEC,
        PARAMS,
        seed=0,
        num_slots=NUM_SLOTS,
        unroll_length=LENGTH,
        max_policy_lag=max_policy_lag,
        max_batch=8,
    )
    engine.warm_up()
    num_answers: collections.Counter = collections.Counter()
    is_done, failures = threading.Event(), []
    num_updates = num_unrolls = 0

    def learn():
        nonlocal num_updates, num_unrolls
        while not is_done.is_set():
            if (found := engine.take(0.01)) is not None:
                engine.publish(PARAMS, found.slot)
                num_updates, num_unrolls = num_updates + 1, num_unrolls + len(found.slot)

    async def act(driver, slots, rng):
        loop = asyncio.get_running_loop()
        for t in range(NUM_STEPS):
            kind = [StepType.FIRST, *[StepType.MID] * (EPISODE - 2), StepType.LAST][t % EPISODE]
            step_type = np.full(len(slots), kind, np.int8)
            zeros, name = np.zeros(len(slots), np.float32), (int(slots[0]), t)
            answered = loop.create_future()

            def answer(actions, name=name, answered=answered):
                num_answers[name] += 1
                if not answered.done():
                    answered.set_result(actions)

            observation = np.zeros((len(slots), 2), np.int32)
            request = make_request(slots, step_type, zeros, zeros, (observation,), answer)
            assert engine.check(request) is None
            engine.add(request)
            driver.notify()
            actions = await asyncio.wait_for(answered, 20)
            np.testing.assert_array_equal(actions, 101 + t % EPISODE)
            for _ in range(int(rng.integers(3))):
                await asyncio.sleep(0)
            if rng.random() < 0.02:
                await asyncio.sleep(1e-3)
        engine.close_slots(slots)  # the others need not wait for it

    async def act_all():
        driver = ThreadDriver(engine, asyncio.get_running_loop(), failures.append)
        engine.wake = driver.notify
        try:
            actors = [(engine.open_slots(count) or pytest.fail("no slots"))[0] for count in (1, 3, 1, 2)]
            async with asyncio.TaskGroup() as group:
                for slots in actors:
                    group.create_task(act(driver, slots, np.random.default_rng(int(slots[0]))))
        finally:
            await asyncio.to_thread(driver.close)
        return actors

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        actors = asyncio.run(act_all())
    finally:
        is_done.set()
        learner.join()
    assert not failures
    assert num_answers == {(int(slots[0]), t): 1 for slots in actors for t in range(NUM_STEPS)}
    assert engine.figures()["policy_lag_max"] <= max_policy_lag
    assert num_updates >= NUM_STEPS // LENGTH - 1
    assert num_unrolls >= NUM_SLOTS * (NUM_STEPS // LENGTH - 1 - max_policy_lag)


@pytest.mark.parametrize("make_driver", [LoopDriver, ThreadDriver])
def test_an_answer_that_cannot_be_given_ends_the_serving(make_driver):
    engine = Engine(
        make_counting_agent(),
        SPEC,
        PARAMS,
        seed=0,
        num_slots=1,
        unroll_length=LENGTH,
        max_policy_lag=np.inf,
        max_batch=8,
    )

    async def ask():
        failed = asyncio.get_running_loop().create_future()
        driver = make_driver(engine, asyncio.get_running_loop(), failed.set_result)

        def answer(actions):
            raise ValueError("actions of a dtype that is not the format's")

        slots, _ = engine.open_slots(1) or pytest.fail("no slots")
        zeros = np.zeros(1, np.float32)
        step_type = np.array([StepType.FIRST], np.int8)
        engine.add(make_request(slots, step_type, zeros, zeros, (np.zeros((1, 2), np.int32),), answer))
        driver.notify()
        try:
            return await asyncio.wait_for(failed, 20)
        finally:
            await asyncio.to_thread(driver.close)

    assert "dtype" in str(asyncio.run(ask()))
