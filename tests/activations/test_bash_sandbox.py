"""What a command cannot do in its sandbox, shown by trying; and that only a person lets it out."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall.activations.bash import Bash, activation, launcher, sandbox
from midcall.activations.bash.rules import ConfigError, SandboxSettings
from midcall.activations.bash.sandbox import PYTHON, find_sandbox
from midcall.hub import Hub
from midcall.journal.choose import choose_journal
from midcall.transports.auth import StaticKeys
from shelling import PLAIN, choosing, execute, lines, processes, shell, why_not

REFUSED = ("Permission denied", "Read-only file system", "Operation not permitted")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that is not in /tmp, of which each command has its own."""
    with tempfile.TemporaryDirectory(prefix="midcall-test-", dir="/var/tmp") as made:
        yield Path(made)


@pytest.fixture(params=["bwrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> str:
    """A sandbox that works on this machine."""
    problem = why_not(request.param)
    if problem:
        pytest.skip(problem)
    name: str = request.param
    return name


@pytest.fixture
def boxed(kind: str, tmp_path: Path) -> Hub:
    """A shell in that sandbox."""
    return shell(tmp_path, f"[sandbox]\nuse = '{kind}'\n")


def yes(request: Any) -> str:
    """Who permits everything, but not to leave the sandbox."""
    return "no" if request.key == "sandbox" else "once"


def test_it_writes_where_it_may(boxed: Hub, tmp_path: Path) -> None:
    command = "mkdir a && echo hi > a/b && mv a/b c && ln -s c d && cat d && rm -r a d && echo x > $TMPDIR/own && cat $TMPDIR/own"
    found = drive(execute(boxed, command, yes))
    assert lines(found) == ["hi", "x"], found
    assert (tmp_path / "project/c").read_text() == "hi\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo x > {outside}/made",
        "echo x >> {outside}/there",
        "rm {outside}/there",
        "mv {outside}/there .",
        "mv own {outside}/",
        "ln -s own {outside}/link",
        "ln {outside}/there linked && echo x > linked",
        "mkdir {outside}/folder",
        "truncate -s 0 {outside}/there",
        "ln -s {outside}/there link && echo x > link",
        "cd {outside} && touch made",
        'python3 -c \'open("{outside}/there", "w")\'',
        "bash -c 'echo x > {outside}/made'",
        "cp own {outside}/there",
        "sed -i s/a/b/ {outside}/there",
        "mkfifo {outside}/pipe",
        "dd if=own of={outside}/there",
    ],
)
def test_it_cannot_write_elsewhere(boxed: Hub, tmp_path: Path, command: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("as it was")
    (tmp_path / "project/own").write_text("own")
    found = drive(execute(boxed, command.format(outside=outside), yes))
    assert found[-1]["code"] != 0, found
    assert any(
        word in str(lines(found, "stderr")) for word in (*REFUSED, "Invalid cross-device", "No such file")
    ), found
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "as it was"


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine that takes connections; nobody may have come in the end."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        port = server.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        yield port
        for one in (server, udp):
            one.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(1)


@pytest.mark.parametrize("family", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_it_cannot_reach_the_network(boxed: Hub, listening: int, family: str) -> None:
    program = (
        f"import socket; socket.socket(socket.AF_INET, socket.{family}).connect(('127.0.0.1', {listening}))"
    )
    sending = f"{program}; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {listening}))"
    drive(execute(boxed, f'{PYTHON} -c "{sending}"', yes))


def test_it_cannot_reach_services_by_their_sockets(boxed: Hub, kind: str, tmp_path: Path) -> None:
    if kind == "bwrap":
        pytest.skip("bubblewrap hides /run and /tmp, where they are; a socket in the project can be reached")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "project/socket"))
        service.listen()
        program = "import socket; socket.socket(socket.AF_UNIX).connect('socket')"
        found = drive(execute(boxed, f'{PYTHON} -c "{program}"', yes))
    assert "PermissionError" in str(lines(found, "stderr"))


