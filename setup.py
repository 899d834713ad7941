"""Leaves the tests out of the wheel. pyproject.toml says everything else about the package."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithoutTests(build_py):
    """Setuptools can exclude packages and data by configuration, but no single module."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Package, module and file of what is installed."""
        found = super().find_package_modules(package, package_dir)
        return [item for item in found if item[1] != "conftest" and not item[1].endswith("_test")]


setup(cmdclass={"build_py": BuildWithoutTests})
