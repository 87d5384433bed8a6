"""Which devices learn and which act for actors."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from zerocopy_envs.errors import UserError
from zerocopy_seed import hosts
from zerocopy_seed.config import DevicesConfig
from zerocopy_seed.loops.layout import DATA_AXIS, MODEL_AXIS, TRAJECTORY_SPECS, lay_out, of_all_hosts


def make_mesh(config: DevicesConfig) -> Mesh | None:
    """Of the devices that learn, the first ones of every host; None for one.

    Raises:
      UserError: there are not so many, or hosts would have unequal parts.
    """
    _require_devices("devices.learner", config.learner)
    _require_devices("devices.model", config.model, config.learner)
    if config.learner % hosts.count():
        raise UserError(
            "devices.learner",
            expected=f"a multiple of {hosts.count()}, the number of hosts",
            found=str(config.learner),
        )
    num_local = _num_local(config)
    of_hosts = (jax.local_devices(process_index=host)[:num_local] for host in range(hosts.count()))
    devices = np.array(list(itertools.chain(*of_hosts)))
    if config.model > 1:
        return Mesh(devices.reshape(config.learner, config.model), (DATA_AXIS, MODEL_AXIS))
    return Mesh(devices, (DATA_AXIS,)) if config.learner > 1 else None


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a run whose environments are in actors learns and acts.

    Attributes:
      mesh: of the devices that learn; None for one.
      inference: the device that acts.
    """

    mesh: Mesh | None
    inference: Any

    def to_learner(self, trajectory: Any) -> Any:
        """A Trajectory that lies on the device that acts, of this host's slots, where `learn` wants it."""
        if self.mesh is not None and hosts.count() > 1:
            return of_all_hosts(TRAJECTORY_SPECS, trajectory, self.mesh)
        if self.mesh is not None:
            return lay_out(TRAJECTORY_SPECS, trajectory, self.mesh)
        first = jax.devices()[0]
        moves = self.inference != first
        return jax.device_put(trajectory, SingleDeviceSharding(first)) if moves else trajectory

    def to_inference(self, params: Any) -> Any:
        """What acting reads, which lies where it was learned, on the device that acts."""
        if hosts.count() > 1:
            params = jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
        moves = self.mesh is not None or self.inference != jax.devices()[0]
        return jax.device_put(params, self.inference) if moves else params


def place_bridge(config: DevicesConfig) -> Placement:
    """The devices of a run whose environments are in actors.

    Raises:
      UserError: there are not so many.
    """
    mesh = make_mesh(config)
    _require_devices(
        "devices.inference",
        config.inference,
        besides=_num_local(config),
        available=jax.local_device_count(),
    )
    return Placement(mesh, jax.local_devices()[_num_local(config) if config.inference else 0])


def _num_local(config: DevicesConfig) -> int:
    """How many of this host learn."""
    return config.num_learning // hosts.count()


def _require_devices(
    field: str, count: int, times: int = 1, besides: int = 0, available: int | None = None
) -> None:
    available = jax.device_count() if available is None else available
    if count and count * times + besides > available:
        others = f", besides the {besides} that learn" if besides else ""
        others += f", with devices.learner = {times}" if times > 1 else ""
        raise UserError(
            field,
            expected=f"at most {(available - besides) // times}: there are {available} "
            f"{jax.default_backend()} devices{others}",
            found=str(count),
        )
