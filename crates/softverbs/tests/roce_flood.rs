//! An unreliable connection at full speed: nothing slows it down but the sender itself.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{ALL, PATIENCE};
use softverbs::{
    AhAttr, Context, Cq, Device, Mr, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    RecvWr, SendData, SendOp, SendWr, Transport, Wc,
};

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

const LEN: usize = 1 << 20;
const DEPTH: u64 = 100;

fn end() -> End {
    let context = Device::for_address("127.0.0.1".parse().unwrap(), None)
        .unwrap()
        .with_transport(Transport::Roce)
        .open()
        .unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1024, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type: QpType::Uc,
        cap: QpCap {
            max_recv_wr: 512,
            ..QpCap::default()
        },
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = pd.create_qp(&attr).unwrap();
    let mr = pd.alloc_mr(LEN, ALL).unwrap();
    End {
        context,
        cq,
        qp,
        mr,
    }
}

fn join(one: &End, other: &End) {
    let attr = QpAttr {
        qp_state: QpState::Init,
        qp_access_flags: ALL,
        ..QpAttr::default()
    };
    let init =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    one.qp.modify(&attr, init).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 5,
        dest_qp_num: other.qp.qp_num(),
        ah_attr: AhAttr::new(other.context.query_gid(1, 0).unwrap(), 0),
        ..QpAttr::default()
    };
    let rtr = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN;
    one.qp.modify(&attr, rtr).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rts,
        ..attr
    };
    one.qp
        .modify(&attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
        .unwrap();
}

#[test]
fn a_flood_of_long_writes_mostly_arrives() {
    const COUNT: u64 = 200;
    let (one, other) = (end(), end());
    join(&one, &other);
    join(&other, &one);
    for wr_id in 0..COUNT {
        other.qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let data = common::pattern(LEN, 1);
    one.mr.copy_in(0, &data).unwrap();
    let over = AtomicBool::new(false);
    let (arrived, sent) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut arrived = 0_u64;
            let mut room = [Wc::default(); 16];
            let mut quiet = Instant::now();
            while !over.load(Ordering::Relaxed) || quiet.elapsed() < Duration::from_millis(200) {
                let found = other.cq.poll(&mut room).unwrap();
                if found > 0 {
                    quiet = Instant::now();
                }
                for wc in &room[..found] {
                    assert!(wc.is_success() && wc.byte_len as usize == LEN, "{wc:?}");
                    arrived += 1;
                }
            }
            arrived
        });
        let sges = [one.mr.sge(0, LEN)];
        let write = SendOp::WriteWithImm {
            remote_addr: other.mr.addr(),
            rkey: other.mr.rkey(),
            imm: 7,
        };
        let (mut posted, mut done) = (0, 0);
        let mut room = [Wc::default(); 16];
        let end = Instant::now() + PATIENCE;
        while done < COUNT {
            while posted < COUNT && posted - done < DEPTH {
                let wr = SendWr::new(posted, write, SendData::Sges(&sges));
                one.qp.post_send(&wr).unwrap();
                posted += 1;
            }
            let found = one.cq.poll(&mut room).unwrap();
            for wc in &room[..found] {
                assert!(wc.is_success() && wc.wr_id == done, "{wc:?}");
                done += 1;
            }
            assert!(Instant::now() < end, "{done} of {COUNT}");
        }
        over.store(true, Ordering::Relaxed);
        (receiver.join().unwrap(), done)
    });
    // Whoever sends receives in between, so little is lost however slow the machine is.
    assert!(
        arrived <= sent && arrived * 10 >= sent * 9,
        "{arrived} of {sent} arrived"
    );
}
