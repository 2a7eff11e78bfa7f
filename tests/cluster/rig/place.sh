# Where the rig lies, and how it speaks: names, messages, waiting. Sourced by up.sh and down.sh.
# shellcheck shell=bash disable=SC2034  # the other parts use the names

STATE=/var/lib/pike-devcluster
READY="$STATE/ready"
SLURM_ETC=/etc/slurm
RIG_USER=pike
MARK="Written by pike-hpc's make devcluster"
NODES=(c1 c2 c3 c4)

say() { printf 'devcluster: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# step WHAT FUNCTION: run it and say how long it took; its error ends the whole.
step() {
    local begun=$SECONDS
    "$2"
    say "$1: $((SECONDS - begun)) s"
}

# await WHAT SECONDS LOG COMMAND...: until the command succeeds; or fail with what it said last and
# the end of the log.
await() {
    local what=$1 limit=$2 log=$3 deadline said
    shift 3
    deadline=$((SECONDS + limit))
    until said=$("$@" 2>&1); do
        if [ "$SECONDS" -ge "$deadline" ]; then
            say "$what: not within $limit s. ${said:-Nothing was said.}"
            say "The end of $log:"
            tail -n 20 "$log" >&2 || true
            exit 1
        fi
        sleep 0.1
    done
}

demand_root() {
    [ "$(id -u)" = 0 ] || fail "needs root: it installs packages, makes a user, starts daemons." \
        "On a machine of your own: sudo make devcluster"
}

demand_debian() {
    # shellcheck source=/dev/null
    [ "$(. /etc/os-release && echo "$ID$VERSION_ID")" = debian12 ] ||
        fail "written for Debian 12, whose packages it installs; this is another system." \
            "A container or virtual machine with Debian 12 will do"
}

demand_own_slurm_conf() {
    local conf="$SLURM_ETC/slurm.conf"
    if [ -e "$conf" ] && ! grep -q "$MARK" "$conf"; then
        fail "$conf belongs to a Slurm that is not ours: this machine is part of a cluster." \
            "Nothing was changed; use a machine without Slurm"
    fi
}
