#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program under mpirun as tests need it: as root or not, on few cores, in a container, without a network.

    tests/support/mpirun.py RANKS PROGRAM [ARGS]

Exits with mpirun's status, or with 77 ("skipped") where mpirun cannot start anything here.
"""
import os
import subprocess
import sys

SKIPPED = 77


def environment():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        env.pop(name, None)
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        OMPI_MCA_hwloc_base_binding_policy="none",
        OMPI_MCA_pml="ob1",  # shared memory only: nothing looks for a network
        OMPI_MCA_btl="self,vader",
        OMPI_MCA_plm_rsh_agent="",  # one host: ssh need not be there
        OMPI_MCA_mpi_abort_print_stack="0",
    )
    return env


def why_not():
    """Why mpirun cannot run here; empty where it can."""
    try:
        probe = subprocess.run(["mpirun", "-n", "1", "true"], env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if probe.returncode == 0 else probe.stdout.decode(errors="replace").strip() or "mpirun fails"


def command(ranks, *program):
    return ["mpirun", "-n", str(ranks), *program]


def main():
    reason = why_not()
    if reason:
        print("skipped:", reason)
        return SKIPPED
    os.execvpe("mpirun", command(*sys.argv[1:]), environment())


if __name__ == "__main__":
    sys.exit(main())
