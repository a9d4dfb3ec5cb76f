#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flags that choose what a run is: strategies, tries, "auto" in a config. trainer_flags_test.py GPT_PROGRAM"""
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "gpt"
QUICK = ["--seq_len", "32", "--validation_tokens", "128", "--sample_tokens", "20", "--n_layer", "1"]
AUTO = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                      "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                          "stage3_param_persistence_threshold": "auto"},
}


class TrainerFlagsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as file:
            file.write("".join(f"{i * i % 997} sheep and goats, " for i in range(1500)))

    def run_gpt(self, *arguments, expect=0):
        result = subprocess.run([PROGRAM, "--data", "text.txt", *QUICK, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=300, check=False, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        if expect != 0:
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.stdout if expect == 0 else result.stderr

    def write(self, config, name="ds.json"):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=1)
        return name

    def resolved(self, folder):
        with open(os.path.join(self.folder, folder, "config.resolved.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_strategies_are_stages(self):
        for name, stage in (("ddp", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3), ("deepspeed_stage_1", 1),
                            ("deepspeed_stage_2", 2), ("deepspeed_stage_3", 3)):
            self.assertIn(f"stage {stage} on 2 ranks", self.run_gpt("--strategy", name, "--num_gpus", "2", "--dry_run"))
        for name in ("deepspeed_stage_2_offload", "deepspeed_stage_3_offload_nvme", "zero3-offload"):
            self.assertIn("offload is not here yet", self.run_gpt("--strategy", name, expect=1))
        self.assertIn("did you mean zero", self.run_gpt("--strategy", "zeero2", expect=1))
        self.assertIn("--zero_stage is 2", self.run_gpt("--strategy", "zero3", "--zero_stage", "2", expect=1))
        config = self.write({"train_batch_size": 4, "zero_optimization": {"stage": 1}})
        error = self.run_gpt("--strategy", "zero3", "--config", config, expect=1)
        for part in ("--strategy=zero3 is 3", "zero_optimization.stage at ds.json:4 is 1"):
            self.assertIn(part, error)

    def test_a_dry_run_plans_the_bytes_that_a_run_holds_and_leaves_nothing(self):
        def held(output):
            return [re.search(rf"^  {kind} +(.*)$", output, re.MULTILINE)[1] for kind in ("weights", "gradients", "states")]
        for stage, ranks, dtype, accumulation in itertools.chain(
                itertools.product("0123", "12", ["fp32"], "1"), itertools.product("0123", "2", ["bf16"], "12")):
            for reducer in ("fast", "canonical") if dtype == "bf16" else ("fast",):
                config = self.write({"train_micro_batch_size_per_gpu": 1, "tessera": {"reducer": reducer}})
                arguments = ["--config", config, "--num_gpus", ranks, "--zero_stage", stage, "--dtype", dtype, "--max_steps", "1",
                             "--gradient_accumulation_steps", accumulation, "--stage3_param_persistence_threshold", "300"]
                planned = self.run_gpt(*arguments, "--dry_run")
                self.assertNotIn("step 0", planned)
                self.assertEqual(held(planned), held(self.run_gpt(*arguments, "--norun_dir")), arguments)
        self.assertEqual(sorted(os.listdir(self.folder)), ["ds.json", "text.txt"])

    def test_the_start_table_tells_what_is_no_default_and_why(self):
        config = self.write({"train_batch_size": 8, "steps_per_print": 3})
        output = self.run_gpt("--config", config, "--dry_run", "--zero_stage", "1", "--num_gpus", "2")
        for part in ("train_batch_size 8 (ds.json:2)", "train_micro_batch_size_per_gpu 4 (derived: 8 / 1 / 2 ranks)",
                     "steps_per_print 3 (ds.json:3)", "zero_optimization.stage 1 (--zero_stage)", "(the preset)"):
            self.assertIn(part, output.replace("\n              ", " "))
        self.assertNotIn("wall_clock_breakdown", output)

    def test_the_vocabulary_may_be_given(self):
        out = self.run_gpt("--dry_run", "--vocab_size", "300")
        self.assertIn("vocabulary 300", out)
        self.assertIn("expected at least 256", self.run_gpt("--dry_run", "--vocab_size", "255", expect=1))

    def test_a_fast_dev_run_takes_so_many_steps_and_leaves_nothing(self):
        output = self.run_gpt("--fast_dev_run", "2", "--max_steps", "500", "--batch_size", "1", "--num_gpus", "2")
        for part in ("a try of 2 steps", "step 0 | validation loss", "step 2/2 | ", "step 2 | validation loss", "2 steps"):
            self.assertIn(part, output)
        self.assertEqual(os.listdir(self.folder), ["text.txt"])

    def test_overfitting_ends_with_a_verdict(self):
        output = self.run_gpt("--overfit_batches", "1", "--max_steps", "60", "--batch_size", "1", "--norun_dir", "--dropout", "0",
                              "--gradient_accumulation_steps", "2")
        first, last = map(float, re.search(r"overfit +loss (\S+) -> (\S+) on the batches of 1 step", output).groups())
        self.assertLess(last, first / 2)

    def test_samples_on_the_way(self):
        output = self.run_gpt("--sample_every", "2", "--max_steps", "5", "--batch_size", "1", "--run_dir", "run")
        self.assertEqual(re.findall(r"^step (\d+) \| writes: ", output, re.MULTILINE), ["2", "4"])
        with open(os.path.join(self.folder, "run", "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["step"] for line in lines if line["kind"] == "sample"], [2, 4, 5])

    def test_auto_values_are_filled_and_told(self):
        config = self.write(AUTO)
        self.run_gpt("--config", config, "--max_steps", "40", "--num_gpus", "2", "--dtype", "bf16", "--gradient_clipping", "0.5",
                     "--batch_size", "1", "--run_dir", "one")
        got = self.resolved("one")
        self.assertEqual([got["train_batch_size"], got["gradient_accumulation_steps"], got["gradient_clipping"]], [2, 1, 0.5])
        self.assertEqual((got["bf16"]["enabled"], got["fp16"]["enabled"]), (True, False))
        self.assertEqual(got["scheduler"]["params"], {"total_num_steps": 40, "warmup_max_lr": 0.0035, "warmup_min_lr": 0,
                                                      "warmup_num_steps": 2})
        self.assertEqual(got["optimizer"]["params"], {"betas": [0.9, 0.99], "eps": 1e-8, "lr": 0.0035, "weight_decay": 0.1})
        zero = got["zero_optimization"]
        self.assertEqual([zero["reduce_bucket_size"], zero["stage3_prefetch_bucket_size"],
                          zero["stage3_param_persistence_threshold"]], [128 * 128, 14745, 1280])
        output = self.run_gpt("--config", config, "--max_steps", "9", "--dry_run", "--warmup_steps", "3",
                              "--weight_decay", "0.2").replace("\n              ", " ")
        for part in ('gradient_clipping 1 ("auto" at ds.json:5: the trainer\'s default)', 'hidden size 128 squared',
                     'warmup_num_steps 3 ("auto" at ds.json:', '--warmup_steps)', 'weight_decay 0.2', '--weight_decay)',
                     'fp16.enabled false ("auto" at ds.json:7: off: --dtype does not ask for it)'):
            self.assertIn(part, output)

    def test_auto_that_cannot_be_known_is_an_error(self):
        error = self.run_gpt("--config", self.write(AUTO), "--max_minutes", "1", expect=1)
        self.assertIn('total_num_steps: "auto" follows --max_steps, which is not given', error)
        config = self.write({"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"momentum": "auto"}}})
        self.assertIn('optimizer.params.momentum: this trainer has no rule for "auto"',
                      self.run_gpt("--config", config, expect=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
