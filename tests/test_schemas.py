"""The JSON Schemas: current, valid, printed; and outputs that other tests do not make."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

import ringup
from ringup.cli import command_line, commands
from ringup.cli.schema import FOLDER, NAMES
from ringup.model.network import Verbs
from ringup.output import console
from tests import clusters, json_outputs

ROOT = Path(__file__).parent.parent


def test_the_schemas_are_fresh_and_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import json_schemas

    stale = [path.name for path, text in json_schemas.texts().items() if path.read_text() != text]
    assert not stale, "run `python tools/json_schemas.py` (`make docs` does it too)"
    for name in NAMES:
        schema = json.loads((FOLDER / f"{name}.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{ringup.SITE}/schemas/1/{name}.json"


def test_every_command_with_json_has_a_schema() -> None:
    with_json = {
        name for name in commands.COMMANDS if "--json" in commands.parser_for(name).format_help().split()
    }
    assert with_json | {"lint", "logs"} >= set(NAMES) >= with_json


def test_a_schema_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.dispatch(["schema", "logs"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "ringup logs --json"
    assert command_line.dispatch(["schema"]) == 0
    assert tuple(capsys.readouterr().out.split()) == NAMES


def test_facts_that_a_node_left_out_are_printed_with_what_they_are_by_default() -> None:
    cluster = clusters.healthy(2)
    node = replace(cluster.nodes[0], verbs=msgspec.convert({}, Verbs))
    made = console.Report(replace(cluster, nodes=(node, cluster.nodes[1])), [], [], None)
    json_outputs.check("check", json.loads(json.dumps(console.check_json(made))))


def test_a_key_that_is_not_in_the_schema_or_lacks_is_noticed() -> None:
    good = {"ringup": "1", "schema": 1, "kind": "ssh", "text": "x"}
    json_outputs.check("script", good)
    for wrong in ({**good, "more": 1}, {**good, "schema": 2}, {k: v for k, v in good.items() if k != "text"}):
        with pytest.raises(AssertionError, match="ringup schema script"):
            json_outputs.check("script", wrong)


@pytest.mark.parametrize(
    "line",
    [
        "check --from FACTS", "env --from FACTS --debug", "predict --from FACTS", "explain", "config run",
        "explain clock-skew", "script ssh --from FACTS --nproc 1 -- SCRIPT", "lint SCRIPT",
        "run --from FACTS --nproc 1 --dry-run --anyway -- SCRIPT", "runs", "attach --list", "logs LOG",
    ],
)  # fmt: skip
def test_what_a_command_prints_is_as_its_schema_says(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringup import bundle

    monkeypatch.chdir(tmp_path)
    bundle.save(clusters.healthy(), tmp_path / "FACTS")
    (tmp_path / "SCRIPT").write_text("import torch.distributed as d\nd.init_process_group()\nprint(MASTER)\n")
    (tmp_path / "LOG").write_text(
        "n0:1:1 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
    )
    command, *words = line.split()
    command_line.dispatch([command, "--json", *words])
    json_outputs.check(command, json.loads(capsys.readouterr().out))
