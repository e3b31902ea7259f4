"""The files for containers and systemd: what they name exists, and every flag and variable is augury's."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from augury.cli.command_line import make_parser
from augury.registry import Registry

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def server_flags():
    commands = make_parser(Registry.discover())._subparsers._group_actions[0].choices
    return commands["serve"].flags


def test_variables_are_flags_of_the_server(server_flags):
    texts = [DOCKERFILE, (DEPLOY / "compose.yaml").read_text(), (DEPLOY / "augury.service").read_text()]
    named = {name for text in texts for name in re.findall(r"\bAUGURY_([A-Z_]+)", text)}
    assert named == {"HOST", "MODEL", "API_KEY"}
    assert {f"--{name.lower().replace('_', '-')}" for name in named} <= {*server_flags}


def test_the_dockerfile_has_a_stage_for_cpus_last_and_one_for_gpus():
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert stages == ["build", "base", "cuda", "cpu"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for found in re.findall(r"whl\)\[(.*?)\]", DOCKERFILE) for name in found.split(",")} == {"server", "cuda"}
    assert {"server", "cuda"} <= extras.keys()
    keyword = re.compile(r"(FROM|RUN|COPY|WORKDIR|ENV|EXPOSE|VOLUME|HEALTHCHECK|ENTRYPOINT|CMD|USER)\b|  CMD|#|$")
    assert all(keyword.match(line) for line in DOCKERFILE.splitlines())
    assert DOCKERFILE.count("USER augury") == 2  # neither runs as root


def test_the_compose_file_builds_stages_that_there_are():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert f" AS {service['build']['target']}\n" in DOCKERFILE
        assert service["ports"] == ["127.0.0.1:8080:8080"]


def test_the_unit_starts_the_server(tmp_path):
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read(DEPLOY / "augury.service")
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, words) == ("augury", ["serve"])
    if (verify := shutil.which("systemd-analyze")) is not None:
        here = tmp_path / "augury.service"  # verify looks whether the program exists
        here.write_text((DEPLOY / "augury.service").read_text().replace(program, "/bin/true"))
        told = subprocess.run([verify, "verify", here], capture_output=True, text=True, check=False)
        assert [line for line in told.stderr.splitlines() if here.name in line] == []


def test_files_that_commands_for_docker_name_are_there():
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    named = re.findall(r"docker (?:build|compose) -f (\S+)", pages)
    assert len(named) == pages.count("docker build") + pages.count("docker compose")
    assert all((ROOT / name).is_file() for name in named)


def test_a_release_is_built_and_checked_before_it_is_published_and_needs_one_secret():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    steps = [step["run"] for step in yaml.safe_load(text)["jobs"]["publish"]["steps"] if "run" in step]
    assert [step for step in steps if re.match(r"python -m (build|twine)", step)] == [
        "python -m build",
        "python -m twine check --strict dist/*",
        "python -m twine upload dist/*",
    ]
    assert re.findall(r"secrets\.(\w+)", text) == ["PYPI_TOKEN"]
    version = re.search(r'python -c (.*?)\)" =', next(step for step in steps if "GITHUB_REF_NAME" in step))[1]
    told = subprocess.run([sys.executable, "-c", *shlex.split(version)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
