"""Processes that see another wall clock: a few lines of C, loaded before the C library.

All that asks for the time of day is shifted, in Python and below it; the monotonic clock is not.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift_s(void) {
    const char *text = getenv("WALL_CLOCK_SHIFT_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += shift_s();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """The library to preload."""
    source, library = folder / "wall_clock.c", folder / "wall_clock.so"
    source.write_text(SOURCE, encoding="utf-8")
    found = compiler()
    assert found is not None, "no C compiler"
    subprocess.run([found, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def environment(library: Path, shift_s: int) -> dict[str, str]:
    """For a process whose wall clock is so far ahead."""
    return {"LD_PRELOAD": str(library), "WALL_CLOCK_SHIFT_S": str(shift_s)}
