# Shared by the other scripts: a Python, what libp2p's dependencies compile against, and a virtual
# environment with this tree in it. Sourced, never run.
#
#   SWARMD_VENV   where the environment is; default: .venv in this tree
#   PYTHON, CC    which interpreter and compiler to try first

root=$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${SWARMD_VENV:-$root/.venv}
compiler=${CC:-cc}

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

has_header() { # has_header NAME [INCLUDE_DIR]
    printf '#include <%s>\n' "$1" | $compiler -E -I"${2:-.}" -x c - >/dev/null 2>&1
}

require_build_tools() { # require_build_tools PYTHON (empty: none was found)
    local missing="" include
    add() { missing="$missing${missing:+, }$1"; }
    [ -n "$1" ] || add "Python 3.11 or newer with venv"
    if command -v "${compiler%% *}" >/dev/null 2>&1; then
        has_header gmp.h || has_header gmp.h /opt/homebrew/include || has_header gmp.h /usr/local/include \
            || add "the GMP headers"
        if [ -n "$1" ]; then
            include=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
            has_header Python.h "$include" || add "the Python headers"
        fi
    else
        add "a C compiler (and with it the GMP headers)"
    fi
    [ -z "$missing" ] && return 0
    say "swarmd needs $missing to install (fastecdsa, a dependency of libp2p, is built from source)."
    say "  Debian, Ubuntu   sudo apt-get install -y git build-essential libgmp-dev python3-dev python3-venv"
    say "  Fedora           sudo dnf install -y git gcc gmp-devel python3-devel"
    say "  Arch             sudo pacman -S --needed git base-devel gmp python"
    say "  macOS            xcode-select --install; brew install gmp python@3.11"
    return 1
}

# ensure_venv EXTRA: this tree in $venv, editable, with the tested versions. Does nothing if that is
# what is there already: a stamp holds what was installed from, and whether with the test tools.
ensure_venv() {
    local extra=$1 python stamp wanted log
    stamp=$venv/.swarmd-installed
    wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)" $root"
    if [ -x "$venv/bin/swarmd" ]; then
        case "$(cat "$stamp" 2>/dev/null)" in
            "$wanted$extra" | "$wanted[test]") return 0 ;;
        esac
    fi
    python=$(find_python) || python=""
    require_build_tools "$python" || return 1
    say "installing into $venv (a few minutes the first time; $venv/install.log grows meanwhile) ..."
    if [ ! -x "$venv/bin/python" ]; then
        "$python" -m venv "$venv" || return 1
    fi
    log=$venv/install.log
    if [ -d /opt/homebrew/include ]; then
        export CFLAGS="${CFLAGS:-} -I/opt/homebrew/include" LDFLAGS="${LDFLAGS:-} -L/opt/homebrew/lib"
    fi
    rm -f "$stamp"
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check \
            -c "$root/constraints.txt" -e "$root$extra" >"$log" 2>&1; then
        say "installation failed; the last lines of $log:"
        tail -n 15 "$log" >&2
        return 1
    fi
    printf '%s' "$wanted$extra" >"$stamp"
}
