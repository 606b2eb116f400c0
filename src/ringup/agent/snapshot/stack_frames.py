"""Which frame of a Python stack is the user's: one function for the nodes and for the launching side."""

import re

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?/|^<")
NOBODYS = re.compile(
    r"(?:/|^)rank_main\.py$|^<|/(?:site|dist)-packages/torch/"
    r"|/torch/(?:_dynamo|autograd|cuda|distributed|nn|optim|utils)/"
    r"|/lib(?:64)?/python3(?:\.\d+)?/(?!(?:site|dist)-packages/)"
)
"""The interpreter, its standard library, torch, and ringup's own runner of the script."""

WAITS_IN = "torch/multiprocessing/spawn.py"
"""
`spawn` and `start_processes` wait in ProcessContext.join there (torch 2.0 to 2.13): their
children are the ranks, without a rank in their environment.  Which number each has only the script knows.
"""


def own_frame(files):
    """
    Index of the user's innermost frame, from a stack's files, innermost first; -1 if there is none.

    The script may itself be an installed package (`-m package.train`).  If all frames are in libraries, the
    frames count that are in or below the folder of the outermost one, which is the script.

    >>> own_frame(["/v/site-packages/torch/x.py", "/home/u/model.py", "/home/u/train.py", "/r/rank_main.py"])
    1
    >>> own_frame(["/v/site-packages/a/b.py", "/v/site-packages/a/scripts/t.py", "/r/rank_main.py"])
    1
    """
    likely = [i for i, file in enumerate(files) if file and not NOBODYS.search(file)]
    if not likely:
        return -1
    outside = [i for i in likely if not LIBRARY.search(files[i])]
    if outside:
        return outside[0]
    folder = files[likely[-1]].rpartition("/")[0] + "/"
    return next(i for i in likely if files[i].startswith(folder))
