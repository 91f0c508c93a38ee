"""Our side of a case, whose programs are Debian's own, unmodified, under `softverbs run`."""

import copy
import functools
import ipaddress
import re
import shutil
import subprocess
import time

from .sides import LAB, Failed, HostProgram, Side, Skipped, expect, last

SHIMS = [LAB.parent / "crates/cabi/tests/c/ready.c", LAB / "hold.c"]


@functools.cache
def shim(folder):
    """A library that makes a file when a program listens by the RDMA CM, which shows nowhere over RoCE, and hold.c."""
    library = folder / "shim.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, *SHIMS]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{library.name}: {done.stderr}")
    return library


class StockProgram(HostProgram):
    """A stock program on our library."""

    def __init__(self, lab, name, command, environment):
        self.ready, self.held, self.go = (lab.run_folder / f"{name}.{what}" for what in ("ready", "held", "go"))
        for file in (self.ready, self.held, self.go):
            file.unlink(missing_ok=True)
        super().__init__(lab, name, command, [*dict(environment).items(), ("SOFTVERBS_TEST_READY", self.ready)])

    def until(self, what, look):
        """Waits for something that the program does before it waits for its peer."""
        end = time.monotonic() + 40
        while not look():
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with status {self.process.returncode}: {last(self.output())}")
            if time.monotonic() > end:
                raise Failed(f"{self.name} did not come to {what}: {last(self.output())}")
            time.sleep(0.05)

    def wait_listening(self, port):
        """Until it listens by the RDMA CM."""
        self.until(f"listen on port {port}", self.ready.exists)

    def hold_until(self, condition):
        """Lets a program go that hold.c holds, when it is held and then CONDITION has returned."""
        self.until("its second connection", self.held.exists)
        condition()
        self.go.touch()


class StockSide(Side):
    """Our side with the programs that rdma-core and perftest ship."""

    def __init__(self, side):
        super().__init__(side.lab, side.number)
        self.command = side.softverbs

    def program(self, name, command, environment=()):
        where = shutil.which(str(command[0]))
        if not where:
            raise Skipped(f"no {command[0]}: run scripts/install-test-deps first")
        run = [self.command, "run", "--transport", self.lab.link.transport, "--addr", self.address("4"), "--"]
        # The shim has to come before our library, which `run` puts in front.
        preload = f'LD_PRELOAD="{shim(self.lab.run_folder)}:$LD_PRELOAD" exec stdbuf -oL "$@"'
        return StockProgram(self.lab, name, [*run, "sh", "-c", preload, "sh", where, *command[1:]], environment)


stock_side = functools.cache(StockSide)


def unmodified(conversation):
    """The same conversation, with stock programs on our side, too."""

    @functools.wraps(conversation)
    def with_stock(*arguments):
        case = arguments[-1]
        # With --control our side is another guest, whose programs are stock ones anyway.
        if case.ours.softverbs:
            case = copy.copy(case)  # shares the lists of what is running
            case.ours = stock_side(case.ours)
        return conversation(*arguments[:-1], case)

    return with_stock


def wait_for_tcp(side, program, port):
    """Until a program on that side listens on a TCP port, by which it exchanges addresses."""
    if side.number:
        side.lab.guest("listening", side.number, port, 40)
        return
    inside = ["ip", "netns", "exec", side.lab.namespace, "ss", "-Hltn", f"sport = :{port}"]
    program.until(f"listen on TCP port {port}", lambda: subprocess.run(inside, capture_output=True, check=True).stdout)


@functools.cache
def our_gids(side):
    """The GIDs of our device, by index."""
    inside = ["ip", "netns", "exec", side.lab.namespace, side.command]
    command = [*inside, "run", "--addr", side.address("4"), "--", "ibv_devinfo", "-v"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"ibv_devinfo -v: {last(done.stdout + done.stderr)}")
    return dict(re.findall(r"GID\[ *(\d+)\]:\s*([0-9a-f:.]+)", done.stdout))


def gid_index(side, kind):
    """Where the side's RoCE device has that address."""
    address = ipaddress.ip_address(side.address(kind))
    gid = ipaddress.IPv6Address(f"::ffff:{address}") if address.version == 4 else address
    if side.number:
        _, text = side.lab.guest("exec", side.number, f"cd /sys/class/infiniband/rxe0/ports/1/gids; grep -l {gid.exploded} *")
        return text.split()[0]
    for index, text in our_gids(side).items():
        if ipaddress.IPv6Address(text) == gid:
            return index
    raise Failed(f"our device has no GID of {address}")
