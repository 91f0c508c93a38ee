use super::*;

fn interface(name: &str, index: u32, addresses: &[&str]) -> Device {
    let flags = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let loopback = if name == "lo" {
        InterfaceFlags::IFF_LOOPBACK
    } else {
        flags
    };
    let mut interface = Interface::new(name.to_owned(), flags | loopback);
    interface.index = index;
    for address in addresses {
        interface.add(address.parse().unwrap());
    }
    interface.complete();
    Device {
        inner: Arc::new(interface),
        transport: Transport::Iwarp,
    }
}

pub(super) fn some_devices() -> Vec<Device> {
    vec![
        interface("nic-a", 2, &["fe80::1", "10.0.0.1", "fd00::1", "10.0.0.2"]),
        interface("nic-b", 3, &["fe80::1", "fe80::2", "10.1.0.1"]),
        interface("lo", 1, &["127.0.0.1", "::1", "192.0.2.9"]),
    ]
}

fn index_of(address: &str, scope: Option<u32>) -> Result<u32> {
    owner(some_devices(), address.parse().unwrap(), scope).map(|device| device.interface_index())
}

#[test]
fn finds_the_owner_of_an_address() {
    assert_eq!(index_of("10.0.0.2", None), Ok(2));
    assert_eq!(index_of("::ffff:10.0.0.2", None), Ok(2));
    assert_eq!(index_of("10.1.0.1", None), Ok(3));
    assert_eq!(index_of("fd00::1", None), Ok(2));
    assert_eq!(index_of("192.0.2.9", None), Ok(1));
    for loopback in ["127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.9"] {
        assert_eq!(index_of(loopback, None), Ok(1), "{loopback}");
    }
    for foreign in ["10.0.0.3", "fd00::2", "0.0.0.0", "::", "::2"] {
        let error = index_of(foreign, None).unwrap_err();
        assert_eq!(error.errno(), libc::ENODEV, "{foreign}");
        assert!(error.to_string().contains(foreign), "{error}");
    }
}

#[test]
fn link_local_addresses_need_a_scope_only_if_ambiguous() {
    assert_eq!(index_of("fe80::1", Some(2)), Ok(2));
    assert_eq!(index_of("fe80::1", Some(3)), Ok(3));
    assert_eq!(index_of("fe80::2", None), Ok(3));
    assert_eq!(index_of("fe80::2", Some(0)), Ok(3));
    let error = index_of("fe80::1", None).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert!(error.to_string().contains("scope"), "{error}");
    assert_eq!(
        index_of("fe80::2", Some(2)).unwrap_err().errno(),
        libc::ENODEV
    );
    // A scope that does not apply is ignored, as by the kernel.
    assert_eq!(index_of("10.0.0.1", Some(77)), Ok(2));
}

#[test]
fn the_first_gid_is_a_usable_one() {
    let device = &some_devices()[0];
    let gids: Vec<String> = (0..4)
        .map(|index| device.gid(1, index).unwrap().to_string())
        .collect();
    assert_eq!(
        gids,
        ["::ffff:10.0.0.1", "::ffff:10.0.0.2", "fd00::1", "fe80::1"]
    );
    let error = device.gid(1, 4).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(error.to_string(), "index: 4 is not in the GID table of 4");
    assert_eq!(
        device.gid(2, 0).unwrap_err().to_string(),
        "port_num: 2 is not 1, the only port"
    );
}

#[test]
fn there_is_one_partition_key() {
    let device = &some_devices()[0];
    assert_eq!(device.pkey(1, 0), Ok(0xffff));
    assert_eq!(device.pkey(1, 1).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(device.pkey(0, 0).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn scopes_go_with_link_local_addresses() {
    let device = &some_devices()[0];
    let address = |text: &str| device.socket_addr(text.parse().unwrap(), 7).to_string();
    assert_eq!(address("fe80::1"), "[fe80::1%2]:7");
    assert_eq!(address("fd00::1"), "[fd00::1]:7");
    assert_eq!(address("10.0.0.1"), "10.0.0.1:7");
}

#[test]
fn this_machine_has_a_loopback_device() {
    let all = devices().unwrap();
    let lo = all.last().expect("a loopback device");
    assert!(lo.is_loopback());
    assert_eq!(lo.name(), "roce_lo");
    assert_eq!(lo.transport(), Transport::Roce);
    let iwarp = lo.with_transport(Transport::Iwarp);
    assert_eq!(iwarp.name(), "iw_lo");
    assert!(!iwarp.same_as(lo) && all.iter().any(|device| device.same_as(&iwarp)));
    assert!(lo.mtu() >= 1500);
    assert!(lo.interface_index() > 0);
    assert!(
        Device::for_address("127.0.0.77".parse().unwrap(), None)
            .unwrap()
            .same_as(&iwarp)
    );
    assert!(
        Device::for_interface_index(lo.interface_index())
            .unwrap()
            .same_as(&iwarp)
    );
    assert_eq!(
        Device::for_interface_index(u32::MAX).unwrap_err().errno(),
        libc::ENODEV
    );
    assert_ne!(lo.gid(1, 0).unwrap(), Gid::default());

    let port = lo.port_attr(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.active_mtu, IbMtu::Mtu4096);
    assert_eq!(port.gid_tbl_len as usize, lo.addresses().len());
    assert_eq!(lo.port_attr(2).unwrap_err().errno(), libc::EINVAL);

    for device in &all {
        assert!(!device.addresses().is_empty());
        assert_ne!(device.node_guid(), 0);
        assert_eq!(device.node_guid(), device.attr().node_guid);
        for address in device.addresses() {
            let owner = Device::for_address(*address, Some(device.interface_index())).unwrap();
            let owner = owner.with_transport(device.transport());
            assert!(owner.same_as(device), "{address}");
        }
    }
}

#[test]
fn guids_come_from_the_mac_address() {
    let mut nic = Interface::new("nic".to_owned(), InterfaceFlags::IFF_UP);
    nic.mac = Some([0x02, 0xfc, 0x00, 0x00, 0x00, 0x01]);
    let device = Device {
        inner: Arc::new(nic),
        transport: Transport::Iwarp,
    };
    assert_eq!(device.node_guid(), 0x00fc_00ff_fe00_0001);
}