def test_with_the_network_it_still_cannot_reach_services_elsewhere(kind: str, tmp_path: Path) -> None:
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nnetwork = true\n")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "socket"))
        service.listen()
        program = (
            "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1)); "
            f"socket.socket(socket.AF_UNIX).connect('{tmp_path}/socket')"
        )
        found = drive(execute(hub, f'{PYTHON} -c "{program}"', yes))
    assert lines(found) == ["b'x'"]
    assert any(error in str(lines(found, "stderr")) for error in ("PermissionError", "FileNotFoundError"))


def test_with_the_network_it_can(kind: str, tmp_path: Path) -> None:
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nnetwork = true\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).getpeername()[1])"
        found = drive(execute(hub, f'{PYTHON} -c "{program}"', yes))
    assert lines(found) == [str(port)], found


def test_it_sees_the_system_the_project_and_what_the_settings_show(kind: str, tmp_path: Path) -> None:
    for name in ("open/note", "open/secret/key", "other/note"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "open/link").symlink_to("secret")
    config = f"[sandbox]\nuse = '{kind}'\nread = ['../open']\nhide = ['{tmp_path}/open/secret']\n"
    hub = shell(tmp_path, config)
    (tmp_path / "project/own").write_text("own\n")
    command = "cat own ../open/note ../open/s*t/key ../open/l*k/key ../other/note /etc/hostname"
    found = drive(execute(hub, command))
    assert lines(found) == ["own", "open/note", *Path("/etc/hostname").read_text().splitlines()], found
    assert len(lines(found, "stderr")) == 3
    (denied,) = drive(execute(hub, "cat ../open/link/key"))
    assert "../open/link/key is hidden from commands" in denied["message"]
    for cwd in ("../open/secret", "../other", "/run", "/var"):
        (refused,) = drive(execute(hub, "ls", cwd=cwd))
        assert "Commands do not see" in refused["message"]


SECRETS = (
    ".ssh/id_ed25519", ".gnupg/x", ".aws/credentials", ".azure/x", ".kube/config", ".docker/config.json", ".netrc",
    ".npmrc", ".pypirc", ".pgpass", ".git-credentials", ".config/gcloud/x", ".config/rclone/rclone.conf",
    ".config/gh/hosts.yml", ".cargo/credentials.toml", ".vault-token", ".bash_history", ".local/share/keyrings/x",
    ".claude.json", ".password-store/x", "Documents/diary",
)  # fmt: skip


@pytest.mark.parametrize("read", ["[]", "['~']"])
def test_it_does_not_see_the_secrets_of_a_home(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in SECRETS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("s3cret")
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nread = {read}\n")
    (tmp_path / "project/own").write_text("own\n")
    names = " ".join(f'"$home/{name}"' for name in SECRETS[:-1])
    for error in ("/dev/null", "out"):  # what a person has permitted does not see them either
        found = drive(execute(hub, f"home=..; cat own {names} 2> {error}", yes))
        assert lines(found) == ["own"], found
    assert len((tmp_path / "project/out").read_text().splitlines()) == len(SECRETS) - 1
    found = drive(execute(hub, 'home=..; cat "$home/Documents/diary"'))
    assert lines(found) == ([] if read == "[]" else ["s3cret"])


def test_it_does_not_see_sockets_of_services(boxed: Hub) -> None:
    found = drive(execute(boxed, "ls -d /ru[n]/* /var/ru[n]/*"))
    assert lines(found) == []


# --- what no person has permitted ----------------------------------------------------------------------

ALLOWED = """
[[rule]]
verdict = "allow"
command = ["touch", "tee", "cp", "mkdir", "mv", "rm", "truncate", "chmod", "chown", "perl", "kill"]
"""
"""Rules that allow too much, as a mistake of the judge would."""


@pytest.fixture
def careless(kind: str, tmp_path: Path) -> Hub:
    """A shell that runs nearly everything without a question, and has folders to write and the network."""
    settings = f"[sandbox]\nuse = '{kind}'\nnetwork = true\nwrite = ['.', '../outside']\n"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/there").write_text("as it was")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/own").write_text("as it was")
    return shell(tmp_path, f"{settings}{ALLOWED}")


