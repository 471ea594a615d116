"""Nonsense on the command line: one clear line and status 2, of every command, and the page that lists them all."""

import asyncio
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from aiorecover import RecoverableProducer
from aiorecover.cli.app import app
from tests.support.published import NOWHERE

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "top": ("--looks", "1"),
    "cat": (),
    "verify": (),
    "export": (),
    "drain": ("--bootstrap-servers", NOWHERE),
    "discard": ("--yes",),
    "dead-letters list": (),
    "dead-letters show": ("x/1/1",),
    "dead-letters export": ("-o", "out"),
    "dead-letters requeue": ("--all", "--bootstrap-servers", NOWHERE),
    "dead-letters purge": ("--all", "--yes"),
}
PLACES = {
    "absent": "there is no such directory",
    "file": "this is a file",
    "empty": "nothing of aiorecover is here",
    "foreign": "nothing of aiorecover is here",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_with_nothing_of_ours_is_one_clear_line(
    command: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/data").write_text("yours")
    done = CliRunner().invoke(app, [*command.split(), place, *COMMANDS[command]])
    assert (done.exit_code, done.stdout.strip(), done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(PLACES[place])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "foreign"]  # nothing is made


@pytest.mark.parametrize("command", COMMANDS)
def test_a_ring_of_another_program_is_named_with_the_status_of_what_cannot_be_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wal/0").mkdir(parents=True)
    Path("wal/0/ring").write_bytes(b"a ring of mine" * 1000)
    done = CliRunner().invoke(app, [*command.split(), "wal", *COMMANDS[command]])
    assert done.exit_code == (0 if command == "top" else 1)  # which goes on beside it
    assert ("unreadable" if command == "top" else "the file belongs to another program") in done.output
    assert [path.name for path in Path("wal/0").iterdir()] == ["ring"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("drain", "wal", "--option", "linger=5", "--bootstrap-servers", NOWHERE), "linger (AIORECOVER_LINGER)"),
        (("drain", "wal", "--option", "linger_ms"), "such an option is name=value"),
        (("drain", "wal"), "bootstrap_servers (AIORECOVER_BOOTSTRAP_SERVERS): field required"),
        (("doctor", "wal"), "bootstrap_servers (AIORECOVER_BOOTSTRAP_SERVERS): field required"),
        (("doctor", "wal", "--bootstrap-servers", "no port at all:x"), "bootstrap_servers"),
        (("bench", "--topic", "t", "--option", "fsync=maybe", "--bootstrap-servers", NOWHERE), "fsync"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave() -> None:
        async with RecoverableProducer("wal", bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            await producer.publish("orders", b"one")

    monkeypatch.chdir(tmp_path)
    asyncio.run(leave())
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout.strip(), done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert says in done.stderr


def test_each_command_says_what_its_exit_status_means() -> None:
    group = typer.main.get_command(app)
    for command in group.commands.values():  # type: ignore[attr-defined]
        for one in getattr(command, "commands", {"": command}).values():
            assert "Exit status 0: " in (one.help or ""), one.name
