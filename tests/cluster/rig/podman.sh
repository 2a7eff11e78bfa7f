# Rootless podman on a machine without systemd: settings of the user. Sourced.
# shellcheck shell=bash

configure_podman() {
    local folder
    folder=$(getent passwd "$RIG_USER" | cut -d: -f6)/.config/containers
    runuser -u "$RIG_USER" -- mkdir -p "$folder"
    # No systemd: no control groups of the user's own, no journal. runc, because crun refuses hosts
    # that have both versions of control groups. No network: nothing here wants one.
    runuser -u "$RIG_USER" -- tee "$folder/containers.conf" >/dev/null <<END
[containers]
netns = "none"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
END
    runuser -u "$RIG_USER" -- tee "$folder/storage.conf" >/dev/null <<END
[storage]
driver = "overlay"
END
}
