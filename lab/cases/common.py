"""What cases of both transports share: their list, and the conversations of rping and ucmatose."""

import functools
import re
import time

from .sides import CASE_SECONDS, Failed, GuestProgram, Link, expect, last

# The links, in the order in which they are set up; a case's name begins with its link's. An MTU of
# 4200 holds packets of 4096.
LINKS = {"siw": Link("siw"), "rxe": Link("rxe"), "rxe-4096": Link("rxe", 4200)}
CASES = {}
ASKED_FOR = set()  # the names of the cases that run only when they are asked for
COUNT = 100


def case(name, *arguments, default=True):
    """Adds a case: a function of ARGUMENTS and the running Case. DEFAULT: it runs without being asked for."""

    def add(function):
        assert name not in CASES and name.split("/")[0] in LINKS, name
        CASES[name] = functools.partial(function, *arguments)
        if not default:
            ASKED_FOR.add(name)
        return function

    return add


def ping_text(number, size):
    """What rping sends in its ping NUMBER, less the closing zero octet."""
    text = f"rdma-ping-{number}: "
    start = number % 58
    letters = "".join(chr(65 + (start + i) % 58) for i in range(size - len(text) - 1))
    return text + letters


def expect_pings(output, size, who, count=COUNT):
    """The -v lines of rping, each with the expected data; both roles print all they received."""
    lines = re.findall(r"ping data: (.*)", output)
    expect(len(lines) == count, f"{who} printed {len(lines)} pings, not {count}: {last(output)}")
    for number, line in enumerate(lines):
        expect(line == ping_text(number, size), f"{who} got other data in ping {number}: {line[:80]!r}")


# At its end rping's main thread closes the event channel that another of its threads reads: now
# and then rping ends with this message and status 255, after all its work is done.
RPING_EXIT_RACE = "rdma_get_cm_event: "


def finish(programs, excuse=None):
    """Waits for the named programs and expects each to end with status 0; returns their outputs.

    EXCUSE: a status, and what a program in the guest says that may end with it, through no fault of ours.
    """
    outputs = {}
    deadline = time.monotonic() + CASE_SECONDS
    for who, program in programs.items():
        status, output = program.wait(max(1, int(deadline - time.monotonic())))
        expect(status is not None, f"{who} did not end in {CASE_SECONDS} s: {last(output)}")
        raced = isinstance(program, GuestProgram) and status == 255 and RPING_EXIT_RACE in output
        excused = isinstance(program, GuestProgram) and excuse and status == excuse[0] and re.search(excuse[1], output)
        expect(status == 0 or raced or excused, f"{who} ended with status {status}: {last(output)}")
        outputs[who] = output
    return outputs


def ping_ends(connector, kind, case):
    """The sides, and the addresses at which the server listens and to which the client goes."""
    client_side, server_side = case.sides(connector)
    address = bind = server_side.address(kind)
    if kind == "local":
        address += f"%{client_side.scope()}"
        bind = "::"
    return client_side, server_side, bind, address


def ping(connector, kind, size, case, count=COUNT):
    """One side pings the other with rping's protocol; the data is checked on both."""
    client_side, server_side, bind, address = ping_ends(connector, kind, case)
    options = ["-S", size, "-v", "-V"]
    server = case.run(server_side.ping_server(bind, case.port, *options))
    server.wait_listening(case.port)
    client = case.run(client_side.ping_client(address, case.port, "-C", count, *options))
    outputs = finish({"client": client, "server": server})
    for who, output in outputs.items():
        expect_pings(output, size, who, count)


UCMATOSE_PORT = 7471


def ucmatose(case, client_side, server_side, kind, options):
    """One run of the program whose server, the passive side, sends first; returns its seconds."""
    server = case.run(server_side.ucmatose_server(server_side.address(kind), *options))
    server.wait_listening(UCMATOSE_PORT)
    begin = time.monotonic()
    client = case.run(client_side.ucmatose_client(server_side.address(kind), *options))
    finish({"client": client, "server": server})
    return time.monotonic() - begin


def refused_by_guest(kind, case):
    """Nobody listens in the guest: our client says so, and soon."""
    client = case.run(case.ours.ping_client(case.guest.address(kind), case.port, "-C", 1))
    status, output = client.wait(10)
    if case.ours.softverbs:
        expect(status is not None, f"client still waits after 10 s: {last(output)}")
    expect(status != 0, f"client ended with status 0: {last(output)}")
    said = "refused|REJECTED, error 8"
    expect(re.search(said, output, re.I), f"client does not say that it was refused: {last(output)}")


def refused_by_us(kind, case):
    """Nobody listens on our side: rping says so. (It then waits for ever, as it does with siw.)

    Over RoCE somebody must be there to say it: another server of ours.
    """
    if case.guest.lab.link.driver == "rxe":
        bystander = case.run(case.ours.ping_server("::", case.port + 1000))
        bystander.wait_listening(case.port + 1000)
    client = case.run(case.guest.ping_client(case.ours.address(kind), case.port, "-C", 1))
    for _ in range(20):
        if re.search("Connection refused|REJECTED, error 8", client.output()):
            return
        time.sleep(0.5)
    raise Failed(f"rping was not refused: {last(client.output())}")


def rejected(connector, kind, case):
    """The server rejects the connection: both sides say so, and soon."""
    client_side, server_side = case.sides(connector)
    address = server_side.address(kind)
    server = case.run(server_side.rejecting_server(address, case.port))
    server.wait_listening(case.port)
    client = case.run(client_side.ping_client(address, case.port, "-C", 1))
    status, output = client.wait(10)
    expect(status is not None, f"client still waits after 10 s: {last(output)}")
    expect(status != 0, f"client ended with status 0: {last(output)}")
    expect(re.search("reject", output, re.I), f"client does not say that it was rejected: {last(output)}")
    server.wait(1)
    said = "failing connection request|does not speak the exchange"
    expect(re.search(said, server.output()), f"server does not say that it rejected: {last(server.output())}")


def add_refusals(link):
    for kind in ("4", "6"):
        case(f"{link}/refused-by-guest/ipv{kind}", kind)(refused_by_guest)
        case(f"{link}/refused-by-us/ipv{kind}", kind)(refused_by_us)
        case(f"{link}/rejected-by-guest/ipv{kind}", "client", kind)(rejected)
        case(f"{link}/rejected-by-us/ipv{kind}", "server", kind)(rejected)
