"""Attacks on the program from outside: `CLAWK=… attack.py [--quick] [WORD…]`. Each case holds or broke; exit code 1: one broke.

`--quick`: the cases that CI runs. Words choose cases by area or name. docs/security/attacks.md tells what each found.
"""

import sys

import rig
import documents  # noqa: F401 - registers its cases
import doors  # noqa: F401
import records  # noqa: F401
import servers  # noqa: F401
import trust  # noqa: F401

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    sys.exit(1 if rig.run(words, "--quick" in sys.argv) else 0)
