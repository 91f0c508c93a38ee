//! `softverbs devices`.

use std::io::{self, Write, stdout};

use serde::Serialize;
use softverbs::{Device, DeviceAttr, PortAttr, PortOwner, PortState, Transport};

use crate::failure::{Failure, Outcome};

/// The only port of a device.
const PORT: u8 = 1;

/// What it means that a stranger has UDP port 4791.
pub(crate) const STRANGER: &str =
    "programs on this machine reach each other, other machines cannot reach them";

/// What is printed about a device.
#[derive(Debug, Serialize)]
struct Entry {
    device: String,
    interface: String,
    transport: &'static str,
    mtu: u32,
    state: &'static str,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// What is printed with `-v`, under the names of `ibv_devinfo`.
#[derive(Debug, Serialize)]
struct Details {
    fw_ver: String,
    node_guid: String,
    sys_image_guid: String,
    max_mr_size: u64,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_sge_rd: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_pd: u32,
    max_srq: u32,
    max_srq_wr: u32,
    max_srq_sge: u32,
    max_qp_rd_atom: u32,
    max_qp_init_rd_atom: u32,
    atomic_cap: String,
    phys_port_cnt: u8,
    max_msg_sz: u32,
    active_mtu: u32,
    link_layer: String,
    /// RoCE only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    udp_port_4791: Vec<PortLine>,
    gids: Vec<String>,
}

/// Who has the port that other hosts send to.
#[derive(Clone, Debug, Serialize)]
struct PortLine {
    family: &'static str,
    owner: String,
    reachable: bool,
}

impl From<PortOwner> for PortLine {
    fn from(port: PortOwner) -> Self {
        Self {
            family: port.family,
            owner: port.owner,
            reachable: !port.stranger,
        }
    }
}

/// Prints all devices.
pub(crate) fn run(verbose: bool, json: bool) -> Outcome<()> {
    let devices = softverbs::devices()?;
    // Whoever asks is, for a moment, one of those who may have the port.
    let has_roce = devices
        .iter()
        .any(|device| device.transport() == Transport::Roce);
    let owners = if verbose && has_roce {
        let status = softverbs::roce_status()?;
        status.port_owners.into_iter().map(PortLine::from).collect()
    } else {
        Vec::new()
    };
    let entries = devices
        .iter()
        .map(|device| Entry::new(device, verbose, &owners))
        .collect::<Outcome<Vec<_>>>()?;
    if entries.is_empty() {
        return Err(Failure::run(
            "no network interface is up and has an address",
        ));
    }
    let mut out = stdout().lock();
    if json {
        for entry in &entries {
            let line = serde_json::to_string(entry)
                .map_err(|error| Failure::run(format!("JSON: {error}")))?;
            writeln!(out, "{line}")?;
        }
    } else {
        print(&mut out, &entries)?;
    }
    out.flush()?;
    Ok(())
}

impl Entry {
    fn new(device: &Device, verbose: bool, owners: &[PortLine]) -> Outcome<Self> {
        let context = device.open()?;
        let port = context.query_port(PORT)?;
        let details = if verbose {
            let gids = (0..port.gid_tbl_len)
                .map(|index| Ok(context.query_gid(PORT, index)?.to_string()))
                .collect::<Outcome<_>>()?;
            let owners = match device.transport() {
                Transport::Roce => owners.to_vec(),
                Transport::Iwarp => Vec::new(),
            };
            Some(Details::new(&context.query_device(), &port, owners, gids))
        } else {
            None
        };
        Ok(Self {
            device: device.name().to_owned(),
            interface: device.interface().to_owned(),
            transport: match device.transport() {
                Transport::Iwarp => "iwarp",
                Transport::Roce => "roce",
            },
            mtu: device.mtu(),
            state: match port.state {
                PortState::Active => "active",
                PortState::Down => "down",
            },
            addresses: device.addresses().iter().map(ToString::to_string).collect(),
            details,
        })
    }
}

impl Details {
    fn new(
        attr: &DeviceAttr,
        port: &PortAttr,
        udp_port_4791: Vec<PortLine>,
        gids: Vec<String>,
    ) -> Self {
        Self {
            fw_ver: attr.fw_ver.to_owned(),
            node_guid: guid(attr.node_guid),
            sys_image_guid: guid(attr.sys_image_guid),
            max_mr_size: attr.max_mr_size,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_sge_rd: attr.max_sge_rd,
            max_cq: attr.max_cq,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_pd: attr.max_pd,
            max_srq: attr.max_srq,
            max_srq_wr: attr.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
            atomic_cap: format!("{:?}", attr.atomic_cap).to_uppercase(),
            phys_port_cnt: attr.phys_port_cnt,
            max_msg_sz: port.max_msg_sz,
            active_mtu: port.active_mtu.octets(),
            link_layer: format!("{:?}", port.link_layer),
            udp_port_4791,
            gids,
        }
    }
}

/// A GUID as the tools of the field print it: `0123:4567:89ab:cdef`.
fn guid(value: u64) -> String {
    let quarters = [48, 32, 16, 0].map(|shift| format!("{:04x}", value >> shift & 0xffff));
    quarters.join(":")
}

/// The titles of the table, all but the last one with the width of its column.
const COLUMNS: [&str; 6] = [
    "device",
    "interface",
    "transport",
    "mtu",
    "state",
    "addresses",
];

fn print(out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
    let rows: Vec<[String; 6]> = std::iter::once(COLUMNS.map(String::from))
        .chain(entries.iter().map(|entry| {
            [
                entry.device.clone(),
                entry.interface.clone(),
                entry.transport.to_owned(),
                entry.mtu.to_string(),
                entry.state.to_owned(),
                entry.addresses.join(" "),
            ]
        }))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        writeln!(out, "{}", line.trim_end())?;
        let details = index
            .checked_sub(1)
            .and_then(|index| entries[index].details.as_ref());
        if let Some(details) = details {
            print_details(out, details)?;
        }
    }
    Ok(())
}

