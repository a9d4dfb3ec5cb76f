#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run of the trainer leaves in its folder: run_folder_test.py GPT_PROGRAM"""
import csv
import html.parser
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "gpt"
QUICK = ["--seq_len", "32", "--validation_tokens", "128", "--sample_tokens", "30", "--batch_size", "2", "--n_layer", "1"]
VOID = {"meta", "br", "img", "hr", "input", "link", "path"}


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced and that nothing outside the file is asked for."""
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.tags, self.problems, self.text = [], [], [], [], ""
        self.feed(text)
        self.close()
        if self.open:
            self.problems.append(f"never closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "srcset", "data") or re.search("//|@import", value or ""):
                self.problems.append(f"<{tag} {name}={value}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes another tag, at {self.getpos()}")

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("style", "script") and re.search(r"https?:|//\w|@import|url\((?!#)", data):
            self.problems.append(f"the {self.open[-1]} asks for something outside")


class RunFolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.data = self.path("text.txt")
        with open(self.data, "w", encoding="utf-8") as file:
            file.write("".join(f"{i * i % 997} sheep <b>&amp; goats</b>, " for i in range(1500)))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def run_gpt(self, *arguments, expect=0):
        result = subprocess.run([PROGRAM, "--data", self.data, *QUICK, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=300, check=False, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        return result

    def lines(self, folder):
        def refuse(constant):
            raise ValueError(f"{constant} is no JSON")
        with open(self.path(folder, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line, parse_constant=refuse) for line in file]

    def report(self, folder):
        with open(self.path(folder, "report.html"), encoding="utf-8") as file:
            page = Page(file.read())
        self.assertEqual(page.problems, [])
        self.assertEqual(len(page.ids), len(set(page.ids)))
        return page

    def test_a_run_leaves_a_folder_with_everything(self):
        result = self.run_gpt("--max_steps", "4", "--num_gpus", "2", "--zero_stage", "3")
        (name,) = os.listdir(self.path("runs"))
        self.assertRegex(name, r"^\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_gpt-tiny$")
        self.assertIn(f"runs/{name}/report.html", result.stdout)
        folder = f"runs/{name}"
        self.assertEqual(sorted(os.listdir(self.path(folder))), ["config.origins.json", "config.resolved.json", "metrics.csv",
                                                                 "metrics.jsonl", "report.html"])
        lines = self.lines(folder)
        steps = [line for line in lines if line["kind"] == "step"]
        self.assertEqual([line["step"] for line in steps], [1, 2, 3, 4])
        self.assertEqual([line["kind"] for line in lines].count("sample"), 1)
        self.assertEqual(lines[0]["kind"], "validation")
        self.assertGreater(lines[0]["perplexity"], 1)
        self.assertEqual(steps[-1]["tokens"], 4 * 2 * 2 * 32)
        self.assertGreater(steps[0]["memory_peak_bytes"]["activations"], steps[0]["memory_bytes"]["activations"])
        with open(self.path(folder, "metrics.csv"), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([float(row["loss"]) for row in rows], [line["loss"] for line in steps])
        self.assertEqual(int(rows[0]["memory_bytes.states"]), steps[0]["memory_bytes"]["states"])
        page = self.report(folder)
        for part in ("Finished: 4 steps", "--max_steps 4", "Learning rate", "zero_optimization.stage", "--zero_stage",
                     "No step was skipped", "Best validation loss", "derived: 2 x 1 x 2 ranks"):
            self.assertIn(part, page.text)
        for tag, least in (("svg", 5), ("title", 6), ("desc", 5), ("th", 20), ("h2", 5)):
            self.assertGreaterEqual(page.tags.count(tag), least, tag)

    def test_the_resolved_config_gives_the_same_run(self):
        arguments = ["--max_steps", "5", "--num_gpus", "2"]
        self.run_gpt(*arguments, "--zero_stage", "2", "--lr", "0.01", "--gradient_clipping", "0.3",
                     "--gradient_accumulation_steps", "2", "--dtype", "bf16", "--run_dir", "one")
        resolved = self.path("one", "config.resolved.json")
        batch = ["--batch_size", "2"]
        self.run_gpt(*arguments, *batch, "--config", resolved, "--run_dir", "two")
        values = ("step", "loss", "grad_norm_before_clip", "lr", "clip_factor")
        def steps(folder):
            return [[line[name] for name in values] for line in self.lines(folder) if line["kind"] == "step"]
        self.assertEqual(steps("one"), steps("two"))
        with open(resolved, encoding="utf-8") as one, open(self.path("two", "config.resolved.json"), encoding="utf-8") as two:
            self.assertEqual(one.read(), two.read())
        with open(self.path("one", "config.origins.json"), encoding="utf-8") as file:
            origins = json.load(file)
        for key, origin in (("zero_optimization.stage", "--zero_stage"), ("bf16.enabled", "--dtype"), ("fp16.enabled", "default"),
                            ("optimizer.params.lr", "--lr"), ("train_batch_size", "derived: 2 x 2 x 2 ranks")):
            self.assertEqual(origins[key]["origin"], origin)

    def test_no_folder_where_none_is_wanted(self):
        for flag in ("--norun_dir", "--run_dir="):
            self.run_gpt("--max_steps", "1", flag)
            self.assertEqual(os.listdir(self.folder), ["text.txt"])

    def test_a_place_that_cannot_be_written_is_one_line_before_training(self):
        result = self.run_gpt("--run_dir", self.path("text.txt", "run"), expect=1)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("cannot make the run folder", result.stderr)
        self.assertNotIn("step 0", result.stdout)

    def test_a_run_that_diverges_leaves_a_report_that_says_so(self):
        result = self.run_gpt("--max_steps", "60", "--lr", "1e30", "--num_gpus", "2", "--run_dir", "bad", expect=1)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("Failed\n", result.stdout)
        page = self.report("bad")
        self.assertIn("Failed after", page.text)
        self.assertIn("the gradient of '", page.text)
        steps = [line for line in self.lines("bad") if line["kind"] == "step"]
        self.assertTrue(steps[-1]["skipped"])
        self.assertIsNone(steps[-1]["grad_norm_before_clip"])
        self.assertIn(f"Skipped: {sum(line['skipped'] for line in steps)}", page.text)

    def test_a_killed_run_keeps_its_lines(self):
        process = subprocess.Popen([PROGRAM, "--data", self.data, *QUICK, "--max_minutes", "10", "--run_dir", self.path("cut")],
                                   stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if os.path.exists(self.path("cut", "metrics.jsonl")) and len(self.lines("cut")) > 20:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        self.assertGreater(len(self.lines("cut")), 20)
        self.assertTrue(os.path.exists(self.path("cut", "config.resolved.json")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
