# What up.sh and down.sh begin with: every part of the rig, for root alone. Sourced.
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")" || exit
for part in place packages user daemons slurm apptainer podman leftovers; do
    # shellcheck source=/dev/null
    . "./$part.sh"
done

demand_root
