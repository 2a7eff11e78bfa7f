#!/usr/bin/env bash
# `make devcluster`: a real Slurm with accounting, four nodes with GPUs by name, Apptainer and
# rootless podman, for one ordinary user, on this machine. Safe to repeat: what stands is kept.
set -euo pipefail
# shellcheck source=tests/cluster/rig/parts.sh
. "$(dirname "${BASH_SOURCE[0]}")/parts.sh"

demand_debian
demand_own_slurm_conf
if [ -e "$READY" ] && rig_answers; then
    say "already up: log in with 'runuser -l $RIG_USER'; 'make devcluster-down' ends it"
    exit 0
fi

rm -f "$READY"
mkdir -p "$STATE"
step "packages" install_packages
step "apptainer" install_apptainer
step "user $RIG_USER" make_user
step "podman" configure_podman
step "munge, database and accounting" start_accounting
step "controller and four nodes" start_slurm
step "apptainer and podman as $RIG_USER" try_engines
touch "$READY"
say "up after $SECONDS s; try: runuser -l $RIG_USER -c 'sinfo -N; srun -p gpu --gpus=1 env | grep CUDA'"
