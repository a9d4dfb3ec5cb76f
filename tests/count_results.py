#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the results of the last `meson test` and prints the closing line: N passed, N failed, N skipped.

    meson test -C build; tests/count_results.py --meson_status $? build

Counts the cases of each GoogleTest program and one for any other test. Meson's own JUnit report is not used: Meson 1.0.1
writes a test that ran out of time down as passed, and merges the report that an earlier run left where a program crashed
in this one. Here each program's verdict comes from Meson's log, and its report counts only if this run wrote it; a program
that failed without a failed case of its own (crash, time-out, leak found at exit) counts as one failure.
The status is 0 only if something passed or was skipped, nothing failed and Meson was content.
"""
import argparse
import json
import os
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

GOOD = {"OK": 0, "EXPECTEDFAIL": 0, "SKIP": 2}  # Meson's verdict -> index in [passed, failed, skipped]; any other failed


def case_counts(report, not_before):
    """[passed, failed, skipped] of a GoogleTest report, or None if this run did not write it or not whole."""
    try:
        if os.path.getmtime(report) < not_before - 1:  # file times may be coarser than Meson's clock
            return None
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    counts = [0, 0, 0]
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts[1] += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts[2] += 1
        else:
            counts[0] += 1
    return counts


def count(build, meson_status):
    """[passed, failed, skipped] over every test in Meson's log."""
    log = os.path.join(build, "meson-logs", "testlog.json")
    total = [0, 0, 0]
    lines = open(log, encoding="utf-8", errors="replace").read().split("\n") if os.path.exists(log) else []
    for line in filter(None, lines):
        record = json.loads(line)
        name = record["name"].split(" / ")[-1]  # "project:suite / name"
        counts = case_counts(os.path.join(build, name + ".xml"), record.get("starttime", 0))
        verdict = GOOD.get(record["result"], 1)
        if counts is None:
            counts = [0, 0, 0]
            counts[verdict] = 1
        elif verdict == 1 and counts[1] == 0:
            counts[1] = 1
        total = [a + b for a, b in zip(total, counts)]
    if total[1] == 0 and (meson_status != 0 or sum(total) == 0):
        total[1] = 1  # the build failed, Meson was stopped, or no test has that name
    return total


def self_test():
    def run(meson_status, records, reports=(), report_age_s=0):
        with tempfile.TemporaryDirectory() as build:
            os.mkdir(os.path.join(build, "meson-logs"))
            with open(os.path.join(build, "meson-logs", "testlog.json"), "w", encoding="utf-8") as log:
                for name, result in records:
                    log.write(json.dumps({"name": name, "result": result, "starttime": 1e9}) + "\n")
            for name, cases in reports:
                path = os.path.join(build, name + ".xml")
                with open(path, "w", encoding="utf-8") as report:
                    report.write("<testsuites><testsuite>" + cases + "</testsuite></testsuites>")
                os.utime(path, (1e9 - report_age_s,) * 2)
            return count(build, meson_status)

    good = '<testcase status="run"/>'
    bad = '<testcase status="run"><failure/></testcase>'
    skipped = '<testcase status="run"><skipped/></testcase><testcase status="notrun"/>'
    a = "p:s / a"
    assert run(0, [(a, "OK")], [("a", good + good + skipped)]) == [2, 0, 2]
    assert run(1, [(a, "FAIL")], [("a", good + bad)]) == [1, 1, 0]
    assert run(1, [(a, "FAIL")], [("a", good)]) == [1, 1, 0], "failed at exit, after its cases"
    assert run(1, [(a, "FAIL")], [("a", good)], report_age_s=60) == [0, 1, 0], "crashed: the report is an old one"
    assert run(1, [(a, "TIMEOUT"), ("b", "OK")], [("b", good)]) == [1, 1, 0]
    assert run(1, [(a, "FAIL")], [("a", "<")]) == [0, 1, 0], "killed while it wrote its report"
    assert run(0, [("b", "OK"), ("c", "SKIP"), ("d", "EXPECTEDFAIL")]) == [2, 0, 1]
    assert run(1, [("d", "UNEXPECTEDPASS"), ("e", "ERROR"), ("f", "INTERRUPT")]) == [0, 3, 0]
    assert run(0, []) == [0, 1, 0], "nothing ran"
    assert run(1, []) == [0, 1, 0], "the build failed"
    assert run(2, [(a, "OK")], [("a", good)]) == [1, 1, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build", help="the build folder")
    parser.add_argument("--meson_status", type=int, default=0, help="the exit status of `meson test`")
    parser.add_argument("--self_test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    passed, failed, skipped = count(args.build, args.meson_status)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
