import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import BoundedAction
from zerocopy_seed.ops.distributions import make_distribution
from zerocopy_seed.ops.distributions.squashed_gaussian import MIN_STD, inverse_softplus, standard_normal

TWO = make_distribution(BoundedAction((2,)))


def params_of(mean, std):
    """[..., 2 A] for means and deviations [..., A]."""
    x = np.vectorize(lambda value: inverse_softplus(value - MIN_STD))(std)
    return jnp.asarray(np.concatenate([mean, x], -1), jnp.float32)


def density(action, mean, std):
    """Of tanh(u), u ~ N(mean, std^2): the derivative of its distribution function, by differences."""
    step = 1e-6

    def below(a):
        return 0.5 * (1 + math.erf((math.atanh(a) - mean) / (std * math.sqrt(2))))

    return (below(action + step) - below(action - step)) / (2 * step)


def test_log_prob_is_that_of_the_squashed_action():
    mean, std = np.array([0.4, -1.0]), np.array([0.5, 1.2])
    actions = np.array([[0.3, -0.9], [-0.5, 0.2], [0.97, -0.05]])
    expected = [sum(math.log(density(*number)) for number in zip(a, mean, std, strict=True)) for a in actions]
    params = jnp.broadcast_to(params_of(mean, std), (3, 4))
    raw = jnp.asarray(np.arctanh(actions), jnp.float32)
    np.testing.assert_allclose(TWO.log_prob(params, raw), expected, atol=1e-4)
    np.testing.assert_allclose(TWO.to_action(raw), actions, atol=1e-6)


def test_equal_parameters_give_a_ratio_of_one_where_the_action_rounds_to_one():
    raw = jnp.array([np.arctanh(0.999), np.arctanh(0.9999), 9.0, 12.0, 30.0])
    raw = jnp.stack([raw, -raw], -1)
    params = jnp.broadcast_to(params_of(np.array([0.7, -0.2]), np.array([0.3, 2.0])), (5, 4))
    # Compiled alone as acting is, and within a gradient as learning is.
    behaviour = jax.jit(TWO.log_prob)(params, raw)
    target, gradient = jax.jit(
        jax.value_and_grad(lambda params: (lambda x: (x.sum(), x))(TWO.log_prob(params, raw)), has_aux=True)
    )(params)
    np.testing.assert_allclose(np.exp(target[1] - behaviour), 1.0, atol=1e-5)
    assert np.isfinite(behaviour).all() and np.isfinite(gradient).all()
    assert (np.abs(TWO.to_action(raw)) <= 1).all() and abs(TWO.to_action(raw)[-1, 0]) == 1


@pytest.mark.parametrize("mean, std", [(0.0, 0.1), (0.3, 0.5), (-1.5, 1.0), (0.5, 2.0)])
def test_entropy_is_the_integral(mean, std):
    u = np.linspace(mean - 12 * std, mean + 12 * std, 100_001)
    weights = np.exp(-0.5 * ((u - mean) / std) ** 2)
    weights /= weights.sum()
    log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    expected = 0.5 * np.log(2 * np.pi * np.e * std**2) + (weights * log_slope).sum()
    one = make_distribution(BoundedAction(()))
    found = one.entropy(params_of(np.array([mean]), np.array([std])))
    np.testing.assert_allclose(found, expected, atol=0.06 if std == 2 else 3e-3)


def test_entropy_has_a_largest_deviation():
    # Uniform on [-1, 1] has the most, log 2; a wide Gaussian piles up at both ends.
    entropies = [float(TWO.entropy(params_of(np.zeros(2), np.full(2, std)))) for std in (0.3, 0.87, 3.0, 8.0)]
    assert entropies[0] < entropies[1] > entropies[2] > entropies[3]
    np.testing.assert_allclose(entropies[1], 2 * np.log(2), atol=0.05)


def test_samples_are_normal_and_finite_at_the_ends():
    ends = standard_normal(jnp.array([0.0, 0.5, 1 - 2**-23]))
    assert np.isfinite(ends).all() and -5.3 < ends[0] < -5 and ends[0] == -ends[2] and abs(ends[1]) < 1e-6
    count = 20_000
    uniforms = jax.random.uniform(jax.random.key(0, impl="threefry2x32"), (count, 2))
    mean, std = np.array([0.5, -2.0]), np.array([0.3, 1.5])
    params = jnp.broadcast_to(params_of(mean, std), (count, 4))
    raw = np.asarray(jax.jit(TWO.sample)(params, uniforms))
    np.testing.assert_allclose(raw.mean(0), mean, atol=0.04)
    np.testing.assert_allclose(raw.std(0), std, rtol=0.03)
    assert abs(np.corrcoef(raw.T)[0, 1]) < 0.03
    np.testing.assert_array_equal(TWO.sample(params[7:9], uniforms[7:9]), raw[7:9])
    np.testing.assert_array_equal(TWO.mode(params[0]), mean.astype(np.float32))


@pytest.mark.parametrize("shape, size", [((), 1), ((3,), 3), ((2, 3), 6)])
def test_actions_have_the_shape_of_the_spec(shape, size):
    distribution = make_distribution(BoundedAction(shape))
    assert (distribution.num_params, distribution.num_uniforms) == (2 * size, size)
    raw = distribution.sample(jnp.zeros((4, 5, 2 * size)), jnp.full((4, 5, size), 0.25))
    assert raw.shape == (4, 5, size) and distribution.to_action(raw).shape == (4, 5, *shape)
    assert distribution.log_prob(jnp.zeros((4, 5, 2 * size)), raw).shape == (4, 5)


def test_an_action_without_numbers_is_refused():
    with pytest.raises(UserError, match=r"BoundedAction\(shape=\(2, 0\)\): expected a number"):
        make_distribution(BoundedAction((2, 0)))
