"""Which optional suites are not here, so that no test of theirs is collected."""

import importlib.util
import pathlib

OPTIONAL = ("envpool", "playground", "craftax", "navix", "xminigrid", "jumanji", "pgx", "octax", "jaxtari")
_MODULES = {"playground": "mujoco_playground"}  # where it is not the suite's name


def missing_suites() -> dict[str, str]:
    """Suites whose environments cannot be made on this machine, and the command that mends it."""
    missing = {
        suite: f'pip install "zerocopy_seed[{suite}]"'
        for suite in OPTIONAL
        if importlib.util.find_spec(_MODULES.get(suite, suite)) is None
    }
    if "jaxtari" not in missing:
        import platformdirs  # comes with jaxtari

        if not (pathlib.Path(platformdirs.user_data_dir("jaxtari")) / "sprites").is_dir():
            missing["jaxtari"] = "python -m jaxtari.install_sprites"
    return missing
