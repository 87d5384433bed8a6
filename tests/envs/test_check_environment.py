"""The check finds what it says it finds, and names it in one line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep, UserError
from zerocopy_envs.probes import truncated
from zerocopy_envs.testing import check_environment


class Changed:
    """A probe of 3 steps, with one thing changed."""

    def __init__(self, reset=None, step=None, spec=None):
        self._probe = truncated(3)
        self.spec = spec or self._probe.spec
        self._reset, self._step = reset or (lambda *pair: pair), step or (lambda *pair: pair)

    def reset(self, key):
        return self._reset(*self._probe.reset(key))

    def step(self, state, action):
        return self._step(*self._probe.step(state, action))


def change(**fields):
    return lambda state, timestep: (
        state,
        timestep._replace(**{key: value(timestep) for key, value in fields.items()}),
    )


def spec(**fields):
    return dataclasses.replace(truncated(3).spec, **fields)


calls = iter(range(1000))


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (Changed(reset=change(reward=lambda t: 0.0)), ["reset: reward", "weakly typed"]),
        (Changed(reset=change(reward=lambda t: jnp.asarray(0.0))), ["reset", "reward", "weakly typed"]),
        (Changed(step=change(reward=lambda t: jnp.int32(0))), ["step", "reward", "float32[]", "int32[]"]),
        (Changed(reset=change(reward=lambda t: t.reward + 1)), ["step 0", "reward", "0 at FIRST"]),
        (Changed(reset=change(discount=lambda t: t.discount * 0)), ["step 0", "discount", "1 at FIRST"]),
        (Changed(reset=change(step_type=lambda t: jnp.int8(1))), ["step 0", "FIRST from reset"]),
        (Changed(step=change(step_type=lambda t: t.step_type * 0)), ["step 1", "FIRST only"]),
        (Changed(step=change(step_type=lambda t: jnp.int8(1))), ["LAST by max_episode_steps = 3"]),
        (Changed(step=change(discount=lambda t: t.discount * 0)), ["step 1", "0 at LAST only"]),
        (Changed(step=change(discount=lambda t: t.discount * 0.9)), ["discount", "0 or 1", "0.9"]),
        (Changed(step=change(observation=lambda t: t.observation * 2)), ["observation", "<= 1.0", "2."]),
        (
            Changed(step=change(observation=lambda t: t.observation * jnp.nan)),
            ["observation", "finite", "nan"],
        ),
        (
            Changed(step=change(observation=lambda t: jnp.zeros(2))),
            ["observation", "float32[1]", "float32[2]"],
        ),
        (Changed(step=lambda s, t: (s._replace(time=s.time.astype(float)), t)), ["state", "time", "int32[]"]),
        (Changed(step=lambda s, t: ((s, s), t)), ["step", "state", "structure"]),
        (Changed(step=lambda s, t: (s, tuple(t))), ["step", "a TimeStep", "tuple"]),
        (Changed(step=lambda s, t: (s, t, {})), ["step", "a state and a TimeStep", "3 values"]),
        (Changed(step=lambda s, t: 1 // 0), ["step", "ZeroDivisionError", "test_check_environment.py"]),
        (Changed(spec=spec(observation=(4,))), ["spec.observation[0]", "ArraySpec", "int"]),
        (Changed(spec=spec(observation={"a": ArraySpec((1,), "float32")})), ["observation.a"]),
        (Changed(spec=spec(action=DiscreteAction(0))), ["spec.action", "at least one"]),
        (Changed(spec=spec(action=3)), ["spec.action", "ActionSpec", "int"]),
        (Changed(spec=spec(max_episode_steps=0)), ["max_episode_steps", ">= 1"]),
        (
            Changed(spec=spec(observation={"action_mask": ArraySpec((3,), bool)})),
            ["action_mask", "bool [2]", "bool[3]"],
        ),
        (
            Changed(step=change(reward=lambda t: jnp.float32(next(calls)))),
            ["step 1", "reward", "same under jit alone"],
        ),
        (object(), ["object", "EnvironmentSpec"]),
    ],
)
def test_names_what_is_wrong(environment, words):
    with pytest.raises(UserError) as caught:
        check_environment(environment, num_steps=12)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_an_action_after_last_that_counts_is_found():
    class Peeks(Changed):
        """Its reset takes the batch's last action from outside."""

    counter = {"value": 0}

    def reset(state, timestep):
        drawn = jax.pure_callback(
            lambda: np.float32(counter.update(value=counter["value"] + 1) or counter["value"] % 7 / 7),
            jax.ShapeDtypeStruct((), np.float32),
            vmap_method="sequential",
        )
        return state, timestep._replace(observation=timestep.observation * drawn)

    with pytest.raises(UserError, match="take all randomness from the key"):
        check_environment(Peeks(reset=reset), num_steps=12)


