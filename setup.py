"""Which packages a wheel holds; everything else about the project is in pyproject.toml.

configs/ and benchmarks/ are folders of the repository and travel inside the package, as toytf/configs and
toytf/benchmarks: names as common as these should not be installed at the top level.
"""

from setuptools import find_namespace_packages, setup

inside = find_namespace_packages(include=["configs*", "benchmarks*"])
setup(
    packages=find_namespace_packages(include=["toytf*", "tasks*", "probes*"]) + [f"toytf.{name}" for name in inside],
    package_dir={"toytf.configs": "configs", "toytf.benchmarks": "benchmarks"},
)
