#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the GPT trainer as a person would, on a small made-up text: gpt_test.py GPT_PROGRAM"""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "gpt"
WORDS = ["in", "the", "beginning", "was", "a", "small", "text", "and", "it", "repeats", "itself,", "as", "tests", "do."]
QUICK = ["--batch_size", "2", "--seq_len", "32", "--validation_tokens", "128", "--sample_tokens", "40"]


def text_of(words):
    state, out = 1, []
    for _ in range(words):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        out.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(out)


class GptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.data = self.write("text.txt", text_of(2000))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_gpt(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=300, check=False)

    def train(self, *arguments):
        result = self.run_gpt("--data", self.data, *QUICK, *arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def assert_one_line_error(self, result, *parts):
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for part in ("gpt: ", *parts):
            self.assertIn(part, result.stderr)

    def test_trains_validates_samples_and_sums_up(self):
        output = self.train("--max_steps", "3")
        for part in ["global 2 = micro 2 × accum 1 × ranks 1 (64 tokens/step)", "step 0 | validation loss 5.",
                     "step 3/3 | ", "step 3 | validation loss", "Sample, after", "Done", "nats/byte", "next "]:
            self.assertIn(part, output)

    def test_the_same_seed_gives_the_same_run_and_another_one_another(self):
        def losses(seed):
            output = self.train("--max_steps", "2", "--seed", seed)
            return re.findall(r"validation loss (\S+)|loss (\S+) \| gnorm (\S+)", output)
        first = losses("1")
        self.assertEqual(losses("1"), first)
        self.assertNotEqual(losses("2"), first)

    def test_accumulated_micro_batches_give_the_step_of_one_large_batch(self):
        def last(*arguments):
            output = self.train("--max_steps", "2", "--eval_every", "1", *arguments)
            return output.split("step 2 | validation loss ")[1][:5]
        self.assertEqual(last("--batch_size", "8"), last("--batch_size", "2", "--accumulation_steps", "4"))

    def test_time_ends_a_run(self):
        begin = time.monotonic()
        output = self.train("--max_minutes", "0.02")
        self.assertLess(time.monotonic() - begin, 60)
        self.assertIn("Done", output)

    def test_reads_a_folder_and_says_what_it_skipped(self):
        with open(os.path.join(self.folder, "binary"), "wb") as file:
            file.write(b"\0\1\2")
        self.data = self.folder
        output = self.train("--max_steps", "1")
        self.assertIn("notice: skipped", output)
        self.assertIn("1 file,", output)

    def test_other_dtypes_recompute_and_dropout(self):
        for arguments in (["--dtype", "bf16"], ["--dtype", "fp64"], ["--recompute", "--dropout", "0.1"]):
            output = self.train("--max_steps", "2", *arguments)
            self.assertRegex(output, r"step 2 \| validation loss [0-9]\.")

    def test_a_run_that_diverges_stops_and_names_a_parameter(self):
        result = self.run_gpt("--data", self.data, *QUICK, "--max_steps", "100", "--lr", "1e30")
        self.assertIn("| update skipped: the gradient of ", result.stdout)
        self.assert_one_line_error(result, "is not finite, as in the 9 steps before; try a lower --lr")

    def test_ctrl_c_ends_with_a_summary(self):
        process = subprocess.Popen([PROGRAM, "--data", self.data, *QUICK, "--max_minutes", "10"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("step 1 "):
                break
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        self.assertEqual((process.returncode, errors), (0, ""))
        for part in ("stopped: ", "validation loss", "Sample, after", "Done"):
            self.assertIn(part, output)

    def test_nothing_is_wider_than_a_terminal_of_80_columns(self):
        plain = self.train("--max_steps", "2", "--prompt", "a prompt that is longer than a line of " + "text " * 20)
        start = plain[:plain.index("step 0")]
        drawn = self.on_a_terminal("--data", self.data, *QUICK, "--max_steps", "30")
        self.assertIn(" of about ", drawn)
        drawn = re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", drawn)
        wide = [line for line in start.split("\n") + re.split("[\r\n]+", drawn) if len(line) > 80]
        self.assertEqual(wide, [])
        self.assertEqual([line for line in re.split("[\r\n]+", self.on_a_terminal("--help")) if len(line) > 80], [])

    def on_a_terminal(self, *arguments):
        try:
            child, terminal = pty.fork()
        except OSError as error:  # a bare tree may have no /dev/pts
            self.skipTest(f"no terminal is to be had here: {error}")
        if child == 0:
            os.environ["TERM"] = "xterm"
            os.system("stty cols 80 rows 24")
            os.execv(PROGRAM, [PROGRAM, *arguments])
        output = b""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(terminal)
        self.assertEqual(os.waitpid(child, 0)[1], 0, output)
        return output.decode("utf-8")

    def test_errors_are_one_line_that_says_what_is_legal(self):
        short = self.write("short.txt", "x" * 100)
        empty = self.write("empty.txt", "")
        for arguments, parts in [
            (["--batchsize", "3"], ["unknown flag --batchsize; did you mean --batch_size?"]),
            (["--lr", "fast"], ["--lr is \"fast\", expected a number"]),
            ([], ["--data is missing"]),
            (["--data", "/nowhere"], ["/nowhere", "No such file"]),
            (["--data", empty], [empty, "is empty"]),
            (["--data", short, "--seq_len", "128"], ["100 tokens", "at least 129"]),
            (["--data", self.data, "--batch_size", "100000"], ["samples; one batch needs 100000"]),
            (["--data", self.data, "--preset", "huge"], ["--preset is \"huge\", expected tiny or gpt2-124m"]),
            (["--data", self.data, "--dtype", "fp8"], ["--dtype is \"fp8\", expected fp32, bf16 or fp64"]),
            (["--data", self.data, "--max_steps", "0"], ["--max_steps is 0, expected 1 or more"]),
            (["--data", self.data, "--top_p", "2"], ["top_p is 2, expected a number in (0, 1]"]),
        ]:
            with self.subTest(arguments):
                self.assert_one_line_error(self.run_gpt(*arguments), *parts)

    def test_help_has_every_flag_by_topic(self):
        result = self.run_gpt("--help")
        self.assertEqual(result.returncode, 0)
        for part in ("\nModel\n", "\nOptimizer\n", "--max_minutes", "--temperature", "(default: tiny)"):
            self.assertIn(part, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