@pytest.mark.parametrize(
    "command",
    [
        "touch made",
        "touch {outside}/made",
        "touch own",
        "echo x | tee own",
        "cp /etc/hostname {outside}/there",
        "rm own",
        "mv own other",
        "mkdir made",
        "truncate -s 0 own",
        "chmod 000 own",
        "chmod 777 .",
        "chown 1:1 own",
        "touch /made /var/tmp/made /usr/made /etc/made /dev/shm/../made",
        'perl -e \'open(F, ">", "own") or die "Permission denied"\'',
        'perl -e \'utime(1, 1, "own") or die "Permission denied"\'',
        'perl -e \'symlink("a", "b") or die "Permission denied"\'',
    ],
)
def test_what_runs_without_a_question_writes_nothing(careless: Hub, tmp_path: Path, command: str) -> None:
    before = [(path, path.stat()) for path in sorted(tmp_path.rglob("*"))]
    found = drive(execute(careless, command.format(outside=tmp_path / "outside")))
    assert any(word in str(lines(found, "stderr")) for word in REFUSED), found
    after = [(path, path.stat()) for path in sorted(tmp_path.rglob("*"))]
    assert [(path, stat.st_mode, stat.st_mtime, stat.st_uid) for path, stat in before] == [
        (path, stat.st_mode, stat.st_mtime, stat.st_uid) for path, stat in after
    ]


def test_what_runs_without_a_question_has_a_place_of_its_own_to_write(careless: Hub) -> None:
    found = drive(execute(careless, "tee $TMPDIR/x < own; cat $TMPDIR/x"))
    assert lines(found) == ["as it was", "as it was"] or lines(found) == ["as it wasas it was"]


def test_what_runs_without_a_question_reaches_nobody(careless: Hub, listening: int) -> None:
    program = (
        "use IO::Socket::INET; for my $kind (qw(tcp udp)) {"
        f' my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:{listening}", Proto => $kind);'
        ' print $s->send("x") if $s; }'
    )
    drive(execute(careless, f"perl -e '{program}'"))


def test_what_runs_without_a_question_reaches_no_service_in_the_project(
    careless: Hub, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "project/socket"))
        service.listen()
        program = 'use IO::Socket::UNIX; print IO::Socket::UNIX->new("socket") ? "in" : "out: $!"'
        found = drive(execute(careless, f"perl -e '{program}'"))
    assert lines(found) == ["out: Permission denied"]


def test_what_runs_without_a_question_does_not_change_the_kernel(careless: Hub) -> None:
    """Who starts a server as root owns these files, also in a sandbox."""
    files = (
        "/proc/sys/kernel/core_pattern /proc/sys/fs/file-max /proc/sys/kernel/hostname /proc/sysrq-trigger"
    )
    program = 'for my $f (@ARGV) { print "$f\n" if open(F, "+<", $f) }'
    assert lines(drive(execute(careless, f"perl -e '{program}' {files}"))) == []


def test_what_runs_without_a_question_changes_no_priorities_of_others(careless: Hub, kind: str) -> None:
    if kind == "bwrap":
        pytest.skip("bubblewrap does not show it any others")
    found = drive(execute(careless, "perl -e 'print eval { setpriority(0, 0, 1) } ? 1 : $!'"))
    assert lines(found) == ["Permission denied"]


def test_what_runs_without_a_question_signals_nobody(careless: Hub) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        drive(execute(careless, f"kill -9 {other.pid}"))
        assert other.poll() is None
        other.kill()


