//! Compares the structs with the headers that are installed, by asking the compiler of C.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::*;

macro_rules! layouts {
    ($($name:ident)*) => { &[$($name::LAYOUT),*] };
}

const LAYOUTS: &[Layout] = layouts! {
    ibv_qp_cap ibv_qp_init_attr ibv_rx_hash_conf ibv_qp_init_attr_ex
    ibv_qp_open_attr ibv_qp_attr ibv_qp_rate_limit_attr ibv_srq_attr
    ibv_srq_init_attr ibv_tm_cap ibv_srq_init_attr_ex ibv_cq_init_attr_ex
    ibv_moderate_cq ibv_modify_cq_attr ibv_xrcd_init_attr ibv_td_init_attr
    ibv_parent_domain_init_attr ibv_ece ibv_alloc_dm_attr ibv_mr_init_attr
    ibv_dmah_init_attr ibv_sa_path_rec rdma_ib_addr rdma_addr
    rdma_route rdma_event_channel rdma_cm_id rdma_conn_param
    rdma_ud_param rdma_cm_event rdma_addrinfo rdma_cm_join_mc_attr_ex
    sockaddr_ib ibv_context_ops ibv_context verbs_context
    ibv_device ibv_gid_global ibv_gid_entry ibv_device_attr
    ibv_query_device_ex_input ibv_odp_caps ibv_tso_caps ibv_rss_caps
    ibv_packet_pacing_caps ibv_tm_caps ibv_cq_moderation_caps ibv_pci_atomic_caps
    ibv_device_attr_ex ibv_port_attr ibv_values_ex ibv_pd
    ibv_td ibv_xrcd ibv_mr ibv_mw
    ibv_ah ibv_comp_channel ibv_cq ibv_srq
    ibv_qp ibv_wq ibv_rwq_ind_table ibv_dm
    ibv_flow ibv_flow_action ibv_counters ibv_dmah
    ibv_global_route ibv_ah_attr ibv_grh ibv_mw_bind_info
    ibv_mw_bind ibv_poll_cq_attr ibv_wc_tm_info ibv_cq_ex
    ibv_qp_ex ibv_sge ibv_data_buf ibv_wc
    ibv_wr_rdma ibv_wr_atomic ibv_wr_ud ibv_wr_bind_mw
    ibv_send_wr ibv_recv_wr ibv_ops_wr ibv_async_event
};

/// Parts of C's structs that have no name there.
const UNNAMED: &[&str] = &[
    "ibv_gid_global",
    "ibv_wr_rdma",
    "ibv_wr_atomic",
    "ibv_wr_ud",
    "ibv_wr_bind_mw",
];
/// What release 44 does not have: whole structs, and fields at the end of others.
const NEWER: &[&str] = &[
    "ibv_dmah",
    "ibv_dmah_init_attr",
    "ibv_mr_init_attr",
    "ibv_port_attr.active_speed_ex",
    "ibv_qp_ex.wr_flush",
    "verbs_context._newest",
    "verbs_context.dm_export_dmabuf_fd",
    "verbs_context.reg_mr_ex",
    "verbs_context.dealloc_dmah",
    "verbs_context.alloc_dmah",
];
/// The one that grows at its start: its offsets count from the end.
const FROM_THE_END: &str = "verbs_context";

/// Names and numbers that a program of C prints.
fn ask_c(program: &str) -> BTreeMap<String, usize> {
    let folder = Path::new(env!("OUT_DIR"));
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let cc = Command::new("cc")
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output();
    let cc = cc.expect("no cc: run scripts/install-test-deps");
    let complaint = String::from_utf8_lossy(&cc.stderr);
    assert!(
        cc.status.success(),
        "are libibverbs-dev and librdmacm-dev installed?\n{complaint}"
    );
    let output = Command::new(&binary).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| {
            let (name, number) = line.split_once(' ').unwrap();
            (name.to_owned(), number.parse().unwrap())
        })
        .collect()
}

#[test]
fn every_size_and_offset_is_that_of_the_headers() {
    let mut program = "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
        #include <infiniband/sa.h>\n#include <infiniband/ib.h>\n#include <rdma/rdma_cma.h>\n\
        int main(void) {\n"
        .to_owned();
    let known = |name: &str| !NEWER.contains(&name);
    let layouts = || {
        LAYOUTS
            .iter()
            .filter(|layout| !UNNAMED.contains(&layout.name) && known(layout.name))
    };
    let mut ours = BTreeMap::new();
    for Layout { name, size, fields } in layouts() {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        let shorter = fields
            .iter()
            .any(|(field, _)| !known(&format!("{name}.{field}")));
        if !shorter {
            ours.insert((*name).to_owned(), *size);
        }
        for (field, offset) in *fields {
            let field = field.trim_start_matches("r#");
            let full = format!("{name}.{field}");
            if !known(&full) {
                continue;
            }
            let from_the_end = *name == FROM_THE_END;
            let end = if from_the_end {
                format!("sizeof(struct {name}) - ")
            } else {
                String::new()
            };
            writeln!(
                program,
                "printf(\"{full} %zu\\n\", {end}offsetof(struct {name}, {field}));"
            )
            .unwrap();
            ours.insert(full, if from_the_end { size - offset } else { *offset });
        }
    }
    program.push_str("return 0; }\n");
    let theirs = ask_c(&program);
    let wrong: Vec<_> = ours
        .iter()
        .filter(|(name, value)| theirs.get(*name) != Some(value))
        .collect();
    assert!(wrong.is_empty(), "not as in the headers: {wrong:?}");
    assert!(ours.len() > 600, "{} numbers compared", ours.len());
}

#[test]
fn no_struct_is_left_out() {
    let sources = [
        include_str!("attr.rs"),
        include_str!("cma.rs"),
        include_str!("context.rs"),
        include_str!("device.rs"),
        include_str!("object.rs"),
        include_str!("object_ex.rs"),
        include_str!("work.rs"),
    ];
    let declared: usize = sources
        .iter()
        .map(|text| text.matches("\nc_struct! {").count())
        .sum();
    assert_eq!(LAYOUTS.len(), declared);
}

#[test]
fn headers_newer_than_release_44_hold_to_the_layout() {
    // From the headers of later releases, where none are installed.
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(std::mem::offset_of!(verbs_context, query_port), 48);
        assert_eq!(std::mem::offset_of!(verbs_context, sz), 360);
        assert_eq!(std::mem::offset_of!(verbs_context, context), 368);
        assert_eq!(std::mem::offset_of!(ibv_qp_ex, wr_flush), 352);
        assert_eq!(std::mem::offset_of!(ibv_port_attr, active_speed_ex), 52);
        assert_eq!(std::mem::offset_of!(ibv_mr_init_attr, dmah), 56);
    }
}
