"""The convolutional parts of torsos, by the names that a configuration gives them."""

from __future__ import annotations

import dataclasses

from zerocopy_envs.errors import UserError
from zerocopy_seed.networks.conv import ConvLayer, smallest_picture


@dataclasses.dataclass(frozen=True)
class Convolutions:
    """What pictures go through before they are flattened.

    Attributes:
      layers: convolutions one after the other, unpadded.
      sections: channels of residual sections (see `networks.residual`) instead.
    """

    layers: tuple[ConvLayer, ...] = ()
    sections: tuple[int, ...] = ()

    @property
    def smallest_picture(self) -> int:
        """Rows, and columns, that a picture must have."""
        return smallest_picture(self.layers)


_LAYERS = {
    # arXiv:1903.03176, sec. 3.
    "minatar_conv": (ConvLayer(16, 3, 1),),
    # Mnih et al. 2015, doi:10.1038/nature14236, methods.
    "nature_conv": (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)),
    # For pictures of about 42 x 42, where Nature's first layer would leave 9 x 9 places: each halves them.
    "halving_conv": (ConvLayer(16, 4, 2), ConvLayer(32, 4, 2), ConvLayer(32, 3, 2)),
}
_IMPALA_SECTIONS = (16, 32, 32)  # arXiv:1802.01561, fig. 3


def make_convolutions(torso: str, channels: tuple[int, ...] = ()) -> Convolutions | None:
    """The convolutions of `network.torso`; None for a torso without any.

    Args:
      torso: a value of `network.torso`.
      channels: output channels of each layer or section, `network.torso_channels`; () for the paper's. Fewer
        than a paper's layers take the first of them; there may be any number of sections.

    Raises:
      UserError: channels for a torso without convolutions, or for more layers than it has.
    """
    layers = _LAYERS.get(torso, ())
    if torso == "impala_resnet":
        return Convolutions(sections=channels or _IMPALA_SECTIONS)
    if len(channels) > len(layers):
        raise UserError(
            "network.torso_channels",
            expected=f"at most {len(layers)} for network.torso {torso}" if layers else "none",
            found=f"{len(channels)}" if layers else f"{len(channels)} and network.torso {torso}",
            remedy="leave some out" if layers else "choose a torso with convolutions",
        )
    if not layers:
        return None
    if channels:
        layers = tuple(
            layer._replace(features=features) for layer, features in zip(layers, channels, strict=False)
        )
    return Convolutions(layers)