fn print_details(out: &mut impl Write, details: &Details) -> io::Result<()> {
    // One list of the names is enough: that of the JSON.
    let serde_json::Value::Object(fields) = serde_json::to_value(details)? else {
        return Ok(());
    };
    for (name, value) in &fields {
        match value {
            serde_json::Value::Array(_) => {}
            serde_json::Value::String(text) => writeln!(out, "    {name}: {text}")?,
            value => writeln!(out, "    {name}: {value}")?,
        }
    }
    for port in &details.udp_port_4791 {
        write!(out, "    udp_port_4791 ({}): {}", port.family, port.owner)?;
        writeln!(
            out,
            "{}",
            if port.reachable {
                String::new()
            } else {
                format!(": {STRANGER}")
            }
        )?;
    }
    for (index, gid) in details.gids.iter().enumerate() {
        writeln!(out, "    gid[{index}]: {gid}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(device: &str, addresses: &[&str]) -> Entry {
        Entry {
            device: device.into(),
            interface: device.trim_start_matches("iw_").into(),
            transport: "iwarp",
            mtu: 1500,
            state: "active",
            addresses: addresses.iter().map(ToString::to_string).collect(),
            details: None,
        }
    }

    #[test]
    fn table() {
        let mut out = Vec::new();
        let entries = [
            entry("iw_lo", &["127.0.0.1", "::1"]),
            entry("iw_enp3s0", &["192.0.2.1"]),
        ];
        print(&mut out, &entries).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "device     interface  transport  mtu   state   addresses\n\
             iw_lo      lo         iwarp      1500  active  127.0.0.1 ::1\n\
             iw_enp3s0  enp3s0     iwarp      1500  active  192.0.2.1\n"
        );
    }

    #[test]
    fn guids() {
        assert_eq!(guid(0x0123_4567_89ab_cdef), "0123:4567:89ab:cdef");
    }
}
