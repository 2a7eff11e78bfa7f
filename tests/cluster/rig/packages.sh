# Debian packages of the rig. Nothing here starts a daemon. Sourced.
# shellcheck shell=bash

# Not slurm-wlm and mariadb-server: those bring settings and services of their own.
PACKAGES=(
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-mysql-plugin munge
    mariadb-server-core mariadb-client-core
    podman runc uidmap fuse-overlayfs
    squashfuse squashfs-tools debootstrap patchelf busybox-static
)
POLICY=/usr/sbin/policy-rc.d

install_packages() {
    local missing=() log="$STATE/packages.log"
    for package in "${PACKAGES[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ "${#missing[@]}" = 0 ] || install_missing "${missing[@]}" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "apt-get could not install ${missing[*]}; what it said is above and in $log"
    }
}

install_missing() {
    export DEBIAN_FRONTEND=noninteractive
    local wait=(-o DPkg::Lock::Timeout=120) status=0 ours=
    apt-get "${wait[@]}" update -q || return
    # Packages start their daemons with the system's settings, unless this file says no.
    if [ ! -e "$POLICY" ]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod 755 "$POLICY"
    fi
    apt-get "${wait[@]}" install -q -y --no-install-recommends "$@" || status=$?
    [ -z "$ours" ] || rm -f "$POLICY"
    return "$status"
}
