"""Make the picture of a report in the README: `python scripts/report_image.py RUNS`.

RUNS is a folder of runs: runs/demo, which `make run` writes. The script needs Chromium, and uses the font Inter if it
is installed (Debian: fonts-inter).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from polyfed.report.page import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OUT = Path(__file__).parent.parent / "docs" / "images" / "report.png"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of runs")
    parser.add_argument("--out", type=Path, default=OUT, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1400, help="width in pixels")
    parser.add_argument("--height", type=int, default=1145, help="height in pixels, from the top of the page")
    parser.add_argument("--dark", action="store_true", help="use the dark theme")
    arguments = parser.parse_args()
    screenshot(arguments.runs, arguments.out, (arguments.width, arguments.height), dark=arguments.dark)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1000:.0f} kB")


def screenshot(runs: Path, out: Path, size: tuple[int, int], *, dark: bool) -> None:
    """Write the top of the report on some runs as a PNG file with 256 colours."""
    browser = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium: install it (apt-get install chromium), or name it in CHROMIUM")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_report([runs], folder / "report.html")
        picture = folder / "report.png"
        command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={size[0]},{size[1]}"]
        command += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        command += [f"--screenshot={picture}", (folder / "report.html").as_uri()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        with Image.open(picture) as image:
            image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main()
