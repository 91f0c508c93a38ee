"""The network of a guest's kernel loses, doubles and overtakes (tc netem), between two of ours in it."""

import json
import os
import shutil
import subprocess

from .common import case
from .sides import GUEST, LAB, Failed, expect, last

SECONDS = 900  # everything is emulated


def test_program(name):
    """Builds a file of the library's tests, and returns the program."""
    done = subprocess.run(
        ["cargo", "test", "-p", "softverbs", "--test", name, "--no-run", "--message-format=json"],
        cwd=LAB.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message.get("target", {}).get("name") == name:
            return message["executable"]
    raise Failed(f"cannot build the test {name}: {last(done.stderr)}")


def netem(kinds, case):
    """The test `netem` of crates/softverbs/tests/roce_lossy.rs, on a kernel that has netem and veth."""
    lab = case.ours.lab
    share = lab.run_folder / "share"
    shutil.copy(test_program("roce_lossy"), share / "roce_lossy")
    status, text = lab.guest(
        "exec", "-t", SECONDS, GUEST,
        "set -e; modprobe veth; modprobe sch_netem; cd /tmp; "
        f"SOFTVERBS_NETEM={kinds} /share/roce_lossy --exact netem --nocapture",
        check=False, seconds=SECONDS + 60,
    )  # fmt: skip
    expect(status == 0, f"status {status}: {last(text, 25)}")
    expect("netem: done" in text, f"it was skipped: {last(text, 25)}")


case("rxe/netem/" + os.environ.get("SOFTVERBS_NETEM", "short"), os.environ.get("SOFTVERBS_NETEM", "short"))(netem)
