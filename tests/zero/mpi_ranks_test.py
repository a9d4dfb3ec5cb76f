#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: the bits of thread ranks, and jobs that end with their cause when a process goes wrong.

    mpi_ranks_test.py MPI_RANKS_PROGRAM QUICKSTART_PROGRAM GPT_PROGRAM
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import mpirun  # noqa: E402

PROGRAM, QUICKSTART, GPT = (os.path.abspath(path) for path in sys.argv[1:4])
CONFIG = os.path.join(ROOT, "examples", "quickstart", "ds_config.json")


def execute(command, env=None, limit_s=100):
    start = time.monotonic()
    result = subprocess.run(command, env=env or mpirun.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=limit_s, check=False)
    result.seconds = time.monotonic() - start
    return result


class Parity(unittest.TestCase):
    def test_four_processes_train_to_the_bits_of_four_threads(self):
        threads = execute([PROGRAM, "parity"])
        processes = execute(mpirun.command(4, PROGRAM, "parity"))
        self.assertEqual((threads.returncode, processes.returncode), (0, 0), threads.stderr + processes.stderr)
        self.assertEqual(processes.stdout, threads.stdout)
        self.assertEqual(processes.stderr, "")
        lines = processes.stdout.splitlines()
        self.assertEqual(len(lines), 16, processes.stdout)
        for start in ("gpt f32 canonical", "llama bf16 canonical"):  # every stage has the same bits
            stages = [re.sub(r"stage \d", "", line) for line in lines if line.startswith(start)]
            self.assertEqual((len(stages), len(set(stages))), (4, 1), processes.stdout)

    def test_the_quickstart_runs_unchanged_and_rank_0_prints(self):
        arguments = [QUICKSTART, "--config", CONFIG, "--samples", "64"]
        threads = execute([*arguments, "--num_gpus", "2"])
        for extra in ([], ["--num_gpus", "2"]):
            processes = execute(mpirun.command(2, *arguments, *extra))
            self.assertEqual((processes.returncode, processes.stdout), (0, threads.stdout), processes.stderr)

    def test_the_trainer_takes_its_ranks_from_mpirun(self):
        with tempfile.TemporaryDirectory() as folder:
            data = os.path.join(folder, "text.txt")
            with open(data, "w", encoding="utf-8") as file:
                file.write("the quick brown fox jumps over the lazy dog. " * 400)
            arguments = [GPT, "--preset", "tiny", "--data", data, "--max_steps", "2", "--zero_stage", "3", "--norun_dir",
                         "--validation_tokens", "256", "--sample_tokens", "8"]

            def losses(result):
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertIn("2 ranks, ", result.stdout)
                return re.findall(r"validation loss (\S+)", result.stdout)
            processes = losses(execute(mpirun.command(2, *arguments)))
            self.assertGreater(len(processes), 1)
            self.assertEqual(processes, losses(execute([*arguments, "--num_gpus", "2"])))


class Faults(unittest.TestCase):
    """Rank 2 of 4 goes wrong. The job ends in seconds, with a status that is not 0 and the cause in its first line."""

    def fault(self, kind, first_line, ranks=4, seconds=12):
        result = execute(mpirun.command(ranks, PROGRAM, "fault", kind))
        self.assertNotEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("came back", result.stdout)
        self.assertLess(result.seconds, seconds)
        self.assertRegex(result.stderr.split("\n")[0], first_line, result.stderr)
        return result

    def test_one_that_throws(self):
        result = self.fault("throw", r"^rank 2 \(.+\): the disk is full$")
        self.assertEqual(result.stderr.count("the disk is full"), 1, result.stderr)

    def test_all_that_throw_alike_say_it_once(self):
        result = self.fault("all_throw", r"^rank \d \(.+\): nobody can read the data$")
        self.assertLessEqual(result.stderr.count("nobody can read the data"), 2, result.stderr)

    def test_one_that_throws_in_training(self):
        result = self.fault("train", r"^rank 2 \(.+\): a token is out of range$")
        self.assertNotIn("rank 0 (", result.stderr)

    def test_all_that_throw_alike_in_training_say_it_once(self):
        result = self.fault("all_train", r"^rank \d \(.+\): a token is out of range$")
        self.assertLessEqual(result.stderr.count("a token is out of range"), 2, result.stderr)

    def test_one_that_calls_something_else(self):
        result = self.fault("other", r"^comm: .*rank 2 calls barrier #1")
        self.assertIn("calls all_reduce #4 of 200 f32", result.stderr.split("\n")[0])

    def test_one_that_stays_silent(self):
        self.fault("sleep", r"^comm: no sign of rank 2 for 2\.0 s; ranks 0, 1, 3 wait in all_reduce #4 of 200 f32$")

    def test_one_that_returns_early(self):
        self.fault("early", r"^comm: rank 2 has returned; .*wait.* in all_reduce #4 of 200 f32$")

    def test_one_that_exits(self):
        self.fault("exit", r"^rank 2 \(.+\): the process exits while its group is at work; this ends the job$")

    def test_one_that_is_killed(self):
        result = execute(mpirun.command(4, PROGRAM, "fault", "kill"))
        self.assertNotEqual(result.returncode, 0, result.stderr)
        self.assertLess(result.seconds, 12)
        self.assertRegex(result.stderr, r"process rank 2 .*exited on signal 9")

    def test_one_that_comes_late_to_the_start(self):
        self.fault("late", r"^rank \d: waited 2\.0 s in MPI_Init for processes of the job that have not come there$")

    def test_one_that_never_comes_to_the_start(self):
        result = execute(mpirun.command(4, PROGRAM, "fault", "never"))
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertLess(result.seconds, 12)


class Launchers(unittest.TestCase):
    def test_a_number_of_ranks_that_is_not_the_jobs_is_refused_with_what_to_type(self):
        for program in ([QUICKSTART, "--config", CONFIG], [GPT, "--data", CONFIG]):
            result = execute(mpirun.command(2, *program, "--num_gpus", "4"))
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("--num_gpus 4 under mpirun -n 2: leave --num_gpus away, or give -n 4",
                          result.stderr.split("\n")[0])

    def test_torchruns_environment_is_refused_with_what_to_type(self):
        for ranks in ("1", "2"):
            env = {**mpirun.environment(), "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
            result = execute([QUICKSTART, "--config", CONFIG, "--num_gpus", ranks], env)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("type mpirun -n 2 PROGRAM, or PROGRAM --num_gpus 2", result.stderr)

    def test_srun_without_pmix_is_refused(self):
        result = execute([PROGRAM, "fault", "none"], {**mpirun.environment(), "SLURM_STEP_NUM_TASKS": "4"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("start them with srun --mpi=pmix -n 4", result.stderr)


if __name__ == "__main__":
    reason = mpirun.why_not()
    if reason:
        print("skipped:", reason)
        sys.exit(mpirun.SKIPPED)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
