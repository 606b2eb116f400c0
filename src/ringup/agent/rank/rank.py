"""
The shim: starts one rank and keeps its exit code and its output apart from other ranks'.

torchrun returns 1 for every failure of a rank, and writes all output to one terminal.  It runs this
file instead of the training script.  The shim runs RINGUP_SCRIPT (a file, "-m MODULE" or
"--no-python COMMAND") as its child, gives the read ends of the child's pipes to the node's guard, forwards
signals, and ends as the child ended.  Without a guard it becomes the script.  Each rank pays for its imports.
"""

import os
import select
import sys
import time

import _signal as signal  # the C half: `import signal` costs 4 ms for its enums
import _socket as socket

SOCKET = "guard.sock"
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_WITHIN_S = 2.0
TERM_ONCE_S = 30.0
"""torchrun and the guard may both send SIGTERM; a rank that saves its state then gets one."""
LOCAL_RANK_OPTIONS = ("--local-rank", "--local_rank")
LONGEST_SCRIPT_BYTES = 4 << 20


def words():
    """The script's command line: the interpreter, unbuffered, then the launcher's arguments."""
    script = os.environ.get("RINGUP_SCRIPT", "")
    if script.startswith("--no-python "):
        return [script.partition(" ")[2]] + sys.argv[1:]
    is_module = script.startswith("-m ")
    start = ["-m", script[3:].strip()] if is_module else [script]
    runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_main.py")
    # Python itself reports a script that it cannot read (a missing file, an archive).
    readable = is_module or (script.endswith(".py") and os.access(script, os.R_OK) and os.path.isfile(script))
    if os.environ.get("RINGUP_STACKS") != "0" and readable and os.path.isfile(runner):
        start.insert(0, runner)
    return [sys.executable, "-u"] + start + [local_rank_word(word, script) for word in sys.argv[1:]]


def local_rank_word(given, script):
    """`--local-rank=K` (torch 2) or `--local_rank=K` (torch 1, DeepSpeed), in the script's spelling."""
    option, _, value = given.partition("=")
    if option not in LOCAL_RANK_OPTIONS or value != os.environ.get("LOCAL_RANK"):
        return given
    try:
        with open(script, "rb") as file:
            text = file.read(LONGEST_SCRIPT_BYTES)
    except OSError:
        return given
    named = [known for known in LOCAL_RANK_OPTIONS if known.encode() in text]
    return named[0] + "=" + value if len(named) == 1 else given


def connect(run_dir, name, kind):
    """A connection to the guard's socket of that name in the run's directory, or None."""
    guard = socket.socket(socket.AF_UNIX, kind)
    try:
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Through /proc because a socket's path may have 107 bytes and a home directory more.
            guard.connect("/proc/self/fd/%d/%s" % (folder, name))
        finally:
            os.close(folder)
    except OSError:
        guard.close()
        return None
    return guard


def start(pipes, world_end):
    """Fork the rank in a process group of its own: a signal to the shim's group reaches it once."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    # Orphans of the rank become our children, so that we can end them after the guard is gone.
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me, command = os.getpid(), ["the rank"]
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        for target, (_, write_end) in zip((1, 2), pipes):
            os.dup2(write_end, target)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != me:
            os._exit(137)
        command = words()
        if [os.path.basename(word) for word in command[2:3]] == ["rank_main.py"]:
            os.set_inheritable(world_end, True)
            os.environ["RINGUP_WORLD_FD"] = str(world_end)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, ("ringup: cannot start %s: %s\n" % (command[0], error)).encode())
    finally:
        os._exit(127)


def watch(guard, pid, wake):
    """Forward signals until the rank has ended; returns its wait status."""
    poll = select.poll()
    poll.register(guard.fileno(), select.POLLIN)
    poll.register(wake, select.POLLIN)
    term_sent = 0.0
    while True:
        for fd, _ in poll.poll():
            if fd == guard.fileno():
                try:
                    gone = not guard.recv(4096)
                except OSError:
                    gone = True
                if gone:
                    end_group(pid)
                    # imported late, because every rank would pay for it
                    from ringup.agent.guard.tree import descendants, kill_all

                    # The rank's descendants, in any session and with any environment.
                    kill_all(lambda: descendants(os.getpid()), END_WITHIN_S)
                    poll.unregister(fd)
                continue
            for number in os.read(wake, 64):
                if number == signal.SIGCHLD:
                    if (status := reap(pid)) is not None:
                        return status
                elif number != signal.SIGTERM or not term_sent or time.monotonic() - term_sent > TERM_ONCE_S:
                    if number == signal.SIGTERM:
                        term_sent = time.monotonic()
                    os.kill(pid, number)


def last_word(pipe):
    """From rank_main: the world size of the rank's framework (0: unknown); whether the script ended well."""
    try:
        size, ended_well = os.read(pipe, 40).split()
        return int(size), int(ended_well)
    except (OSError, ValueError):
        return 0, 0


