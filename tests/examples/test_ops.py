"""The files that deploy the example of a web service: they fit the schemas, the service, and each other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from compose_spec import PyCompose
from fastapi.testclient import TestClient

from aiorecover import RecoverableProducer
from aiorecover.cli.app import app as command_line
from aiorecover.integrations.metrics import TABLE
from tests.support.example import EXAMPLES, loaded
from tests.support.pages import DOCS

OPS = EXAMPLES / "ops"
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((OPS / "kubernetes.yaml").read_text(encoding="utf-8"))}
COMPOSE = yaml.safe_load((OPS / "compose.yaml").read_text(encoding="utf-8"))
READ = set(re.findall(r'environ\.get\("(\w+)"', (EXAMPLES / "web_service.py").read_text(encoding="utf-8")))
STOP_S = 10  # stop_timeout_ms


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The service, started as the pod of a StatefulSet is."""
    for name, value in {"WAL_DIR": str(tmp_path), "KAFKA": "127.0.0.1:1", "INSTANCE": "orders-0"}.items():
        monkeypatch.setenv(name, value)
    with TestClient(loaded("web_service").app) as client:
        yield client


def container(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pod's specification, and that of its one container."""
    pod = OBJECTS[kind]["spec"]["template"]["spec"]
    [found] = pod["containers"]
    return pod, found


@pytest.mark.parametrize("kind", OBJECTS)
def test_each_object_is_what_kubernetes_takes(kind: str) -> None:
    kubernetes_validate.validate(OBJECTS[kind], kubernetes_validate.latest_version(), strict=True)
    wrong = {**OBJECTS[kind], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_ask_for_what_the_service_answers(service: TestClient, tmp_path: Path) -> None:
    pod, orders = container("StatefulSet")
    port = orders["ports"][0]
    for probe in ("livenessProbe", "readinessProbe"):
        asked = orders[probe]["httpGet"]
        assert asked["port"] == port["name"]
        assert service.get(asked["path"]).status_code == 200
    notes = OBJECTS["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(port["containerPort"]) == orders["command"][-1]
    assert service.get(notes["prometheus.io/path"]).text.count("aiorecover_records_accepted_total{") == 1
    assert {one["name"] for one in orders["env"]} == READ
    [mount] = orders["volumeMounts"]
    assert mount["mountPath"] == next(one["value"] for one in orders["env"] if one["name"] == "WAL_DIR")
    assert (tmp_path / "orders-0").is_dir()  # INSTANCE: the pod's own, over restarts
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    assert OBJECTS["Service"]["spec"]["selector"] == OBJECTS["StatefulSet"]["spec"]["selector"]["matchLabels"]


def test_the_job_drains_the_volume_of_a_pod_that_is_gone() -> None:
    pod, drain = container("Job")
    program, name, path, *options = drain["command"]
    commands: Any = typer.main.get_command(command_line)
    known = {option for one in commands.commands[name].params for option in one.opts}
    assert program == "aiorecover"
    assert {word for word in options if word.startswith("--")} <= known
    assert path == drain["volumeMounts"][0]["mountPath"]
    [claim] = OBJECTS["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volume = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert re.fullmatch(rf"{claim['metadata']['name']}-{OBJECTS['StatefulSet']['metadata']['name']}-\d", volume)
    service, _ = container("StatefulSet")
    assert pod["securityContext"] == service["securityContext"]  # files of another user are left alone


def test_the_composition_is_what_compose_takes_and_its_parts_fit(service: TestClient) -> None:
    parsed = PyCompose.from_yaml((OPS / "compose.yaml").read_text(encoding="utf-8"))
    assert set(parsed.service_names()) == {"kafka", "orders", "prometheus", "grafana"}
    services, configs = COMPOSE["services"], COMPOSE["configs"]
    targets = {one["source"]: one["target"] for name in services for one in services[name].get("configs", ())}
    assert targets.keys() == configs.keys()
    assert all((OPS / one["file"]).is_file() for one in configs.values() if "file" in one)
    prometheus = yaml.safe_load(configs["prometheus"]["content"])
    assert prometheus["rule_files"] == [targets["alerts"]]
    [job] = prometheus["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    assert target == f"orders:{services['orders']['command'][-1]}"
    text = service.get(job["metrics_path"]).text
    assert {one.prometheus_name for one in TABLE} - set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE)) == set()
    [source] = yaml.safe_load(configs["datasource"]["content"])["datasources"]
    assert source["url"] == f"http://prometheus:{services['prometheus']['ports'][0].partition(':')[2]}"
    [provider] = yaml.safe_load(configs["dashboards"]["content"])["providers"]
    assert str(Path(targets["dashboard"]).parent) == provider["options"]["path"]
    orders = services["orders"]["environment"]
    assert orders.keys() <= READ
    assert orders["KAFKA"] in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f" {services['kafka']['image']}\n" in (DOCS / "first_record.md").read_text(encoding="utf-8")
    assert f"wal:{orders['WAL_DIR']}" in services["orders"]["volumes"]
    assert int(services["orders"]["stop_grace_period"].removesuffix("s")) > STOP_S
    RecoverableProducer(orders["WAL_DIR"], bootstrap_servers=orders["KAFKA"])
