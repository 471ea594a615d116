"""The README and the pages of `docs` say what is true: snippets run, names and files exist, commands are taken."""

import ast
import asyncio
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from aiokafka import AIOKafkaConsumer, TopicPartition

from aiorecover import DeadLetter, DeliveryReport, Receipt, RecoverableProducer, Statistics
from aiorecover.cli.app import app as command_line
from aiorecover.integrations.settings import ProducerSettings
from aiorecover.testing import ApiKey, MockCluster
from tests.support.eventually import until

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
README_LINES = 250
RECORD_LIST_TOO_LARGE = 18
PLAIN = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

# The names that the snippets use for their objects.
KINDS = {
    "producer": RecoverableProducer,
    "receipt": Receipt,
    "report": DeliveryReport,
    "letter": DeadLetter,
    "cluster": MockCluster,
}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (name of its page and number in it, text) of each block."""
    return [
        (f"{page.name}:{number}", text)
        for page in PAGES
        for number, text in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        )
    ]


SNIPPETS = dict(blocks("python"))
COMMANDS = dict(blocks("shell"))


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.create_topic("totals", partitions=1)
        yield cluster


def run(name: str, cluster: MockCluster, **names: Any) -> tuple[Any, dict[str, Any]]:
    """Run a snippet against the cluster; return what it has to await, and its names."""
    text = SNIPPETS[name].replace("localhost:9092", cluster.bootstrap_servers)
    code = compile(text, name, "exec", flags=PLAIN, dont_inherit=True)
    space = {"__name__": name, **names}
    sys.modules[name] = type(sys)(name)  # pydantic looks the names of annotations up there
    sys.modules[name].__dict__.update(space)
    try:
        space = sys.modules[name].__dict__
        return eval(code, space), space  # noqa: S307 - our own text
    finally:
        del sys.modules[name]


@asynccontextmanager
async def consumer_of(cluster: MockCluster, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer at the beginning of partition 0."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        yield consumer
    finally:
        await consumer.stop()


# -- what is written exists --------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:aiorecover|examples|benchmarks|tests|docs)/[\w./]*)`", text)
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    assert [link for link in linked if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_compiles_and_uses_what_exists(name: str) -> None:
    tree = ast.parse(SNIPPETS[name])
    compile(SNIPPETS[name], name, "exec", flags=PLAIN, dont_inherit=True)
    imported: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiorecover"):
            module = importlib.import_module(node.module or "")
            imported |= {alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in KINDS:
            assert hasattr(KINDS[node.value.id], node.attr), ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
            options = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
            called = imported[node.func.id]
            # Required arguments may also come from a ** or, of settings, from variables.
            all_said = len(options) == len(node.keywords) and called is not ProducerSettings
            signature = inspect.signature(called)
            (signature.bind if all_said else signature.bind_partial)(*node.args, **dict.fromkeys(options))


def command_lines() -> set[str]:
    """Return the commands of this project that the pages show, each on one line."""
    lines = (line for text in COMMANDS.values() for line in text.replace("\\\n", " ").splitlines())
    commands = (" ".join(shlex.split(line, comments=True)) for line in lines)
    return {command for command in commands if command.startswith(("aiorecover ", "make "))}


@pytest.mark.parametrize("command", sorted(command_lines()))
def test_a_command_of_a_page_is_taken(command: str) -> None:
    program, *rest = command.split()
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return
    found: Any = typer.main.get_command(command_line)
    while hasattr(found, "commands"):
        found = found.commands[rest.pop(0)]
    known = {option for one in found.params for option in one.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in "".join(COMMANDS.values())
    assert re.search(r"^make test ", (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)


# -- what is written runs ----------------------------------------------------------------------------------------------


def test_the_programs_run(tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = [name for name, text in SNIPPETS.items() if "asyncio.run(main())" in text]
    assert programs == ["README.md:0", "testing.md:2"]
    for name in programs:
        run(name, cluster)


@pytest.mark.asyncio
async def test_the_web_service_takes_orders_without_a_broker(
    tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster.broker_down()
    _, service = run("README.md:1", cluster)
    web = service["app"]
    async with web.router.lifespan_context(web):
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
            answer = await client.post("/orders", json={"id": 7, "item": "tea"})
        assert answer.status_code == 202
        cluster.broker_up()
        await web.state.producer.flush(timeout_ms=20_000)
        assert answer.json()["accepted"].startswith(web.state.producer.producer_id)


@pytest.mark.asyncio
async def test_the_worker_goes_on_where_it_was(tmp_path: Path, cluster: MockCluster) -> None:
    orders = [TopicPartition("orders", 0)]
    _, names = run("README.md:2", cluster)

    async def life(number: int) -> None:
        """Publish an order, and work until a total is made."""
        async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"%d" % number, partition=0)
            async with consumer_of(cluster, "orders") as consumer:
                work = asyncio.create_task(names["work"](consumer, producer, orders))
                await until(lambda: producer.statistics().accepted > 1)
                work.cancel()

    for number in (1, 2, 3):
        await life(number)
    async with consumer_of(cluster, "totals") as consumer:
        [end] = (await consumer.end_offsets([TopicPartition("totals", 0)])).values()
        totals = [(await consumer.getone()).value for _ in range(end)]
    assert totals == [b"1", b"2", b"3"]


@pytest.mark.asyncio
async def test_the_consumer_prints_each_record_once(
    tmp_path: Path, cluster: MockCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("totals", b"one")
    async with consumer_of(cluster, "totals") as consumer:

        class Twice:
            async def __aiter__(self) -> AsyncIterator[Any]:
                record = await anext(consumer)
                yield record
                yield record

        coroutine, _ = run("README.md:3", cluster, consumer=Twice())
        await coroutine
    assert capsys.readouterr().out == "new b'one'\n"


@pytest.mark.asyncio
async def test_dead_letters_are_listed_exported_requeued_and_purged(
    tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with RecoverableProducer("wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
        cluster.push_partition_errors("totals", 0, ApiKey.PRODUCE, RECORD_LIST_TOO_LARGE)
        receipt = await producer.publish("totals", b"one")
        await producer.flush(timeout_ms=20_000)
        coroutine, _ = run("README.md:4", cluster, producer=producer)
        await coroutine
        await producer.flush(timeout_ms=20_000)
        assert receipt.record_id in capsys.readouterr().out
        assert receipt.record_id in Path("dead.jsonl").read_text(encoding="utf-8")
        assert producer.statistics().dead_letters == 0
        assert producer.statistics().delivered == 1


@pytest.mark.asyncio
async def test_the_code_written_for_aiokafka_runs(
    tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    coroutine, names = run("migrating.md:0", cluster)
    await coroutine
    assert names["producer"].statistics().delivered == 1


@pytest.mark.asyncio
async def test_the_power_cut_of_the_page_on_testing_takes_nothing(cluster: MockCluster) -> None:
    _, names = run("testing.md:3", cluster)
    await names["power_cut"](cluster)


@pytest.mark.asyncio
async def test_the_numbers_for_metrics_are_printed(
    tmp_path: Path, cluster: MockCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
        run("operating.md:0", cluster, producer=producer)
    printed = ast.literal_eval(capsys.readouterr().out)
    assert printed["accepted"] == 0
    assert set(printed) <= set(Statistics.__struct_fields__)
