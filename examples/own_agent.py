"""An agent of your own: here advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783) as pure functions.

python examples/own_agent.py    # trains Catch on the device, then plays 128 episodes
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from zerocopy_envs import make
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import types
from zerocopy_seed.loops import on_device
from zerocopy_seed.loops.evaluate import EvaluationResult, evaluate
from zerocopy_seed.ops import counters, distributions
from zerocopy_seed.ops.random import next_uniforms
from zerocopy_seed.ops.vtrace import vtrace


def make_actor_critic(spec, learning_rate=5e-3, discount=0.99, entropy_cost=0.01) -> types.Agent:
    """The functions that an agent is. They jit nothing, log nothing and keep nothing: the loop does."""
    policy, optimizer = distributions.make_distribution(spec.action), optax.adam(learning_rate)
    network = nn.Sequential([nn.Dense(64), nn.tanh, nn.Dense(policy.num_params + 1)])

    def policy_and_value(params, board):  # [..., rows, columns] -> [..., P], [...]
        output = network.apply(params, board.reshape(*board.shape[:-2], -1))
        return output[..., :-1], output[..., -1]

    def init(key):
        params = network.init(key, jnp.zeros(spec.observation.shape).reshape(-1))
        counts = counters.make_counter(), counters.make_counter()
        return types.LearnerState(params, optimizer.init(params), (), (), (), key, *counts, settings={})

    def initial_state(keys, slots):  # of an agent that remembers nothing
        recurrent = types.RecurrentState(core=(), frames=(), last_action=jnp.full(slots.shape, -1, jnp.int32))
        return types.AgentState(recurrent, types.Exploration(keys))

    def act(params, state, timestep, mode):
        logits, _ = policy_and_value(params.network, timestep.observation)
        key, uniforms = next_uniforms(state.exploration.key, policy.num_uniforms)
        action = policy.mode(logits) if mode is types.Mode.EVALUATE else policy.sample(logits, uniforms)
        return action, (), state._replace(exploration=types.Exploration(key))

    def loss(params, timestep, action, valid):  # [T+1, B], [T, B], [T, B]
        logits, values = policy_and_value(params, timestep.observation)
        # On the policy that acted, V-trace's targets are the returns up to the unroll's end.
        baseline, discounts = jax.lax.stop_gradient(values), discount * timestep.discount[1:]
        returns = vtrace(baseline, timestep.reward[1:], discounts, jnp.zeros(valid.shape), valid)
        actor = -returns.advantages * policy.log_prob(logits[:-1], action)
        critic = 0.5 * jnp.square(returns.targets - values[:-1])
        return jnp.mean(actor + critic - entropy_cost * policy.entropy(logits[:-1]), where=valid)

    def learn(state, trajectory):
        valid = types.valid_transitions(trajectory.timestep.step_type)  # the step that follows a LAST is not
        value, grads = jax.value_and_grad(loss)(state.params, trajectory.timestep, trajectory.action, valid)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        return state._replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            env_steps=counters.increment(state.env_steps, valid.sum(dtype=jnp.int32)),
            num_updates=counters.increment(state.num_updates, jnp.int32(1)),
        ), {"loss": value}

    return types.Agent(init, lambda state: types.ActingParams(state.params), initial_state, act, learn)


def main(num_updates: int = 300, seed: int = 0) -> EvaluationResult:
    environment = Vectorized(make("zerocopy:Catch"))
    agent = make_actor_critic(environment.spec)
    state = jax.jit(lambda: on_device.init_train_state(agent, environment, seed, num_envs=64))()
    dispatch = on_device.make_dispatch(on_device.make_update(agent, environment, unroll_length=20), ["loss"])
    state, _ = jax.jit(dispatch, donate_argnums=0)(state, on_device.make_window(num_metrics=1), num_updates)
    return evaluate(agent, environment, agent.acting(state.learner), num_episodes=128, seed=seed)


if __name__ == "__main__":
    print(main())
