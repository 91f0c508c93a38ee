//! The table of recipes in docs/faults.md, under rping, ib_send_lat and `softverbs ping`: each has the
//! outcome that stands there.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, LIMIT, Running, document, free_port, softverbs};

/// A line of the table.
#[derive(Debug)]
struct Recipe {
    plan: String,
    transport: &'static str,
    client: bool,
    server: bool,
    /// What ends it, in the words of `softverbs ping`; nothing: it goes on.
    ends: Option<String>,
}

impl Recipe {
    fn read(line: &str) -> Self {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [plan, over, at, outcome, _what] = cells[..] else {
            panic!("not five cells: {line}");
        };
        let code = |cell: &str| cell.split('`').nth(1).map(str::to_owned);
        Self {
            plan: code(plan).expect(line),
            transport: match over {
                "RoCE" => "roce",
                "iWARP" => "iwarp",
                other => panic!("{other}: {line}"),
            },
            client: matches!(at, "client" | "both"),
            server: matches!(at, "server" | "both"),
            ends: match outcome {
                "goes on" => None,
                _ if outcome.starts_with("ends: ") => Some(code(outcome).expect(line)),
                _ => panic!("{outcome}: {line}"),
            },
        }
    }

    fn fault(&self, here: bool) -> String {
        if here {
            format!("--fault {}", self.plan)
        } else {
            String::new()
        }
    }

    fn program(&self, here: bool, line: &str) -> std::process::Command {
        let (transport, fault) = (self.transport, self.fault(here));
        softverbs(&format!("run --transport {transport} {fault} -- {line}"))
    }

    /// Server and client of a program; a client that comes too early for the server comes again.
    #[allow(
        clippy::print_stdout,
        reason = "shown only when the server does not end"
    )]
    fn pair(&self, server: &str, client: &str, refused: &str) -> (Ended, Ended) {
        let start = || Running::start(self.program(self.server, server));
        let mut server = start();
        let deadline = Instant::now() + LIMIT;
        loop {
            let ended = Running::start(self.program(self.client, client)).finish();
            if ended.err.contains(REFUSED_AGAIN) && Instant::now() < deadline {
                drop(server);
                server = start();
                continue;
            }
            if !ended.err.contains(refused) && !ended.out.contains(refused) {
                println!("{self:?}: {ended:?}");
                return (ended, server.finish());
            }
            assert!(Instant::now() < deadline, "{self:?}: {ended:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn recipes() -> Vec<Recipe> {
    let text = document("faults.md");
    let (_, table) = text
        .split_once("| PLAN | over | at | outcome | what it is |\n|---|---|---|---|---|\n")
        .expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let recipes: Vec<Recipe> = rows.map(Recipe::read).collect();
    // Neither transport and neither outcome is left out.
    for transport in ["roce", "iwarp"] {
        for ends in [true, false] {
            let is =
                |recipe: &&Recipe| recipe.transport == transport && recipe.ends.is_some() == ends;
            assert!(
                recipes.iter().any(|recipe| is(&recipe)),
                "{transport} {ends}"
            );
        }
    }
    recipes
}

const PINGS: usize = 200;

/// What a client of perftest 4.5 says of its second connection when the server, which listens twice, does
/// not listen again yet. It tries with what it has freed then, and crashes; its server waits for ever.
const REFUSED_AGAIN: &str = "RDMA CM event error:\nEvent: RDMA_CM_EVENT_REJECTED";

#[test]
fn rping() {
    for recipe in recipes() {
        let port = free_port();
        let line = format!("-a 127.0.0.1 -p {port} -S 1000 -C {PINGS}");
        let (client, server) = recipe.pair(
            &format!("rping -s {line}"),
            &format!("rping -c {line} -v -V"),
            "RDMA_CM_EVENT_REJECTED",
        );
        let pings = client.out.matches("ping data: ").count();
        match recipe.ends {
            None => {
                assert_eq!(
                    (client.code, pings),
                    (Some(0), PINGS),
                    "{recipe:?}: {client:?}"
                );
                assert_eq!(server.code, Some(0), "{recipe:?}: {server:?}");
            }
            // Whatever its status says.
            Some(_) => assert!(pings < PINGS, "{recipe:?}: {client:?}"),
        }
    }
}

#[test]
fn ib_send_lat() {
    for recipe in recipes() {
        let line = format!("ib_send_lat -R -p {} -s 1000 -n {PINGS}", free_port());
        let (client, server) = recipe.pair(
            &line,
            &format!("{line} 127.0.0.1"),
            // Of the first connection, which it tries once.
            "Unable to init the socket connection",
        );
        let codes = (client.code, server.code);
        match recipe.ends {
            None => {
                assert_eq!(
                    codes,
                    (Some(0), Some(0)),
                    "{recipe:?}: {client:?} {server:?}"
                );
                let row = client.out.lines().map(|line| line.split_whitespace());
                let mut row = row.filter(|words| words.clone().next() == Some("1000"));
                let count = row.next().and_then(|mut words| words.nth(1));
                let expected = PINGS.to_string();
                assert_eq!(count, Some(expected.as_str()), "{recipe:?}: {client:?}");
            }
            Some(_) => {
                assert!(
                    client.code.is_some_and(|code| code != 0),
                    "{recipe:?}: {client:?}"
                );
            }
        }
    }
}

#[test]
fn softverbs_ping() {
    for recipe in recipes() {
        let transport = recipe.transport;
        let fault = recipe.fault(recipe.server);
        let line = format!("ping --server -p 0 --transport {transport} {fault}");
        let (server, port) = Running::serve(softverbs(&line));
        let fault = recipe.fault(recipe.client);
        let client = common::sv(&format!(
            "ping 127.0.0.1 -p {port} --transport {transport} -S 1000 -C {PINGS} -V {fault}"
        ));
        let server = server.finish();
        match &recipe.ends {
            None => {
                assert_eq!(client.code, Some(0), "{recipe:?}: {client:?}");
                assert!(client.out.contains("200 pings"), "{recipe:?}: {client:?}");
                assert_eq!(server.code, Some(0), "{recipe:?}: {server:?}");
            }
            Some(words) => client.failed(words),
        }
    }
}
