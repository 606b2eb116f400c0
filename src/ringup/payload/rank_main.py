"""
Runs the training script as `python SCRIPT` would, and lets its stack be read from outside.

`rank.py` starts it as `rank_main.py SCRIPT ARGS` or `rank_main.py -m NAME ARGS`.  Before the script
begins, faulthandler is given two signals and a file in memory named ringup-stack: on SIGWINCH it writes
where this process's main thread is, on SIGURG where all of its threads are.  Both are ignored by any
process without a handler, so whoever asks (payload/look_stacks.py) cannot harm one that has none; and
the handler is C, so it answers from within a collective, too.  A script that wants these signals for
itself takes them; RINGUP_STACKS=0 leaves all of this out.

Once torch.distributed is imported, a thread besides tells what torch's flight recorder knows when asked.

`__main__` becomes the script's own module, sys.argv and sys.path are as Python makes them, and the
lines of this file are cut from the traceback of an exception that ends the script.
"""

import os
import sys

NAME = "ringup-stack"
MOST_ENTRIES = 200


def let_look():
    """Give faulthandler its signals and its file; nothing where the system has no such file."""
    import _signal
    import faulthandler
    import fcntl

    fd = os.memfd_create(NAME)  # closed on exec, where the handlers go, too
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    for number, all_threads in ((_signal.SIGWINCH, False), (_signal.SIGURG, True)):
        if _signal.getsignal(number) == _signal.SIG_DFL:
            faulthandler.register(number, file=fd, all_threads=all_threads, chain=False)


def let_ask():
    """
    Tell torch's flight recorder to whoever asks by a byte in a pipe, once torch.distributed is there.

    A thread waits on the pipe; the answer goes to a file in memory named ringup-flight:PIPE: a count of
    answers and their length, four bytes each, then JSON.  Each question has two, the second with the
    lines of the calls.  Nothing here uses this module's globals, which are the script's by then.
    """
    import _thread

    asked, _ = os.pipe()
    fd = os.memfd_create("ringup-flight:%d" % asked)

    def answer(os=os, sys=sys, most=MOST_ENTRIES):
        import json
        import pickle
        import time

        class NoCompiler:
            """
            Says in this thread that torch has no compiler, unless it is loaded.

            To look lines up torch 2.13 asks `hasattr(torch, "_inductor")` (combined_traceback.cpp), which
            would import it: 1.5 s of CPU time, and memory for good.
            """

            def find_spec(self, name, path=None, target=None, me=_thread.get_ident()):
                if name == "torch._inductor" and _thread.get_ident() == me:
                    raise AttributeError(name)

        def told(c10d, name):
            if name.endswith("json"):
                return json.loads(getattr(c10d, name)(True, False))
            finder = NoCompiler()
            sys.meta_path.insert(0, finder)
            try:
                try:
                    return pickle.loads(getattr(c10d, name)(True, True, False))
                except TypeError:  # before torch 2.4 nothing could be chosen
                    return pickle.loads(getattr(c10d, name)())
            finally:
                sys.meta_path.remove(finder)

        count = 0
        while os.read(asked, 1):
            # Without lines first, which costs nothing.
            for end in ("_trace_json", "_trace"):
                try:
                    c10d = sys.modules["torch"]._C._distributed_c10d
                    gloo = "gloo" in str(sys.modules["torch.distributed"].get_backend())
                    kinds = ("_dump_fr", "_dump_nccl") if gloo else ("_dump_nccl", "_dump_fr")
                    plain = told(c10d, [kind + end for kind in kinds if hasattr(c10d, kind + end)][0])
                    plain.update(entries=plain.get("entries", [])[-most:], now_ns=time.time_ns())
                    data = json.dumps(plain).encode()
                except BaseException as error:
                    data = json.dumps({"problem": "%s: %s" % (type(error).__name__, error)}).encode()
                count += 1
                os.ftruncate(fd, 0)
                os.pwrite(fd, data, 8)
                os.pwrite(fd, count.to_bytes(4, "little") + len(data).to_bytes(4, "little"), 0)

    class Finder:
        """Finds no module; sees which one is looked for."""

        def find_spec(self, name, path=None, target=None, sys=sys):
            if name == "torch.distributed":
                sys.meta_path.remove(self)
                _thread.start_new_thread(answer, ())

    sys.meta_path.insert(0, Finder())


def first_path(script):
    """What Python puts before everything else in sys.path for a script; a link is followed once."""
    try:
        script = os.path.join(os.path.dirname(script), os.readlink(script))
    except OSError:
        pass
    return os.path.dirname(os.path.abspath(script))


def before(**names):
    """What `__main__` holds before its first line."""
    found = {"__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None}
    found.update(names, __builtins__=__builtins__)
    if sys.version_info < (3, 14):
        found["__annotations__"] = {}
    return found


def run(namespace):
    """Become the script.  From `clear` on nothing of this file is left but this frame."""
    system, ours, loader = sys, namespace["__file__"], type(namespace["__loader__"])
    path = getattr(sys.flags, "safe_path", False) or sys.path
    script = sys.argv[1]
    try:
        if script == "-m":
            from runpy import _run_module_as_main as execute

            name = sys.argv[2]
            sys.argv[:3] = ["-m"]
            if path is not True:
                path[0] = os.getcwd()
            fresh = before()
            namespace.clear()
            namespace.update(fresh)
            execute(name)
        else:
            sys.argv[:2] = [script]
            if path is not True:
                path[0] = first_path(script)
            if sys.version_info >= (3, 9):
                script = os.path.abspath(script)
            with open(script, "rb") as file:
                code = compile(file.read(), script, "exec", 0, True)
            fresh = before(__file__=script, __loader__=loader("__main__", script), __cached__=None)
            del file
            namespace.clear()
            namespace.update(fresh)
            exec(code, namespace)
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == ours:
            trace = trace.tb_next
        system.excepthook(type(error), error.with_traceback(trace), trace)
        system.exit(1)


if __name__ == "__main__":
    try:
        if os.environ.get("RINGUP_STACKS") != "0":
            let_look()
            let_ask()
    except (AttributeError, ImportError, OSError, RuntimeError, ValueError):
        pass
    run(globals())
