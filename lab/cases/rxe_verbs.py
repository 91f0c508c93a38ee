"""RoCEv2, against the kernel's rxe: every operation, on queue pairs that are connected by hand.

On the guest's side runs lab/verbs-peer.c, compiled here, on ours crates/cli/examples/verbs_peer.
"""

import functools
import re
import subprocess

from .common import case, finish
from .sides import LAB, Skipped, expect

SIZES = {"rc": "0,1,1024,1025,4097,1048579", "uc": "0,1,1024,1025,4097,1048579", "ud": "0,1,1000,1024"}


@functools.cache
def compiled(share):
    """The guest's program, in the folder that guests see as /share."""
    command = ["gcc", "-O2", "-o", share / "verbs-peer", LAB / "verbs-peer.c", "-libverbs"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if "infiniband/verbs.h: No such file" in done.stderr:
        raise Skipped("no libibverbs-dev: run scripts/install-test-deps first")
    expect(done.returncode == 0, f"verbs-peer.c: {done.stderr}")
    return "/share/verbs-peer"


def peers(case, connector, kind, client_options, server_options, environment=()):
    """The two programs, the client and the server, running."""
    programs = []
    client_side, server_side = case.sides(connector)
    for side, options in ((server_side, server_options), (client_side, [*client_options, "-c", server_side.address(kind)])):
        command = side.example("verbs_peer") if side.softverbs else compiled(side.lab.run_folder / "share")
        name = "client" if side is client_side else "server"
        common = ["-b", side.address(kind), "-p", 18600 + case.port % 1000]
        programs.append(case.run(side.program(name, [command, *common, *options], environment)))
    return {"client": programs[1], "server": programs[0]}


def operations(connector, service, kind, case):
    """All operations of a service in all sizes, in both directions."""
    mtu = 4096 if case.guest.lab.link.mtu > 4096 else 1024
    sizes = SIZES[service] + (",4096" if service == "ud" and mtu == 4096 else "")
    options = ["-t", service, "-m", mtu, "-s", sizes]
    for who, output in finish(peers(case, connector, kind, options, options)).items():
        wanted = {"rc": 9, "uc": 5, "ud": 3}[service] * 2 * len(sizes.split(","))
        expect(f"operations: {wanted}," in output, f"{who} did not do {wanted} operations: {output}")


def errors(kind, case):
    """Requests that the target must refuse: both ends see the right end of them."""
    for who, output in finish(peers(case, "client", kind, ["-e"], ["-e"])).items():
        expect(len(re.findall(r": ok$", output, re.M)) == 14, f"{who} did not provoke 14 errors: {output}")


for link in ("rxe", "rxe-4096"):
    for kind in ("4", "6"):
        for service in ("rc", "uc", "ud"):
            connector = "client" if kind == "4" else "server"
            case(f"{link}/operations-{connector}/{service}/ipv{kind}", connector, service, kind)(operations)
case("rxe/errors/ipv4", "4")(errors)
