# Apptainer, which Debian 12 lacks: unstable's package in a folder of its own, with the C library
# that it wants beside it. The system's package lists and its C library stay as they are. Sourced.
# shellcheck shell=bash

APPTAINER="$STATE/apptainer"
APPTAINER_LINK=/usr/local/bin/apptainer

install_apptainer() {
    [ -x "$APPTAINER/root/usr/bin/apptainer" ] && [ -e "$APPTAINER_LINK" ] && return
    if [ -e "$APPTAINER_LINK" ] && ! apptainer_is_ours; then
        fail "$APPTAINER_LINK is not ours. Move it away, or use another machine"
    fi
    rm -rf "$APPTAINER"
    mkdir -p "$APPTAINER"/{lists/partial,cache/archives/partial,deb,libc}
    local log="$APPTAINER/log"
    fetch_unstable apptainer libc6 >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "apptainer could not be fetched from Debian unstable; see above and $log"
    }
    dpkg-deb -x "$APPTAINER"/deb/libc6_*.deb "$APPTAINER/libc"
    dpkg-deb -x "$APPTAINER"/deb/apptainer_*.deb "$APPTAINER/unpacked"
    # Its programs look for settings and mount points in etc and var beside their own bin folder
    # and one above that: /usr in one case, /usr/lib in the other.
    ln -s ../etc ../var "$APPTAINER/unpacked/usr"
    ln -s ../../etc ../../var "$APPTAINER/unpacked/usr/lib"
    use_own_libc "$APPTAINER/unpacked"/usr/bin/apptainer \
        "$APPTAINER/unpacked"/usr/lib/*/apptainer/bin/starter
    rm -rf "$APPTAINER/lists" "$APPTAINER/cache" "$APPTAINER/deb"
    mv "$APPTAINER/unpacked" "$APPTAINER/root"
    ln -sf "$APPTAINER/root/usr/bin/apptainer" "$APPTAINER_LINK"
}

apptainer_is_ours() { [[ "$(readlink "$APPTAINER_LINK")" == "$APPTAINER"/* ]]; }

# fetch_unstable PACKAGE...: from the mirror that this machine's own packages come from.
fetch_unstable() {
    local mirror
    mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | sed -n 's/^bookworm //p' |
        head -n 1)
    [ -n "$mirror" ] || { echo "apt knows no mirror with Debian bookworm"; return 1; }
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror unstable main" \
        >"$APPTAINER/sources.list"
    cat >"$APPTAINER/apt.conf" <<END
Dir::Etc::sourcelist "$APPTAINER/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$APPTAINER/lists";
Dir::Cache "$APPTAINER/cache";
Acquire::Languages "none";
APT::Sandbox::User "root";
END
    (
        export APT_CONFIG="$APPTAINER/apt.conf"
        cd "$APPTAINER/deb" && apt-get -q update && apt-get -q download "$@"
    )
}

use_own_libc() {
    local libraries
    libraries=$(dirname "$(find "$APPTAINER/libc" -name libc.so.6)")
    for program in "$@"; do
        patchelf --set-interpreter "$(find "$libraries" -name 'ld-linux-*')" \
            --set-rpath "$libraries:/usr/lib/$(basename "$libraries")" "$program"
    done
}

remove_apptainer() {
    if apptainer_is_ours; then rm -f "$APPTAINER_LINK"; fi
}

# A static busybox is image enough to see that both engines run programs for the user.
try_engines() {
    local log="$STATE/log/engines.out"
    as_user sh -eu -c '
        rm -rf try && mkdir -p try/root/bin try/root/tmp
        cp /bin/busybox try/root/bin/sh
        apptainer --silent build --force try/busybox.sif try/root
        test "$(apptainer exec --containall try/busybox.sif sh -c "echo inside")" = inside
        tar -C try/root -c . | podman import - try >/dev/null
        test "$(podman run --rm try sh -c "echo inside")" = inside
        podman rmi -f try >/dev/null
        rm -rf try
    ' >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "an engine runs no program as $RIG_USER; what it said is above and in $log"
    }
}
