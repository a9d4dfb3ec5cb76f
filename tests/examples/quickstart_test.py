#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the quickstart on few samples: quickstart_test.py QUICKSTART_PROGRAM"""
import os
import re
import subprocess
import sys
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "quickstart"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "examples", "quickstart")


class QuickstartTest(unittest.TestCase):
    def run_quickstart(self, *arguments):
        return subprocess.run([PROGRAM, "--config", os.path.join(FOLDER, "ds_config.json"), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False)

    def test_learns_on_one_rank_and_on_two(self):
        for ranks in ("1", "2"):
            result = self.run_quickstart("--samples", "64", "--num_gpus", ranks)
            self.assertEqual(result.returncode, 0, result.stderr)
            losses = [float(loss) for loss in re.findall(r"^epoch \d \| loss (\S+)$", result.stdout, re.MULTILINE)]
            self.assertEqual(len(losses), 3, result.stdout)
            self.assertLess(losses[2], losses[0] - 0.1)

    def test_an_error_is_one_line(self):
        result = self.run_quickstart("--config", "/no.json")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn("/no.json", result.stderr)

    def test_the_readme_shows_this_program(self):
        with open(os.path.join(FOLDER, "quickstart.cc"), encoding="utf-8") as file:
            program = file.read()
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            self.assertIn(program[program.index("struct Net"):program.index("int main")].strip(), file.read())


if __name__ == "__main__":
    unittest.main(verbosity=2)
