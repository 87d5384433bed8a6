import pytest

from zerocopy_envs import UserError
from zerocopy_seed.config import EnvConfig
from zerocopy_seed.loops.environments import make_environment


def test_an_environment_on_the_host_is_refused_in_one_line():
    with pytest.raises(UserError) as caught:
        make_environment(EnvConfig(name="gymnasium:CartPole-v1"))
    message = str(caught.value)
    assert "env.name = 'gymnasium:CartPole-v1'" in message and "steps on the host" in message
    assert "\n" not in message
