"""A Python file that submits a job with submitit, as a job file of Slurm with the same lines."""

from __future__ import annotations

import ast
from collections import Counter

_OPTIONS = {
    **dict.fromkeys(("nodes", "slurm_nodes"), "nodes"),
    **dict.fromkeys(("tasks_per_node", "slurm_ntasks_per_node", "ntasks_per_node"), "ntasks-per-node"),
    **dict.fromkeys(("gpus_per_node", "slurm_gpus_per_node"), "gpus-per-node"),
    **dict.fromkeys(("gres", "slurm_gres"), "gres"),
}
"""Parameters of submitit 1.5's AutoExecutor and SlurmExecutor -> options of sbatch."""


def as_shell(tree: ast.Module, name: str) -> str:
    """
    The directives and one `srun python NAME` for each job; "" without a job.

    >>> as_shell(ast.parse("import submitit\\ne.update_parameters(nodes=2)\\ne.submit(f)"), "a.py")
    '\\n#SBATCH --ntasks-per-node=1 --nodes=2\\nsrun python a.py\\n'
    """
    nodes = [*ast.walk(tree)]
    if not any(isinstance(n, ast.Import) and n.names[0].name == "submitit" for n in nodes):
        return ""
    sets = ((t, n.value) for n in nodes if isinstance(n, ast.Assign) for t in n.targets)
    written = [(t.id, value) for t, value in sets if isinstance(t, ast.Name)]
    counts = Counter(name for name, _ in written)
    known = {name: value for name, value in written if counts[name] == 1}
    lines: dict[int, str] = {}
    for call in (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
        kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if kind == "update_parameters":
            given = {k.arg: known.get(ast.unparse(k.value), k.value) for k in call.keywords}
            asked = ["--ntasks-per-node=$UNKNOWN" if None in given else "--ntasks-per-node=1"]
            for parameter, value in given.items():
                if option := _OPTIONS.get(parameter or ""):
                    shown = str(value.value) if isinstance(value, ast.Constant) else "$UNKNOWN"
                    asked.append(f"--{option}={shown}")
            lines[call.lineno] = f"#SBATCH {' '.join(asked)}"
        elif kind in ("submit", "map_array"):
            lines[call.lineno] = f"srun python {name}"
    if not any(line.startswith("#") for line in lines.values()):
        return ""
    return "".join(f"{lines.get(at, '')}\n" for at in range(1, max(lines) + 1))
