"""A program in an ordinary process, without any sandbox."""

import os
import subprocess

_CACHES = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TMPDIR")


def last_words(argv, place, timeout_s):
    """Run it in the folder `place`, which has its caches: why it ended, as far as it says.

    That is the last line of its stderr, its exit status where it wrote none, or that it did not
    end in time.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=place,
            env={**os.environ, **dict.fromkeys(_CACHES, str(place))},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {timeout_s:.0f} s"
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return said[-1][:200]
