#!/usr/bin/env bash
# Makes the virtual environment .venv with the locked dependencies and this package, in place.
#
# Needs Python 3.11 or later; PYTHON names another interpreter than the first fitting one on PATH. Uses uv when it is
# there, because it is faster, and pip otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local python
    for python in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13; do
        if command -v "$python" >/dev/null && recent "$python"; then
            command -v "$python"
            return 0
        fi
    done
    say "Python 3.11 or later is needed; name it with: make setup PYTHON=/path/to/python3"
    return 1
}

# Debian ships venv and ensurepip apart from Python.
make_venv() {
    local python="$1" package
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv --clear .venv
    elif command -v uv >/dev/null; then
        uv venv --quiet --clear --seed --python "$python" .venv
    elif command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        say "this Python cannot make virtual environments: installing $package"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q -o DPkg::Lock::Timeout=300 update >&2
        apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$package" >&2
        "$python" -m venv --clear .venv
    else
        say "this Python cannot make virtual environments. Run this one command, then try again:"
        say "    sudo apt-get install -y $package"
        return 1
    fi
}

with_uv() {
    command -v uv >/dev/null || return 1
    uv pip install --quiet --python .venv/bin/python --require-hashes -r requirements.lock &&
        uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
}

with_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
    # PySpark comes as a source archive without a pyproject.toml: older pips are to build it the present way
    PIP_USE_PEP517=1 .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock &&
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
}

if ! { [ -x .venv/bin/python ] && recent .venv/bin/python; }; then
    python="$(find_python)"
    say "making .venv with $("$python" --version)"
    make_venv "$python"
fi
say "installing the locked dependencies (a few minutes the first time)"
with_uv || with_pip
say "ready: .venv/bin/millstream --help"
