#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the trainers as a person would, on a small made-up text: trainer_test.py GPT_PROGRAM LLAMA_PROGRAM"""
import json
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
LLAMA = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "llama"
WORDS = ["in", "the", "beginning", "was", "a", "small", "text", "and", "it", "repeats", "itself,", "as", "tests", "do."]
QUICK = ["--seq_len", "32", "--validation_tokens", "128", "--sample_tokens", "40"]


def text_of(words):
    state, out = 1, []
    for _ in range(words):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        out.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(out)


class TrainerTest(unittest.TestCase):
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

    def run_gpt(self, *arguments, program=PROGRAM):
        if not any(argument.startswith(("--run_dir", "--norun_dir")) for argument in arguments):
            arguments = (*arguments, "--norun_dir")
        return subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=300, check=False)

    def train(self, *arguments, program=PROGRAM):
        batch = [] if "--config" in arguments else ["--batch_size", "2"]
        result = self.run_gpt("--data", self.data, *QUICK, *batch, *arguments, program=program)
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

    def test_losses_depend_neither_on_the_ranks_nor_on_the_stage(self):
        def run(ranks, stage):  # the engine's progress line has six digits
            config = self.write("config.json", json.dumps({"train_batch_size": 8, "steps_per_print": 1,
                                                           "zero_optimization": {"stage": stage}}))
            output = self.train("--config", config, "--num_gpus", str(ranks), "--max_steps", "4")
            losses = [float(loss) for loss in re.findall(r"^step=.*, loss=([^,]+),", output, re.MULTILINE)]
            validations = [float(loss) for loss in re.findall(r"validation loss (\S+)", output)]
            self.assertEqual(len(losses), 4, output)
            self.assertGreater(len(validations), 3, output)
            return losses, validations
        expected_losses, expected_validations = run(1, 0)
        for ranks, stage in ((1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (4, 3)):
            losses, validations = run(ranks, stage)
            for want, got in zip(expected_losses, losses):
                self.assertAlmostEqual(want, got, delta=1e-4, msg=(ranks, stage))
            for want, got in zip(expected_validations, validations):  # three digits are shown
                self.assertAlmostEqual(want, got, delta=0.0011, msg=(ranks, stage))

    def test_the_start_table_says_what_each_rank_holds(self):
        def held(*arguments):
            output = self.train("--max_steps", "1", "--num_gpus", "2", *arguments)
            return [re.search(rf"^  {kind} +(.*)$", output, re.MULTILINE)[1]
                    for kind in ("weights", "gradients", "states")]
        whole, half = "3.3 MB per rank, 6.7 MB on all 2", "1.7 MB per rank, 3.3 MB on all 2"
        states, half_states = "6.7 MB per rank, 13.3 MB on all 2", "3.3 MB per rank, 6.7 MB on all 2"
        self.assertEqual(held("--zero_stage", "0"), [whole, whole, states])
        self.assertEqual(held("--zero_stage", "3"), [half, half, half_states])

    def test_a_deepspeed_config_and_flags_that_agree_with_it(self):
        config = self.write("ds_config.json", json.dumps({
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
            "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10}}}))
        output = self.train("--config", config, "--num_gpus", "2", "--max_steps", "2", "--zero_stage", "2",
                            "--lr", "0.01", "--gradient_clipping", "0.5", "--gradient_accumulation_steps", "2", "--dtype", "bf16")
        for part in ("global 8 = micro 2 × accum 2 × ranks 2", "stage 2 on 2 ranks",
                     "SGD, momentum 0.9, clipping 0.5", "WarmupLR, as the config says", "bf16, ", "ds_config.json"):
            self.assertIn(part, output)

    def test_what_the_config_leaves_open_comes_from_the_flags(self):
        config = self.write("ds_config.json", json.dumps({"zero_optimization": {"stage": 1}}))
        output = self.train("--config", config, "--max_steps", "1", "--lr", "0.002", "--dtype", "fp64")
        for part in ("micro 16 × accum 1", "stage 1", "AdamW, betas [0.9, 0.99], weight_decay 0.1, clipping 1",
                     "lr 0.002", "fp64, "):
            self.assertIn(part, output)

    def test_a_flag_that_disagrees_with_the_config_is_an_error_with_both_values(self):
        config = self.write("ds_config.json", """{
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "bf16": {"enabled": true},
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
            "scheduler": {"type": "WarmupLR"}\n}""")
        for flag, value, parts in [
            ("batch_size", "8", ["is 8, but train_micro_batch_size_per_gpu at ", ":2 is 4"]),
            ("gradient_accumulation_steps", "3", ["is 3, but gradient_accumulation_steps at ", ":3 is 2"]),
            ("gradient_clipping", "1", ["is 1, but gradient_clipping at ", ":4 is 0.5"]),
            ("dtype", "fp16", ["is fp16, but by bf16.enabled at ", ":5 it is bf16"]),
            ("zero_stage", "3", ["is 3, but zero_optimization.stage at ", ":6 is 2"]),
            ("lr", "0.01", ["is 0.01, but optimizer.params.lr at ", ":7 is 0.02"]),
            ("weight_decay", "0.1", ["optimizer.type at ", ":7; write it in optimizer.params there"]),
            ("warmup_steps", "5", ["is 5, but scheduler.type at ", ":8 is WarmupLR"]),
        ]:
            with self.subTest(flag):
                result = self.run_gpt("--data", self.data, "--config", config, f"--{flag}", value)
                self.assert_one_line_error(result, f"--{flag}", *parts)
        total = self.write("total.json", '{"train_batch_size": 8, "gradient_accumulation_steps": 2}')
        result = self.run_gpt("--data", self.data, "--config", total, "--batch_size", "2", "--num_gpus", "3")
        self.assert_one_line_error(result, "train_batch_size 8", "2", "3 ranks = 12")

    def test_llama_trains_at_stage_3(self):
        for arguments in (["--zero_stage", "0"], ["--num_gpus", "2", "--zero_stage", "3", "--recompute"]):
            output = self.train("--max_steps", "3", *arguments, program=LLAMA)
            for part in ("Tessera Llama, preset tiny", "step 0 | validation loss 5.", "step 3 | validation loss",
                         "Done"):
                self.assertIn(part, output)

    def test_the_same_seed_gives_the_same_run_and_another_one_another(self):
        def losses(seed, *arguments):
            output = self.train("--max_steps", "2", "--seed", seed, *arguments)
            return re.findall(r"validation loss (\S+)|loss (\S+) \| gnorm (\S+)", output)
        for arguments in ([], ["--num_gpus", "2", "--zero_stage", "3", "--dropout", "0.1"]):
            first = losses("1", *arguments)
            self.assertEqual(losses("1", *arguments), first)
            self.assertNotEqual(losses("2", *arguments), first)

    def test_accumulated_micro_batches_give_the_step_of_one_large_batch(self):
        def last(*arguments):
            output = self.train("--max_steps", "2", "--eval_every", "1", *arguments)
            return output.split("step 2 | validation loss ")[1][:5]
        self.assertEqual(last("--batch_size", "8"), last("--batch_size", "2", "--gradient_accumulation_steps", "4"))

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
        for arguments in (["--dtype", "bf16"], ["--dtype", "fp64"], ["--dtype", "fp16"],
                          ["--recompute", "--dropout", "0.1", "--num_gpus", "2", "--zero_stage", "3"]):
            output = self.train("--max_steps", "2", *arguments)
            self.assertRegex(output, r"step 2 \| validation loss [0-9]\.")

    def test_a_run_that_diverges_stops_and_names_a_parameter(self):
        for ranks in ("1", "2"):
            result = self.run_gpt("--data", self.data, *QUICK, "--max_steps", "100", "--lr", "1e30",
                                  "--num_gpus", ranks)
            self.assertRegex(result.stdout, "step skipped, gradients are not finite.*the gradient of '")
            self.assert_one_line_error(result, "too many in a row, the run ends", "the gradient of '")

    def test_ctrl_c_ends_with_a_summary(self):
        process = subprocess.Popen([PROGRAM, "--data", self.data, *QUICK, "--max_minutes", "10", "--run_dir", "",
                                    "--num_gpus", "2", "--zero_stage", "3"],
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
        drawn = self.on_a_terminal("--data", self.data, *QUICK, "--max_steps", "30", "--norun_dir")
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
            (["--data", self.data, "--dtype", "fp8"], ["--dtype is \"fp8\", expected fp32, bf16, fp16 or fp64"]),
            (["--data", self.data, "--zero_stage", "4"], ["--zero_stage is 4, expected 0, 1, 2 or 3"]),
            (["--data", self.data, "--num_gpus", "0"], ["--num_gpus is 0, expected 1 or more"]),
            (["--data", self.data, "--config", "/no.json"], ["/no.json", "No such file"]),
            (["--data", self.data, "--max_steps", "0"], ["--max_steps is 0, expected 1 or more"]),
            (["--data", self.data, "--top_p", "2"], ["top_p is 2, expected a number in (0, 1]"]),
        ]:
            with self.subTest(arguments):
                self.assert_one_line_error(self.run_gpt(*arguments), *parts)

    def test_help_has_every_flag_by_topic(self):
        result = self.run_gpt("--help")
        self.assertEqual(result.returncode, 0)
        for part in ("\nModel\n", "\nRanks and ZeRO\n", "\nOptimizer\n", "--zero_stage", "--max_minutes", "--temperature",
                     "(default: tiny)"):
            self.assertIn(part, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
