import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.types import DiscreteAction, MultiDiscreteAction
from zerocopy_seed.ops.distributions import apply_action_mask, make_distribution

INF = float("inf")


def draw(distribution, params):
    """One sample per row, jitted."""
    key = jax.random.key(0, impl="threefry2x32")
    uniforms = jax.random.uniform(key, (*params.shape[:-1], distribution.num_uniforms))
    return jax.jit(distribution.sample)(params, uniforms)


def frequencies(actions, num_values):
    return np.bincount(np.asarray(actions), minlength=num_values) / len(actions)


def test_log_prob_entropy_and_mode_of_a_categorical():
    probs = np.array([[[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]], np.float32)
    distribution = make_distribution(DiscreteAction(3))
    params = jnp.log(probs) + 7.0
    assert distribution.num_params == 3
    action = jnp.array([[0, 2]], jnp.int32)
    np.testing.assert_allclose(distribution.log_prob(params, action), np.log([[0.2, 0.8]]), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(params), -(probs * np.log(probs)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(params), [[1, 2]])
    assert distribution.mode(params).dtype == jnp.int32


def test_heads_are_summed_and_the_ratio_is_target_over_behaviour():
    distribution = make_distribution(MultiDiscreteAction((2, 3)))
    target = jnp.log(jnp.array([0.8, 0.2, 0.5, 0.25, 0.25]))
    behaviour = jnp.log(jnp.array([0.4, 0.6, 0.25, 0.25, 0.5]))
    steps, batch = 4, 3
    action = jnp.zeros((steps, batch, 2), jnp.int32)

    def log_prob(params):
        return distribution.log_prob(jnp.broadcast_to(params, (steps, batch, 5)), action)

    log_rho = log_prob(target) - log_prob(behaviour)
    assert log_rho.shape == (steps, batch)
    np.testing.assert_allclose(log_rho, 1.3862944, rtol=1e-5)
    entropies = [-(p * np.log(p)).sum() for p in (np.array([0.8, 0.2]), np.array([0.5, 0.25, 0.25]))]
    np.testing.assert_allclose(distribution.entropy(target[None]), [sum(entropies)], rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(target[None]), [[0, 0]])


@pytest.mark.parametrize("num_values", [2, 5, 100])
def test_samples_follow_the_probabilities(num_values):
    count = 10_000
    logits = jax.random.normal(jax.random.key(3, impl="threefry2x32"), (num_values,)) * 1.5
    distribution = make_distribution(DiscreteAction(num_values))
    params = jnp.broadcast_to(logits, (count, num_values))
    actions = draw(distribution, params)
    assert actions.dtype == jnp.int32 and actions.shape == (count,)
    probs = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(
        frequencies(actions, num_values), probs, atol=5 * np.sqrt(probs.max() / count) + 1e-4
    )


def test_heads_are_sampled_independently():
    count = 10_000
    distribution = make_distribution(MultiDiscreteAction((2, 3)))
    params = jnp.broadcast_to(jnp.log(jnp.array([0.3, 0.7, 0.2, 0.3, 0.5])), (count, 5))
    actions = draw(distribution, params)
    assert actions.shape == (count, 2)
    joint = frequencies(actions[:, 0] * 3 + actions[:, 1], 6)
    np.testing.assert_allclose(joint, np.outer([0.3, 0.7], [0.2, 0.3, 0.5]).ravel(), atol=0.03)


def test_a_draw_does_not_depend_on_the_batch():
    distribution = make_distribution(MultiDiscreteAction((3, 70)))
    uniforms = jax.random.uniform(jax.random.key(2, impl="threefry2x32"), (64, distribution.num_uniforms))
    params = jax.random.normal(jax.random.key(1, impl="threefry2x32"), (64, distribution.num_params))
    sample = jax.jit(distribution.sample)
    whole = sample(params, uniforms)
    np.testing.assert_array_equal(sample(params[10:17], uniforms[10:17]), whole[10:17])
    time_major = sample(params.reshape(4, 16, -1), uniforms.reshape(4, 16, -1))
    np.testing.assert_array_equal(time_major.reshape(whole.shape), whole)


@pytest.mark.parametrize("num_values, illegal", [(6, -INF), (90, float(np.finfo(np.float32).min))])
def test_illegal_actions_are_never_drawn(num_values, illegal):
    legal = np.array([1, 4])
    logits = jnp.full((num_values,), illegal).at[legal].set(jnp.array([0.0, -3.0]))
    distribution = make_distribution(DiscreteAction(num_values))
    count = 4000
    params = jnp.broadcast_to(logits, (count, num_values))
    actions = draw(distribution, params)
    assert set(np.unique(actions)) == set(legal)


@pytest.mark.parametrize("uniform, expected", [(0.0, 1), (1 - 2**-23, 3)])
def test_the_extreme_draws_stay_legal(uniform, expected):
    params = jnp.array([[-INF, 0.3, -INF, 0.1, -INF]])
    actions = make_distribution(DiscreteAction(5)).sample(params, jnp.full((1, 1), uniform))
    np.testing.assert_array_equal(actions, [expected])


@pytest.mark.parametrize("action", [DiscreteAction(5), MultiDiscreteAction((2, 3))])
def test_illegal_actions_leave_values_and_gradients_finite(action):
    distribution = make_distribution(action)
    rows = [[0.0, -INF, 2.0, -INF, 1.0], [-INF] * 5, [1e4, -INF, -1e4, -INF, 0.0]]
    params = jnp.repeat(jnp.array(rows), 2, axis=0)
    heads = () if isinstance(action, DiscreteAction) else (2,)
    taken = jnp.asarray(np.ones((6, *heads), np.int32) * np.arange(6).reshape(6, *(1,) * len(heads)) % 2)

    @jax.jit
    def results(params):
        functions = (distribution.entropy, lambda params: distribution.log_prob(params, taken))
        return [(f(params), jax.grad(lambda params, f=f: jnp.sum(f(params)))(params)) for f in functions]

    for array in jax.tree.leaves(results(params)):
        assert np.isfinite(array).all(), array


def test_illegal_actions_have_no_probability_and_no_share_in_the_entropy():
    distribution = make_distribution(DiscreteAction(4))
    params = jnp.array([[1.0, -INF, 2.0, -INF]])
    alone = make_distribution(DiscreteAction(2))
    np.testing.assert_allclose(distribution.entropy(params), alone.entropy(params[:, ::2]), rtol=1e-6)
    log_prob = distribution.log_prob(params, jnp.array([1]))
    assert -2e9 < log_prob[0] < -1e8
    gradient = jax.grad(lambda p: distribution.entropy(p)[0])(params)
    np.testing.assert_allclose(
        gradient[:, ::2], jax.grad(lambda p: alone.entropy(p)[0])(params[:, ::2]), rtol=1e-5
    )
    np.testing.assert_array_equal(gradient[:, 1::2], 0)


def test_a_row_without_legal_actions_is_uniform():
    distribution = make_distribution(DiscreteAction(4))
    params = jnp.full((4000, 4), -INF)
    np.testing.assert_allclose(distribution.entropy(params[:1]), [np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(distribution.log_prob(params[:1], jnp.array([2])), [-np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(frequencies(draw(distribution, params), 4), 0.25, atol=0.04)


def test_the_mask_takes_the_illegal_actions_gradient():
    distribution = make_distribution(DiscreteAction(3))
    mask = jnp.array([[True, False, True]])

    def loss(logits):
        return distribution.entropy(apply_action_mask(logits, mask))[0]

    logits = jnp.array([[0.5, 9.0, 1.0]])
    np.testing.assert_allclose(
        loss(logits), make_distribution(DiscreteAction(2)).entropy(logits[:, ::2])[0], rtol=1e-6
    )
    gradient = jax.grad(loss)(logits)
    assert gradient[0, 1] == 0 and gradient[0, 0] != 0
