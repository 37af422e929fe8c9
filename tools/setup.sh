#!/bin/sh
# Makes .venv ready: `sh tools/setup.sh lab` for the course, `sh tools/setup.sh test` for its tests as well.
# Prints a line per stage, one line when something is missing, and nothing when .venv is ready already.
#   PYTHON=/path/to/python3   the Python that .venv is made with
#   PIP_ARGS='--proxy ...'    more arguments for pip
set -u
# Set for another Python, these would break this one, or have pip install somewhere else.
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX
CDPATH='' cd -- "$(dirname -- "$0")/.." || exit 1
here=$(pwd -P)
log=.venv/install.log

main() {
    goal=${1:-}
    case $goal in
        lab) package=. stamps=.ready-lab what="PyTorch and JupyterLab" ;;
        test) package=".[dev]" stamps=".ready-lab .ready-test" what="PyTorch, JupyterLab and the tools for tests" ;;
        *) fail "usage: sh tools/setup.sh lab|test" ;;
    esac
    if ready ".venv/.ready-$goal"; then return; fi
    # What lies behind a link may be in use elsewhere.
    [ ! -L .venv ] || fail ".venv is a link to another folder: remove the link (not the folder), then run the same command again"
    fault=$(fault_of_venv)
    if [ -n "$fault" ]; then
        find_python
        [ ! -e .venv ] || [ -f .venv/pyvenv.cfg ] || fail \
            ".venv is no virtual environment: move it elsewhere, then run the same command again"
        [ ! -e .venv ] || echo "Making .venv anew: $fault."
        make_venv
    fi
    install
}

fail() {
    printf 'AMP Lab: %s\n' "$1" >&2
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null; }

# Older Pythons cannot run the course; for newer ones some version in requirements.lock has no wheel.
supported() { case $1 in 3.11 | 3.12 | 3.13 | 3.14) ;; *) return 1 ;; esac; }

# True too when nobody asked for a certain Python.
is_wanted() { [ -z "${PYTHON:-}" ] || [ "$1" = "$(version_of "$PYTHON")" ]; }

# The path, because a .venv that was moved or copied is broken; checksums, because dates can lie in the future.
stamp() { printf '%s\n' "$here" && cksum requirements.lock pyproject.toml; }

ready() {
    [ -f "$1" ] && [ "$(cat "$1")" = "$(stamp)" ] || return 1
    version=$(version_of .venv/bin/python) && is_wanted "$version"
}

# Says why .venv cannot be used as it is; says nothing when it can.
fault_of_venv() {
    version=$(version_of .venv/bin/python) || { echo "its Python is gone" && return; }
    supported "$version" && is_wanted "$version" || { echo "it has Python $version" && return; }
    # uv makes them so.
    [ -e .venv/bin/pip ] || { echo "it has no pip" && return; }
    # A moved .venv still starts its python, but its scripts name the old place.
    case $(.venv/bin/pip --version 2>/dev/null </dev/null) in
        *" $here/.venv/"*) ;;
        *) echo "it was moved, or never finished" ;;
    esac
}

find_python() {
    set -- python3 python3.13 python3.12 python3.11 python3.14
    [ -z "${PYTHON:-}" ] || set -- "$PYTHON"
    unfit=
    for python; do
        version=$(version_of "$python") || continue
        if supported "$version"; then return; fi
        unfit="$unfit${unfit:+, }$python is $version"
    done
    advice="install one (https://www.python.org/downloads/), or name yours: make $goal PYTHON=/path/to/python3"
    [ -z "$unfit" ] || fail "Python 3.11 to 3.14 is needed, but $unfit: $advice"
    [ -z "${PYTHON:-}" ] || fail "$PYTHON does not run: give the path of a Python 3.11 to 3.14"
    fail "found no python3 that runs, and Python 3.11 to 3.14 is needed: $advice"
}

make_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null </dev/null || fail \
        "$python cannot make virtual environments: sudo apt install python3-venv (or python$version-venv), then run the same command again"
    echo "Creating .venv with $python (Python $version) ..."
    said=$("$python" -m venv --clear .venv 2>&1 </dev/null) && return
    fail_if_disk_full "$said"
    fail "creating .venv failed: $(printf '%s\n' "$said" | tail -n 1)"
}

install() {
    echo "Installing $what: 1.5 GB on disk, more where PyTorch comes with CUDA; this takes minutes; to watch: tail -f $log"
    stamped=$(stamp)
    # PIP_ARGS is unquoted because it may hold several arguments.
    .venv/bin/python -m pip install --disable-pip-version-check --no-input ${PIP_ARGS:-} \
        -c requirements.lock -e "$package" >"$log" 2>&1 </dev/null
    status=$?
    if [ "$status" = 0 ]; then
        for name in $stamps; do printf '%s\n' "$stamped" >".venv/$name" || exit 1; done
        return
    fi
    fail_if_disk_full "$(cat "$log")"
    fail "$(reason_in_log); $(advice_for_log), then run the same command again: it goes on where it stopped (log: $log)"
}

# pip's last error that names a cause; the last line where it died of an exception.
reason_in_log() {
    reason=$(grep 'ERROR: ' "$log" | grep -v -e 'Failed to build' -e 'ERROR: Exception:' -e 'ERROR: ResolutionImpossible' | tail -n 1)
    [ -n "$reason" ] || reason=$(grep '[^ ]' "$log" | tail -n 1)
    [ "$status" != 137 ] || reason="pip was killed"
    printf '%s\n' "${reason:-pip failed without a word (exit status $status)}" | sed 's/^ *//'
}

advice_for_log() {
    if [ "$status" = 137 ]; then
        echo "most likely memory ran out: close other programs"
    elif grep -qiE 'could not fetch|connection|timed out|name resolution|(not|to) resolve|proxy|SSLError|certificate' "$log"; then
        echo "check the network or proxy"
    elif grep -q -e 'No matching distribution found for torch==' -e 'requested (constraint) torch==' "$log"; then
        echo "PyTorch has wheels for Linux with glibc 2.28 or newer (x86-64 and ARM) and for macOS 14 or newer (Apple silicon): on another system nothing helps; else see the log"
    else
        echo "see the log for the cause"
    fi
}

# The message that says so can be lost, for it too is written to the full disk.
fail_if_disk_full() {
    case $1 in
        *"No space left on device"* | *"Disk quota exceeded"*) ;;
        *) df -Pk . "${TMPDIR:-/tmp}" | awk 'NR > 1 && $4 < 20000 { full = 1 } END { exit !full }' || return 0 ;;
    esac
    fail "the disk is full: make room here and in ${TMPDIR:-/tmp}, then run the same command again: it goes on where it stopped"
}

main "$@"
