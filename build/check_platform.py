"""Says at once, and in plain words, when this machine cannot run the packaged server."""

import platform
import sys

problems = []
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    problems.append(f"Python is {platform.python_version()}, needed is 3.10 to 3.12: run `make PYTHON=python3.11 ...`")
if sys.platform != "linux" or platform.machine() != "x86_64":
    problems.append(
        f"the platform is {sys.platform} on {platform.machine()}, the packaged Triton server needs linux on x86_64"
    )
libc, version = platform.libc_ver()
if sys.platform == "linux" and (libc != "glibc" or tuple(map(int, version.split("."))) < (2, 34)):
    problems.append(
        f"the C library is {libc or 'unknown'} {version}, needed is glibc 2.34 or newer (Debian 12, Ubuntu 22.04)"
    )
if problems:
    sys.exit("this machine cannot run the demo:\n- " + "\n- ".join(problems))
