"""
Runs the training script as `python SCRIPT` does, and makes its stack readable from outside.

`rank.py` starts it as `rank_main.py SCRIPT ARGS` or `rank_main.py -m NAME ARGS`.  Two ways read its stack:

A thread writes the stacks on request.  It holds the interpreter's lock, so no frame changes meanwhile.  It
starts when the script imports a framework: Python 3.12 warns a process with threads that forks, and
frameworks start threads anyway.  A second thread answers requests for torch's flight recorder; it starts
when torch.distributed is imported.

Before the script begins, faulthandler gets two signals and a file in memory named ringup-stack: on SIGWINCH
it writes the stack of the main thread, on SIGURG those of all threads.  The handler reads frames without the
lock: in a process that runs Python it can meet a frame that is being made or freed, and crash the process.
So agent/snapshot/stacks.py signals only processes that wait.  A process without a handler ignores both
signals.  A script can use them for itself; RINGUP_STACKS=0 turns all of this off.

At the end the shim gets the world size of the script's framework, and whether the script ended well.

`__main__` becomes the script's own module, sys.argv and sys.path are as Python makes them, and the
lines of this file are cut from the traceback of an exception that ends the script.
"""

import os
import sys

NAME, THREADS, FLIGHT = "ringup-stack", "ringup-threads", "ringup-flight"
FRAMEWORKS = ("torch", "jax", "tensorflow", "paddle", "mindspore")
MOST_ENTRIES = 200
MOST_FRAMES = 100


def register_stack_signals():
    import _signal
    import faulthandler
    import fcntl

    fd = os.memfd_create(NAME)  # closed on exec, where the handlers are lost, too
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    for number, all_threads in ((_signal.SIGWINCH, False), (_signal.SIGURG, True)):
        if _signal.getsignal(number) == _signal.SIG_DFL:
            faulthandler.register(number, file=fd, all_threads=all_threads, chain=False)


def stack_reader(main, most=MOST_FRAMES):
    """
    A function that yields the stacks of all threads in faulthandler's format, thread `main` last.

    Everything is imported here: this module's globals are the script's when a thread runs.
    """
    import sys

    def read():
        frames, lines = sys._current_frames(), []
        for ident in sorted(frames, key=lambda ident: ident == main):
            lines.append("Thread 0x%016x (most recent call first):" % ident)
            frame, count = frames.pop(ident), 0  # this frame is among them
            while frame and count < most:
                code, count = frame.f_code, count + 1
                place = code.co_filename, frame.f_lineno or 0, code.co_name
                lines.append('  File "%s", line %d in %s' % place)
                frame = frame.f_back
        frame = None  # the name would keep the script's variables alive
        yield "\n".join(lines).encode("ascii", "backslashreplace")

    return read


def flight_reader(most=MOST_ENTRIES):
    """A function that yields JSON of torch's flight recorder: without lines of source, then with them."""
    import _thread
    import json
    import pickle
    import sys
    import time

    class NoCompiler:
        """
        Hides torch's compiler from this thread, unless it is loaded.

        For source lines, torch 2.13 evaluates `hasattr(torch, "_inductor")` (combined_traceback.cpp), which
        would import it: 1.5 s of CPU time, and memory for good.
        """

        def find_spec(self, name, path=None, target=None, me=_thread.get_ident()):
            if name == "torch._inductor" and _thread.get_ident() == me:
                raise AttributeError(name)

    def dump(function):
        if function.__name__.endswith("json"):
            return json.loads(function(True, False))
        finder = NoCompiler()
        sys.meta_path.insert(0, finder)
        try:
            return pickle.loads(function(True, True, False))
        except TypeError:  # torch before 2.4 offers no choice
            return pickle.loads(function())
        finally:
            sys.meta_path.remove(finder)

    def dumped(end):
        try:
            c10d = sys.modules["torch"]._C._distributed_c10d
            gloo = "gloo" in str(sys.modules["torch.distributed"].get_backend())
            kinds = ("_dump_fr", "_dump_nccl") if gloo else ("_dump_nccl", "_dump_fr")
            found = dump([getattr(c10d, kind + end) for kind in kinds if hasattr(c10d, kind + end)][0])
            found.update(entries=found.get("entries", [])[-most:], now_ns=time.time_ns())
            return json.dumps(found).encode()
        except BaseException as error:
            return json.dumps({"problem": "%s: %s" % (type(error).__name__, error)}).encode()

    def read():
        yield dumped("_trace_json")  # costs nothing
        yield dumped("_trace")

    return read


