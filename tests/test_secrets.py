"""What is a secret, and what is not: names, values and text."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from pathlib import Path

import pytest

from ringup import secrets
from ringup.output.terminal import Style
from ringup.secrets import redact
from tests.regex_cost import cost
from tests.secret_cases import ORDINARY, SECRETS


@pytest.mark.parametrize(("text", "secrets"), SECRETS.values(), ids=SECRETS)
def test_a_secret_is_not_readable(text: str, secrets: tuple[str, ...]) -> None:
    shown = redact(text)
    assert not [s for s in secrets if s in shown], shown


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_line_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


MADE = [*secrets._triggers(), secrets._known(), *(pattern for _, pattern in secrets._OPTIONS)]


@pytest.mark.parametrize("pattern", MADE, ids=lambda p: p.pattern[:40])
def test_a_pattern_made_of_words_costs_time_in_proportion_to_the_text(pattern: re.Pattern[str]) -> None:
    assert cost(pattern.pattern, pattern.flags & ~re.UNICODE) <= 400


@pytest.mark.parametrize("text", [*ORDINARY, *(text for text, _ in SECRETS.values())])
def test_what_is_redacted_once_stays_as_it_is(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_ordinary_lines_beside_secrets_stay_as_they_are() -> None:
    lines = [line for line in ORDINARY if "\n" not in line]
    mixed = [part for line in lines for part in (line, "export DB_PASS=tr0ub4dor")]
    assert redact("\n".join(mixed)).split("\n")[::2] == lines


def test_a_word_of_a_command_that_is_no_option_has_no_value() -> None:
    words = ("train.py", "token", "Abcdef123", "--hf-token", "Abcdef123", "--lr", "1")
    assert secrets.redact_words(words) == (*words[:4], "(hidden)", "--lr", "1")


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "DB_PASSWD", "MYSQL_PWD", "dbPassword", "AWS_SECRET_ACCESS_KEY", "X-Api-Key"],
)
def test_a_name_of_a_secret_is_one_in_any_letters(name: str) -> None:
    assert secrets.is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "SSH_AUTH_SOCK", "MAX_TOKENS", "EOS_TOKEN_ID", "PASSED"],
)
def test_a_name_that_only_looks_like_one_is_none(name: str) -> None:
    assert not secrets.is_secret(name)


def test_there_is_one_list_of_secret_names() -> None:
    """Whoever asks whether a name is secret asks secret_names.py."""
    for path in Path(secrets.__file__).parent.rglob("*.py"):
        if path.name not in ("secrets.py", "secret_names.py"):
            assert not re.search(r"""["'](PASSWORD|PASSWD|SECRET)["']""", path.read_text()), path


def test_the_nodes_are_sent_the_same_source() -> None:
    from ringup.agent_bundle import program, without_docstrings

    own = without_docstrings((Path(secrets.__file__).parent / "secret_names.py").read_text())
    programs = [program(name) for name in ("guard.main", "guard.final_sweep", "snapshot.main", "clean.main")]
    for sent in [*programs, program("facts.main", "facts.system")]:
        (packed,) = re.findall(r"Bundle\('(.*)'\)", sent)
        words = zlib.decompress(base64.b64decode(packed)).decode().split("\0")
        assert words[words.index("ringup.secret_names") + 1] == own


def test_evidence_of_a_log_is_shown_without_secrets(tmp_path: Path) -> None:
    from ringup.logs.read import read_logs
    from ringup.output import logs_report as show

    (tmp_path / "rank0.log").write_text(
        "RuntimeError: NCCL error: connect to https://ada:tok3n@host failed, HF_TOKEN=tok3n\n"
        "n0:4:4 [0] NCCL WARN Call to connect returned Connection refused, API_KEY=tok3n\n"
        "token: tok3nab1 end\n"
    )
    diagnosis = read_logs([str(tmp_path)])
    assert "tok3n" not in json.dumps(show.as_json(diagnosis))
    assert "tok3n" not in show.as_text(diagnosis, Style(io.StringIO()), verbose=True)


@pytest.mark.parametrize(
    "words",
    [
        ["logs", "/nowhere/HF_TOKEN=tok3nab1"],
        ["check", "--api-key=tok3nab1"],
        ["check", "HF_TOKEN=tok3nab1"],
        ["check", "--hostfile", "https://ada:tok3nab1@host/x"],
    ],
)
def test_an_error_message_is_shown_without_secrets(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from ringup.cli import command_line

    with pytest.raises(SystemExit):
        command_line.main(words)
    shown = capsys.readouterr().err
    assert shown and "tok3n" not in shown


def test_saved_facts_of_every_platform_stay_as_they_are() -> None:
    import msgspec

    from tests import clusters

    plain = msgspec.to_builtins(clusters.healthy())
    assert secrets.redact_data(plain) == plain


def test_a_short_text_that_repeats_is_searched_once() -> None:
    """A cluster's facts have the same words on each node."""
    secrets._short.cache_clear()
    for _ in range(3):
        assert secrets.redact_data({f"fact {n}": "TOKEN=abcd1234 of 10.0.0.1" for n in range(100)})
    assert secrets._short.cache_info().misses == 1


def test_the_bare_value_of_an_own_secret_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "plainvalue777xyz")
    monkeypatch.setenv("MY_TOKEN", "short")
    monkeypatch.setenv("PLAIN", "ordinary-value")
    secrets._own_values.cache_clear()
    try:
        shown = redact("ValueError: plainvalue777xyz short ordinary-value")
    finally:
        secrets._own_values.cache_clear()
    assert shown == "ValueError: (hidden) short ordinary-value"
