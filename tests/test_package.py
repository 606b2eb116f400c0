"""What is published: the metadata, what the wheel and the source distribution hold, where they install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import ringup

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_addresses_in_the_code_are_those_of_the_metadata() -> None:
    urls = PROJECT["urls"]
    assert urls["Documentation"] == ringup.SITE + "/"
    assert urls["Source"] == ringup.SOURCE
    assert all(url.startswith((ringup.SITE, ringup.SOURCE)) for url in urls.values())
    assert set(urls) >= {"Documentation", "Source", "Issues", "Changelog"}


def test_the_addresses_are_written_in_no_other_place_of_the_code() -> None:
    hosts = [url.split("/")[2] + "/" + url.split("/")[3] for url in (ringup.SITE, ringup.SOURCE)]
    for path in (ROOT / "src").rglob("*.py"):
        if path != ROOT / "src/ringup/version.py":
            assert not any(host in path.read_text() for host in hosts), path


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"uses: ([\w./-]+)@(\S+)(.*)")


def test_every_action_is_pinned_by_commit_with_its_version_and_jobs_have_the_least_permissions() -> None:
    used = [match for path in WORKFLOWS for match in USES.finditer(path.read_text())]
    assert len(used) > 10
    for name, commit, comment in (match.groups() for match in used):
        assert re.fullmatch(r"[0-9a-f]{40}", commit) and re.match(r" # v\d", comment), name
    assert len({match.groups() for match in used}) == len({match[1] for match in used}), "two versions of one"
    for path in WORKFLOWS:
        flow = yaml.safe_load(path.read_text())
        assert flow["permissions"] == {}
        wanted = {"id-token": "write"} if path.stem == "publish" else {}
        for name, job in flow["jobs"].items():
            assert job["permissions"] == (wanted if name == "publish" else {"contents": "read"})
    publish = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi" and "password" not in str(publish)


def test_the_workflows_run_the_versions_that_the_metadata_names() -> None:
    named = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    flow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert named <= set(flow["jobs"]["fast"]["strategy"]["matrix"]["python"])


@pytest.mark.slow
def test_the_linter_of_workflows_finds_nothing() -> None:
    tool = shutil.which("zizmor", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if not tool:
        pytest.skip("zizmor is not installed (`make dev` gets it)")
    done = subprocess.run([tool, "--offline", str(ROOT / ".github")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_the_files_for_the_source_host_are_as_their_schemas_say(schema: str, files: str) -> None:
    pytest.importorskip("check_jsonschema")
    paths = [str(path) for path in ROOT.glob(files)]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert paths and done.returncode == 0, done.stdout + done.stderr


def test_an_issue_asks_for_the_bundle_and_says_what_is_in_it() -> None:
    for name in ("bug", "hang"):
        text = " ".join((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text().split())
        for words in ("ringup bundle", "(hidden)", "names of hosts and users, addresses and paths stay"):
            assert words in text, name


# -- what is built -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it, where the compiler fails."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    # Of a copy: another worker may build at the same time.
    own = shutil.ignore_patterns(
        ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "runs", "*.egg-info"
    )
    copy = shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "ringup", ignore=own, symlinks=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "CC": "false", "CXX": "false"}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.mark.slow
def test_the_distributions_pass_the_index_s_checks(built: Path) -> None:
    pytest.importorskip("twine")
    files = [str(path) for path in sorted(built.iterdir())]
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ringup"}
    assert "ringup/py.typed" in names and not any(name.endswith((".c", ".so")) for name in names)
    here = ROOT / "src" / "ringup"
    wanted = {f"ringup/{path.relative_to(here)}" for path in here.rglob("*.*") if path.suffix in DATA}
    assert wanted <= set(names)


DATA = (".py", ".j2", ".json", ".txt")


@pytest.mark.slow
def test_the_source_distribution_can_run_its_own_tests(built: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [source] = tmp_path.iterdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/test_units.py",
            "tests/test_parse_rdma.py",
        ],
        cwd=source,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source / "src")},
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (source / "src/ringup/logs/counts/core.c").is_file()


@pytest.mark.slow
def test_an_installed_wheel_without_the_c_core_checks_this_machine(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    venv.create(tmp_path / "env", system_site_packages=False, with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True
    ).stdout.strip()
    zipfile.ZipFile(wheel).extractall(site)
    (Path(site) / "dependencies.pth").write_text(
        "\n".join(p for p in sys.path if p.endswith("site-packages"))
    )
    done = subprocess.run(
        [python, "-E", "-m", "ringup", "check", "--local", "2"], cwd=tmp_path, capture_output=True, text=True
    )
    # Without a torch in any of these interpreters that is an error of the check.
    assert done.returncode == (1 if "torch-missing" in done.stdout else 0), done.stdout + done.stderr
    assert "2 nodes" in done.stdout
    found = subprocess.run(
        [python, "-E", "-c", "import ringup; print(ringup.__file__)"], capture_output=True, text=True
    )
    assert found.stdout.strip().startswith(site)
