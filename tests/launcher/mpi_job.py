# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A job of the Kubernetes MPI Operator against its schema.

SCHEMA has the fields that docs/launching.md uses and their neighbours. The operator's own is manifests/base/kubeflow.org_mpijobs.yaml
in its repository: if HVD_TEST_MPIJOB_SCHEMA is a copy of that file, it is taken instead."""

import os
import pathlib

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
STRING, NUMBER = {"type": "string"}, {"type": "integer"}


def an_object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


AMOUNTS = {"type": "object", "additionalProperties": STRING}
MOUNT = an_object(["name", "mountPath"], name=STRING, mountPath=STRING, subPath=STRING)
VOLUME = an_object(["name"], name=STRING, emptyDir=an_object(medium=STRING, sizeLimit=STRING))
CONTAINER = an_object(["name"], name=STRING, image=STRING, resources=an_object(limits=AMOUNTS, requests=AMOUNTS), volumeMounts={"type": "array", "items": MOUNT},
                      **{words: {"type": "array", "items": STRING} for words in ("command", "args")})
POD = an_object(metadata={"type": "object"}, spec=an_object(["containers"], containers={"type": "array", "items": CONTAINER}, volumes={"type": "array", "items": VOLUME}))
REPLICAS = an_object(replicas=NUMBER, restartPolicy=STRING, template=POD)
SPEC = an_object(["mpiReplicaSpecs"], slotsPerWorker=NUMBER, sshAuthMountPath=STRING, mpiReplicaSpecs={"type": "object", "additionalProperties": REPLICAS},
                 mpiImplementation={"type": "string", "enum": ["OpenMPI", "Intel", "MPICH"]}, runPolicy=an_object(cleanPodPolicy=STRING, backoffLimit=NUMBER))
SCHEMA = an_object(apiVersion=STRING, kind=STRING, metadata={"type": "object"}, spec=SPEC)


def schema():
    file = os.environ.get("HVD_TEST_MPIJOB_SCHEMA")
    if file is None:
        return SCHEMA
    import yaml
    (definition,) = yaml.safe_load_all(pathlib.Path(file).read_text())
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v2beta1"]
    return version["schema"]["openAPIV3Schema"]


def faults(job):
    return list(faults_at("job", job, schema()))


def faults_at(where, value, fits):
    """What does not fit a schema as Kubernetes has them. A field that it does not know would be dropped in silence."""
    if fits.get("x-kubernetes-int-or-string"):
        fits = STRING if isinstance(value, str) else NUMBER
    kind = fits.get("type", "object")
    if not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        yield f"{where}: {kind} expected"
    elif value not in fits.get("enum", [value]):
        yield f"{where}: one of {fits['enum']} expected"
    elif kind == "array":
        for index, item in enumerate(value):
            yield from faults_at(f"{where}[{index}]", item, fits["items"])
    elif kind == "object":
        yield from (f"{where}: {name} is missing" for name in fits.get("required", []) if name not in value)
        known, others = fits.get("properties", {}), fits.get("additionalProperties")
        for name, one in value.items():
            if name in known or others:
                yield from faults_at(f"{where}.{name}", one, known.get(name, others))
            elif known:
                yield f"{where}.{name}: unknown"
