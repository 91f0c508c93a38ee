//! Who has a UDP port that is not to be had.

use std::fs;
use std::path::Path;

/// The owner of a UDP port, in words, as far as this user may know.
pub(super) fn of_udp_port(port: u16, v6: bool) -> String {
    let table = if v6 {
        "/proc/net/udp6"
    } else {
        "/proc/net/udp"
    };
    let table = fs::read_to_string(table).unwrap_or_default();
    match find_socket(&table, port) {
        Some((uid, inode)) => {
            let rxe = Path::new("/sys/module/rdma_rxe").exists();
            words(uid, inode, find_process(inode), rxe)
        }
        None => "an unknown process".to_owned(),
    }
}

/// The owner of a socket; without a process, somebody whose files this user may not see.
fn words(uid: u32, inode: u64, process: Option<(u32, String)>, rxe: bool) -> String {
    match process {
        Some((pid, name)) => format!("{name} (pid {pid})"),
        // The kernel's own sockets have an inode, but are nobody's files.
        None if uid == 0 && rxe => "the kernel's rdma_rxe".to_owned(),
        None => format!("a process of uid {uid} (socket inode {inode})"),
    }
}

/// User and inode of the socket that is bound to a port, from a table of the kernel.
fn find_socket(table: &str, port: u16) -> Option<(u32, u64)> {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        if !words.next()?.ends_with(&suffix) {
            return None;
        }
        // Remote address, state, queues, timer, retransmissions lie between.
        let uid = words.nth(5)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        Some((uid, inode))
    })
}

/// The process that has a socket open.
fn find_process(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let has = files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| target == Path::new(&wanted))
        });
        if has {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn finds_this_process() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let owner = of_udp_port(port, false);
        assert!(
            owner.contains(&format!("(pid {})", std::process::id())),
            "{owner}"
        );
        drop(socket);
        assert_eq!(of_udp_port(port, true), "an unknown process");
    }

    #[test]
    fn processes_of_others() {
        assert_eq!(
            words(1000, 7, None, true),
            "a process of uid 1000 (socket inode 7)"
        );
        assert_eq!(
            words(0, 7, None, false),
            "a process of uid 0 (socket inode 7)"
        );
        assert_eq!(words(0, 7, None, true), "the kernel's rdma_rxe");
        assert_eq!(words(0, 7, Some((5, "dd".into())), true), "dd (pid 5)");
    }

    #[test]
    fn reads_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            \x20 305: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 35226 2 0000000000000000 0\n";
        assert_eq!(find_socket(table, 4791), Some((1000, 35226)));
        assert_eq!(find_socket(table, 4792), None);
    }
}
