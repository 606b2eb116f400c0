"""`ringup sweep` as text, and as JSON's plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ringup.collective_tests.sweep import DataPath, Env, Trial
from ringup.hosts.folding import node_set
from ringup.output.console import env_lines, paragraph
from ringup.output.terminal import Style, in_columns
from ringup.planning import EnvVar
from ringup.units import assignment, grouped, plural, printable, summarize_names

MOST_ALSO, MOST_DEVICES, LONGEST = 3, 3, 32


def as_json(trials: Sequence[Trial], keep: Trial | None, backend: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "op": "all_reduce",
        "settings": trials,
        "keep": trials.index(keep) if keep else None,
        "env": variables(keep) if keep else [],
    }


def variables(trial: Trial) -> list[EnvVar]:
    own = (EnvVar(name, value, "the setting that `ringup sweep` kept") for name, value in trial.env.items())
    return [*own, *trial.adds]


def assignments(env: Env) -> str:
    return " ".join(assignment(name, value) for name, value in env.items()) or "nothing set"


def setting(trial: Trial) -> str:
    if trial.env:
        return assignments(trial.env)
    adds = " ".join(dict.fromkeys(assignment(v.name, v.value) for v in trial.adds))
    return f"ringup's choice: {adds or 'nothing set'}"


def devices(found: Sequence[DataPath]) -> str:
    """The devices that carry the data, equal nodes and long lists of devices as one; --json has all."""
    shown = grouped((_one(path), path.node) for path in found)
    if len(shown) == 1:
        return next(iter(shown))
    return printable("; ".join(f"{node_set(nodes)}: {one}" for one, nodes in shown.items()) or "-", LONGEST)


def _one(path: DataPath) -> str:
    names = path.devices
    if len(names) > MOST_DEVICES:
        names = (f"{names[0]}..{names[-1]} ({len(names)})",)
    words = [path.network] if path.network != "Gloo" else []
    return printable(" ".join((*words, *names)) or "unknown", LONGEST)


def before(trials: Sequence[Trial], alone: Sequence[DataPath], style: Style, anyway: bool) -> Iterator[str]:
    """
    The settings to try, and those that the check proves to fail; they are not tried, or tried `anyway`.

    `alone` is the prediction without the variables of ringup's plan.
    """
    every = sum(1 + len(trial.also) for trial in trials)
    yield f"{plural(every, 'setting')}, {plural(len(trials), 'different prediction')}"
    if trials[0].adds and tuple(alone) != trials[0].predicted:
        why = "; ".join(dict.fromkeys(v.because for v in trials[0].adds))
        words = f"without ringup's variables, not tried: {devices(alone)} ({why})"
        yield "\n".join(paragraph(words, style))
    for trial in trials:
        if trial.because:
            head = "tried all the same (--anyway)" if anyway else "not tried"
            words = f"{head}: {setting(trial)}: the check proves that it fails: {trial.because}"
            yield style("warning", "\n".join(paragraph(words, style)))


def verdict(trial: Trial, most: float) -> str:
    share = f"{(trial.busbw_gbyte_s or 0.0) / most:.0%} of the fastest" if most else ""
    words = {"fastest": "fastest", "as-fast": f"as fast ({share})", "slower": share, "wrong": "WRONG RESULTS"}
    text = words.get(trial.verdict, trial.verdict.replace("-", " "))
    return text + ", NOT AS PREDICTED" * (trial.as_predicted is False)


def lines(trials: Sequence[Trial], keep: Trial | None, style: Style, *, is_over: bool) -> list[str]:
    """The table, notes on single settings, and last the best setting."""
    most = max((t.busbw_gbyte_s or 0.0 for t in trials if t.verdict != "wrong"), default=0.0)
    rows = [("", "PREDICTED", "USED", "GB/s", "Gbit/s", "VERDICT")]
    for number, trial in enumerate(trials, 1):
        rate = trial.busbw_gbyte_s
        rates = (f"{rate:.3g}", f"{8 * rate:.3g}") if rate else ("-", "-")
        told = verdict(trial, most) if is_over or trial.because else "would be tried"
        used = devices(trial.used) if trial.used else "-"
        rows.append((str(number), devices(trial.predicted), used, *rates, told))
    head, *table = in_columns(rows)
    found = ["", style("bold", head)]
    for trial, line in zip(trials, table, strict=True):
        found.append(style("ok", line) if trial is keep else line)
        found += paragraph(setting(trial), style, "   ", "     ")
        own = {v.name: v.value for v in trial.adds} if not trial.env else None
        same = summarize_names((assignments(one) for one in trial.also if one != own), MOST_ALSO, "; ")
        found += paragraph(f"same prediction: {same}", style, "   ", "     ") if same else []
        found += paragraph(trial.because, style, "   ", "     ") if trial.because else []
    if not is_over:
        return found
    if keep is None:
        return [*found, "", style("error", "No setting works.")]
    what = f"keep setting {trials.index(keep) + 1} ({devices(keep.used)}, {keep.busbw_gbyte_s:.3g} GB/s)"
    if not variables(keep):
        return [*found, "", style("ok", f"{what}: nothing to set")]
    return [*found, "", style("ok", f"{what}:"), *env_lines(variables(keep), style)]
