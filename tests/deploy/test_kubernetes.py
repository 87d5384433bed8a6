"""The manifests of deploy/kubernetes: valid by the schemas of Kubernetes and JobSet, true to the command."""

import copy
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
import yaml
from command_lines import ROOT, parse
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from zerocopy_seed.certificates import FILES

FOLDER = ROOT / "deploy" / "kubernetes"
SCHEMAS = pathlib.Path(__file__).parent / "schemas"
CORE = "kubernetes.json#/$defs/io.k8s.api.core.v1"
KINDS = {
    "JobSet": "jobset.json#/$defs/JobSet",
    "Service": f"{CORE}.Service",
    "PersistentVolumeClaim": f"{CORE}.PersistentVolumeClaim",
}
REGISTRY = Registry().with_resources(
    (path.name, Resource.from_contents(json.loads(path.read_text()))) for path in SCHEMAS.glob("*.json")
)
DOCUMENTS = {
    f"{path.stem}:{document['kind']}": document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
JOBS = {
    f"{name.partition(':')[0]}:{job['name']}": job["template"]["spec"]
    for name, document in DOCUMENTS.items()
    if document["kind"] == "JobSet"
    for job in document["spec"]["replicatedJobs"]
}


def mistakes(document):
    validator = Draft202012Validator({"$ref": KINDS[document["kind"]]}, registry=REGISTRY)
    return [error.json_path for error in validator.iter_errors(document)]


def container_of(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def words_of(job):
    """The command line, variables filled in as the kubelet does."""
    container = container_of(job)
    values = {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_manifest_fits_its_schema(name):
    assert mistakes(DOCUMENTS[name]) == []


def learner_container(document):
    return container_of(document["spec"]["replicatedJobs"][0]["template"]["spec"])


@pytest.mark.parametrize(
    ("name", "breaks"),
    [
        ("train:JobSet", lambda document: document.update(apiVersion="jobset.x-k8s.io/v1")),
        ("train:JobSet", lambda document: document["spec"].update(succesPolicy={})),
        ("train:JobSet", lambda document: document["spec"]["successPolicy"].update(operator="Some")),
        ("train:JobSet", lambda document: document["spec"]["replicatedJobs"][0].pop("template")),
        ("train:JobSet", lambda document: learner_container(document).update(imagee="x")),
        ("train:JobSet", lambda document: learner_container(document)["args"].append(256)),
        ("train-hosts:JobSet", lambda document: document["spec"]["failurePolicy"].update(maxRestarts="100")),
        ("train:Service", lambda document: document["spec"]["ports"][0].pop("port")),
        ("train:PersistentVolumeClaim", lambda document: document["spec"].update(accessModes="all")),
    ],
)
def test_a_broken_manifest_does_not(name, breaks):
    document = copy.deepcopy(DOCUMENTS[name])
    breaks(document)
    assert mistakes(document)


@pytest.mark.parametrize("name", JOBS)
def test_the_command_takes_its_words(name):
    words = words_of(JOBS[name])
    parsed = parse(words)
    assert parsed.command == ("actor" if name.endswith("actors") else "train")
    with pytest.raises(AssertionError, match="nonsense"):
        parse([*words, "--nonsense", "1"])


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_restarted_as_its_policies_mean_it(name):
    job = JOBS[name]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")  # of a Job no other is allowed
    assert pod["restartPolicy"] == "Never" or "podFailurePolicy" not in job
    assert job["parallelism"] == job["completions"]
    assert pod["securityContext"]["runAsUser"] == 1000  # the Dockerfile's user
    container = container_of(job)
    for rule in job.get("podFailurePolicy", {"rules": ()})["rules"]:
        if "onExitCodes" in rule:
            assert (rule["onExitCodes"]["containerName"], rule["action"]) == (container["name"], "FailJob")
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_actors_reach_the_learner_and_what_both_name_is_there():
    service = DOCUMENTS["train:Service"]
    job_set = DOCUMENTS["train:JobSet"]
    learner, actors = parse(words_of(JOBS["train:learner"])), parse(words_of(JOBS["train:actors"]))
    (port,) = service["spec"]["ports"]
    config = learner.values[0]
    assert config.bridge.address == f"0.0.0.0:{port['port']}"
    assert actors.values == (f"{service['metadata']['name']}:{port['port']}",)
    assert service["spec"]["selector"] == {
        "jobset.sigs.k8s.io/jobset-name": job_set["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": "learner",
    }
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == ["learner"]
    assert config.env.num_envs == JOBS["train:actors"]["parallelism"] * actors.options["num_envs"]
    bridge = config.bridge
    shown = [bridge.ca, bridge.cert, bridge.key, bridge.token_file, *actors.options["credentials"].values()]
    assert {pathlib.PurePath(file).parent for file in shown} == {pathlib.PurePath("/credentials")}
    secrets = {
        volume["secret"]["secretName"]
        for job in ("train:learner", "train:actors")
        for volume in JOBS[job]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    readme = (ROOT / "deploy" / "README.md").read_text()
    made = dict(re.findall(r"secret generic (\S+) ((?:\\\s+|--from-file=\S+\s+)+)", readme))
    assert set(made) == secrets
    for file in shown:
        name = pathlib.PurePath(file).name
        assert name in FILES and f"--from-file=credentials/{name}" in readme
    assert not any(
        "server-key" in files or "ca-key" in files for name, files in made.items() if "actor" in name
    )


def test_claims_are_those_that_are_made():
    for name, document in DOCUMENTS.items():
        if document["kind"] == "PersistentVolumeClaim":
            volumes = JOBS[f"{name.partition(':')[0]}:learner"]["template"]["spec"]["volumes"]
            claims = [
                volume["persistentVolumeClaim"]["claimName"]
                for volume in volumes
                if "persistentVolumeClaim" in volume
            ]
            assert claims == [document["metadata"]["name"]]


def test_hosts_are_counted_alike():
    job = JOBS["train-hosts:learner"]
    values = {entry["name"]: entry.get("value") for entry in container_of(job)["env"]}
    assert (job["completionMode"], values["JAX_NUM_PROCESSES"]) == ("Indexed", str(job["completions"]))
    _, _, port = values["JAX_COORDINATOR_ADDRESS"].partition(":")
    assert [entry["containerPort"] for entry in container_of(job)["ports"]] == [int(port)]
    gpus = job["completions"] * int(container_of(job)["resources"]["limits"]["nvidia.com/gpu"])
    config, _ = parse(words_of(job)).values
    assert config.devices.learner == gpus


STAND_IN = """
import pathlib, signal, sys, time
pathlib.Path("words").write_text(" ".join(sys.argv[1:]))
def handle(number, frame):
    pathlib.Path("saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, handle)
pathlib.Path("started").touch()
if pathlib.Path("code").exists():
    sys.exit(int(pathlib.Path("code").read_text()))
time.sleep(60)
"""


@pytest.mark.parametrize("name", JOBS)
def test_who_is_told_to_end_has_not_finished(name, tmp_path):
    """The shell around the process: its own code for an end that was asked for, the process's for others."""
    program, *options = container_of(JOBS[name])["command"]
    stand_in = ["python3", "-c", STAND_IN, "--flag"]

    def start(environment):
        return subprocess.Popen([program, *options, *stand_in], cwd=tmp_path, env=os.environ | environment)

    (tmp_path / "run").mkdir()
    environment = {"RUN_DIR": str(tmp_path / "run")}
    with start(environment) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "words").read_text() == "--flag"
    (tmp_path / "run" / "config.toml").touch()
    for code in (0, 2):
        (tmp_path / "code").write_text(str(code))
        with start(environment) as process:
            assert process.wait(30) == code
    resumes = "" if name.endswith("actors") else " --resume"
    assert (tmp_path / "words").read_text() == f"--flag{resumes}"