def answering(name, reader, *args):
    """
    A function that prepares for requests and returns one that answers them, to run in its own thread.

    A byte in a pipe is a request.  The answers go to a file in memory named NAME:PID:PIPE, one after the
    other: a count of answers and their length, four bytes each, then the output of `reader(*args)()`.  In a
    forked child, which has the file but not the thread, PID is the parent's.
    """

    def prepare(os=os):
        asked, _ = os.pipe()
        fd = os.memfd_create("%s:%d:%d" % (name, os.getpid(), asked))

        def answer():
            read, count = reader(*args), 0
            try:
                while os.read(asked, 4096):
                    for data in read():
                        count += 1
                        os.ftruncate(fd, 0)
                        os.pwrite(fd, data, 8)
                        os.pwrite(fd, count.to_bytes(4, "little") + len(data).to_bytes(4, "little"), 0)
            except OSError:  # the script has closed every file
                pass

        return answer

    return prepare


def start_threads():
    """Start the thread for stacks when a framework is imported, the recorder's when torch.distributed is."""
    import _thread

    stacks = answering(THREADS, stack_reader, _thread.get_ident())
    waiting = dict.fromkeys(FRAMEWORKS, stacks)
    waiting["torch.distributed"] = answering(FLIGHT, flight_reader)

    class Finder:
        """Finds no module; only notices imports."""

        def find_spec(self, name, path=None, target=None):
            if prepare := waiting.pop(name, None):
                for other in [other for other in waiting if waiting[other] is prepare]:
                    waiting.pop(other, None)
                try:
                    _thread.start_new_thread(prepare(), ())
                except (OSError, RuntimeError):  # too many files or threads: the import goes on
                    pass

    sys.meta_path.insert(0, Finder())


def report_end(fd, ended_well):
    """
    At the interpreter's exit, write the world size of the script's framework to the shim, and whether the
    script ended well.  Registered first, so run last: after the threads' end and the script's own handlers.

    Accelerate's number has priority over torch's, because its training used it. -1 with an engine that forms
    a world within each rank.  Nothing is imported or started here.
    """
    import atexit

    os.set_inheritable(fd, False)

    def report(os=os, modules=sys.modules, me=os.getpid()):
        if os.getpid() != me:
            return
        found = -1 if modules.keys() & {"vllm", "sglang", "ray"} else 0
        for name, size in (
            ("accelerate.state", lambda m: m.PartialState._shared_state.get("num_processes")),
            ("torch.distributed", lambda m: m.is_available() and m.is_initialized() and m.get_world_size()),
            ("jax._src.distributed", lambda m: m.global_state.client and m.global_state.num_processes),
        ):
            try:
                found = found or int(size(modules[name]) or 0)
            except BaseException:
                pass
        os.write(fd, b"%d %d" % (found, bool(ended_well)))

    atexit.register(report)


def first_path(script):
    """The first entry of sys.path for a script, as Python sets it; a link is followed once."""
    try:
        script = os.path.join(os.path.dirname(script), os.readlink(script))
    except OSError:
        pass
    return os.path.dirname(os.path.abspath(script))


def before(**names):
    """The globals of `__main__` before its first line."""
    found = {"__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None}
    found.update(names, __builtins__=__builtins__)
    if sys.version_info < (3, 14):
        found["__annotations__"] = {}
    return found


def run(namespace, ended_well):
    """Become the script: after `clear` only this frame is left.  `ended_well` gets an entry at the end."""
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
        ended_well.append(1)
    except SystemExit as end:
        ended_well += [] if end.code else [1]
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == ours:
            trace = trace.tb_next
        system.excepthook(type(error), error.with_traceback(trace), trace)
        system.exit(1)


if __name__ == "__main__":
    ended_well = []
    try:
        if os.environ.get("RINGUP_STACKS") != "0":
            if "RINGUP_WORLD_FD" in os.environ:
                report_end(int(os.environ.pop("RINGUP_WORLD_FD")), ended_well)
            register_stack_signals()
            start_threads()
    except (AttributeError, ImportError, OSError, RuntimeError, ValueError):
        pass
    run(globals(), ended_well)
