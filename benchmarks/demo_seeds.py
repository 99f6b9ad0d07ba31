"""Run the demo with five seeds and print the table of docs/demo.md: python benchmarks/demo_seeds.py [FOLDER].

A seed whose demo.json is in the folder already is not run again.
"""

import json
import subprocess
import sys
from pathlib import Path

SEEDS = range(5)


def main() -> None:
    fluctuations = []
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/seeds")
    print(
        "| seed | step | G_LM fluctuation | validation loss, learned / constant | tokens equal, prompt / constant | "
        "largest deviation | steps with 2 x deviation < margin | constant against recompute |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for seed in SEEDS:
        out = folder / str(seed)
        if not (out / "demo.json").exists():
            command = [Path(sys.executable).with_name("plga"), "demo", "--seed", str(seed), "--out", str(out)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads((out / "demo.json").read_text(encoding="utf-8"))
        fluctuations.append(report["fluctuation"]["G_LM"])
        print(row(seed, report), flush=True)
    below = [sum(x < bound for x in fluctuations) for bound in (1e-4, 1e-5)]
    print(f"\n{below[0]} of {len(SEEDS)} below 1e-4, {below[1]} below 1e-5")
    sys.exit(below[0] < 5 or below[1] < 3)


def row(seed: int, report: dict) -> str:
    losses, decoding = report["validation_loss"], report["decoding"]
    prompt, constant = decoding["modes"]["prompt"], decoding["modes"]["constant"]
    cells = (
        seed,
        report["chosen"]["step"],
        f"{report['fluctuation']['G_LM']:.1e}",
        f"{losses['learned']:.3f} / {losses['constant']:.3f}",
        f"{prompt['agreeing']} / {constant['agreeing']} of {constant['total']}",
        f"{constant['largest_deviation']:.1e}",
        f"{constant['within_margin']} of {constant['total']}",
        f"{constant['speedup']:.1f}x",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
