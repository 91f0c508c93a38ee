"""The two sides of a case: the lab's guests, the host side, and the programs that run there."""

import functools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
CASE_SECONDS = 60  # a case that takes longer has failed
GUEST, PEER = 1, 2  # guest numbers; PEER stands in for our side with --control


class Failed(Exception):
    """What was expected did not happen; the text says what happened instead."""


class Skipped(Exception):
    """The case cannot run here; the text says why."""


def expect(condition, reason):
    if not condition:
        raise Failed(reason)


def last(text, lines=3):
    """The end of an output, on one line, for a reason."""
    return " | ".join(line[:200] for line in text.strip().splitlines()[-lines:]) or "(no output)"


class Link:
    """What the guests' RDMA device is: a driver (None: there is none), and the MTU below it."""

    def __init__(self, driver, mtu=1500):
        self.driver, self.mtu = driver, mtu

    @property
    def transport(self):
        return {"siw": "iwarp", "rxe": "roce"}[self.driver]


class Lab:
    """The namespace and its guests, driven through lab/guest."""

    OWN_NAME = "svinterop"  # and the process id: the name of a namespace that nobody chose

    def __init__(self):
        self.cache = Path(os.environ.get("SOFTVERBS_LAB_DIR") or Path.home() / ".cache/softverbs-lab")
        chosen = os.environ.get("SOFTVERBS_LAB_NS")
        self.use_once = not chosen
        self.namespace = chosen or f"{self.OWN_NAME}{os.getpid()}"
        os.environ["SOFTVERBS_LAB_NS"] = self.namespace
        self.run_folder = self.cache / self.namespace
        self.guests = []
        self.link = None

    def guest(self, *arguments, check=True, seconds=CASE_SECONDS + 30):
        done = subprocess.run(
            [LAB / "guest", *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=seconds, check=False,
        )  # fmt: skip
        text = done.stdout.decode(errors="replace")
        if check and done.returncode != 0:
            raise Failed(f"lab/guest {' '.join(map(str, arguments))}: {text.strip() or done.returncode}")
        return done.returncode, text

    @functools.cache
    def address(self, number, kind):
        return self.guest("address", number, kind)[1].strip()

    def stop(self, keep):
        """Stops the guests; KEEP: what they left, outputs and captures, is wanted."""
        self.guest("stop", check=False)
        if self.use_once and not keep:
            shutil.rmtree(self.run_folder, ignore_errors=True)

    def stop_abandoned(self):
        """Stops the labs of earlier runs that were killed before they could."""
        for path in Path("/run/netns").glob(f"{self.OWN_NAME}*"):
            number = path.name.removeprefix(self.OWN_NAME)
            if number.isdigit() and not Path("/proc", number).exists():
                environment = {**os.environ, "SOFTVERBS_LAB_NS": path.name}
                subprocess.run([LAB / "guest", "stop"], env=environment, stdin=subprocess.DEVNULL, check=False)
                shutil.rmtree(self.cache / path.name, ignore_errors=True)

    def start(self, number):
        if f"guest {number}:" not in self.guest("status")[1]:
            self.guest("start", number, "siw", seconds=120)
        self.guests.append(number)

    def revive(self):
        """Boots those guests anew that do not answer any more: an emulated network card may stall. Whether there were any."""
        lost = [number for number in self.guests if self.guest("exec", "-t", 10, number, "true", check=False)[0] != 0]
        for number in lost:
            self.guest("stop", number, check=False)
            self.guest("start", number, "siw", seconds=120)
            self.link = None
        return bool(lost)

    def use(self, link):
        """Gives the guests that RDMA device, and all sides that MTU."""
        if link is self.link:
            return
        prefix = os.environ.get("SOFTVERBS_LAB_TAP", "tap")
        for name in ("br0", *(f"{prefix}{number}" for number in self.guests)):
            self.guest("host", "ip", "link", "set", name, "mtu", link.mtu)
        add = f"rdma link add {link.driver}0 type {link.driver} netdev eth0" if link.driver else ""
        for number in self.guests:
            self.guest(
                "exec", number,
                f"set -e; ip link set eth0 mtu {link.mtu}; "
                f"for old in $(rdma link | grep -o '[a-z]*0/1'); do rdma link delete ${{old%/1}}; done; {add}",
            )  # fmt: skip
        self.link = link


class GuestProgram:
    """A program that runs in a guest."""

    def __init__(self, lab, number, name, command):
        self.lab, self.number, self.name = lab, number, name
        # Line by line, since what a program printed before it hung is wanted too.
        lab.guest("bg", number, name, "exec stdbuf -oL " + " ".join(map(str, command)))
        self.ended = None  # status and output, once they are final

    def wait_listening(self, port):
        """Until it listens: over rxe only the kernel's connection manager knows."""
        if self.lab.link.driver == "siw":
            status, text = self.lab.guest("listening", self.number, port, 20, check=False)
        else:
            ask = f"rdma resource show cm_id | grep -q 'state LISTEN.*src-addr [^ ]*:{port} '"
            again = f"for _ in {{1..200}}; do {ask} && exit; sleep 0.1; done; echo nothing listens; exit 1"
            status, text = self.lab.guest("exec", self.number, again, check=False)
        if status != 0:
            raise Failed(f"guest program did not come to listen on port {port}: {text.strip()}; {last(self.output())}")

    def wait(self, seconds=CASE_SECONDS):
        """Exit status (None: still running) and output."""
        if self.ended is None:
            status, text = self.lab.guest("wait", "-t", seconds, self.number, self.name, check=False, seconds=seconds + 30)
            if status == 124:
                return None, text
            self.ended = status, text
        return self.ended

    def output(self):
        if self.ended is not None:
            return self.ended[1]
        return self.lab.guest("log", self.number, self.name, check=False)[1]

    def stop(self):
        if self.ended is None:
            self.lab.guest("kill", self.number, self.name, check=False)

    def kill(self):
        """kill -9: all of the job but the shell around it, which notes the status."""
        self.lab.guest("exec", self.number, f"pkill -9 -s $(cat /run/lab/{self.name}/pid) -x '{self.process_name()}'")

    def process_name(self):
        command = (self.lab.guest("exec", self.number, f"cat /run/lab/{self.name}/command")[1]).split()
        return Path(command[3]).name[:15]


class HostProgram:
    """A program that runs on the host side, inside the namespace."""

    def __init__(self, lab, name, command, environment=()):
        self.lab, self.name = lab, name
        self.file = lab.run_folder / f"{name}.host"
        variables = {"SOFTVERBS_TRANSPORT": lab.link.transport, **dict(environment)}
        with open(self.file, "wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", lab.namespace, *map(str, command)], env={**os.environ, **variables},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait_listening(self, port):
        """Until it says that it listens; all of ours do."""
        for _ in range(200):
            if f":{port}" in "".join(line for line in self.output().splitlines() if "listening on" in line):
                return
            if self.process.poll() is not None:
                raise Failed(f"server ended with status {self.process.returncode}: {last(self.output())}")
            time.sleep(0.05)
        raise Failed(f"server did not come to listen on port {port}: {last(self.output())}")

    def wait(self, seconds=CASE_SECONDS):
        """Exit status (None: still running) and output."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None, self.output()
        return self.process.returncode, self.output()

    def output(self):
        return self.file.read_text(errors="replace")

    def kill(self):
        self.process.kill()

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            os.killpg(self.process.pid, number)
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                pass


class Side:
    """Where one end of a case runs and how its programs are called there."""

    def __init__(self, lab, number, softverbs=None):
        self.lab, self.number = lab, number
        self.softverbs = softverbs  # our command; None: the stock programs

    def address(self, kind):
        return self.lab.address(self.number, kind)

    def scope(self):
        return "eth0" if self.number else "br0"

    def program(self, name, command, environment=()):
        if self.number:
            return GuestProgram(self.lab, self.number, name, command)
        if not Path(command[0]).exists():
            raise Skipped(f"no {command[0]}")
        return HostProgram(self.lab, name, command, environment)

    def example(self, name):
        """One of our example programs."""
        return self.softverbs.parent / "examples" / name

    def ping_server(self, address, port, *options, environment=()):
        command = [self.softverbs, "ping", "-s"] if self.softverbs else ["rping", "-s"]
        return self.program("server", [*command, "-a", address, "-p", port, *options], environment)

    def ping_client(self, address, port, *options, name="client", environment=()):
        command = [self.softverbs, "ping", "-c"] if self.softverbs else ["rping", "-c"]
        return self.program(name, [*command, "-a", address, "-p", port, *options], environment)

    def ucmatose_server(self, address, *options):
        command = [self.example("ucmatose_peer"), "--server", "-b", address] if self.softverbs else ["ucmatose", "-b", address]
        return self.program("server", [*command, *options])

    def ucmatose_client(self, address, *options):
        command = [self.example("ucmatose_peer"), address] if self.softverbs else ["ucmatose", "-s", address]
        return self.program("client", [*command, *options])

    def rejecting_server(self, address, port):
        """A server that rejects: ours misses its own exchange, the stock one may not register memory."""
        if self.softverbs:
            return self.program("server", [self.softverbs, "bw", "--server", "-p", port])
        unable = ["setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=0:0"]
        return self.program("server", [*unable, "ucmatose", "-b", address, "-p", port])


class Case:
    """The running programs of one case: stopped at its end, their output kept on failure."""

    def __init__(self, ours, guest, port):
        self.ours, self.guest, self.port = ours, guest, port
        self.programs = []
        self.at_end = []
        self.notes = []

    def sides(self, connector):
        """The client's and the server's side, when ours is CONNECTOR."""
        return (self.ours, self.guest) if connector == "client" else (self.guest, self.ours)

    def run(self, program):
        self.programs.append(program)
        return program

    def note(self, text):
        """To be printed with the verdict."""
        self.notes.append(text)

    def stop(self):
        for program in self.programs:
            program.stop()
        for undo in self.at_end:
            undo()

    def show(self):
        """Prints the end of what each program said."""
        for program in self.programs:
            for line in program.output().splitlines()[-8:]:
                print(f"    {program.name}: {line[:200]}", flush=True)
