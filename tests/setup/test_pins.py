"""pyproject.toml says what is needed, requirements.lock what was tested, environment.yml the same for conda."""

import functools
import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def names(requirements):
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locked():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return names(Requirement(line) for line in lines if line and not line.startswith("#"))


def version(requirement):
    """Return the version of an exact pin; anything else is an error."""
    (only,) = requirement.specifier
    assert only.operator == "==", f"{requirement} is no exact pin"
    return Version(only.version)


def pip_section():
    """Return the lines under `- pip:` of environment.yml: pip reads them as a requirements file."""
    _, _, section = (ROOT / "environment.yml").read_text(encoding="utf-8").partition("  - pip:\n")
    lines = section.splitlines()
    assert lines
    assert all(line.startswith("      - ") for line in lines), "the section must end the file"
    return [line.removeprefix("      - ") for line in lines]


def test_every_requirement_is_pinned_inside_its_range():
    needed = [
        Requirement(text) for text in project()["dependencies"] + project()["optional-dependencies"]["dev"]
    ]
    assert needed
    pins = locked()
    wrong = [
        f"{need} has {pins.get(canonicalize_name(need.name))}"
        for need in needed
        if canonicalize_name(need.name) not in pins
        or not need.specifier.contains(version(pins[canonicalize_name(need.name)]))
    ]
    assert wrong == []


def test_every_pin_is_exact_and_fits_every_machine():
    """`torch==2.13.0` accepts both 2.13.0+cpu and PyPI's build; its GPU libraries exist for some machines only."""
    pins = locked()
    assert [str(pin) for pin in pins.values() if version(pin).local] == []
    assert [name for name in pins if name.startswith(("nvidia", "cuda", "triton"))] == []
    assert [str(pin) for pin in pins.values() if pin.url] == []


def test_no_package_is_pinned_twice():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(locked())


def test_conda_gets_the_same_pins():
    lines = pip_section()
    pinned = names(Requirement(line) for line in lines if not line.startswith("--"))
    assert {name: version(pin) for name, pin in pinned.items()} == {
        name: version(locked()[name]) for name in names(map(Requirement, project()["dependencies"]))
    }
    assert [line for line in lines if line.startswith("--")] == [
        "--constraint requirements.lock",
        "--editable .",
    ]


def test_conda_gets_a_python_that_the_project_accepts():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    (python,) = re.findall(r"^  - python=(.+)$", text, flags=re.MULTILINE)
    assert Requirement(f"python{project()['requires-python']}").specifier.contains(python)


# What torch brings besides: GPU libraries, as its build needs them, and setuptools, of which any new one will do.
UNPINNED = ("nvidia", "cuda", "triton", "setuptools")
MACHINES = [
    {
        "sys_platform": system,
        "platform_system": name,
        "python_version": python,
        "python_full_version": f"{python}.2",
    }
    for system, name in [("linux", "Linux"), ("darwin", "Darwin")]
    for python in ["3.11", "3.12", "3.13", "3.14"]
]


@functools.cache
def needs(name):
    """Return what an installed package asks for; nothing for those that are not installed on this machine."""
    try:
        return [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        assert locked()[name].marker, f"{name} is pinned for every machine but not installed"
        return []


def closure(roots, machine):
    """Return all requirements that follow from `roots` on one machine, in chains of any length."""
    found, todo = set(), list(roots)
    while todo:
        found.add(need := todo.pop())
        for extra in need.extras or {""}:
            wanted = {
                below
                for below in needs(canonicalize_name(need.name))
                if below.marker is None or below.marker.evaluate({**machine, "extra": extra})
            }
            todo += wanted - found
    return {need for need in found if not need.name.startswith(UNPINNED)}


def test_the_lock_pins_everything_that_is_installed_and_nothing_else():
    roots = [
        Requirement(text) for text in project()["dependencies"] + project()["optional-dependencies"]["dev"]
    ]
    found = set().union(*(closure(roots, machine) for machine in MACHINES))
    pins = locked()
    assert set(names(found)) == set(pins)
    pinned = {need: pins[canonicalize_name(need.name)] for need in found}
    assert [
        f"{need}, {pin}" for need, pin in pinned.items() if not need.specifier.contains(version(pin))
    ] == []
