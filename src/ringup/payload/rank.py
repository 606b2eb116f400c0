"""
Starts one rank and keeps what the launcher loses: its own exit code, its own output.

torchrun returns 1 whatever its ranks returned, and writes their output to one terminal.
It runs this file instead of the training script; this runs RINGUP_SCRIPT (or, as "-m NAME",
a module) as a child, gives the read ends of the child's pipes to the node's guard, passes
signals on, and ends as the child ended.  Without a guard to be found it becomes the script.

Imports are few and cheap: N ranks start N of these.
"""

import os
import select
import sys
import time

import _signal as signal  # the C half: `import signal` costs 4 ms for its enums
import _socket as socket

SOCKET = "guard.sock"
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
F_SETPIPE_SZ, PIPE_BYTES = 1031, 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_WITHIN_S = 2.0
TERM_ONCE_S = 30.0
"""torchrun and the guard may both ask for the end; a rank that saves its state then hears it once."""
LOCAL_RANK_OPTIONS = ("--local-rank", "--local_rank")
LONGEST_SCRIPT_BYTES = 4 << 20


def words():
    """The script's own command line: the interpreter, unbuffered, then what the launcher added."""
    script = os.environ.get("RINGUP_SCRIPT", "")
    is_module = script.startswith("-m ")
    what = ["-m", script[3:].strip()] if is_module else [script]
    runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_main.py")
    # What it cannot read as Python does (no such file, an archive) Python is to complain of itself.
    readable = is_module or (script.endswith(".py") and os.access(script, os.R_OK) and os.path.isfile(script))
    if os.environ.get("RINGUP_STACKS") != "0" and readable and os.path.isfile(runner):
        what.insert(0, runner)
    arguments = [word for given in sys.argv[1:] for word in local_rank_words(given, script)]
    return [sys.executable, "-u"] + what + arguments


def local_rank_words(given, script):
    """
    The launcher's `--local-rank=K` (torch 2) or `--local_rank=K` (torch 1, DeepSpeed) as the script has it.

    Nothing for a script that is sure to refuse it; the launcher's word where it cannot be told.
    """
    option, equals, value = given.partition("=")
    if option not in LOCAL_RANK_OPTIONS or not equals or value != os.environ.get("LOCAL_RANK"):
        return [given]
    try:
        with open(script, "rb") as file:
            text = file.read(LONGEST_SCRIPT_BYTES)
    except OSError:
        return [given]
    named = [known for known in LOCAL_RANK_OPTIONS if known.encode() in text]
    if not named and refuses(text):
        return []
    return [named[0] + equals + value] if len(named) == 1 else [given]


def refuses(text):
    """Whether a script refuses options it does not name: a strict parser, made and kept in this very file."""
    import re  # only where a launcher passes the option

    made = re.search(rb"(\w+)\s*(?::[^=\n]*)?=\s*(?:argparse\.)?ArgumentParser\(", text)
    if not made or b".parse_args(" not in text or b"parents" in text:
        return False
    name = made.group(1)
    text = text.replace(b"deepspeed.add_config_arguments(" + name + b")", b"")
    elsewhere = rb"[(,=]\s*(?:self\.)?%s\s*[,)\n]|return\s+(?:self\.)?%s\s*\n|import\s+%s\b"
    return not re.search(elsewhere.replace(b"%s", name), text)


