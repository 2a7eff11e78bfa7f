# What the rig makes and `down` has to remove. Sourced.
# shellcheck shell=bash

# leftovers UID: a line for each thing; nothing where the machine is as it was before, but for
# Debian's packages. UID was the user's, if there was one.
leftovers() {
    if user_is_ours; then echo "the user $RIG_USER"; fi
    grep -H "^$RIG_USER:" /etc/subuid /etc/subgid || true
    ls -d "$STATE" "/home/$RIG_USER" 2>/dev/null || true
    grep -l "$MARK" "$SLURM_ETC"/* 2>/dev/null || true
    if apptainer_is_ours; then echo "$APPTAINER_LINK"; fi
    findmnt --list --noheadings --output TARGET | grep -e "^$STATE" -e "^/home/$RIG_USER" || true
    # Not those that have ended and wait for their parent to notice.
    pgrep -r R,S,D,T -af "^(slurmctld|slurmdbd|slurmd|slurmstepd)|$STATE" || true
    if [ -n "$1" ]; then
        pgrep -r R,S,D,T -a -U "$1" || true
        files_of "$1" | tr "\0" "\n"
    fi
}
