"""The repository's root is the package `troupe`; its folders are the subpackages."""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).parent
ROOT_MODULES = ("__init__", "__main__")
FLOORS = ("environments", "partitioning", "agents", "launch", "baselines")


#: Studies that no command of a user needs.
LABORATORY = "troupe.baselines.speed.laboratory"


def packages() -> list[str]:
    """`troupe` and every folder with an `__init__.py` on one of its floors, but the laboratory."""
    inits = (path for floor in FLOORS for path in sorted((ROOT / floor).rglob("__init__.py")))
    names = [".".join(("troupe", *path.parent.relative_to(ROOT).parts)) for path in inits]
    return ["troupe", *(name for name in names if name != LABORATORY)]


class BuildPy(build_py):
    """Keeps the wheel's root to what is the package's: setup.py and its like stay out of it."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        if package == "troupe":
            modules = [module for module in modules if module[1] in ROOT_MODULES]
        return modules


setup(
    packages=packages(),
    package_dir={"troupe": "."},
    package_data={"troupe": ["py.typed"]},
    cmdclass={"build_py": BuildPy},
)
