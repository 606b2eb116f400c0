"""The interpreter on the nodes is that of the user's environment, never the one that a tool runner made."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import ringup
from ringup.transport.interpreters import default_interpreter, for_jobs

NEEDED = ("ClusterShell", "cffi", "cryptography", "jinja2", "markupsafe", "msgspec", "_cffi_backend")
LAYOUTS = {
    "pipx": ".local/share/pipx/venvs/ringup",
    "uv tool": ".local/share/uv/tools/ringup",
    "uvx": ".cache/uv/archive-v0/aZNtXzCiGbomFhVX",
}
ASKED = """
import json, os
from ringup.transport.interpreters import default_interpreter, for_jobs
print(json.dumps([default_interpreter(os.environ), for_jobs(os.environ)["PATH"]]))
"""


def tool_environment(place: Path, *stubs: str) -> Path:
    """An environment with ringup and what it needs in it, made without pip; `stubs` are empty packages."""
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "ringup.pth").write_text(str(Path(ringup.__file__).parents[1]))
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            found = Path(spec.origin)
            found = found.parent if found.name == "__init__.py" else found
            (site / found.name).symlink_to(found)
    for name in stubs:
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
    return place / "bin" / "python"


def asked(python: Path, **env: str) -> tuple[str, list[str]]:
    """(the interpreter that is preferred, PATH of what is started here) where PATH begins with the tool's."""
    path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        [python, "-c", ASKED], env={"PATH": path, **env}, capture_output=True, text=True, check=True
    )
    preferred, left = json.loads(done.stdout)
    return preferred, left.split(":")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tools_own_environment_is_not_where_ranks_run(layout: str, tmp_path: Path) -> None:
    python = tool_environment(tmp_path / LAYOUTS[layout])
    assert asked(python) == ("", ["/usr/local/bin", "/usr/bin", "/bin"])
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        preferred, path = asked(python, **{name: "/home/u/env"})
        assert preferred == "/home/u/env/bin/python" and str(python.parent) not in path


@pytest.mark.slow
def test_an_environment_that_has_torch_or_is_active_is_the_users(tmp_path: Path) -> None:
    with_torch = tool_environment(tmp_path / "a", "torch")
    preferred, path = asked(with_torch)
    assert Path(preferred).parent == with_torch.parent and path[0] == str(with_torch.parent)
    with_jax = tool_environment(tmp_path / "b", "jax")
    assert asked(with_jax) == ("", [str(with_jax.parent), "/usr/local/bin", "/usr/bin", "/bin"])
    active = tool_environment(tmp_path / "c")
    preferred, path = asked(active, VIRTUAL_ENV=str(tmp_path / "c"))
    assert (preferred, path[0]) == (str(active), str(active.parent))
    (tmp_path / "CACHEDIR.TAG").touch()  # `uv run --with ringup`
    assert asked(active, VIRTUAL_ENV=str(tmp_path / "c")) == ("", ["/usr/local/bin", "/usr/bin", "/bin"])


@pytest.mark.slow
def test_check_under_uvx_names_the_python_of_the_machine(tmp_path: Path) -> None:
    python = tool_environment(tmp_path / LAYOUTS["uvx"])
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    env["PATH"] = f"{python.parent}:{env['PATH']}"
    words = [python, "-m", "ringup", "check", "--local", "1", "--json"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    found = json.loads(done.stdout)["nodes"][0]["interpreter"]["path"]
    assert found.startswith("/") and not found.startswith(str(tmp_path)), done.stderr


def test_an_active_environment_comes_first_and_must_be_an_absolute_path() -> None:
    assert default_interpreter({"CONDA_PREFIX": "/opt/conda/"}) == "/opt/conda/bin/python"
    assert default_interpreter({"VIRTUAL_ENV": "relative"}) == default_interpreter({})
    assert for_jobs({"PATH": "/x", "A": "1"}) == {"PATH": "/x", "A": "1"}
    assert default_interpreter({}) in ("", sys.executable)