def connect():
    """A connection to the guard in this file's folder; None where there is none."""
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = os.environ.get("RINGUP_GUARD", SOCKET)
    try:
        if name.startswith("@"):  # a file system without sockets
            guard.connect(b"\0" + name[1:].encode())
            if peer_user(guard) != os.geteuid():
                raise OSError("not our guard")
            return guard
        # Through /proc because a socket's path may have 107 bytes and a home directory more.
        folder = os.open(os.path.dirname(os.path.abspath(__file__)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            guard.connect("/proc/self/fd/%d/%s" % (folder, SOCKET))
        finally:
            os.close(folder)
    except OSError:
        guard.close()
        return None
    return guard


def peer_user(connection):
    """The user at the other end (the second of three ints, unix(7))."""
    return int.from_bytes(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder
    )


def wide_pipe():
    """A pipe that holds a burst while the guard is busy."""
    pipe = os.pipe()
    try:
        import fcntl

        fcntl.fcntl(pipe[0], F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, OSError):
        pass  # the user's quota of pipe memory is used up; the usual 64 KiB will do
    return pipe


def start(pipes):
    """Fork the rank; in a group of its own, so a signal to this group reaches it once, through us."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    # What leaves the rank falls to us and not past us, so that it can be ended when the guard is gone.
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
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
        os.execv(command[0], command)
    except BaseException as error:
        os.write(2, ("ringup: cannot start the rank: %s\n" % error).encode())
    finally:
        os._exit(127)


def watch(guard, pid, wake):
    """Pass signals on until the rank has ended; its wait status."""
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
                if gone:  # nobody looks after this node any more
                    end_descendants(pid)
                    poll.unregister(fd)
                continue
            for number in os.read(wake, 64):
                if number == signal.SIGCHLD:
                    status = reap(pid)
                    if status is not None:
                        return status
                elif number != signal.SIGTERM or not term_sent or time.monotonic() - term_sent > TERM_ONCE_S:
                    if number == signal.SIGTERM:
                        term_sent = time.monotonic()
                    os.kill(pid, number)


def end_group(pid):
    """SIGKILL to the rank and its group (it is our child and not yet waited for, so the pid is its)."""
    for kill, target in ((os.killpg, pid), (os.kill, pid)):
        try:
            kill(target, signal.SIGKILL)
        except OSError:
            pass


def reap(pid):
    """Collect ended children, adopted ones too; the wait status of `pid` once it is among them, else None."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return None
        if ended == pid:
            return status
        if not ended:
            return None


def end_descendants(pid):
    """SIGKILL to the rank and all that comes from it, in whatever session and with whatever environment."""
    end_group(pid)
    until = time.monotonic() + END_WITHIN_S
    while True:
        found = descendants()
        if not found or time.monotonic() > until:
            return
        for victim, started in found:
            end_exactly(victim, started)
        select.select([], [], [], 0.005)  # time.sleep() fails under libfaketime


def end_exactly(pid, started):
    """SIGKILL to the process of that start time: a pid is free for others once its process was waited for."""
    handle = -1
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # Python 3.8, an old kernel, or a sandbox that forbids it
    try:
        if stat(pid)[19] == started:
            if handle >= 0:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def stat(pid):
    """What /proc tells of a process from its state on: the second is its parent, the twentieth its start."""
    with open("/proc/%d/stat" % pid, "rb") as file:
        # The name in parentheses may hold anything, a parenthesis too.
        return file.read().rpartition(b")")[2].split()


def descendants():
    """Living processes below us: (pid, start time in clock ticks, as text)."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = stat(int(name))
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(name), fields[0], fields[19]))
    found, todo = [], [os.getpid()]
    while todo:
        for child, state, started in children.get(todo.pop(), ()):
            todo.append(child)
            if state not in (b"Z", b"X"):
                found.append((child, started))
    return found


def end_alike(status):
    """End as the rank ended, by the same signal if it was one."""
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
    """Take a rank's numbers: RANK and LOCAL_RANK, and wherever a variable or an argument asks for them."""
    os.setsid()
    numbers = {"{rank}": str(rank), "{local_rank}": str(local_rank)}
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
    for name, value in list(os.environ.items()):
        if value in numbers:
            os.environ[name] = numbers[value]
    for i, word in enumerate(sys.argv):
        for asked, number in numbers.items():
            word = word.replace(asked, number)
        sys.argv[i] = word


def be_every_rank():
    """
    Where there is no launcher: fork a shim for each rank of this node; comes back in each of them.

    The starter itself ends with the first failure's code, once all have ended.  Who ends the others
    when one fails is the guard, to which every shim is connected.
    """
    first, count = os.environ.pop("RINGUP_RANKS").split(":")
    ranks = set()
    for local_rank in range(int(count)):
        pid = os.fork()
        if pid == 0:
            become(int(first) + local_rank, local_rank)
            return
        ranks.add(pid)
    for name in PASSED_ON:  # the guard tells each shim itself
        signal.signal(getattr(signal, name), lambda number, frame: None)
    failed = 0
    while ranks:
        pid, status = os.waitpid(-1, 0)
        ranks.discard(pid)
        failed = failed or status
    os._exit(os.WEXITSTATUS(failed) if os.WIFEXITED(failed) else 128 + os.WTERMSIG(failed))


def main():
    """Be the parent of one rank."""
    if "RINGUP_RANKS" in os.environ:
        be_every_rank()
    guard = connect()
    if guard is None:
        command = words()
        os.execv(command[0], command)
    wake, wake_write = os.pipe()
    for fd in (wake, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for name in PASSED_ON + ("SIGCHLD",):
        signal.signal(getattr(signal, name), lambda number, frame: None)
    pipes = (wide_pipe(), wide_pipe())
    pid = start(pipes)
    hello = "hello %s %s %d %d" % (
        os.environ.get("RANK", "-1"), os.environ.get("LOCAL_RANK", "-1"), os.getpid(), pid,
    )  # fmt: skip
    ends = b"".join(read_end.to_bytes(4, sys.byteorder) for read_end, _ in pipes)
    try:
        guard.sendmsg([hello.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
    except OSError:
        end_group(pid)
    for pair in pipes:
        os.close(pair[0])
        os.close(pair[1])
    status = watch(guard, pid, wake)
    try:
        guard.send(b"exit %d %.6f" % (status, time.monotonic()))
    except OSError:
        pass
    end_alike(status)


if __name__ == "__main__":
    main()