class HostCounter:
    """Slot i counts to i + 2 and terminates; `recv` returns the even slots, then the odd ones."""

    num_envs = 4
    spec = EnvironmentSpec(ArraySpec((1,), np.float32, 0.0, 5.0), DiscreteAction(2), max_episode_steps=5)

    def __init__(self, counts_after_last=False):
        self._counts_after_last = counts_after_last

    def reset(self, seeds):
        self._count = np.zeros(self.num_envs, np.int64)
        self._ready, self._queue = np.arange(self.num_envs), []
        return self._timestep(self._ready, np.zeros(self.num_envs, np.float32))

    def send(self, actions):
        last = self._count[self._ready] == self._ready + 2
        fresh = actions if self._counts_after_last else np.zeros_like(actions)
        self._count[self._ready] = np.where(last, fresh, self._count[self._ready] + 1)
        for parity in (0, 1):
            slots = self._ready[self._ready % 2 == parity]
            if len(slots):
                self._queue.append((slots, actions[self._ready % 2 == parity]))

    def recv(self):
        self._ready, actions = self._queue.pop(0)
        reward = np.where(self._count[self._ready] == 0, 0, actions).astype(np.float32)
        return self._ready, self._timestep(self._ready, reward)

    def close(self):
        pass

    def _timestep(self, slots, reward):
        count = self._count[slots]
        kind = np.where(count == 0, StepType.FIRST, np.where(count == slots + 2, StepType.LAST, StepType.MID))
        discount = (kind != StepType.LAST).astype(np.float32)
        return TimeStep(kind.astype(np.int8), reward, discount, count[:, None].astype(np.float32))


class HostFault(HostCounter):
    """Breaks one rule: returns a view of its buffer, lets others see slot 1, or names slots wrongly."""

    def __init__(self, fault):
        super().__init__()
        self._fault, self._buffer = fault, np.zeros((4, 1), np.float32)

    def send(self, actions):
        super().send(actions)
        self._neighbour = np.float32(actions[self._ready == 1].sum() / 4)

    def recv(self):
        slots, timestep = super().recv()
        if self._fault == "buffer":
            self._buffer[: len(slots)] = timestep.observation
            timestep = timestep._replace(observation=self._buffer[: len(slots)])
        if self._fault == "neighbour":
            timestep = timestep._replace(observation=timestep.observation + self._neighbour)
        return (slots + 1 if self._fault == "slots" else slots), timestep


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("none", None),
        ("buffer", "recv: observation: expected arrays that later calls leave alone.*return a copy"),
        ("neighbour", "slot [02]: observation: expected the same .* whatever other slots do"),
        ("slots", "recv: slots: expected different whole numbers from 0 to 3"),
    ],
)
def test_faults_of_host_environments_are_named(fault, words):
    if words is None:
        check_environment(HostFault(fault), num_steps=30)
    else:
        with pytest.raises(UserError, match=words):
            check_environment(HostFault(fault), num_steps=30)


def test_host_environments_are_checked_too():
    check_environment(HostCounter(), num_steps=30)
    with pytest.raises(UserError, match="FIRST on the step after a LAST"):
        check_environment(HostCounter(counts_after_last=True), num_steps=30)