def test_a_hostile_repository_does_no_harm_when_it_is_looked_at(
    boxed: Hub, tmp_path: Path, listening: int
) -> None:
    """Whatever git runs by itself, runs where it can change nothing."""
    project = tmp_path / "project"
    canary = project / "canary"
    evil = f"touch {canary} {tmp_path}/canary; exec 3<>/dev/tcp/127.0.0.1/{listening}; cat"
    (project / "evil.sh").write_text(f"#!/bin/bash\n{evil}\n")
    (project / "evil.sh").chmod(0o755)
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (project / ".gitattributes").write_text("* diff=evil filter=evil\n")
    (project / "a").write_text("1\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    (project / "a").write_text("2\n")
    path = f"{project}/evil.sh"
    settings = ("diff.external", "diff.evil.textconv", "diff.evil.command", "core.fsmonitor", "core.pager", "pager.log",
                "gpg.program", "filter.evil.clean", "filter.evil.smudge", "core.sshCommand", "core.editor")  # fmt: skip
    for name in settings:
        subprocess.run([*git, "config", name, path], check=True)
    for command in (
        "git status",
        "git diff",
        "git log -p",
        "git log --show-signature",
        "git show",
        "git blame a",
        "git grep 2",
    ):
        drive(execute(boxed, command))
    assert not canary.exists()
    assert not (tmp_path / "canary").exists()


def test_it_does_not_see_the_memory_and_variables_of_the_server(boxed: Hub) -> None:
    found = drive(
        execute(boxed, f"cat /proc/{os.getpid()}/environ; cat /proc/*/environ | tr '\\0' '\\n' | sort -u")
    )
    assert "PYTEST_CURRENT_TEST" not in str(found)


def test_it_cannot_signal_processes_outside(boxed: Hub, kind: str) -> None:
    if kind == "landlock" and launcher.landlock_version() < 6:
        pytest.skip("Landlock before version 6 lets signals through")
    with subprocess.Popen(["sleep", "600"]) as other:
        drive(execute(boxed, f"kill -9 {other.pid}", yes))
        assert other.poll() is None
        other.kill()


def test_rules_are_not_where_commands_can_change_them(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where commands could change it"):
        shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nwrite = ['{tmp_path}']\n")


def test_it_cannot_change_what_the_server_runs_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "project/sub/venv"
    server.mkdir(parents=True)
    (server / "code.py").write_text("as it was")
    monkeypatch.setattr(sandbox, "SERVER", (*sandbox.SERVER, str(server)))
    if not why_not("bwrap"):
        hub = shell(tmp_path, "[sandbox]\nuse = 'bwrap'\n")
        for command in (
            "echo x > sub/venv/code.py",
            "rm sub/venv/code.py",
            "mv sub/venv sub/other",
            "mv sub other && mkdir -p sub/venv && echo x > sub/venv/code.py",
        ):
            assert drive(execute(hub, command, yes))[-1]["code"] != 0
        assert (server / "code.py").read_text() == "as it was"
        assert drive(execute(hub, "touch sub/new", yes))[-1]["code"] == 0
    with pytest.raises(ConfigError, match=r"cannot protect .*/venv in a folder that may be written"):
        shell(tmp_path, "[sandbox]\nuse = 'landlock'\n")


def test_it_cannot_change_what_git_runs_later_and_out_of_the_sandbox(tmp_path: Path) -> None:
    if why_not("bwrap"):
        pytest.skip(why_not("bwrap"))
    hub = shell(tmp_path, "[sandbox]\nuse = 'bwrap'\n")
    project = tmp_path / "project"
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    before = (project / ".git/config").read_text()
    for command in (
        "echo evil > .git/hooks/pre-commit",
        "rm -r .git/hooks",
        "mv .git/hooks .git/other",
        "mv .git other && mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit",
        "git config core.fsmonitor evil",
        "echo '[core] sshCommand = evil' >> .git/config",
    ):
        assert drive(execute(hub, command, yes))[-1]["code"] != 0, command
    assert (project / ".git/config").read_text() == before
    assert not (project / ".git/hooks/pre-commit").exists()
    commit = (
        "echo x > a && git add a && git -c user.name=a -c user.email=a@b commit -qm x && git status --short"
    )
    assert drive(execute(hub, commit, yes)) == [{"type": "exit", "code": 0}]


def test_it_is_let_out_to_change_them_only_by_a_person(tmp_path: Path) -> None:
    if why_not("bwrap"):
        pytest.skip(why_not("bwrap"))
    hub = shell(tmp_path, "[sandbox]\nuse = 'bwrap'\n")
    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    answer, asked = choosing("once", "leave")
    found = drive(execute(hub, "git config user.name Ada", answer))
    assert [request.key for request in asked] == ["permission", "sandbox"]
    assert found[-1] == {"type": "exit", "code": 0}


def test_it_does_not_see_the_journal_and_the_keys_of_the_server(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "PRIVATE", private := set[str]())
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nread = ['{tmp_path}/shown']\n")
    for folder in ("shown", "project"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in ("calls.db", "calls.db-wal"):
            (tmp_path / folder / name).write_text("s3cret\n")
    shown = f"cat {tmp_path}/shown/calls.d[b]*"
    assert lines(drive(execute(hub, shown))) == ["s3cret", "s3cret"]
    private.add(os.path.realpath(tmp_path / "shown/calls.db"))
    assert lines(drive(execute(hub, shown))) == []
    private.add(os.path.realpath(tmp_path / "project/calls.db"))
    (error,) = drive(execute(hub, "ls", yes))
    assert "project/calls.db is in" in error["message"]
    assert "where commands could change it: keep it elsewhere" in error["message"]


def test_a_server_keeps_its_files_from_commands(tmp_path: Path) -> None:
    keys, journal = tmp_path / "keys", tmp_path / "calls.db"
    keys.write_text("ada=secret-token-of-ada\n")
    keys.chmod(0o600)
    StaticKeys.from_file(keys)
    drive(_opened(journal))
    assert {os.path.realpath(keys), os.path.realpath(journal)} <= activation.PRIVATE


async def _opened(journal: Path) -> None:
    opened = choose_journal(str(journal), "plexus")
    await opened.open()
    await opened.close()


def test_a_link_to_the_rules_is_not_followed_again(tmp_path: Path) -> None:
    """It may be where commands can turn it elsewhere."""
    (tmp_path / "rules.toml").write_text(f"{PLAIN}[[rule]]\nverdict = 'deny'\ncommand = 'ls'\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/bash.toml").symlink_to(tmp_path / "rules.toml")
    hub = Hub().register(Bash(tmp_path / "project/bash.toml", folder=tmp_path / "project"))
    (tmp_path / "project/bash.toml").unlink()
    (tmp_path / "project/bash.toml").write_text(PLAIN)
    (error,) = drive(execute(hub, "ls", yes))
    assert "a rule denies it" in error["message"]


def test_the_launcher_is_started_from_its_text_and_not_from_a_file() -> None:
    assert sandbox.LAUNCH[1:4] == ("-I", "-S", "-c")
    assert sandbox.LAUNCH[4] == Path(launcher.__file__).read_text()


def test_variables_of_a_caller_are_for_the_command_and_not_for_its_sandbox(
    boxed: Hub, tmp_path: Path
) -> None:
    """By some of them a program loads others, or writes files, before it has done anything."""
    (tmp_path / "outside").mkdir()
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "outside/written")}
    found = drive(execute(boxed, "echo $LD_DEBUG", yes, env=env))
    assert "files" in lines(found)
    assert list((tmp_path / "outside").iterdir()) == []


def test_it_has_no_terminal(boxed: Hub) -> None:
    """By a terminal it could type commands for the person who has started the server."""
    program = (
        "import os, fcntl, termios\n"
        "for path in ('/dev/tty', '/dev/console', '/dev/pts/0', '/dev/tty0'):\n"
        "    try: fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCSTI, b'x'); print(path)\n"
        "    except OSError: pass"
    )
    found = drive(execute(boxed, f'{PYTHON} -c "{program}"', yes))
    assert found == [{"type": "exit", "code": 0}]


def test_it_cannot_forge_its_exit_code(boxed: Hub) -> None:
    command = 'for f in /proc/$PPID/fd/* /proc/self/fd/*; do n=${f##*/}; [ "$n" -gt 2 ] && echo "0 0" > $f; done 2> /dev/null; for n in 3 4 5 6 7 8 9; do echo "0 0" >&$n; done 2> /dev/null; exit 3'
    assert drive(execute(boxed, command, yes))[-1] == {"type": "exit", "code": 3}


def test_it_is_limited_in_what_it_takes(kind: str, tmp_path: Path) -> None:
    limits = "[limits]\nmemory = 1024\nfile_size = 1\nopen_files = 100\ncpu = 77\n"
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\n{limits}")
    found = drive(execute(hub, "ulimit -v; ulimit -f; ulimit -n; ulimit -t; ulimit -c", yes))
    assert lines(found) == [str(1024 * 1024), "1024", "100", "77", "0"]
    found = drive(
        execute(hub, "head -c 3000000 /dev/zero > big; head -c 3000000 /dev/zero > $TMPDIR/big", yes)
    )
    assert found[-1]["code"] != 0
    assert (tmp_path / "project/big").stat().st_size <= 2**20
    assert "MemoryError" in str(drive(execute(hub, f"{PYTHON} -c 'bytes(2**31)'", yes)))


def test_it_has_only_so_many_processes(kind: str, tmp_path: Path) -> None:
    """No question is asked about `sleep`, nor about `&`."""
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\n[limits]\nprocesses = 50\n")
    mark = f"600.{os.getpid()}"
    found = drive(execute(hub, f"while true; do sleep {mark} & done"))
    assert {
        "type": "notice",
        "message": "It had more than 50 processes at once, and was ended",
    } in found
    assert found[-1] == {"type": "exit", "code": -1, "signal": "SIGKILL"}
    assert processes(mark) == []


def test_a_project_is_writable_by_default_and_a_home_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/project").mkdir(parents=True)

    def writable(folder: Path) -> tuple[str, ...]:
        return find_sandbox(SandboxSettings(use="none"), folder, tmp_path / "bash.toml").write

    assert writable(tmp_path / "home/project") == (os.path.realpath(tmp_path / "home/project"),)
    assert writable(tmp_path / "home") == ()
    assert writable(tmp_path) == ()
    assert writable(Path("/")) == ()


# --- without one -------------------------------------------------------------------------------------------


def test_without_a_sandbox_every_command_is_asked(tmp_path: Path) -> None:
    hub = shell(tmp_path, "[sandbox]\nuse = 'none'\n")
    answer, asked = choosing("once")
    assert lines(drive(execute(hub, "echo hi", answer))) == ["hi"]
    assert "without a sandbox (the settings say so)" in asked[0].request_type.message
    assert "there is no sandbox, so every command is asked about" in asked[0].request_type.message
    (error,) = drive(execute(hub, "echo hi", None))
    assert error["type"] == "error"


def test_the_best_sandbox_that_works_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "bash.toml"
    best = "bwrap" if not why_not("bwrap") else "landlock" if not why_not("landlock") else "none"
    broken = tmp_path / "bin/bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:/usr/bin:/bin")  # where a command may have put it
    assert find_sandbox(SandboxSettings(), tmp_path / "project", config).kind == best
    monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, str(broken.parent)))
    found = find_sandbox(SandboxSettings(), tmp_path / "project", config)
    assert found.kind == ("none" if why_not("landlock") else "landlock")
    assert "No permissions to create a new namespace" in found.why
    with pytest.raises(ValueError, match=r"does not work here: bwrap: .*No permissions"):
        shell(tmp_path, "[sandbox]\nuse = 'bwrap'\n")


