#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that kernels compiled for one instruction set cannot leak into code that runs on every CPU.

    tests/check_isa_symbols.py build/tensor/libtessera_kernels_avx2.a isa_avx2 [OTHER_NAMESPACE ...]

Inline functions and template instances are weak symbols: if std::vector<float>::push_back is compiled in the AVX2 library
too, the linker keeps one copy, whichever comes first, and it may be the AVX2 one. The program then dies of an illegal
instruction on an older CPU, in code that has nothing to do with kernels; or every variant quietly runs the baseline's code.
So each symbol that such a library defines, weak or global, must have its own namespace in its name, be it around a function
or in a template argument: then no other object defines the same symbol. For the same reason the library may not have
static initialisers: they run at program start, before anyone asks which CPU this is.

Ignored, because they are data with the same contents in every object and hold no instruction: DW.ref.* (the pointer to the
exception handler) and `typeinfo for` / `typeinfo name for` of types outside.
Status 77 (skipped) for a library built with sanitizers, whose run-time adds initialisers of its own.
"""
import re
import subprocess
import sys

HARMLESS = re.compile(r"DW\.ref\.|typeinfo (name )?for ")


def lines_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return done.stdout.split("\n")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    library, namespaces = sys.argv[1], sys.argv[2:]
    own = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, namespaces)) + r")(?!\w)")
    mangled_own = tuple(f"{len(n)}{n}" for n in namespaces)  # for names that nm cannot translate
    symbols, faults, inside = [], set(), 0
    for line in lines_of("nm", "-C", library):
        match = re.match(r"(?:[0-9a-f]+| +) (\S) (.+)", line)
        if match:
            symbols.append(match.groups())
    if any(kind == "U" and re.match(r"__(asan|tsan|ubsan)_", name) for kind, name in symbols):
        print("skipped: built with sanitizers")
        return 77
    for kind, name in symbols:
        if kind in "Uw" or (kind.islower() and kind not in "vui"):
            continue  # undefined, or local to its object
        if own.search(name) or name.startswith("_Z") and any(n in name for n in mangled_own):
            inside += 1
        elif not HARMLESS.match(name):
            faults.add(f"{library}: defines {name} ({kind}), which is not in {' or '.join(namespaces)}")
    for line in lines_of("readelf", "-SW", library):
        if re.search(r" \.(init_array|ctors|preinit_array)\b", line):
            faults.add(f"{library}: has a static initialiser ({line.split(']')[-1].split()[0]})")
    if inside == 0:
        faults.add(f"{library}: no symbol in {' or '.join(namespaces)}: the wrong file, or link-time optimisation")
    print("\n".join(sorted(faults)) if faults else f"{library}: {inside} symbols, all in {' or '.join(namespaces)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
