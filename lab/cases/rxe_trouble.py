"""RoCEv2, against the kernel's rxe: lost packets, lost messages of the connection manager, lost peers."""

import re
import time

from .common import case, expect_pings, finish, ping_ends
from .rxe_verbs import peers
from .sides import CASE_SECONDS, Failed, GuestProgram, expect, last

# What the guest loses: what it sends and what it receives, both by chance (a drop of every 50th would meet the same packet of each 50-packet response).
LOSSES = """
set -e
tc qdisc add dev eth0 root handle 1: prio
tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 2%
tc qdisc add dev eth0 handle ffff: ingress
for header in ip ip6; do
    protocol=${header/ip6/ipv6}
    tc filter add dev eth0 parent 1: protocol $protocol prio ${#header} u32 match $header dport 4791 0xffff flowid 1:3
    tc filter add dev eth0 parent ffff: protocol $protocol prio ${#header} u32 match $header dport 4791 0xffff action pass random netrand drop 50
done
"""
NO_LOSSES = "tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress; true"


def lose(case):
    """From now on packets are lost in the guest, in both directions; counts them at the end."""

    def count():
        _, text = case.guest.lab.guest("exec", case.guest.number, "tc -s qdisc show dev eth0; tc -s filter show dev eth0 ingress")
        dropped = {
            "sent": sum(map(int, re.findall(r"netem[^\n]*\n[^\n]*dropped (\d+)", text))),
            "received": sum(map(int, re.findall(r"action order[^\0]*?dropped (\d+)", text))),
        }
        for what, number in dropped.items():
            expect(number > 0, f"the guest lost nothing of what it {what}")
        case.note(f"the guest lost {dropped['sent']} packets that it sent, {dropped['received']} that it received")

    case.at_end.append(lambda: case.guest.lab.guest("exec", case.guest.number, NO_LOSSES))
    case.guest.lab.guest("exec", case.guest.number, LOSSES)
    return count


def operations_with_losses(kind, case):
    """Everything is repeated until it has arrived, and arrives once."""
    count = lose(case)
    options = ["-t", "rc", "-s", "1,1025,100000"]
    finish(peers(case, "client", kind, options, options))
    count()


for kind in ("4", "6"):
    case(f"rxe/losses/operations/ipv{kind}", kind)(operations_with_losses)


def pings_with_losses(connector, case):
    """The same with rping, and so with messages of the connection manager."""
    count = lose(case)
    client_side, server_side, bind, address = ping_ends(connector, "4", case)
    options = ["-S", 65535, "-v", "-V"]
    server = case.run(server_side.ping_server(bind, case.port, *options))
    server.wait_listening(case.port)
    client = case.run(client_side.ping_client(address, case.port, "-C", 30, *options))
    # At the end a DREQ may get lost, and the server hear of the end seconds later.
    for who, output in finish({"client": client, "server": server}).items():
        expect_pings(output, 65535, who, 30)
    count()


for connector in ("client", "server"):
    case(f"rxe/losses/ping-{connector}/ipv4", connector)(pings_with_losses)




def ping_with_fault(case, connector, plan, options=()):
    """One run of rping; returns the client and the server, ended or not, and its seconds."""
    client_side, server_side, bind, address = ping_ends(connector, "4", case)
    environment = {"SOFTVERBS_FAULT": plan}
    server = case.run(server_side.ping_server(bind, case.port, "-v", environment=environment))
    server.wait_listening(case.port)
    begin = time.monotonic()
    client = case.run(client_side.ping_client(address, case.port, "-C", 3, "-v", *options, environment=environment))
    client.wait(CASE_SECONDS)
    seconds = time.monotonic() - begin
    server.wait(5)
    server.stop()
    return client, server, seconds


def lost_rtu(case):
    """Every RTU is lost. Ours takes the first data for it; rxe waits for the RTU, and gives up."""
    if not case.ours.softverbs:
        return
    _, _, usual = ping_with_fault(case, "server", "rtu=log")
    client, server, ours = ping_with_fault(case, "server", "in:rtu=drop,rep=log,log=stderr")
    expect(client.wait(1)[0] == 0, f"rping ended with status {client.wait(1)[0]}: {last(client.output())}")
    log = server.output()
    expect(re.search(r"rtu.*drop|drop.*rtu", log, re.I), f"no RTU was lost: {last(log)}")
    reps = len(re.findall(r"\bREP\b", log))
    expect(reps == 1, f"{reps} REPs were sent: {last(log, 8)}")
    expect(ours < usual + 2, f"took {ours:.1f} s, and {usual:.1f} s with the RTU")
    case.note(f"rxe active, ours passive, every RTU lost: connected and 3 pings done in {ours:.2f} s ({usual:.2f} s with the RTU)")

    client, _, first = ping_with_fault(case, "client", "out:rtu:first=drop")
    expect(client.wait(1)[0] == 0, f"our client ended with status {client.wait(1)[0]}: {last(client.output())}")
    case.note(f"ours active, rxe passive, the first RTU lost: 3 pings done in {first:.2f} s")
    client, _, theirs = ping_with_fault(case, "client", "out:rtu=drop", options=("--timeout", 40))
    status, output = client.wait(1)
    expect(status == 1, f"our client ended with status {status}: {last(output)}")
    case.note(f"ours active, rxe passive, every RTU lost: given up by rxe after {theirs:.1f} s; {last(output, 1)}")


case("rxe/lost-rtu")(lost_rtu)


def killed(victim, case):
    """kill -9 of one end while the other one writes: that one's requests end with an error."""
    connector = "client" if victim == "guest" else "server"
    running = peers(case, connector, "4", ["-w"], ["-k"])
    for _ in range(200):
        if "writing" in running["client"].output():
            break
        time.sleep(0.1)
    running["server"].kill()
    status, output = running["client"].wait(CASE_SECONDS)
    expect(status == 0, f"the writer ended with status {status}: {last(output)}")
    said = re.search(r"after \d+ writes: (.*)", output)
    expect(said and re.search("retry counter|RetryExc", said[1]), f"the writer's requests did not time out: {last(output)}")


for victim in ("guest", "ours"):
    case(f"rxe/killed/{victim}/writes", victim)(killed)


def killed_rping(connector, case):
    """kill -9 of rping: its kernel disconnects, and our end says that it was too early."""
    client_side, server_side, bind, address = ping_ends(connector, "4", case)
    server = case.run(server_side.ping_server(bind, case.port, "-v"))
    server.wait_listening(case.port)
    client = case.run(client_side.ping_client(address, case.port, "-v"))
    victim, survivor = (server, client) if isinstance(server, GuestProgram) else (client, server)
    for _ in range(200):
        if "rdma-ping-20:" in survivor.output():
            break
        time.sleep(0.1)
    else:
        raise Failed(f"no pings: {last(survivor.output())}")
    victim.kill()
    status, output = survivor.wait(20)
    expect(status is not None, f"our end still waits: {last(output)}")
    if connector == "client":
        expect(status == 1, f"our client ended with status {status}: {last(output)}")


for connector in ("client", "server"):
    case(f"rxe/killed/guest/rping-with-our-{connector}", connector)(killed_rping)
