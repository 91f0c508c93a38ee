//! Reads symbols.txt. Shared by build.rs and the tests.

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every user needs all of it")]
pub(crate) enum State {
    Implemented,
    Refused,
    Private,
    Old,
}

/// One line of the list, with its versions written out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every user needs all of it")]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// Of several, the first is the oldest.
    pub(crate) versions: Vec<String>,
    pub(crate) state: State,
    /// How it answers if it is not implemented: the name of a function in `refused.rs`, or `data`.
    pub(crate) answer: Option<String>,
    pub(crate) note: String,
}

/// The private nodes of the releases of rdma-core that are served.
pub(crate) const PRIVATE: [u32; 4] = [34, 57, 59, 64];

/// The version nodes of the public interface, each with the one that it inherits from, in order.
pub(crate) const NODES: &[&[&str]] = &[
    &[
        "IBVERBS_1.0",
        "IBVERBS_1.1",
        "IBVERBS_1.5",
        "IBVERBS_1.6",
        "IBVERBS_1.7",
        "IBVERBS_1.8",
        "IBVERBS_1.9",
        "IBVERBS_1.10",
        "IBVERBS_1.11",
        "IBVERBS_1.12",
        "IBVERBS_1.13",
        "IBVERBS_1.14",
        "IBVERBS_1.15",
        "IBVERBS_1.16",
        "IBVERBS_1.17",
    ],
    &[
        "RDMACM_1.0",
        "RDMACM_1.1",
        "RDMACM_1.2",
        "RDMACM_1.3",
        "RDMACM_1.4",
    ],
];

/// Reads the list.
///
/// # Panics
/// With the line, if it is not as its head says.
pub(crate) fn parse(text: &str) -> Vec<Symbol> {
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| parse_line(line).unwrap_or_else(|| panic!("symbols.txt: {line}")))
        .collect()
}

fn parse_line(line: &str) -> Option<Symbol> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let versions = versions(words.next()?)?;
    let state = match words.next()? {
        "implemented" => State::Implemented,
        "refused" => State::Refused,
        "private" => State::Private,
        "old" => State::Old,
        _ => return None,
    };
    let answer = match state {
        State::Implemented => None,
        _ => Some(words.next()?.to_owned()),
    };
    let known = ["errno", "minus_one", "null", "zero", "void", "data"];
    if answer
        .as_deref()
        .is_some_and(|answer| !known.contains(&answer))
    {
        return None;
    }
    let note = words.collect::<Vec<_>>().join(" ");
    Some(Symbol {
        name,
        versions,
        state,
        answer,
        note,
    })
}

fn versions(word: &str) -> Option<Vec<String>> {
    if let Some(number) = word.strip_prefix("IBVERBS_PRIVATE_") {
        let (first, only) = match number.strip_suffix('+') {
            Some(first) => (first, false),
            None => (number, true),
        };
        let first: u32 = first.parse().ok()?;
        PRIVATE.contains(&first).then_some(())?;
        let nodes = PRIVATE
            .iter()
            .filter(|node| **node == first || (!only && **node > first));
        return Some(
            nodes
                .map(|node| format!("IBVERBS_PRIVATE_{node}"))
                .collect(),
        );
    }
    let known = NODES
        .iter()
        .flat_map(|nodes| nodes.iter())
        .any(|node| *node == word);
    known.then(|| vec![word.to_owned()])
}
