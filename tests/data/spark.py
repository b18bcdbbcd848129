# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The data service as a Spark application, on Spark itself: four tasks of one machine. It fetches Spark, and needs Java."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from packages import environment_with  # noqa: E402

if shutil.which("java") is None:
    print("there is no java (Debian's openjdk-17-jre-headless)")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    bin = environment_with(pathlib.Path(folder) / "environment", "pyspark==4.3.0", "py4j==0.10.9.9") / "bin"
    variables = os.environ | {"HVD_TEST_SPARK": str(bin / "spark-submit"), "PYSPARK_PYTHON": str(bin / "python"), "PATH": f"{bin}:{os.environ['PATH']}"}
    tests = pathlib.Path(__file__).parent / "service_processes.py"
    code = subprocess.run([sys.executable, tests, "-k", "spark"], env=variables).returncode
sys.exit(code)
