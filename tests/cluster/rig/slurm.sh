# Slurm: munge, database, accounting, controller, nodes. Sourced.
# shellcheck shell=bash

DB_SOCKET="$STATE/run/db.socket"
ACCOUNT=m0000

start_accounting() {
    write_configuration
    start_munge
    start_database
    MYSQL_UNIX_PORT="$DB_SOCKET" start slurmdbd slurmdbd slurmdbd
    await "the accounting daemon" 30 "$STATE/log/slurmdbd.log" sacctmgr -n show cluster
    make_accounts
}

start_slurm() {
    mkdir -p "$STATE/controller" "$STATE/nodes" "$STATE/gpus"
    for node in "${NODES[@]}"; do
        # Slurm counts device files, and only those: these are the null device by other names.
        for gpu in "$STATE/gpus/$node-0" "$STATE/gpus/$node-1"; do
            [ -c "$gpu" ] || mknod -m 666 "$gpu" c 1 3
        done
    done
    start slurmctld slurmctld slurmctld
    await "the controller" 30 "$STATE/log/slurmctld.log" controller_answers
    for node in "${NODES[@]}"; do
        start "$node" slurmd slurmd -N "$node"
    done
    # One that a test set down and left so.
    scontrol update nodename="$(IFS=, && echo "${NODES[*]}")" state=resume 2>/dev/null || true
    await "four nodes" 60 "$STATE/log/slurmctld.log" nodes_answer
}

rig_answers() { controller_answers && nodes_answer && sacctmgr -n show cluster >/dev/null 2>&1; }

controller_answers() { scontrol ping 2>/dev/null | grep "is UP" >/dev/null; }

# Not down, drained, unknown or silent (a star): idle, allocated or completing will do.
nodes_answer() {
    [ "$(sinfo -h -N -o '%N %T' 2>/dev/null | sort -u |
        grep -cE '^c[1-4] (idle|mixed|allocated|completing)$')" = "${#NODES[@]}" ]
}

write_configuration() {
    mkdir -p "$SLURM_ETC" "$STATE/log" "$STATE/run"
    local file
    for file in slurm.conf slurmdbd.conf; do
        install -m 600 /dev/null "$SLURM_ETC/$file"
        sed -e "s|@MARK@|$MARK|; s|@HOST@|$(hostname -s)|; s|@STATE@|$STATE|" \
            "$file" >"$SLURM_ETC/$file"
    done
    install -m 755 epilog.sh "$STATE/epilog.sh"
    {
        echo "# $MARK; make devcluster-down removes it."
        for node in "${NODES[@]}"; do
            echo "NodeName=$node Name=gpu Type=a100 File=$STATE/gpus/$node-[0-1]"
        done
    } >"$SLURM_ETC/gres.conf"
    chmod 644 "$SLURM_ETC/slurm.conf" "$SLURM_ETC/gres.conf"
}

remove_slurm_conf() {
    local file
    for file in slurm.conf slurmdbd.conf gres.conf; do
        if grep -qs "$MARK" "$SLURM_ETC/$file"; then rm -f "$SLURM_ETC/$file"; fi
    done
}

start_munge() {
    local key="$STATE/munge/key"
    mkdir -p "$STATE/munge"
    if [ ! -s "$key" ]; then
        (umask 077 && dd if=/dev/urandom of="$key" bs=1024 count=1 status=none)
    fi
    start munged munged munged --key-file="$key" --socket="$STATE/run/munge.socket" \
        --pid-file="$STATE/run/munged.pid" --seed-file="$STATE/munge/seed" \
        --log-file="$STATE/log/munged.log"
}

start_database() {
    local data="$STATE/db" log="$STATE/log/db.out"
    # mariadbd stays in the foreground, so nobody but us can tell when it is ready.
    runs db mariadbd && return
    if [ ! -e "$data/made" ]; then
        rm -rf "$data"
        mkdir -m 700 "$data"
        mariadb-install-db --no-defaults --user=root --datadir="$data" --skip-test-db \
            --auth-root-authentication-method=socket >"$log" 2>&1 || {
            tail -n 20 "$log" >&2
            fail "the database could not be made; what it said is above and in $log"
        }
        touch "$data/made"
    fi
    # Losing a second of accounts in a crash is nothing here; waiting for the disk is.
    setsid mariadbd --no-defaults --user=root --datadir="$data" --socket="$DB_SOCKET" \
        --pid-file="$STATE/run/db.pid" --skip-networking --innodb-flush-log-at-trx-commit=0 \
        --innodb-lock-wait-timeout=900 </dev/null >"$log" 2>&1 &
    await "the database" 60 "$log" mariadb --no-defaults --socket="$DB_SOCKET" -e "SELECT 1"
}

# Two QOS as at sites: jobs of one may be requeued for jobs of the other. A third has a limit.
make_accounts() {
    local log="$STATE/log/accounts.out"
    add_accounts >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "Slurm's accounts could not be made; what it said is above and in $log"
    }
}

add_accounts() {
    known cluster devcluster || sacctmgr -i add cluster devcluster
    known qos preempt || sacctmgr -i add qos preempt priority=1 preemptmode=requeue gracetime=5
    known qos regular || sacctmgr -i add qos regular priority=100 preempt=preempt
    known qos debug || sacctmgr -i add qos debug priority=200 maxwall=30 flags=DenyOnLimit
    known qos brief || sacctmgr -i add qos brief maxwall=30
    known account "$ACCOUNT" || sacctmgr -i add account "$ACCOUNT" cluster=devcluster \
        description=devcluster organization=devcluster
    known user "$RIG_USER" || sacctmgr -i add user "$RIG_USER" cluster=devcluster \
        account="$ACCOUNT" qos=regular,preempt,debug,brief defaultqos=regular
}

known() { sacctmgr -nP show "$1" | cut -d"|" -f1 | grep -x "$2" >/dev/null; }

stop_slurm() {
    if controller_answers; then
        scancel --user="$RIG_USER" 2>/dev/null || true
        # Of a node whose daemon was killed nobody hears that its jobs have ended: that is no fault.
        for _ in $(seq 300); do
            if no_jobs; then break; fi
            sleep 0.1
        done
    fi
    for node in "${NODES[@]}"; do stop "$node" slurmd; done
    stop slurmctld slurmctld
    # What looked after the jobs of such a node; the jobs' own processes end with their user.
    own_stepds | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
}

# Those that write to a log of ours.
own_stepds() {
    local pid
    for pid in $(pgrep '^slurmstepd'); do
        if [ -n "$(find "/proc/$pid/fd" -lname "$STATE/*" 2>/dev/null)" ]; then echo "$pid"; fi
    done
}

no_jobs() { [ -z "$(squeue -h --user="$RIG_USER" 2>/dev/null)" ]; }

stop_accounting() {
    stop slurmdbd slurmdbd
    stop db mariadbd
    stop munged munged
}
