"""The CronJob of the offline example, held to Kubernetes' own definition and to its service."""

import json
import re
from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.examples import EXAMPLES, documents_of, services_of

FOLDER = EXAMPLES / "pipelines"
JOB, CLAIM = documents_of("pipelines/offline-job.yaml")
POD = JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.mark.cluster
def test_an_api_server_takes_the_job_as_it_is(cluster: Cluster) -> None:
    """No field is unknown, none is missing, and each has a value that may be."""
    strictly = ("--dry-run=server", "--validate=strict", "--filename=-")

    for each in (JOB, CLAIM):
        cluster.kubectl("apply", *strictly, input=json.dumps(each))


def test_every_volume_of_the_job_is_there() -> None:
    """Both ConfigMaps, by its first lines, hold the files that the script names; and a claim."""
    text = (FOLDER / "offline-job.yaml").read_text()
    made = dict(re.findall(r"create configmap (\S+) --from-file=(\S+)", text))
    paths = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    script = CONTAINER["args"][0]

    assert {volume["name"] for volume in POD["volumes"]} == set(paths)
    for volume in POD["volumes"]:
        if "configMap" in volume:
            file = Path(made[volume["configMap"]["name"]])
            assert (FOLDER / file.name).is_file()
            assert f"{paths[volume['name']]}/{file.name}" in script
        else:
            assert volume["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]


def test_the_job_asks_the_service_that_the_example_declares() -> None:
    """By its name in the cluster, on the port of the OpenAI API."""
    (service,) = services_of("pipelines/offline.yaml")

    assert f"--url http://{service['metadata']['name']}:8000/v1 " in CONTAINER["args"][0]