# --- leaving it ----------------------------------------------------------------------------------------------


def test_only_a_person_lets_a_command_out(boxed: Hub, tmp_path: Path) -> None:
    command = f"echo run >> runs; echo x > {tmp_path}/outside"
    answer, asked = choosing("once", "leave")
    found = drive(execute(boxed, f"{command} || exit 5", answer))
    assert [request.key for request in asked] == ["permission", "sandbox"]
    assert "What it has done already, it does again" in asked[1].request_type.message
    assert any(word in asked[1].request_type.message for word in REFUSED)
    assert {"type": "notice", "message": "The command is run again, without the sandbox"} in found
    assert found[-1] == {"type": "exit", "code": 0}
    assert (tmp_path / "outside").read_text() == "x\n"
    assert (tmp_path / "project/runs").read_text() == "run\nrun\n"


def test_who_does_not_let_it_out_gets_what_it_came_to(boxed: Hub, tmp_path: Path) -> None:
    found = drive(execute(boxed, f"echo x > {tmp_path}/outside", ["once", "no"]))
    assert found[-1] == {"type": "exit", "code": 1}
    assert not (tmp_path / "outside").exists()


def test_what_only_reads_is_never_let_out(boxed: Hub) -> None:
    found = drive(execute(boxed, "cat /etc/shado[w]"))
    assert found[-1] == {"type": "exit", "code": 1}


def test_the_settings_can_keep_everybody_in(kind: str, tmp_path: Path) -> None:
    hub = shell(tmp_path, f"[sandbox]\nuse = '{kind}'\nleave = false\n")
    found = drive(execute(hub, f"echo x > {tmp_path}/outside", ["once"]))
    assert found[-1] == {"type": "exit", "code": 1}
