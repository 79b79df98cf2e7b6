"""Configs made of slips, as many as wanted: every suggestion is followed, and what is not accepted then is counted."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import config_mistakes
from advice_check import refused, untrue


def main(number: int) -> None:
    begun, complaints, followed, wrong, good = time.process_time(), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(number):
            text = config_mistakes.config(seed)
            said = refused(Path(folder), text, config_mistakes.ENVIRON)
            complaints += len(said)
            followed += sum(len(complaint.remedies) for complaint in said)
            good += not said
            for line in untrue(Path(folder), text, config_mistakes.ENVIRON):
                wrong += 1
                print(f"{seed}: {line.replace(folder, '')}", flush=True)
    took = time.process_time() - begun
    print(
        f"{number:,} configs, {good:,} of them right all the same; {complaints:,} complaints, {followed:,} suggestions,"
        f" {wrong} of them not accepted when followed; {took:.0f} s of CPU"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
