#!/usr/bin/env bash
# outage.sh stop|start [NAME...]: daemons of a rig that is up are gone for a while, as when a site
# services them. Names: slurmctld, slurmdbd; by default both. Jobs that run stay as they are.
set -euo pipefail
# shellcheck source=tests/cluster/rig/parts.sh
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"

order=$1
shift
[ "$#" -gt 0 ] || set -- slurmdbd slurmctld
for name in "$@"; do
    case "$order $name" in
    stop\ slurm*) stop "$name" "$name" ;;
    start\ slurmdbd) MYSQL_UNIX_PORT="$DB_SOCKET" start slurmdbd slurmdbd slurmdbd ;;
    start\ slurmctld) start slurmctld slurmctld slurmctld ;;
    *) fail "outage.sh stop|start [slurmctld] [slurmdbd]" ;;
    esac
done
[ "$order" = stop ] || await "the rig" 60 "$STATE/log/slurmctld.log" rig_answers
