# Starting, finding and ending our daemons, by the process ids that they wrote. Sourced.
# shellcheck shell=bash

# runs NAME PROGRAM: whether the process of run/NAME.pid lives and is that program.
runs() {
    local pid
    pid=$(cat "$STATE/run/$1.pid" 2>/dev/null) || return 1
    [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && ! ended "$pid"
}

# A process that nobody has waited for stays listed, without a command line.
ended() { [ -z "$(tr -d '\0' 2>/dev/null <"/proc/$1/cmdline")" ]; }

# start NAME PROGRAM COMMAND...: a daemon that goes to the background and writes run/NAME.pid.
start() {
    local name=$1 program=$2 log="$STATE/log/$1.out"
    shift 2
    runs "$name" "$program" && return
    mkdir -p "$STATE/log" "$STATE/run"
    # Nothing of ours stays open in it, or whoever called make would wait for it for ever.
    setsid "$@" </dev/null >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "$name did not start; what it said is above and in $log"
    }
    await "$name" 20 "$log" runs "$name" "$program"
}

# stop NAME PROGRAM: ask it to end, insist after a while.
stop() {
    local pid
    runs "$1" "$2" || return 0
    pid=$(cat "$STATE/run/$1.pid")
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 150); do
        runs "$1" "$2" || return 0
        sleep 0.1
    done
    say "$1 (process $pid) did not end within 15 s of SIGTERM: killed"
    kill -KILL "$pid" 2>/dev/null || true
    await "the end of $1" 10 /dev/null ended "$pid"
}