def end_group(pid):
    """SIGKILL to the rank and its group (it is our unreaped child, so the pid is not reused)."""
    for kill, target in ((os.killpg, pid), (os.kill, pid)):
        try:
            kill(target, signal.SIGKILL)
        except OSError:
            pass


def reap(pid):
    """Collect ended children, adopted ones too; the wait status of `pid` if it is among them, else None."""
    try:
        ended, status = os.waitpid(-1, os.WNOHANG)
        while ended not in (pid, 0):
            ended, status = os.waitpid(-1, os.WNOHANG)
    except OSError:
        return None
    return status if ended else None


def end_alike(status):
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    select.select([], [], [], 1)
    os._exit(128 + number)


def become(rank, local_rank):
    """Set a rank's numbers: RANK and LOCAL_RANK, `{rank}`, `{local_rank}` in variables and arguments."""
    os.setsid()
    numbers = {"{rank}": str(rank), "{local_rank}": str(local_rank)}
    os.environ.update({name: numbers[value] for name, value in os.environ.items() if value in numbers})
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
    for mark, number in numbers.items():
        sys.argv[:] = [word.replace(mark, number) for word in sys.argv]


def be_every_rank():
    """Without a launcher: fork a shim per rank and return in each; exit with the first failure's code."""
    first, count = os.environ.pop("RINGUP_RANKS").split(":")
    ranks = set()
    for local_rank in range(int(count)):
        pid = os.fork()
        if pid == 0:
            become(int(first) + local_rank, local_rank)
            return
        ranks.add(pid)
    for name in PASSED_ON:  # the guard signals each shim directly
        signal.signal(getattr(signal, name), lambda number, frame: None)
    failed = 0
    while ranks:
        pid, status = os.waitpid(-1, 0)
        ranks.discard(pid)
        failed = failed or status
    os._exit(os.WEXITSTATUS(failed) if os.WIFEXITED(failed) else 128 + os.WTERMSIG(failed))


def count_restarts():
    """A launcher knows only its own attempt: correct torch's variables for the whole run."""
    attempt = os.environ.get("RINGUP_ATTEMPT", "")
    if attempt.isdigit():
        most = os.environ.get("RINGUP_MAX_RESTARTS", "0")
        known = {"RESTART_COUNT": str(int(attempt) - 1), "MAX_RESTARTS": most}
        if os.environ.get("TORCHELASTIC_RUN_ID", "").endswith("." + attempt):
            known["RUN_ID"] = os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[0]
        os.environ.update({"TORCHELASTIC_" + name: value for name, value in known.items()})


def main():
    if "RINGUP_RANKS" in os.environ:
        be_every_rank()
    count_restarts()
    guard = connect(os.path.dirname(os.path.abspath(__file__)), SOCKET, socket.SOCK_SEQPACKET)
    if guard is None:
        command = words()
        os.execvp(command[0], command)
    wake, wake_write = os.pipe()
    for fd in (wake, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for name in PASSED_ON + ("SIGCHLD",):
        signal.signal(getattr(signal, name), lambda number, frame: None)
    pipes = (os.pipe(), os.pipe())
    world_pipe, world_end = os.pipe()
    os.set_blocking(world_pipe, False)
    pid = start(pipes, world_end)
    os.close(world_end)
    numbers = [os.environ.get(name, "-1") for name in ("RANK", "LOCAL_RANK")]
    hello = "hello %s %s %d %d" % (*numbers, os.getpid(), pid)
    ends = b"".join(read_end.to_bytes(4, sys.byteorder) for read_end, _ in pipes)
    try:
        guard.sendmsg([hello.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
    except OSError:
        end_group(pid)
    for end in pipes[0] + pipes[1]:
        os.close(end)
    status = watch(guard, pid, wake)
    size, ended_well = last_word(world_pipe)
    late = os.WTERMSIG(status) if ended_well and os.WIFSIGNALED(status) else 0
    status = 0 if late else status  # a crash in the teardown after a good end does not fail the training
    try:
        guard.send(b"exit %d %.6f %d %d" % (status, time.monotonic(), size, late))
    except OSError:
        pass
    end_alike(status)


if __name__ == "__main__":
    main()
