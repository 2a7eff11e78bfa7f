# The ordinary user under whom everything is tried. Sourced.
# shellcheck shell=bash

USER_NOTE="pike-hpc devcluster"

user_is_ours() { getent passwd "$RIG_USER" | grep -q ":$USER_NOTE:"; }

make_user() {
    if getent passwd "$RIG_USER" >/dev/null; then
        user_is_ours || fail "there is a user $RIG_USER who is not ours; nothing was done to it." \
            "Use another machine"
    else
        # From a uid of its own: the first ones belong to people.
        useradd --create-home --shell /bin/bash --comment "$USER_NOTE" \
            --key UID_MIN=20000 --key UID_MAX=29999 "$RIG_USER"
    fi
    # Container engines map these to the users inside; useradd gives them by itself where its
    # settings say so.
    grep -q "^$RIG_USER:" /etc/subuid || usermod --add-subuids 2000000-2065535 "$RIG_USER"
    grep -q "^$RIG_USER:" /etc/subgid || usermod --add-subgids 2000000-2065535 "$RIG_USER"
    # Mounting images needs FUSE. udev would have made the file so.
    if [ -c /dev/fuse ] && [ "$(stat -c %a /dev/fuse)" != 666 ]; then
        stat -c %a /dev/fuse >"$STATE/fuse-mode"
        chmod 666 /dev/fuse
    fi
}

remove_user() {
    if user_is_ours; then
        local uid
        uid=$(id -u "$RIG_USER")
        # Shells, and what keeps podman's namespaces.
        processes_of_user | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
        await "the end of $RIG_USER's processes" 20 /dev/null no_process_of_user
        # By force: a process that nobody has waited for counts as a login otherwise.
        userdel --force --remove "$RIG_USER" 2>/dev/null
        # What its programs, and those that were killed, left in the folders that all share.
        files_of "$uid" | xargs --null --no-run-if-empty rm -rf --one-file-system
        say "removed the user $RIG_USER and its home"
    fi
    if [ -s "$STATE/fuse-mode" ]; then
        chmod "$(cat "$STATE/fuse-mode")" /dev/fuse
        rm -f "$STATE/fuse-mode"
    fi
}

processes_of_user() { ps -o stat=,pid= -u "$RIG_USER" | sed -n 's/^[^Z]\S* *//p'; }

# files_of UID: what the user owns outside its home, the outermost of each, with a null after it.
files_of() { find /tmp /var/tmp /dev/shm -ignore_readdir_race -xdev -mindepth 1 -uid "$1" -prune -print0; }

no_process_of_user() { [ -z "$(processes_of_user)" ]; }

# as_user COMMAND...: in its home, with a clean environment.
as_user() {
    local home
    home=$(getent passwd "$RIG_USER" | cut -d: -f6)
    (cd "$home" && runuser -u "$RIG_USER" -- env -i HOME="$home" USER="$RIG_USER" \
        LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin "$@")
}
