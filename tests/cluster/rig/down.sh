#!/usr/bin/env bash
# `make devcluster-down`: end the daemons and remove what `make devcluster` made. Debian's own
# packages stay. Safe to repeat, and after an attempt that failed half way. Exit status 1 where
# something of it is left, which it names.
set -euo pipefail
# shellcheck source=tests/cluster/rig/parts.sh
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"

demand_own_slurm_conf
if [ ! -e "$STATE" ] && ! user_is_ours; then
    say "nothing to remove"
    exit 0
fi
uid=
if user_is_ours; then uid=$(id -u "$RIG_USER"); fi
rm -f "$READY"
stop_slurm
stop_accounting
remove_user
remove_apptainer
remove_slurm_conf
rm -rf --one-file-system "$STATE"
left=$(leftovers "$uid")
[ -z "$left" ] || fail "left behind: $left"
say "down; the Debian packages stay installed"
